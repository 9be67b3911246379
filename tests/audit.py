"""What must hold after every simulated run, whatever the scenario: no request, token or K/V block is lost.

``simulated`` and ``replayed`` run and then audit; the fixture ``run`` (tests/conftest.py) does the same for tests
that take one.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.replay import ReplayInput, ReplayResult, replay
from clustersim.scenario.scenario import Scenario
from clustersim.serving.decision import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    REJECTED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.serving.user_class import UserClass
from clustersim.simulation.replay_input import replay_input
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline import tokens
from clustersim.timeline.timeline import Timeline
from tests.audit_blocks import blocks_are_conserved
from tests.oracle.serving.queues import rank_in
from tests.oracle.serving.sequence import Sequence

MOST_SPANS = 200_000
"""Runs with more spans are not audited span by span, for time."""


def simulated(scenario: Scenario) -> RunResult:
    """Simulate a scenario and audit what came out."""
    result = simulate(scenario)
    audit(replay_input(scenario, scenario.requests()), result.replayed)
    return result


def replayed(given: ReplayInput) -> ReplayResult:
    """Replay and audit what came out."""
    result = replay(given)
    audit(given, result)
    return result


def audit(given: ReplayInput, result: ReplayResult) -> None:
    """Raise AssertionError when a run breaks a law of serving."""
    _no_request_is_lost(given, result)
    _every_token_has_its_step(given, result)
    if len(given.pools) == 1:  # what follows speaks of one pool: of its blocks, its queues and its budgets
        blocks_are_conserved(given, result)
        _served_in_order(given, result)
        _budgets_hold(given, result.timeline)
    if result.timeline.num_spans <= MOST_SPANS:
        _streams_run_one_operator_at_a_time(result.timeline)
        _steps_are_as_long_as_their_spans(result.timeline)


def token_instants(timeline: Timeline, num_requests: int) -> list[list[int]]:
    """Return the instants at which each request got its tokens, in order."""
    return [instants.tolist() for instants in tokens.TokenInstants(timeline).of(range(num_requests))]


def _facts(timeline: Timeline, kind: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return replica, instant and request of the facts of a kind."""
    facts = timeline.facts
    chosen = facts["kind"] == kind
    return facts["replica"][chosen], facts["time_ns"][chosen], facts["request"][chosen]


def _no_request_is_lost(given: ReplayInput, result: ReplayResult) -> None:
    count = len(given.requests)
    arrived, rejected, admitted, preempted, finished, left, swapped, lost = (
        np.bincount(_facts(result.timeline, kind)[2], minlength=count)
        for kind in (ARRIVED, REJECTED, ADMITTED, PREEMPTED, FINISHED, HANDED_OVER, SWAPPED_OUT, LOST)
    )
    came = result.arrived_ns >= 0
    assert np.array_equal(arrived + rejected, came.astype(int)), "each arrival is one fact: arrived or rejected"
    assert set(np.flatnonzero(rejected + lost).tolist()) == set(result.reasons), "rejections and losses have reasons"
    assert np.array_equal(preempted + swapped, result.preemptions)
    assert (finished <= arrived).all(), "only what arrived finishes, and once"
    holders = admitted - preempted - left
    most = len(given.pools)  # while its K/V is moved, a request has blocks in both pools
    assert ((holders >= 0) & (holders <= most)).all(), "admitted once, and once more after each preemption or hand-over"
    assert (holders[finished == 1] == 1).all()
    if given.horizon_ns is None:
        assert came.all()
        assert np.array_equal(finished, arrived), "without a horizon all that is not rejected finishes"
    if given.requests.concurrency is None and given.requests.sessions is None:
        assert np.array_equal(result.arrived_ns[came], given.requests.arrived_at_ns[came])


def _served_in_order(given: ReplayInput, result: ReplayResult) -> None:
    """Whoever is admitted is the first, in the declared order, of those that wait: new or preempted.

    So is whoever comes back from a host, of those there, and before anybody is admitted. A user's own scheduler may
    take whom it likes.
    """
    facts, order, requests = result.timeline.facts, given.entry.serving.order, given.requests
    scheduler = given.entry.serving.scheduler
    if isinstance(scheduler, UserClass) or (scheduler == "static" and order.by != "arrival"):
        return  # the members of a batch go before those that came after it was made up

    def rank(request: int) -> tuple[tuple[int, int, int], int]:
        sequence = Sequence(
            request=request,
            prompt_tokens=int(requests.prompt_tokens[request]),
            output_tokens=int(requests.output_tokens[request]),
            arrived_ns=int(result.arrived_ns[request]),
            priority=0 if requests.priorities is None else int(requests.priorities[request]),
        )
        return rank_in(order, sequence), request

    arrived: dict[int, deque[tuple[int, int]]] = {}
    decided: dict[int, list[tuple[int, int, int]]] = {}
    moved, left = _moved(given, result)
    for time, replica, request in moved:
        arrived.setdefault(replica, deque()).append((time, request))
    for replica, time, kind, request in zip(
        *(facts[name].tolist() for name in ("replica", "time_ns", "kind", "request")), strict=True
    ):
        if kind in (ARRIVED, PREEMPTED) and (request, time) in left:
            continue
        if kind == ARRIVED:
            arrived.setdefault(replica, deque()).append((time, request))
        elif kind in (ADMITTED, PREEMPTED, SWAPPED_OUT, SWAPPED_IN):
            decided.setdefault(replica, []).append((time, kind, request))
    for replica, decisions in decided.items():
        arrived[replica] = deque(sorted(arrived.get(replica, ())))
        waiting: list[tuple[tuple[int, int, int], int]] = []
        away: list[tuple[tuple[int, int, int], int]] = []
        for time, kind, request in decisions:
            while arrived[replica] and arrived[replica][0][0] <= time:
                heappush(waiting, rank(arrived[replica].popleft()[1]))
            if kind == PREEMPTED:
                heappush(waiting, rank(request))
            elif kind == SWAPPED_OUT:
                heappush(away, rank(request))
            elif kind == SWAPPED_IN:
                first = heappop(away)[1]
                assert request == first, f"replica {replica} lets {request} come back at {time} ns before {first}"
            else:
                assert not away, f"replica {replica} admits {request} at {time} ns before {away[0][1]} is back"
                first = heappop(waiting)[1]
                assert request == first, f"replica {replica} admits {request} at {time} ns before {first}"


