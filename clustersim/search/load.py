"""How a workload is given another rate: gaps between drawn arrivals are scaled, a trace is played faster or slower.

Lengths are the same for any rate, so that runs at different rates, and of different plans, have common random numbers.
The rate of a trace is that of the requests that are played: its first 500 may come faster than all 600 of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import field, replace
from functools import cache
from typing import Final

from clustersim.clock import NS_PER_S
from clustersim.errors import InputError
from clustersim.report.metrics.latencies import targets_ns
from clustersim.scenario.scenario import Scenario, TraceWorkload
from clustersim.values import dataclass
from clustersim.workload.arrivals import Constant, Gamma, Poisson
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.requests import Requests

WITH_RATE: Final = (Poisson, Gamma, Constant)
_SLOWEST: Final = 1e-4
"""Requests per second, below which none waits for another one: in about three hours (assumed) …"""
_LONGEST_S: Final = 1e9
"""… and all of them come in so many seconds, a tenth of what instants in nanoseconds can hold."""


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
        … and so many where nothing is asked for; a trace that has fewer than are played is played again and again.
    lasting_s : float
        Its arrivals last as long, if it has not more requests.
    part : int or None
        Of a trace that is played again and again, the first requests that are; None: as many as the workload says.
    recorded : callable or None
        Returns all requests of a trace at the rate at which they were recorded; None where nobody asks for
        :meth:`changes`.
    """

    workload: TraceWorkload | DrawnWorkload
    first: float
    requests: int
    own: int
    lasting_s: float
    part: int | None = None
    recorded: Callable[[], Requests] | None = field(default=None, repr=False, compare=False)

    @property
    def slowest(self) -> float:
        """The lowest rate that is tried, requests per second: they come one by one."""
        return max(_SLOWEST, self.requests / _LONGEST_S)

    def longer(self, times: int) -> Load:
        """Return so many times as many requests at any rate."""
        return self if times == 1 else replace(self, requests=times * self.requests, lasting_s=times * self.lasting_s)

    def count(self, rate: float) -> int:
        """Return how many requests there are at a rate."""
        return max(self.requests, math.ceil(rate * self.lasting_s))

    def changes(self, rate: float) -> tuple[str, ...]:
        """Return what makes requests come at a rate, for as long as is asked, as ``--set`` takes it."""
        played = self.played(rate)
        if not isinstance(played, TraceWorkload):
            return f"workload.arrivals.rate={rate!r}/s", f"workload.requests={played.requests}"
        assert self.recorded is not None
        assert isinstance(self.workload, TraceWorkload)
        scale = rate / _rate_of(self.recorded(), played)
        more = (f"workload.trace.requests={played.requests}", f"workload.trace.repeat={json.dumps(played.repeat)}")
        is_other = replace(played, rate_scale=self.workload.rate_scale) != self.workload
        return f"workload.trace.rate_scale={scale!r}", *(more if is_other else ())

    def played(self, rate: float) -> TraceWorkload | DrawnWorkload:
        """Return the workload with as many requests as there are at a rate: drawn ones at it, a trace as recorded."""
        count, workload = self.count(rate), self.workload
        if isinstance(workload, TraceWorkload):
            if count == self.own and not (workload.repeat and self.part):
                return replace(workload, rate_scale=1.0)
            return replace(workload, requests=count, rate_scale=1.0, repeat=self.part or workload.repeat or True)
        assert isinstance(workload.arrivals, WITH_RATE)
        return replace(workload, arrivals=replace(workload.arrivals, rate_per_s=rate), requests=count)


def rows_of(recorded: Requests, trace: TraceWorkload) -> Requests:
    """Return those of all requests of a trace that are played."""
    if trace.requests is None:
        return recorded
    recorded = repeated_of(recorded, trace)
    return recorded.repeat_to(trace.requests) if trace.repeat else recorded.take(trace.requests)


def repeated_of(recorded: Requests, trace: TraceWorkload) -> Requests:
    """Return those of all requests of a trace that are repeated, where any are."""
    return recorded if isinstance(trace.repeat, bool) else recorded.take(trace.repeat, "repeat")


def rate_per_s(requests: Requests) -> float:
    """Return at which rate requests come, per second: over the time from the first to the last of them."""
    return (len(requests) - 1) * NS_PER_S / requests.span_ns


