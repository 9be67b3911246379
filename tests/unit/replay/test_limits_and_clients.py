"""Queues with limits, requests that wait too long, and clients that give up: in both replays, on round numbers.

A prompt of 4 tokens takes 6,700 ns alone (2,000 at the ends, 4,600 for the layer, 10 pairs of 10 ns); a decode step
takes 6,600 ns and 10 ns per token known so far (``tests.round_numbers``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.cost import Precision, RooflineCost
from clustersim.errors import InputError
from clustersim.replay.replay import ReplayInput, ReplayResult, replay
from clustersim.scenario.load import load
from clustersim.serving.decision import FACT_KINDS
from clustersim.serving.order import Order
from clustersim.workload.clients import Patience, Priorities
from clustersim.workload.traces.trace import read_trace
from tests.round_numbers import deployment, step_ends
from tests.shipped import device

MODES = pytest.mark.parametrize("mode", ["full", "folded"])


def told(result: ReplayResult, *kinds: str) -> list[tuple[str, int, int, int]]:
    """(kind, request, instant, K/V blocks in use) of the facts of some kinds, in order of time, then of requests."""
    facts = result.timeline.facts
    rows = zip(*(facts[name].tolist() for name in ("kind", "request", "time_ns", "used")), strict=True)
    found = [(FACT_KINDS[kind], *rest) for kind, *rest in rows]
    return sorted((row for row in found if row[0] in kinds), key=lambda row: (row[2], row[1]))  # type: ignore[return-value]


def with_clients(given: ReplayInput, **columns: list[int]) -> ReplayInput:
    """The same, with columns of its requests."""
    return replace(given, requests=replace(given.requests, **{name: np.array(of) for name, of in columns.items()}))


@MODES
def test_a_request_that_finds_a_full_queue_is_rejected(mode):
    arrivals = [(0, 4, 1), (10, 4, 1), (20, 4, 1), (6_701, 4, 1)]
    result = replay(deployment(arrivals, mode=mode, max_batch_requests=1, queue_limit=1))
    assert result.reasons == {2: "the queue of replica 0 is full: serving.queue_limit is 1"}
    assert told(result, "rejected") == [("rejected", 2, 20, -1)]


@MODES
def test_a_request_for_no_token_is_rejected_as_it_comes_and_occupies_nothing(mode):
    result = replay(deployment([(0, 4, 0), (10, 4, 1)], mode=mode, max_batch_requests=1, queue_limit=1))
    assert result.reasons == {0: "has no output token, as one that failed where its trace was recorded"}
    assert told(result, "rejected", "finished") == [("rejected", 0, 0, -1), ("finished", 1, 6_710, 0)]


@MODES
@pytest.mark.parametrize(
    ("arrives", "expected"),
    [(1_699, [("rejected", 1, 6_699, -1)]), (1_700, [("rejected", 1, 6_700, -1)]), (1_701, [])],
    ids=("before a place is free", "when a place gets free", "after a place is free"),
)
def test_a_request_that_is_not_admitted_in_time_is_rejected(mode, arrives, expected):
    arrivals = [(0, 4, 1), (arrives, 4, 1)]
    result = replay(deployment(arrivals, mode=mode, max_batch_requests=1, queue_timeout_ns=5_000))
    assert told(result, "rejected") == expected
    assert list(result.reasons.values()) == ["not admitted for 5e-06 s, which is serving.queue_timeout"] * len(expected)


@MODES
@pytest.mark.parametrize(
    ("gives_up", "expected"),
    [
        (100, ("cancelled", 0, 6_700, 0)),
        (6_700, ("cancelled", 0, 6_700, 0)),
        (6_701, ("cancelled", 0, 13_350, 0)),
        (1_000_000, ("finished", 0, 26_680, 0)),
    ],
    ids=("in prefill", "between steps", "in decode", "never"),
)
def test_what_a_step_carries_leaves_with_that_step(mode, gives_up, expected):
    given = with_clients(deployment([(0, 4, 4)], mode=mode), cancel_after_ns=[gives_up])
    assert told(replay(given), "cancelled", "finished") == [expected]


@MODES
def test_two_that_are_given_up_as_one_step_ends_leave_together(mode):
    # A roofline prices many steps ahead, so that the run which the first one cuts short was to end later.
    given = deployment([(0, 4, 30)] * 3, mode=mode, cost=RooflineCost(device("h100-sxm-80gb"), Precision()))
    third = step_ends(replay(given).timeline)[2]
    result = replay(with_clients(given, cancel_after_ns=[third, third, -1]))
    assert told(result, "cancelled") == [("cancelled", 0, third, 4), ("cancelled", 1, third, 2)]


@MODES
def test_a_request_that_is_given_up_while_it_waits_makes_room(mode):
    given = deployment([(0, 4, 2), (0, 4, 2), (0, 4, 2)], mode=mode, max_batch_requests=1)
    result = replay(with_clients(given, cancel_after_ns=[-1, 9_000, -1]))
    assert told(result, "admitted", "cancelled") == [
        ("admitted", 0, 0, 1), ("cancelled", 1, 9_000, 2), ("admitted", 2, 13_350, 1),
    ]  # fmt: skip


@MODES
def test_what_is_longer_than_the_context_window_is_rejected(mode):
    given = deployment([(0, 4, 4), (0, 5, 4), (0, 4, 5), (9_000, 1, 1)], mode=mode, context_window=8)
    result = replay(given)
    assert [request for _, request, *_ in told(result, "rejected")] == [1, 2]
    assert set(result.reasons.values()) == {"is longer, with its output, than the context window of 8 tokens"}
    assert [request for _, request, *_ in told(result, "finished")] == [3, 0]


@MODES
def test_urgent_requests_go_first(mode):
    given = deployment([(0, 4, 1)] * 3, mode=mode, max_batch_requests=1, order=Order(by="priority", patience_ns=10**9))
    result = replay(with_clients(given, priorities=[1, 1, 0]))
    assert [request for _, request, *_ in told(result, "admitted")] == [2, 0, 1]


@MODES
def test_a_client_of_a_closed_loop_that_gives_up_sends_its_next_request(mode):
    given = deployment([(0, 4, 9), (0, 4, 1)], mode=mode, concurrency=1)
    result = replay(with_clients(given, cancel_after_ns=[7_000, -1]))
    assert told(result, "arrived", "cancelled") == [
        ("arrived", 0, 0, -1), ("cancelled", 0, 13_350, 0), ("arrived", 1, 13_350, -1),
    ]  # fmt: skip


def test_drawn_clients_are_as_many_as_was_asked_for():
    rng = np.random.default_rng(1)
    after = Patience(share=0.25, kind="exponential", low_s=2.0).draw_ns(20_000, rng)
    patient = after < 0
    assert abs(patient.mean() - 0.75) < 4 * (0.25 * 0.75 / 20_000) ** 0.5
    assert abs(after[~patient].mean() / 2e9 - 1) < 4 / len(after[~patient]) ** 0.5
    assert set(Patience(share=1.0, kind="fixed", low_s=0.5).draw_ns(5, rng).tolist()) == {500_000_000}
    between = Patience(share=1.0, kind="uniform", low_s=1.0, high_s=2.0).draw_ns(1000, rng)
    assert 1e9 <= between.min() < 1.02e9
    assert 1.98e9 < between.max() <= 2e9
    urgent = Priorities(values=(0, 7), weights=(9.0e307, 1.0e307)).draw(20_000, rng)
    assert set(urgent.tolist()) == {0, 7}
    assert abs((urgent == 7).mean() - 0.1) < 4 * (0.09 / 20_000) ** 0.5


def test_more_drawn_requests_are_the_same_ones_with_others_after_them():
    drawn = ("priority={values: [0, 1]}", "cancel_after={share: 0.5, uniform: {low: 1 s, high: 2 s}}")
    lengths = ("arrivals=all_at_once", "prompt_tokens=8", "output_tokens=2", "trace=null")

    def draw(count):
        given = [f"workload.{text}" for text in (*lengths, *drawn, f"requests={count}")]
        return load("quickstart", given).requests()

    few, many = draw(20), draw(30)
    assert np.array_equal(few.priorities, many.priorities[:20])
    assert np.array_equal(few.cancel_after_ns, many.cancel_after_ns[:20])
    assert len(set(few.priorities.tolist())) == 2


def test_a_trace_tells_priorities_and_when_clients_give_up(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,priority,cancel_after_ms\n1,5,6,0,2.5\n2,7,8,3,\n")
    found = read_trace(path)
    assert found.priorities.tolist() == [0, 3]
    assert found.cancel_after_ns.tolist() == [2_500_000, -1]


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("priority", "-1", "found '-1'; expected a priority as a whole number from 0 to 999,999,999"),
        ("cancel_after_s", "soon", "found 'soon'; expected seconds as a number"),
        ("cancel_after_s,cancel_after_ms", "1,1", "columns cancel_after_s and cancel_after_ms mean the same"),
    ],
)
def test_a_trace_with_cells_that_mean_nothing_is_refused(tmp_path, header, row, message):
    path = tmp_path / "a.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens,{header}\n1,5,6,{row}\n")
    with pytest.raises(InputError, match=message):
        read_trace(path)


DRAWN = "{arrivals: all_at_once, prompt_tokens: 8, output_tokens: 2, requests: 3, %s}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cancel_after: {share: 0.5}", "has none of fixed, uniform and exponential; expected exactly one"),
        ("cancel_after: {fixed: 1 s, exponential: 1 s}", "has fixed and exponential of fixed, uniform"),
        ("cancel_after: {uniform: {low: 2 s, high: 1 s}}", "is less than low"),
        ("priority: {values: [0, 1], weights: [1]}", "found 1 weight for 2 values"),
        ("priority: {values: [0, 1], weights: [0, 0]}", "all weights are 0"),
    ],
)
def test_clients_that_cannot_be_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        load("quickstart", ("workload=" + DRAWN % text,))


def test_a_trace_has_its_clients_in_columns():
    with pytest.raises(InputError, match="a csv trace tells it in a column cancel_after_s"):
        load("quickstart", ("workload.cancel_after=5 s",))
