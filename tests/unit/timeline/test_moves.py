"""Moves of K/V entries in a timeline: spans on streams of their own, a part of the digest, kept on disk, and judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pass_templates import pair

from clustersim.errors import InputError
from clustersim.timeline.digest import MOVES
from clustersim.timeline.files import load_timeline, save_timeline
from clustersim.timeline.layout import Layout
from clustersim.timeline.merge import absorb
from clustersim.timeline.record import Durations, Recorder
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.tables import ALL_HEADS, ALL_LAYERS, HOST, MOVE_COLUMNS
from clustersim.timeline.timeline import timeline_of

HAND_OVER = (7, 0, 1, 1, 2, ALL_LAYERS, 4, 2, 0, 32, 4_096, 200, 260)
SWAP = (5, 0, 0, 0, HOST, ALL_LAYERS, ALL_HEADS, ALL_HEADS, 0, 16, 2_048, 300, 330)
BACK = (5, 0, HOST, 0, 0, ALL_LAYERS, ALL_HEADS, ALL_HEADS, 0, 16, 2_048, 400, 430)


def recorder(*moves: tuple[int, ...]) -> Recorder:
    """One pass on both ranks of replica 0, of 130 ns, and moves."""
    found = Recorder([pair()])
    found.run(0, 0, 0, 0, np.array([0]), Durations.of_one(np.array([100, 30])))
    found.step(0, 0, 1, -1, 1, 0, 130, 1, 0, 1, 5, 0, 1, 2, 9)
    for move in moves:
        found.move(*move)
    return found


def frozen(*moves: tuple[int, ...]):
    return timeline_of(recorder(*moves), Layout.of_one(sp=1, tp=2, stages=1))


def test_a_move_is_a_span_on_each_rank_that_it_leaves_or_reaches():
    timeline = frozen(HAND_OVER, SWAP, BACK)
    spans = timeline.unfold(start_ns=130)
    found = [
        (start, end, rank, STREAMS[stream], spans.names[name], replica)
        for start, end, rank, stream, name, replica in zip(
            spans.start_ns, spans.end_ns, spans.rank, spans.stream, spans.name, spans.replica, strict=True
        )
    ]
    assert found == [
        (200, 260, 1, "kv_out", "hand_over", 0),
        (200, 260, 2, "kv_in", "hand_over", 1),
        (300, 330, 0, "kv_out", "swap", 0),
        (400, 430, 0, "kv_in", "swap", 0),
    ]
    assert set(spans.step) == {-1}
    assert timeline.num_spans == frozen().num_spans + 4 == len(timeline.unfold())
    assert timeline.end_ns == 430


def test_moves_unfold_in_a_window_and_on_ranks_like_other_spans():
    timeline = frozen(HAND_OVER, SWAP)
    assert timeline.unfold(210, 240, ranks=[2]).rank.tolist() == [2]
    assert len(timeline.unfold(260, 300)) == 0


@pytest.mark.parametrize("column", MOVES)
def test_the_digest_covers_what_does_not_follow_from_the_plans(column):
    changed = tuple(value + (name == column) for name, value in zip(MOVE_COLUMNS, HAND_OVER, strict=True))
    assert frozen(HAND_OVER).digest != frozen(changed).digest


def test_the_digest_does_not_depend_on_the_order_of_moves():
    assert frozen(HAND_OVER, SWAP).digest == frozen(SWAP, HAND_OVER).digest
    assert frozen(HAND_OVER).digest != frozen().digest


def test_what_another_recorder_moved_is_absorbed():
    one = recorder(HAND_OVER)
    absorb(one, Recorder([pair()]).tables(Layout.of_one(sp=1, tp=2, stages=1)))
    other = Recorder([pair()])
    absorb(other, one.tables(Layout.of_one(sp=1, tp=2, stages=1)))
    assert timeline_of(other, Layout.of_one(sp=1, tp=2, stages=1)).digest == frozen(HAND_OVER).digest


def test_moves_are_kept_on_disk(tmp_path):
    (tmp_path / "timeline").mkdir()
    save_timeline(frozen(HAND_OVER, SWAP, BACK), tmp_path / "timeline")
    read = load_timeline(tmp_path)
    rows = np.stack([read.moves[name].astype(np.int64) for name in MOVE_COLUMNS], axis=1)
    assert rows.tolist() == [list(move) for move in (HAND_OVER, SWAP, BACK)]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("from_rank", 2, "2 in row 1 can't be; expected a rank of from_replica, or -1 for its host"),
        ("to_rank", HOST, "expected a rank, or the host of a rank of the same replica"),
        ("tokens", 0, "0 in row 1 can't be; expected 1 to"),
        ("end_ns", 199, "199 in row 1 can't be; expected at least the 200 of start_ns"),
        ("layer", -2, "-2 in row 1 can't be; expected -1 to"),
    ],
)
def test_moves_that_can_not_be_are_refused(tmp_path, column, value, message):
    timeline = frozen(HAND_OVER)
    (tmp_path / "timeline").mkdir()
    changed = timeline.moves[column].copy()
    changed[0] = value
    save_timeline(replace(timeline, moves={**timeline.moves, column: changed}), tmp_path / "timeline")
    with pytest.raises(InputError, match=r"moves\.parquet") as found:
        load_timeline(tmp_path)
    assert message in str(found.value)
