"""First, last and count of tokens, and the gaps between them, from prompt chunks and episodes of decoding.

A recorded step is (requests whose prompt it completed, requests that decode, end); steps follow each other.
"""

from __future__ import annotations

import numpy as np
from pass_templates import pair

from clustersim.timeline import tokens
from clustersim.timeline.layout import Layout
from clustersim.timeline.record import Durations, Recorder
from clustersim.timeline.timeline import timeline_of
from clustersim.timeline.tokens import TokenInstants, token_times


def recorded(*steps, slots=1):
    """Record steps of one replica, one by one."""
    recorder = Recorder([], slots=slots)
    for number, (sampled, decoding, end) in enumerate(steps):
        for request in sampled:
            recorder.chunk(0, number, request, 0, 4, sampled=True)
        slot = recorder.decoded(0, number, 1, tuple(decoding))
        recorder.step(0, number, 1, slot, 1, 0, end, 1, 0, 1, 5, 0, 1, 2, 9)
    return timeline_of(recorder, Layout.of_one(sp=1, tp=1, stages=1))


def times(*steps, requests=3):
    return token_times(recorded(*steps), requests)


def gaps(found):
    return dict(zip(found.gaps[0].tolist(), found.gaps[1].tolist(), strict=True))


def test_steps_give_each_request_of_their_slot_a_token():
    found = times(((), [0, 2], 10), ((), [0, 2], 20), ((), [0, 2], 35))
    assert found.first_ns.tolist() == [10, -1, 10]
    assert found.last_ns.tolist() == [35, -1, 35]
    assert found.count.tolist() == [3, 0, 3]
    assert gaps(found) == {10: 2, 15: 2}


def test_a_run_of_steps_ends_each_step_where_the_next_pass_starts():
    recorder = Recorder([pair()])
    varying = Durations(row=np.array([0, 30]), columns=(0,), varying=np.array([[100], [101], [104]]))
    recorder.chunk(0, 0, 1, 0, 4, sampled=True)
    recorder.step(0, 0, 1, -1, 0, 0, 40, 1, 4, 0, 0, 0, 1, 2, 9)
    recorder.run(0, 0, 0, 1, np.array([40, 170, 301]), varying)
    recorder.step(0, 1, 3, recorder.decoded(0, 1, 3, (1,)), 1, 40, 435, 1, 0, 1, 5, 0, 1, 2, 9)
    timeline = timeline_of(recorder, Layout.of_one(sp=1, tp=2, stages=1))
    assert [instants.tolist() for instants in TokenInstants(timeline).of([1, 0])] == [[40, 170, 301, 435], []]
    assert gaps(token_times(timeline, 2)) == {130: 1, 131: 1, 134: 1}


def test_the_first_token_is_that_of_the_prompt_and_the_gap_after_it_counts():
    found = times(([0], (), 10), ([1], [0], 30), ((), [0, 1], 35))
    assert found.first_ns.tolist() == [10, 30, -1]
    assert found.last_ns.tolist() == [35, 35, -1]
    assert found.count.tolist() == [3, 2, 0]
    assert gaps(found) == {20: 1, 5: 2}


def test_a_step_of_prompts_alone_is_inside_the_gap_of_those_that_decode():
    found = times(((), [0], 10), ([1], (), 50), ((), [0, 1], 60))
    assert gaps(found) == {50: 1, 10: 1}
    assert found.count.tolist() == [2, 2, 0]


def test_a_request_that_steps_skip_waits_from_its_last_token_to_its_next():
    # Request 0 waits from 10 to 50, request 1 from 20 to 50.
    found = times(((), [0, 1], 10), ((), [1], 20), ((), [0, 1], 50))
    assert gaps(found) == {10: 1, 30: 1, 40: 1}


def test_a_preempted_request_gets_its_next_token_when_all_are_computed_anew():
    timeline = recorded(((), [0, 1], 10), ((), [0], 20), ([1], (), 70), ((), [0, 1], 80))
    assert [instants.tolist() for instants in TokenInstants(timeline).of([0, 1])] == [[10, 20, 80], [10, 70, 80]]
    assert gaps(token_times(timeline, 2)) == {10: 2, 60: 2}


def test_tokens_of_two_slots_are_those_of_their_own_steps():
    timeline = recorded(((), [0], 10), ((), [1], 14), ((), [0], 30), ((), [1], 35), slots=2)
    assert [instants.tolist() for instants in TokenInstants(timeline).of([0, 1])] == [[10, 30], [14, 35]]
    assert gaps(token_times(timeline, 2)) == {20: 1, 21: 1}


def test_tokens_of_replicas_do_not_mix():
    recorder = Recorder([])
    for replica in (2, 0):
        for step in range(2):
            slot = recorder.decoded(replica, step, 1, (replica,))
            recorder.step(replica, step, 1, slot, 1, 0, 10 + step * (5 + replica), 1, 0, 1, 5, 0, 1, 2, 9)
    timeline = timeline_of(recorder, Layout.of_one(sp=1, tp=1, stages=1))
    assert [instants.tolist() for instants in TokenInstants(timeline).of(range(3))] == [[10, 15], [], [10, 17]]
    assert gaps(token_times(timeline, 3)) == {5: 1, 7: 1}


def test_the_last_token_of_one_request_and_the_first_of_the_next_are_no_gap():
    assert gaps(times(([0], (), 10), ([1], (), 20), ([2], (), 30))) == {}


def test_without_tokens_all_is_never():
    found = times(requests=2)
    assert found.first_ns.tolist() == found.last_ns.tolist() == [-1, -1]
    assert found.count.tolist() == [0, 0]
    assert gaps(found) == {}


def test_a_chunk_that_samples_nothing_is_no_token():
    recorder = Recorder([])
    recorder.chunk(0, 0, 0, 0, 4, sampled=False)
    recorder.step(0, 0, 1, -1, 0, 0, 10, 1, 4, 0, 0, 0, 1, 2, 9)
    found = token_times(timeline_of(recorder, Layout.of_one(sp=1, tp=1, stages=1)), 1)
    assert (found.first_ns.tolist(), found.count.tolist(), gaps(found)) == ([-1], [0], {})


def test_gaps_do_not_depend_on_how_many_steps_are_pooled_at_a_time(monkeypatch):
    steps = [((), [0, 1][: 1 + (number > 3)], 10 * number + number % 3) for number in range(1, 12)]
    whole = gaps(times(*steps))
    assert sum(whole.values()) == 10 + 7
    for size in (1, 2, 3, 4, 10):
        monkeypatch.setattr(tokens, "POOLED_STEPS", size)
        assert gaps(times(*steps)) == whole
