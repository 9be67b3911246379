"""How a workload is given another rate: gaps between drawn arrivals are scaled, a trace is played faster or slower.

Lengths are the same for any rate, so that runs at different rates, and of different plans, have common random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from clustersim.clock import NS_PER_S
from clustersim.errors import InputError
from clustersim.report.metrics.latencies import targets_ns
from clustersim.scenario.scenario import Scenario, TraceWorkload
from clustersim.workload.arrivals import Constant, Gamma, Poisson
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.requests import Requests

WITH_RATE: Final = (Poisson, Gamma, Constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload whose rate is varied.

    Parameters
    ----------
    workload : TraceWorkload or DrawnWorkload
    first : float
        Its own rate, requests per second.
    requests : int
        It has at least so many …
    own : int
        … and so many where nothing is asked for: a trace with more is played again and again.
    lasting_s : float
        Its arrivals last as long, if it has not more requests.
    part : int or None
        Of a trace that is played again and again, the first requests that are; None: all of them.
    """

    workload: TraceWorkload | DrawnWorkload
    first: float
    requests: int
    own: int
    lasting_s: float
    part: int | None = None

    def count(self, rate: float) -> int:
        """Return how many requests there are at a rate."""
        return max(self.requests, math.ceil(rate * self.lasting_s))

    def changes(self, rate: float) -> tuple[str, ...]:
        """Return what makes requests come at a rate, for as long as is asked, as ``--set`` takes it."""
        count = self.count(rate)
        if isinstance(self.workload, TraceWorkload):
            found = (f"workload.trace.rate_scale={self.workload.rate_scale * rate / self.first!r}",)
            more = (f"workload.trace.requests={count}", "workload.trace.repeat=true")
            return found + (more if count > self.own else ())
        return f"workload.arrivals.rate={rate!r}/s", f"workload.requests={count}"

    def at(self, rate: float) -> TraceWorkload | DrawnWorkload:
        """Return the workload at a rate: what a scenario with :meth:`changes` has."""
        count, workload = self.count(rate), self.workload
        if isinstance(workload, TraceWorkload):
            found = replace(workload, rate_scale=workload.rate_scale * rate / self.first)
            return replace(found, requests=count, repeat=True) if count > self.own else found
        assert isinstance(workload.arrivals, WITH_RATE)
        return replace(workload, arrivals=replace(workload.arrivals, rate_per_s=rate), requests=count)


def load_of(scenario: Scenario, requests_of: Callable[[Scenario], Requests], lasting_s: float) -> Load:
    """Return how a scenario is given another rate.

    Parameters
    ----------
    scenario : Scenario
    requests_of : callable
        Returns the requests of a scenario.
    lasting_s : float

    Raises
    ------
    InputError
        When it has no rate, or no targets.
    """
    workload = scenario.workload
    if not targets_ns(scenario.targets):
        message = "says no target for a request; add --targets 'ttft=1 s, tpot=50 ms'"
        raise InputError(scenario.problem("targets", message))
    if isinstance(workload, TraceWorkload):
        if workload.turns == "wait":
            message = "turns that wait come as fast as the replicas let them, and have no rate to vary; say as_recorded"
            raise InputError(scenario.problem("workload.trace.turns", message))
        requests = requests_of(scenario)
        lasts_s = float(requests.arrived_at_ns[-1] - requests.arrived_at_ns[0]) / NS_PER_S
        if len(requests) < 2 or lasts_s <= 0.0:
            raise InputError(scenario.problem("workload.trace", "has no rate: all requests arrive at one instant"))
        first, count = (len(requests) - 1) / lasts_s, len(requests)
    elif isinstance(workload.arrivals, WITH_RATE):
        first, count = workload.arrivals.rate_per_s, workload.requests
    else:
        message = "has no rate to vary; expected poisson, gamma or constant arrivals, or a trace"
        raise InputError(scenario.problem("workload.arrivals.process", message))
    return Load(workload=workload, first=first, requests=count, own=count, lasting_s=lasting_s)