def _moved(given: ReplayInput, result: ReplayResult) -> tuple[list[tuple[int, int, int]], set[tuple[int, int]]]:
    """Return who waits elsewhere since a replica failed, and whose wait does not end where it began.

    Whoever waits for a replica that fails, or ran there, is let in at another one: (since when at the latest, replica,
    request) of the former, (request, since when) of the latter, as of those that are given up or lost.
    """
    changes = sorted(at for fault in given.faults for at in (fault.at_ns, fault.until_ns) if fault.fails and at)
    facts, since, moved, left = result.timeline.facts, dict[int, tuple[int, int]](), [], set()
    columns = (facts[name].tolist() for name in ("time_ns", "kind", "replica", "request"))
    for time, kind, replica, request in sorted(
        zip(*columns, strict=True), key=lambda row: (row[0], row[1] == ADMITTED)
    ):
        if kind in (ARRIVED, PREEMPTED):
            since[request] = replica, time
        elif kind == ADMITTED and since[request][0] != replica:
            assert any(at <= time for at in changes), f"{request} waits for one replica and is let in by {replica}"
            moved.append((max(at for at in changes if at <= time), replica, request))
            left.add((request, since[request][1]))
        elif kind in (CANCELLED, LOST) and request in since:
            left.add((request, since[request][1]))
    return moved, left


def _every_token_has_its_step(given: ReplayInput, result: ReplayResult) -> None:
    instants, asked = token_instants(result.timeline, len(given.requests)), given.of_replicas.requests.output_tokens
    for request, ends in enumerate(instants):
        assert all(before < after for before, after in pairwise(ends)), f"request {request}: two tokens in one step"
        assert len(ends) <= asked[request]
    for _, time, request in zip(*(column.tolist() for column in _facts(result.timeline, FINISHED)), strict=True):
        assert len(instants[request]) == asked[request], f"request {request} lacks tokens"
        assert not instants[request] or instants[request][-1] == time, "a request finishes with its last token"
    _, times, requests = _facts(result.timeline, ADMITTED)
    assert (times >= result.arrived_ns[requests]).all(), "nothing is admitted before it arrives"


def _budgets_hold(given: ReplayInput, timeline: Timeline) -> None:
    steps, serving = timeline.steps, given.entry.serving
    assert (steps["prefill_tokens"] + steps["decode_tokens"] <= serving.max_batch_tokens).all()
    least = 0 if given.entry.plan.is_lockstep else 1  # a replica that has nothing to run brings a dummy batch
    assert (steps["prefill_tokens"] + steps["decode_tokens"] >= least).all()
    assert (steps["running"] <= serving.max_batch_requests).all()
    assert (steps["batch_requests"] <= steps["running"]).all()
    assert (steps["kv_blocks_used"] <= steps["kv_blocks_total"]).all()


def _streams_run_one_operator_at_a_time(timeline: Timeline) -> None:
    spans = timeline.unfold()
    assert len(spans) == timeline.num_spans
    lanes = spans.rank.astype(np.int64) * 8 + spans.stream
    order = np.lexsort((spans.start_ns, lanes))
    same = lanes[order][1:] == lanes[order][:-1]
    assert (spans.start_ns[order][1:][same] >= spans.end_ns[order][:-1][same]).all()


def _steps_are_as_long_as_their_spans(timeline: Timeline) -> None:
    """A run of steps starts with its first span and ends with its last one, and has a span in every step.

    Replicas in lockstep end a step when the last of them does.
    """
    spans, steps = timeline.unfold(), timeline.steps
    for replica in dict.fromkeys(steps["replica"].tolist()):
        pool = timeline.layout.pool_of(replica)
        together = range(pool.first_replica, pool.first_replica + pool.lockstep)
        mine = spans.step >= 0  # a move of K/V belongs to no step
        mine &= np.isin(spans.replica, together if pool.lockstep > 1 else replica)
        rows = steps["replica"] == replica
        order = np.argsort(steps["step"][rows])
        first, count = steps["step"][rows][order], steps["count"][rows][order]
        assert np.array_equal(first, np.cumsum(count) - count), "steps are numbered without gaps"
        run = np.searchsorted(first, spans.step[mine], side="right") - 1
        start = np.full(len(first), np.iinfo(np.int64).max)
        end = np.zeros(len(first), np.int64)
        np.minimum.at(start, run, spans.start_ns[mine])
        np.maximum.at(end, run, spans.end_ns[mine])
        assert np.array_equal(start, steps["start_ns"][rows][order])
        assert np.array_equal(end, steps["end_ns"][rows][order])
        assert len(np.unique(spans.step[mine])) == count.sum()
