"""What the recorder folds and counts; a pass is two GEMMs and an all-reduce (``pass_templates.pair``)."""

from __future__ import annotations

import numpy as np
from pass_templates import pair

from clustersim.timeline.layout import Layout
from clustersim.timeline.record import Durations, Recorder
from clustersim.timeline.timeline import timeline_of

ROW = np.array([100, 30])


def nodes(recorder, start, gemm_ends, end, durations=ROW):
    """Record one pass node by node: the GEMMs start with it, the all-reduce when both have ended."""
    starts = np.array([start, start, max(gemm_ends)])
    recorder.nodes(0, 0, 0, 0, start, durations, starts, np.array([*gemm_ends, end]))


def runs(recorder, *starts, first_step=0):
    durations = Durations(row=ROW, columns=(), varying=np.empty((len(starts), 0), int))
    recorder.run(0, 0, 0, first_step, np.array(starts), durations)


def frozen(recorder):
    return timeline_of(recorder, Layout.of_one(sp=1, tp=2, stages=1))


def test_durations_table_puts_varying_columns_into_the_row():
    durations = Durations(row=np.array([7, 0, 9]), columns=(1,), varying=np.array([[1], [2]]))
    assert durations.table().tolist() == [[7, 1, 9], [7, 2, 9]]


def test_nodes_as_their_durations_imply_are_folded():
    one, other = Recorder([pair()]), Recorder([pair()])
    nodes(one, 50, (150, 150), 180)
    runs(other, 50)
    assert one.irregular == []
    assert frozen(one).digest == frozen(other).digest
    for name, values in frozen(other).passes.items():
        assert frozen(one).passes[name].tolist() == values.tolist()


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


def test_starts_are_stored_only_where_they_do_not_follow_from_durations():
    recorder = Recorder([pair()])
    runs(recorder, 7)
    runs(recorder, 1_000, 1_130, 1_260, first_step=1)
    assert len(recorder.starts) == 0
    runs(recorder, 2_000, 2_131, first_step=4)
    assert recorder.starts.array().tolist() == [2_000, 2_131]
    assert [frozen(recorder).starts_of(run).tolist() for run in range(3)] == [
        [7], [1_000, 1_130, 1_260], [2_000, 2_131]
    ]  # fmt: skip


def test_starts_of_passes_that_are_no_chain_are_stored():
    recorder = Recorder([pair(after=((), ()))])
    runs(recorder, 0, 130)
    assert recorder.starts.array().tolist() == [0, 130]


def test_starts_follow_from_durations_that_vary():
    recorder = Recorder([pair()])
    varying = Durations(row=np.array([0, 30]), columns=(0,), varying=np.array([[100], [101], [102]]))
    recorder.run(0, 0, 0, 0, np.array([5, 135, 266]), varying)
    assert len(recorder.starts) == 0
    assert frozen(recorder).starts_of(0).tolist() == [5, 135, 266]
    assert frozen(recorder).durations(0).tolist() == [[100, 30], [101, 30], [102, 30]]


def test_spans_are_counted_by_rank_with_both_ends_of_a_send():
    recorder = Recorder([pair()])
    runs(recorder, 0, 130)
    recorder.transfer(0, 0, 0, np.array([130, 130]), np.array([140, 140]), np.array([8, 8]))
    recorder.transfer(0, 0, 1, np.array([260, 0]), np.array([270, 0]), np.array([8, 0]))  # Rank 1 idles.
    assert frozen(recorder).num_spans == 2 * 4 + 2 * 2 + 2 * 1


def test_steps_are_counted_with_their_count():
    recorder = Recorder([pair()])
    recorder.step(0, 0, 3, 0, 1, 0, 390, 1, 0, 1, 5, 0, 1, 2, 9)
    recorder.step(0, 3, 1, 0, 1, 390, 520, 1, 0, 1, 8, 0, 1, 2, 9)
    assert frozen(recorder).num_steps == 4


def test_equal_rows_are_stored_once():
    recorder = Recorder([pair()])
    runs(recorder, 0)
    runs(recorder, 130, first_step=1)
    assert len(recorder.rows) == 1


def test_rows_have_numbers_by_template_values_and_what_varies():
    recorder = Recorder([pair(), pair(kind="mixed")])
    assert [recorder.row(0, ROW), recorder.row(1, ROW), recorder.row(0, ROW, (1,)), recorder.row(0, ROW)] == [
        0,
        1,
        2,
        0,
    ]


def test_what_is_put_in_in_bulk_is_as_one_by_one():
    one, other = Recorder([pair()]), Recorder([pair()])
    runs(one, 0)
    runs(one, 130, 260, first_step=1)
    row = other.row(0, ROW)
    columns = {"replica": [0, 0], "stage": [0, 0], "template": [0, 0], "first_step": [0, 1], "steps": [1, 2],
               "start_ns": [0, 130], "row": [row, row], "starts_at": [-1, -1], "varying_at": [0, 0],
               "irregular": [-1, -1]}  # fmt: skip
    other.passes.extend_columns(**{name: np.array(values) for name, values in columns.items()})
    assert frozen(one).digest == frozen(other).digest
    assert frozen(one).unfold(0, 1_000).start_ns.tolist() == frozen(other).unfold(0, 1_000).start_ns.tolist()
