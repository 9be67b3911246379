"""Unfolding: which spans a window and a choice of ranks show. A pass is 100 ns of GEMM, 30 ns of all-reduce."""

from __future__ import annotations

import numpy as np
import pytest
from pass_templates import pair

from clustersim.timeline.layout import Layout
from clustersim.timeline.record import Durations, Recorder
from clustersim.timeline.timeline import Timeline, timeline_of

ROW = np.array([100, 30])


def timeline(*, stages: int = 1, dp: int = 1) -> Timeline:
    """Three passes of 130 ns per replica and stage from 0 on; with two stages a send of 10 ns after each."""
    recorder = Recorder([pair()])
    for replica in range(dp):
        for stage in range(stages):
            starts = np.array([0, 130, 260]) + 140 * stage
            durations = Durations(row=ROW, columns=(), varying=np.empty((3, 0), np.int64))
            recorder.run(replica, stage, 0, 0, starts, durations)
        for step in range(3 if stages > 1 else 0):
            left = np.full(2, 130 * (step + 1))
            recorder.transfer(replica, 0, step, left, left + 10, left)
        recorder.step(replica, 0, 3, 0, 1, 0, 390 + 140 * (stages - 1), 1, 0, 1, 5, 0, 1, 2, 9)
    return timeline_of(recorder, Layout.of_one(sp=1, tp=2, stages=stages))


def rows(spans, *columns):
    return list(zip(*(getattr(spans, column).tolist() for column in columns), strict=True))


def test_unfold_gives_every_span_sorted_by_start_rank_and_stream():
    spans = timeline().unfold(0, 130)
    assert rows(spans, "start_ns", "end_ns", "rank", "stream") == [
        (0, 100, 0, 0), (0, 100, 1, 0), (100, 130, 0, 1), (100, 130, 1, 1)
    ]  # fmt: skip


def test_spans_that_start_together_are_sorted_by_rank_before_stream():
    spans = timeline(stages=2).unfold(130, 131)
    assert [row for row in rows(spans, "start_ns", "rank", "stream") if row[0] == 130] == [
        (130, 0, 0), (130, 0, 2), (130, 1, 0), (130, 1, 2), (130, 2, 3), (130, 3, 3)
    ]  # fmt: skip


def test_unfold_by_default_gives_as_many_spans_as_were_counted():
    one = timeline(stages=2, dp=2)
    assert one.num_spans == 2 * (2 * 3 * 4 + 3 * 2 * 2)
    assert len(one.unfold()) == one.num_spans


def test_unfold_names_operators_and_their_place():
    spans = timeline(stages=2, dp=2).unfold(530, 531)
    # At 530 only the last pass of stage 1 goes on (from 400): the all-reduce has run since 500, on ranks 2, 3, 6, 7.
    assert rows(spans, "rank", "replica", "stage", "step", "layer") == []
    spans = timeline(stages=2, dp=2).unfold(529, 530)
    assert rows(spans, "rank", "replica", "stage", "step", "layer") == [
        (2, 0, 1, 2, 0), (3, 0, 1, 2, 0), (6, 1, 1, 2, 0), (7, 1, 1, 2, 0)
    ]  # fmt: skip
    assert {(spans.names[n], spans.ops[o]) for n, o in rows(spans, "name", "op")} == {("sum", "all_reduce")}


@pytest.mark.parametrize(
    ("window", "starts"),
    [
        ((0, 1), [0]),
        ((99, 100), [0]),
        ((100, 101), [100]),
        ((99, 101), [0, 100]),
        ((130, 130), []),
        ((389, 999), [360]),
    ],
)
def test_a_window_is_half_open_and_shows_what_overlaps_it(window, starts):
    assert timeline().unfold(*window, ranks=[0]).start_ns.tolist() == starts


def test_windows_side_by_side_show_each_span_that_starts_in_them_once():
    one = timeline(stages=2)
    starts = [
        start
        for begin in range(0, 600, 50)
        for start in one.unfold(begin, begin + 50).start_ns.tolist()
        if start >= begin
    ]
    assert sorted(starts) == sorted(one.unfold().start_ns.tolist())


def test_a_send_is_a_span_on_the_sender_and_on_the_receiver():
    spans = timeline(stages=2).unfold(130, 140)
    chosen = [row for row in rows(spans, "rank", "stream", "stage", "start_ns", "end_ns") if row[1] in (2, 3)]
    assert chosen == [(0, 2, 0, 130, 140), (1, 2, 0, 130, 140), (2, 3, 1, 130, 140), (3, 3, 1, 130, 140)]


def test_unfold_of_a_pass_in_the_middle_of_a_run_takes_its_own_durations():
    recorder = Recorder([pair()])
    varying = Durations(row=np.array([0, 30]), columns=(0,), varying=np.array([[100], [101], [102]]))
    recorder.run(0, 0, 0, 7, np.array([0, 130, 261]), varying)
    recorder.step(0, 7, 3, 0, 1, 0, 393, 1, 0, 1, 5, 0, 1, 2, 9)
    spans = timeline_of(recorder, Layout.of_one(sp=1, tp=2, stages=1)).unfold(200, 280, ranks=[1])
    assert rows(spans, "start_ns", "end_ns", "step") == [(130, 231, 8), (231, 261, 8), (261, 363, 9)]


def test_unfold_shows_the_end_of_the_longest_pass_of_a_run():
    recorder = Recorder([pair()])
    varying = Durations(row=np.array([0, 30]), columns=(0,), varying=np.array([[100], [200]]))
    recorder.run(0, 0, 0, 0, np.array([0, 130]), varying)
    spans = timeline_of(recorder, Layout.of_one(sp=1, tp=2, stages=1)).unfold(359, 360)
    assert rows(spans, "start_ns", "end_ns") == [(330, 360), (330, 360)]


def test_a_timeline_of_nothing_unfolds_to_nothing():
    empty = timeline_of(Recorder([pair()]), Layout.of_one(sp=1, tp=2, stages=1))
    assert len(empty.unfold()) == 0
    assert empty.end_ns == 0


def test_in_a_pass_that_is_no_chain_streams_run_side_by_side():
    # The all-reduce needs nothing: it starts with the pass, beside the GEMMs.
    template = pair(after=((), ()))
    assert not template.is_chain
    assert template.ends(ROW).tolist() == [100, 30]
    assert template.pass_times(ROW) == (100, (30,))


def test_in_a_pass_that_is_no_chain_a_stream_runs_in_order():
    template = pair(after=((), ()), instance_s=((0,), (0, 1)), instance_stream=np.array([0, 0]))
    assert template.ends(ROW).tolist() == [100, 130]
