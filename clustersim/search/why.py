"""Which limit of a scenario costs most: the same requests with one lifted at a time, and how much of it is enough."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from clustersim.report.metrics.latencies import targets_ns
from clustersim.report.why.lifted import Lifted, lifted, met, ranked
from clustersim.scenario.scenario import Scenario
from clustersim.search.enough import Rows, enough_of
from clustersim.search.lifts import MEANT, Lift, lifts_of
from clustersim.search.point import Row
from clustersim.search.runs import Changes


def lifted_limits(
    scenario: Scenario, requests: int, rows: Rows, only: Collection[str] = ()
) -> tuple[Row, list[Lifted]]:
    """Return the row of a scenario of so many requests as it is, and what it comes to without each limit, best first.

    Parameters
    ----------
    scenario : Scenario
    requests : int
    rows : callable
        From changes to the rows of the runs that have them. Where the scenario as it is fails, nothing else is asked.
        Limits are asked for with those first that the causes of the slowest requests speak for; no faults before all;
        then, where a target is missed or there is none, how much of a limit is enough.
    only : collection of str
        Of ``NAMES``: which limits; all by default.
    """
    (first,) = rows([()])
    if first["failed"]:
        return first, []
    lifts = _asked(scenario, requests, only)
    some = sorted((one for one in lifts if one.changes), key=lambda one: -_likely(one, first))
    by_limit = {
        one.limit: row for one, row in zip(some, rows([one.changes for one in some]) if some else (), strict=True)
    }
    nothing: Row = {"failed": None, "numbers": {}}
    each = [(one, by_limit.get(one.limit, nothing)) for one in lifts]
    found = [lifted(one.limit, one.key, row, first, one.name, one.why_not) for one, row in each]
    limits = targets_ns(scenario.targets)
    if not limits or not met(first["numbers"], limits):
        asked = {number: each[number] for number, one in enumerate(found) if one.binds and not one.why_not}
        for number, much in enough_of(scenario, requests, asked, rows).items():
            found[number] = replace(found[number], enough=much)
    return first, ranked(found)


def changes_of(scenario: Scenario, requests: int, only: Collection[str] = ()) -> list[Changes]:
    """Return what the runs change that are made for certain: nothing, and one limit each."""
    return [(), *(one.changes for one in _asked(scenario, requests, only) if one.changes)]


def _asked(scenario: Scenario, requests: int, only: Collection[str]) -> list[Lift]:
    return [one for one in lifts_of(scenario, requests) if not only or one.name in only]


def _likely(lift: Lift, first: Row) -> float:
    """Return which share of the slowest requests' time to first token, or after it, a limit may be the reason for."""
    if lift.name == "faults":
        return math.inf
    numbers = first["numbers"]
    return max(
        math.fsum(numbers.get(f"causes.{name}.slowest.{cause}") or 0.0 for cause in MEANT[lift.name])
        for name in ("ttft", "tpot")
    )
