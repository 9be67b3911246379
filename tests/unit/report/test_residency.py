"""When replicas are empty, also behind requests that were cancelled, lost, moved or handed over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.cluster.fault import Fault
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.replay import replay
from clustersim.report.metrics.gauges import gauge
from clustersim.report.metrics.preempted import preempted
from clustersim.report.metrics.service import time_mean
from clustersim.serving.decision import PREEMPTED
from clustersim.simulation.residency import moved, residency_of
from clustersim.simulation.step_rows import StepRows
from tests.round_numbers import deployment, pools

LATER = 10_000_000


def impatient(given, **cancel_ns):
    after = np.array([cancel_ns.get(f"r{at}", -1) for at in range(len(given.requests))])
    return replace(given, requests=replace(given.requests, cancel_after_ns=after))


def failing(given, at, until=None, *, device=0, loses=False):
    return replace(given, faults=(Fault(at_ns=at, until_ns=until, devices=(device,), name="it", loses=loses),))


ARRIVALS = [(0, 4, 30), (1, 4, 30), (LATER, 4, 3)]
TWO = ParallelPlan(dp=2)
CASES = {
    "cancelled": impatient(deployment(ARRIVALS), r1=20_000),
    "all cancelled": impatient(deployment(ARRIVALS), r0=20_000, r1=20_000),
    "lost": failing(deployment(ARRIVALS, plan=TWO), 30_000, 40_000, loses=True),
    "moved": failing(deployment(ARRIVALS, plan=TWO), 30_000, 40_000),
    "for good": failing(deployment(ARRIVALS, plan=TWO), 30_000),
    "alone": failing(deployment(ARRIVALS), 30_000, 1_000_000),
    "queued": failing(deployment(ARRIVALS, max_batch_requests=1), 30_000, 1_000_000),
    "handed over": pools(ARRIVALS),
    "on its way": failing(pools(ARRIVALS, decode=TWO), 30_000, 40_000, device=1),
}


@pytest.mark.parametrize("name", CASES)
def test_who_holds_blocks_between_steps_is_there_and_nobody_else(name):
    tables = replay(CASES[name]).timeline
    rows = StepRows(tables, 4)
    facts, last = tables.facts, int(rows.kv_rows["end_ns"].max())
    held = gauge(rows.kv_rows, "kv_blocks_used")
    for instant in (LATER // 2, LATER - 1):  # long after the first ones and before the last one
        assert held.value[np.searchsorted(held.start_ns, instant, side="right") - 1] == 0, facts
    assert time_mean(held) == pytest.approx(
        float((held.value * np.diff([*held.start_ns, last])).sum()) / held_for(held)
    )
    apart = {**rows.kv_rows, "replica": np.array(rows.kv_rows["replica"])}
    many = replace(held, start_ns=np.arange(20_001) ** 2 * 997, value=np.arange(1, 20_002) ** 1.5, end_ns=10**12)
    lasting = np.diff(many.start_ns, append=many.end_ns)
    assert time_mean(many) == float((lasting * many.value).sum() / 10**12)  # to the bit, on any processor
    together = gauge(apart, "kv_blocks_used")  # as where there are several replicas
    assert [(held.start_ns == together.start_ns).all(), (held.value == together.value).all()] == [True, True]
    for column in ("running", "waiting"):  # found together, and once, also for rows that are split further
        found, by_itself = gauge(rows.rows, column), gauge(dict(rows.rows), column)
        assert gauge(rows.cut(np.arange(0, last, 10_000)), column) is found
        assert (found.start_ns.tolist(), found.value.tolist()) == (
            by_itself.start_ns.tolist(),
            by_itself.value.tolist(),
        )
    present = residency_of(tables)
    assert (present.gone_ns >= present.come_ns).all()
    assert (present.gone_ns <= last + 10**7).all()


def held_for(function):
    return function.end_ns - function.start_ns[0]


def test_a_replica_that_is_down_holds_nothing():
    tables = replay(CASES["alone"]).timeline
    held = gauge(StepRows(tables, 4).kv_rows, "kv_blocks_used")
    at = np.searchsorted(held.start_ns, [29_000, 30_000, 999_000, 1_010_000], side="right") - 1
    assert (held.value[at] > 0).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cancelled", 0), ("lost", 1), ("moved", 1), ("alone", 2), ("queued", 1), ("handed over", 0)],
)
def test_what_a_fault_moves_was_not_preempted_for_want_of_blocks(name, expected):
    facts = replay(CASES[name]).timeline.facts
    assert (int(moved(facts).sum()), int((facts["kind"] == PREEMPTED).sum())) == (expected, expected)
    assert preempted(replay(CASES[name]).timeline) == {
        "recomputed": 0, "swapped": 0, "moved": expected, "swapped_bytes": 0,
    }  # fmt: skip


def test_a_preemption_for_want_of_blocks_is_none_that_was_moved():
    facts = replay(deployment([(0, 4, 8), (0, 4, 8)], kv_blocks=4)).timeline.facts
    assert (facts["kind"] == PREEMPTED).any()
    assert not moved(facts).any()
