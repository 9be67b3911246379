"""First, last and count of tokens, and the gaps between them, from runs of steps."""

from __future__ import annotations

import numpy as np

from clustersim.timeline.record import Recorder
from clustersim.timeline.timeline import timeline_of
from clustersim.timeline.tokens import token_times


def times(*runs, requests=3):
    """Record runs of (requests, step ends) on one replica and return their token times."""
    recorder = Recorder([])
    for ids, ends in runs:
        recorder.tokens(0, np.array(ids, np.int64), np.array(ends, np.int64))
    return token_times(timeline_of(recorder, sp=1, tp=1, stages=1), requests)


def gaps(found):
    return dict(zip(found.gaps[0].tolist(), found.gaps[1].tolist(), strict=True))


def test_a_run_of_steps_gives_each_request_a_token_per_step():
    found = times(([0, 2], [10, 20, 35]))
    assert found.first_ns.tolist() == [10, -1, 10]
    assert found.last_ns.tolist() == [35, -1, 35]
    assert found.count.tolist() == [3, 0, 3]


def test_gaps_within_a_run_count_for_every_request():
    assert gaps(times(([0, 2], [10, 20, 35]))) == {10: 2, 15: 2}


def test_gaps_between_runs_are_those_of_each_request():
    # Request 0 waits from 20 to 50, request 1 from 10 to 50.
    assert gaps(times(([0, 1], [10]), ([0], [20]), ([0, 1], [50]))) == {10: 1, 30: 1, 40: 1}


def test_the_last_token_of_one_request_and_the_first_of_the_next_are_no_gap():
    assert gaps(times(([0], [10]), ([1], [20]), ([2], [30]))) == {}


def test_without_tokens_all_is_never():
    found = times(requests=2)
    assert found.first_ns.tolist() == found.last_ns.tolist() == [-1, -1]
    assert gaps(found) == {}


def test_a_step_that_samples_nothing_is_no_token():
    found = times(([], [10]), ([0], [20]), requests=1)
    assert (found.first_ns.tolist(), found.count.tolist(), gaps(found)) == ([20], [1], {})
