"""What the recorder folds, counts and digests; a pass is two GEMMs and an all-reduce (``pass_templates.pair``)."""

from __future__ import annotations

import numpy as np
import pytest
from pass_templates import pair

from clustersim.timeline.record import Durations, Recorder
from clustersim.timeline.timeline import timeline_of

ROW = np.array([100, 30])


def nodes(recorder, start, gemm_ends, end, durations=ROW):
    """Record one pass node by node: the GEMMs start with it, the all-reduce when both have ended."""
    starts = np.array([start, start, max(gemm_ends)])
    recorder.nodes(0, 0, 0, 0, start, durations, starts, np.array([*gemm_ends, end]))


def runs(recorder, *starts):
    recorder.run(0, 0, 0, 0, np.array(starts), Durations(row=ROW, columns=(), varying=np.empty((len(starts), 0), int)))


def frozen(recorder):
    return timeline_of(recorder, sp=1, tp=2, stages=1)


def test_durations_table_puts_varying_columns_into_the_row():
    durations = Durations(row=np.array([7, 0, 9]), columns=(1,), varying=np.array([[1], [2]]))
    assert durations.table().tolist() == [[7, 1, 9], [7, 2, 9]]


def test_nodes_as_their_durations_imply_are_folded():
    one, other = Recorder([pair()]), Recorder([pair()])
    nodes(one, 50, (150, 150), 180)
    runs(other, 50)
    assert one.digest() == other.digest()
    assert one.irregular == []
    assert one.passes.table().tolist() == other.passes.table().tolist()


def test_nodes_that_were_stretched_are_kept_one_by_one():
    recorder = Recorder([pair()])
    nodes(recorder, 50, (150, 150), 190)
    spans = frozen(recorder).unfold(end_ns=10**10)
    assert spans.start_ns.tolist() == [50, 50, 150, 150]
    assert spans.end_ns.tolist() == [150, 150, 190, 190]


def test_a_stretched_pass_of_seconds_unfolds_to_the_times_that_were_recorded():
    """3 s are more nanoseconds than an int32 holds."""
    recorder = Recorder([pair()])
    nodes(recorder, 50, (150, 150), 3_000_000_050)
    assert frozen(recorder).unfold(end_ns=10**10).end_ns.max() == 3_000_000_050


def test_a_stretched_pass_has_another_digest():
    digests = set()
    for end in (180, 190, 191):
        recorder = Recorder([pair()])
        nodes(recorder, 50, (150, 150), end)
        digests.add(recorder.digest())
    assert len(digests) == 3


def test_passes_one_by_one_and_in_runs_have_the_same_digest():
    one, other = Recorder([pair()]), Recorder([pair()])
    runs(one, 0, 130, 260)
    runs(other, 0)
    runs(other, 130, 260)
    assert one.digest() == other.digest()


def test_varying_columns_and_whole_rows_have_the_same_digest():
    one, other = Recorder([pair()]), Recorder([pair()])
    one.run(
        0, 0, 0, 0, np.array([0, 131]), Durations(row=np.array([0, 30]), columns=(0,), varying=np.array([[101], [102]]))
    )
    for start, gemm in ((0, 101), (131, 102)):
        other.run(0, 0, 0, 0, np.array([start]), Durations.of_one(np.array([gemm, 30])))
    assert one.digest() == other.digest()


@pytest.mark.parametrize(
    "change",
    [
        lambda r: runs(r, 1),
        lambda r: r.run(0, 0, 0, 0, np.array([0]), Durations.of_one(ROW + 1)),
        lambda r: r.run(1, 0, 0, 0, np.array([0]), Durations.of_one(ROW)),
        lambda r: r.run(0, 1, 0, 0, np.array([0]), Durations.of_one(ROW)),
        lambda r: r.run(0, 0, 1, 0, np.array([0]), Durations.of_one(ROW)),
        lambda r: (runs(r, 0), r.transfer(0, 0, 0, np.array([5, 5]), np.array([6, 6]))),
        lambda r: (runs(r, 0), r.tokens(0, np.array([3]), np.array([130]))),
        lambda r: (runs(r, 0), r.replica_facts(0, [(0, 2, 3, 4)])),
        lambda r: (runs(r, 0), r.arrival(0, 0, 3, 0, 4)),
    ],
    ids=["start", "durations", "replica", "stage", "template", "transfer", "tokens", "facts", "arrival"],
)
def test_digest_changes_with(change):
    plain, changed = (Recorder([pair(), pair(kind="mixed")]) for _ in range(2))
    runs(plain, 0)
    change(changed)
    assert plain.digest() != changed.digest()


def test_digest_tells_what_operators_are_called():
    one = Recorder([pair()])
    other = Recorder([pair(symbols=(("down", "gemm", "ffn"), ("sum", "all_reduce", "ffn")))])
    for recorder in (one, other):
        runs(recorder, 0)
    assert one.digest() != other.digest()


def test_digest_does_not_depend_on_how_replicas_interleave():
    one, other = Recorder([pair()]), Recorder([pair()])
    for recorder, order in ((one, (0, 1)), (other, (1, 0))):
        for replica in order:
            recorder.run(replica, 0, 0, 0, np.array([0]), Durations.of_one(ROW))
    assert one.digest() == other.digest()


def test_spans_are_counted_by_rank_with_both_ends_of_a_send():
    recorder = Recorder([pair()])
    runs(recorder, 0, 130)
    recorder.transfer(0, 0, 0, np.array([130, 130]), np.array([140, 140]))
    recorder.transfer(0, 0, 1, np.array([260, 0]), np.array([270, 0]))  # Rank 1 idles.
    assert recorder.num_spans == 2 * 4 + 2 * 2 + 2 * 1


def test_steps_are_counted_with_their_count():
    recorder = Recorder([pair()])
    recorder.step(0, 0, 3, 1, 0, 390, 1, 0, 1, 5, 0, 1, 2, 9)
    recorder.step(0, 3, 1, 1, 390, 520, 1, 0, 1, 8, 0, 1, 2, 9)
    assert recorder.num_steps == 4


def test_equal_rows_are_stored_once():
    recorder = Recorder([pair()])
    runs(recorder, 0)
    runs(recorder, 130)
    assert len(recorder.rows) == 1
