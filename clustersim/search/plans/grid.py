"""Rates as steps of a grid, so that plans are compared at the same ones, and the requests at each."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from clustersim.clock import Int64Array, to_ns
from clustersim.report.metrics.latencies import targets_ns
from clustersim.scenario.scenario import Scenario, TraceWorkload
from clustersim.search.load import Load, rate_per_s, rows_of
from clustersim.search.plans.bounds.demand import Demand, demand_of
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.requests import Requests

GRID: Final = 1.01
"""A step: rates are powers of it."""
SLOWEST: Final = -926
"""The lowest step that is looked at: a request in about three hours, when none waits for another one."""
_RATES: Final = 256
"""Rates whose requests are kept …"""
_DEMANDS: Final = 64
"""… and their demands …"""
_FEW: Final = 4
"""… where requests are few, and otherwise."""
_MANY: Final = 50_000
"""Requests that are many: ten columns or so of half a megabyte."""


def rate_of(step: int) -> float:
    """Return a rate of the grid, requests per second, as people can write it down."""
    return float(f"{GRID**step:.6g}")


def step_of(rate: float) -> int:
    """Return the step of the grid that is nearest to a rate."""
    return round(math.log(rate) / math.log(GRID))


class _Asked:
    """Requests by what they depend on."""

    def __init__(self, scenario: Scenario, workload: TraceWorkload | DrawnWorkload) -> None:
        self.scenario = replace(scenario, workload=workload)
        self.key = repr((scenario.seed, workload))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.key == other.key


@lru_cache(maxsize=_FEW)
def _drawn(asked: _Asked) -> Requests:
    return asked.scenario.requests()


def _recorded(scenario: Scenario, trace: TraceWorkload) -> Requests:
    """Return all requests of a trace that are repeated, or may be played, at its own rate."""
    return _drawn(_Asked(scenario, replace(trace.once, rate_scale=1.0)))


@lru_cache(maxsize=_FEW)
def _repeated(asked: _Asked) -> list[Requests]:
    """Return the requests that a trace repeats, and the most repetitions asked for so far: fewer share theirs."""
    return [_drawn(asked)] * 2


def _played(asked: _Asked) -> Requests:
    """Return the requests of a trace that are played, at its own rate."""
    trace, scenario = asked.scenario.workload, asked.scenario
    assert isinstance(trace, TraceWorkload)
    if trace.requests is None or not trace.repeat:
        return rows_of(_recorded(scenario, trace), trace)
    kept = _repeated(_Asked(scenario, replace(trace.once, rate_scale=1.0)))
    if trace.requests > len(kept[1]):
        kept[1] = kept[0].repeat_to(trace.requests)
    return kept[1].take(trace.requests)


def _made(asked: _Asked, rate: float) -> Requests:
    if not isinstance(asked.scenario.workload, TraceWorkload):
        return _drawn(asked)
    played = _played(asked)
    return played.scaled(rate / rate_per_s(played))


_CACHES: Final = lru_cache(maxsize=_RATES)(_made), lru_cache(maxsize=_FEW)(_made)


def _at(asked: _Asked, rate: float) -> Requests:
    """Return requests; a trace is read once for all rates."""
    return _CACHES[_are_many(asked)](asked, rate)


def _are_many(asked: _Asked) -> bool:
    return (asked.scenario.workload.requests or 0) > _MANY


def recorded(scenario: Scenario) -> int | None:
    """Return how many requests the trace of a scenario has; None where its requests are drawn."""
    workload = scenario.workload
    return len(_recorded(scenario, workload)) if isinstance(workload, TraceWorkload) else None


def prime_up_to(most: int) -> int:
    """Return the largest prime that is not above a number, or that number where none is.

    So many requests, dealt out in turn again and again, all come to each of any smaller number of replicas: the two
    numbers have no factor in common.
    """
    primes = (one for one in range(most, 1, -1) if all(one % low for low in range(2, math.isqrt(one) + 1)))
    return next(primes, most)


def as_written(scenario: Scenario) -> Requests:
    """Return the requests of a scenario, at the rate that it has."""
    return _drawn(_Asked(scenario, scenario.workload))


def requests_at(scenario: Scenario, load: Load, step: int, every: int) -> Requests:
    """Return every so many-th request of a scenario at a rate of the grid."""
    rate = rate_of(step)
    whole = _at(_Asked(scenario, load.played(rate)), rate)
    return whole if every == 1 else _chosen(whole, np.arange(0, len(whole), every))


def demand_at(scenario: Scenario, load: Load, step: int, every: int) -> Demand:
    """Return what every so many-th request of a scenario asks for at a rate of the grid; many plans ask for it."""
    rate = rate_of(step)
    asked = _Asked(scenario, load.played(rate))
    limits, front_end_ns = tuple(targets_ns(scenario.targets).items()), to_ns(scenario.engine.front_end_s)
    told = _CACHED_DEMANDS[_are_many(asked)]
    return told(asked, rate, limits, front_end_ns, scenario.serving.prefix_caching).every(every)


def _demand(
    asked: _Asked,
    rate: float,
    limits: tuple[tuple[str, float], ...],
    front_end_ns: int,
    cached: bool,
) -> Demand:
    return demand_of(_at(asked, rate), dict(limits), front_end_ns, cached=cached)


_CACHED_DEMANDS: Final = lru_cache(maxsize=_DEMANDS)(_demand), lru_cache(maxsize=_FEW)(_demand)


def requests_until(requests: Requests, until_ns: int) -> Requests:
    """Return the requests that arrive up to an instant."""
    return _chosen(requests, np.flatnonzero(requests.arrived_at_ns <= until_ns))


def _chosen(requests: Requests, at: Int64Array) -> Requests:
    hashes, urgent, patience = requests.prefix_hashes, requests.priorities, requests.cancel_after_ns
    return replace(
        requests,
        arrived_at_ns=requests.arrived_at_ns[at],
        prompt_tokens=requests.prompt_tokens[at],
        output_tokens=requests.output_tokens[at],
        prefix_hashes=None if hashes is None else tuple(hashes[one] for one in at.tolist()),
        priorities=None if urgent is None else urgent[at],
        cancel_after_ns=None if patience is None else patience[at],
    )
