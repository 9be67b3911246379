"""What happens in which order at one instant: completions, network, arrivals, scheduling, the end; then by number.

A prefill of 4 tokens takes 6,700 ns, of 1 token 6,610 ns (see ``tests.round_numbers``).
"""

from __future__ import annotations

from time import process_time

import pytest

from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.events.clock import Clock
from clustersim.replay.instant import COMPLETION, COPY, NETWORK, at
from clustersim.serving.decision import ADMITTED
from tests.oracle.events.replica import Replica
from tests.oracle.replay.instant import ARRIVAL, DEPARTURE, END, HAND_OVER, SCHEDULING
from tests.oracle.run import replay_by_oracle
from tests.round_numbers import deployment, step_ends

MODES = pytest.mark.parametrize("mode", ["full", "folded"])


def step_rows(result, *columns):
    """Columns of the rows of steps."""
    steps = result.timeline.steps
    return list(zip(*(steps[name].tolist() for name in columns), strict=True))


def test_events_of_an_instant_go_by_phase_and_then_by_serial_number():
    env, seen = Clock(initial_time=0), []
    for phase in (END, SCHEDULING, DEPARTURE, ARRIVAL, HAND_OVER, COPY, NETWORK, COMPLETION):
        for serial in range(2):
            at(env, 5, phase, seen.append, (phase, serial))
    at(env, 4, END, seen.append, "before")
    env.run()
    assert seen == ["before", *((phase, serial) for phase in range(8) for serial in range(2))]


def test_a_completion_asked_for_by_an_arrival_comes_before_scheduling():
    env, seen = Clock(initial_time=0), []
    at(env, 5, SCHEDULING, seen.append, "scheduling")
    at(env, 5, ARRIVAL, lambda _: at(env, 0, COMPLETION, seen.append, "completion"))
    env.run()
    assert seen == ["completion", "scheduling"]


@MODES
@pytest.mark.parametrize(("arrival", "second_start"), [(6_700, 6_700), (6_701, 13_350)])
def test_an_arrival_exactly_at_a_step_end_is_in_the_next_step(run, mode, arrival, second_start):
    # Steps of request 0: 0 … 6,700 (prefill), 6,700 … 13,350 (decode of 5 keys).
    result = run(deployment([(0, 4, 9), (arrival, 1, 1)], mode=mode))
    assert (second_start, 1, 1) in step_rows(result, "start_ns", "prefill_tokens", "decode_tokens")


@MODES
def test_an_arrival_exactly_at_a_step_end_inside_a_run_is_in_the_next_step(run, mode):
    # Decodes of 5, 6, 7 keys end at 13,350, 20,010 and 26,680.
    result = run(deployment([(0, 4, 9), (20_010, 1, 1)], mode=mode))
    assert (20_010, 1, 1) in step_rows(result, "start_ns", "prefill_tokens", "decode_tokens")


@MODES
def test_completions_come_before_arrivals(run, mode):
    # At 6,700 request 0 ends on replica 0 and request 2 arrives: replica 0 has nothing outstanding then, replica 1
    # has the 3 tokens of request 1.
    given = deployment(
        [(0, 4, 1), (0, 1, 2), (6_700, 1, 1)], mode=mode, plan=ParallelPlan(dp=2), router="least_outstanding"
    )
    assert run(given).replica.tolist() == [0, 1, 0]


@MODES
def test_arrivals_come_before_scheduling(run, mode):
    # The second of two arrivals at one instant is in the step that the first one wakes the replica for.
    result = run(deployment([(5, 4, 1), (5, 1, 1)], mode=mode))
    assert step_rows(result, "start_ns", "prefill_tokens") == [(5, 5)]


@MODES
def test_simultaneous_arrivals_are_routed_in_file_order(run, mode):
    # 10 + 1 tokens to replica 0, 1 + 1 to replica 1, and the next again to replica 1.
    arrivals = [(7, 10, 1), (7, 1, 1), (7, 2, 1)]
    result = run(deployment(arrivals, mode=mode, plan=ParallelPlan(dp=2), router="least_outstanding"))
    assert result.replica.tolist() == [0, 1, 1]