def _rate_of(recorded: Requests, trace: TraceWorkload) -> float:
    """Return at which rate those of all requests of a trace come that are played; none is repeated for it."""
    count, recorded = trace.requests or 0, repeated_of(recorded, trace)
    if not trace.repeat or count <= len(recorded):
        return rate_per_s(rows_of(recorded, trace))
    copies, place = divmod(count - 1, len(recorded))
    span_ns = int(recorded.arrived_at_ns[place] - recorded.arrived_at_ns[0]) + copies * recorded.period_ns
    return (count - 1) * NS_PER_S / span_ns


def _whole(scenario: Scenario, trace: TraceWorkload) -> Scenario:
    """Return a scenario with all requests of its trace, at the rate at which they were recorded."""
    return replace(scenario, workload=replace(trace.once, rate_scale=1.0))


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
    check_targets(scenario)
    workload, recorded = scenario.workload, None
    first, count = _own(scenario, requests_of)
    if isinstance(workload, TraceWorkload):
        recorded = cache(_whole(scenario, workload).requests)
    return Load(workload=workload, first=first, requests=count, own=count, lasting_s=lasting_s, recorded=recorded)


def has_rate(scenario: Scenario) -> bool:
    """Whether requests come at a rate, and not as others end or all at once."""
    workload = scenario.workload
    if isinstance(workload, TraceWorkload):
        return workload.turns != "wait"
    return isinstance(workload.arrivals, WITH_RATE)


def check_targets(scenario: Scenario) -> None:
    """Refuse targets of which no share of requests can be told.

    Raises
    ------
    InputError
        Where there are none, or one of ITL: a request has none of its own.
    """
    limits = targets_ns(scenario.targets)
    if not limits:
        message = "says no target for a request; add --targets 'ttft=1 s, tpot=50 ms'"
        raise InputError(scenario.problem("targets", message))
    if "itl" in limits:
        message = "no request has an ITL of its own, so that no share of them meets it; expected ttft, tpot or e2e"
        raise InputError(scenario.problem("targets.itl", f"{message}, such as --targets 'ttft=1 s, tpot=50 ms'"))


def at_rate(scenario: Scenario, requests_of: Callable[[Scenario], Requests], rate: float) -> tuple[str, ...]:
    """Return what makes the same requests come at a rate, as ``--set`` takes it.

    Raises
    ------
    InputError
        When they have no rate.
    """
    first, _ = _own(scenario, requests_of)
    workload = scenario.workload
    if isinstance(workload, TraceWorkload):
        return (f"workload.trace.rate_scale={workload.rate_scale * rate / first!r}",)
    return (f"workload.arrivals.rate={rate!r}/s",)


def own_rate(scenario: Scenario, requests_of: Callable[[Scenario], Requests]) -> float:
    """Return the rate that the requests of a scenario have, per second.

    Raises
    ------
    InputError
        When they have none.
    """
    return _own(scenario, requests_of)[0]


def _own(scenario: Scenario, requests_of: Callable[[Scenario], Requests]) -> tuple[float, int]:
    """Return the rate that the requests of a scenario have, per second, and how many there are."""
    workload = scenario.workload
    if isinstance(workload, TraceWorkload):
        if workload.turns == "wait":
            message = "turns that wait come as fast as the replicas let them, and have no rate to vary; say as_recorded"
            raise InputError(scenario.problem("workload.trace.turns", message))
        if workload.repeat and workload.requests is not None:  # none is repeated for its rate
            recorded = _whole(scenario, workload).requests()
            if workload.requests > len(recorded) > 1 and recorded.span_ns > 0:
                return workload.rate_scale * _rate_of(recorded, workload), workload.requests
        requests = requests_of(scenario)
        if len(requests) < 2 or requests.span_ns <= 0:
            raise InputError(scenario.problem("workload.trace", "has no rate: all requests arrive at one instant"))
        return rate_per_s(requests), len(requests)
    if isinstance(workload.arrivals, WITH_RATE):
        return workload.arrivals.rate_per_s, workload.requests
    message = "has no rate to vary; expected poisson, gamma or constant arrivals, or a trace"
    raise InputError(scenario.problem("workload.arrivals.process", message))