@MODES
def test_simultaneous_arrivals_are_admitted_in_file_order(run, mode):
    result = run(deployment([(7, 9, 1), (7, 1, 1), (7, 5, 1)], mode=mode, max_batch_requests=1))
    facts = result.timeline.facts
    assert facts["request"][facts["kind"] == ADMITTED].tolist() == [0, 1, 2]


@MODES
def test_in_a_closed_loop_the_next_request_arrives_when_one_ends_and_is_in_the_next_step(run, mode):
    result = run(deployment([(0, 4, 1), (0, 4, 1), (0, 4, 1)], mode=mode, concurrency=1))
    assert result.arrived_ns.tolist() == [0, 6_700, 13_400]
    assert step_rows(result, "start_ns", "end_ns") == [(0, 6_700), (6_700, 13_400), (13_400, 20_100)]


@MODES
def test_in_a_closed_loop_a_rejected_request_makes_room_at_once(run, mode):
    result = run(deployment([(0, 9_999, 1), (0, 9_999, 1), (0, 4, 1)], mode=mode, concurrency=1))
    assert result.arrived_ns.tolist() == [0, 0, 0]


@MODES
def test_a_closed_loop_of_more_clients_than_requests_costs_no_more(run, mode):
    began = process_time()
    result = run(deployment([(0, 4, 1), (0, 4, 1)], mode=mode, concurrency=10**8))
    assert result.arrived_ns.tolist() == [0, 0]
    assert process_time() - began < 2


def test_replicas_that_wake_at_one_instant_are_scheduled_by_number(monkeypatch):
    # Request 0 goes to replica 0 and is rejected. Request 1 starts on replica 1 at 0, request 2 on replica 0 at 90:
    # both steps end at 6,700, that of replica 1 first (its event is older).
    calls = []
    schedule = Replica.schedule

    def logged(self):
        calls.append((self.env.now, self.index))
        schedule(self)

    monkeypatch.setattr(Replica, "schedule", logged)
    replay_by_oracle(deployment([(0, 9_999, 1), (0, 4, 2), (90, 1, 2)], mode="full", plan=ParallelPlan(dp=2)))
    assert [call for call in calls if call[0] == 6_700] == [(6_700, 0), (6_700, 1)]


@MODES
@pytest.mark.parametrize(("horizon", "tokens"), [(6_699, 0), (6_700, 1), (13_349, 1), (13_350, 2), (20_010, 3)])
def test_what_completes_at_the_horizon_still_counts(run, mode, horizon, tokens):
    result = run(deployment([(0, 4, 9)], mode=mode, horizon_ns=horizon))
    assert len(step_ends(result.timeline)) == tokens


@MODES
@pytest.mark.parametrize(("horizon", "arrived"), [(99, 1), (100, 2)])
def test_what_arrives_at_the_horizon_still_arrives(run, mode, horizon, arrived):
    result = run(deployment([(0, 4, 9), (100, 4, 9)], mode=mode, horizon_ns=horizon))
    assert (result.arrived_ns >= 0).sum() == arrived


@MODES
def test_nothing_happens_after_the_horizon(run, mode):
    result = run(deployment([(0, 4, 9)], mode=mode, horizon_ns=20_000))
    assert result.timeline.end_ns == 13_350
    assert result.timeline.unfold().end_ns.max() == 13_350


def test_both_replays_agree_at_every_horizon(run):
    arrivals = [(0, 4, 5), (6_700, 9, 3), (9_000, 2, 4)]
    for horizon in range(0, 40_000, 1_337):
        full, folded = (
            run(deployment(arrivals, mode=mode, horizon_ns=horizon)).timeline.digest for mode in ("full", "folded")
        )
        assert full == folded, horizon
