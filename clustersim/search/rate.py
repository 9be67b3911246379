"""The highest rate at which enough requests meet their targets: where it may lie is cut into four, again and again.

That is what DistServe [1]_ calls goodput and Vidur [2]_ capacity. All rates are tried with common random numbers: the
gaps between arrivals of a drawn workload are those of another rate, scaled, and its lengths are the same; a trace is
played faster or slower. Each run lasts for some time of arrivals, since a short one ends before its queue has grown.

.. [1] Zhong et al., "DistServe", OSDI 2024, arXiv:2401.09670, section 2.
.. [2] Agrawal et al., "Vidur", MLSys 2024, arXiv:2405.05465, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from clustersim.errors import InputError
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import WITH_RATE, load_of
from clustersim.search.runs import Runs
from clustersim.search.tried import BETWEEN, Progress, RatesTried, Tried
from clustersim.units import format_asked, format_share, plural
from clustersim.values import dataclass
from clustersim.workload.draws import DrawnWorkload

_MOST_DOUBLINGS: Final = 24
_ALONE: Final = 2.0**-12
"""Of the first rate: so rarely that requests don't meet (assumed)."""
_RARELY: Final = 2.0**-6
"""Requests per second above which they may meet all the same (assumed)."""
_GROWS: Final = 1.02
_NEARLY: Final = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest rate that was found to do, the lowest that does not, and what breaks there.

    Parameters
    ----------
    best, worse : Tried
    tried : tuple of Tried
        All, by rate.
    limited_by : str
        ``ttft``, ``tpot`` or ``e2e``: the target that most requests miss at ``worse``.
    why : str
    """

    best: Tried
    worse: Tried
    tried: tuple[Tried, ...]
    limited_by: str
    why: str


def highest_rate(
    runs: Runs,
    scenario: Scenario,
    *,
    share: float,
    tolerance: float,
    lasting_s: float,
    told: Callable[[Progress], None] = lambda _: None,
) -> Capacity:
    """Return the highest rate at which a share of all requests meets every target.

    Parameters
    ----------
    runs : Runs
    scenario : Scenario
        Whose rate is tried first.
    share : float
    tolerance : float
        How far, relatively, the lowest rate that does not may lie above the highest that does.
    lasting_s : float
        Arrivals of each run last as long, if the workload has not more requests.
    told : callable, optional
        Called with how far it is, whenever a rate is tried or done.

    Raises
    ------
    InputError
        When nothing can be simulated, even lone requests miss their targets, or none ever does.
    IllegalPlanError
    """
    runs.variants.refuse_illegal()
    load = load_of(scenario, runs.variants.requests, lasting_s)
    attempts = RatesTried(runs=runs, load=load, share=share, tolerance=tolerance, told=told)

    def attempt(rate: float) -> Tried:
        return attempts([rate])[0]

    best = worse = attempt(load.first)
    if best.share >= share:
        for _ in range(_MOST_DOUBLINGS):
            worse = attempt(2.0 * best.rate_per_s)
            if worse.share < share:
                break
            served = [one.row["numbers"]["throughput.requests_per_s"] for one in (best, worse)]
            if served[1] < _GROWS * served[0]:
                raise _too_short(worse, served[1], scenario)
            best = worse
    else:
        best = attempt(_ALONE * load.first)
        while best.share < share:
            if best.rate_per_s <= _RARELY:
                raise _nobody(best, share, scenario)
            worse, best = best, attempt(_ALONE * best.rate_per_s)
    while worse.rate_per_s > best.rate_per_s * (1.0 + tolerance):
        step = (worse.rate_per_s / best.rate_per_s) ** (1.0 / (BETWEEN + 1))
        between = attempts([best.rate_per_s * step**number for number in range(1, BETWEEN + 1)])
        each = [best, *between, worse]
        if len({one.rate_per_s for one in each}) < len(each):
            break
        first = next(number for number, one in enumerate(each) if one.share < share)
        best, worse = each[first - 1], each[first]
    limit = limiting(worse.row["numbers"])
    return Capacity(
        best=best,
        worse=worse,
        tried=tuple(attempts.tried[rate] for rate in sorted(attempts.tried)),
        limited_by=limit,
        why=reason(limit, worse.row["numbers"], scenario),
    )


def refuse_impossible(runs: Runs, scenario: Scenario, share: float, changes: Sequence[str]) -> None:
    """Refuse targets that even lone requests of a scenario with some changes miss; where arrivals have a rate to lower.

    Raises
    ------
    InputError
        With what lone requests reach.
    """
    if isinstance(scenario.workload, DrawnWorkload) and not isinstance(scenario.workload.arrivals, WITH_RATE):
        return
    load = load_of(scenario, runs.variants.requests, 0.0)
    rate = _ALONE * load.first
    while rate > _RARELY:
        rate *= _ALONE
    rate = float(f"{rate:.6g}")
    row = runs.row((*changes, *load.changes(rate)))
    alone = Tried(rate_per_s=rate, changes=(), row=row)
    if row["failed"] is None and alone.share < share:
        raise _nobody(alone, share, scenario)


def limiting(numbers: Mapping[str, Any]) -> str:
    """Return the target that the fewest requests meet."""
    met = {key.removeprefix("met."): value for key, value in numbers.items() if key.startswith("met.")}
    return min(met, key=lambda name: (met[name], name)) if met else "nothing"


def reason(limit: str, numbers: Mapping[str, Any], scenario: Scenario) -> str:
    """Say in words why requests miss a target."""
    has = numbers.get
    told = []
    if limit in ("ttft", "e2e") and has("ttft_queueing_ms.p90") is not None:
        queue, prefill = has("ttft_queueing_ms.p90"), has("ttft_prefill_ms.p90")
        told.append(f"nine in ten wait up to {queue:,.0f} ms in the queue, and {prefill:,.0f} ms for their prompt")
    if limit == "tpot" and has("itl_ms.p50") is not None:
        middle, tail = has("itl_ms.p50"), has("itl_ms.p99")
        told.append(f"gaps between tokens are {middle:,.1f} ms in the median, {tail:,.1f} ms at p99")
    if (has("kv_occupancy.max") or 0.0) >= _NEARLY:
        told.append("the K/V cache is full" + (f" ({has('preemptions'):,} preemptions)" if has("preemptions") else ""))
    places = scenario.serving.max_batch_requests * scenario.plan.dp
    running = has("batch.running")
    if running is not None:
        full = " of at most" if running >= 0.9 * places else " of"
        told.append(f"{running:,.0f}{full} {places:,} requests run at a time in the mean")
    return f"{limit.upper()}: " + ("; ".join(told) or "no request was served")


def _nobody(alone: Tried, share: float, scenario: Scenario) -> InputError:
    """Return the error for targets that even lone requests miss."""
    numbers = alone.row["numbers"]
    name = limiting(numbers)
    if numbers["requests.rejected"] == (arrived := numbers["requests.arrived"]):
        message = (
            f"rejects all of {plural(arrived, 'request')} even when they come one by one; `clustersim run` says why"
        )
        return InputError(scenario.problem("serving", message))
    median = numbers.get(f"{name}_ms.p50")
    least = "" if median is None else f", whose {name.upper()} is {median:,.4g} ms in the median"
    met = numbers.get(f"met.{name}", 0.0)
    message = (
        f"{scenario.targets[name]} is met by {format_share(met)} of requests even when they come one by one ("
        f"{alone.rate_per_s:g}/s){least}; expected a target that {format_asked(share)} can meet, or another plan"
    )
    if scenario.run.horizon_ns is not None:
        message = f"ends the run before enough requests do: {message.partition(';')[0]}; expected a longer one, or none"
        return InputError(scenario.problem("run.horizon", message))
    return InputError(scenario.problem(f"targets.{name}", message))


def _too_short(at: Tried, served: float, scenario: Scenario) -> InputError:
    """Return the error for runs that end before anybody misses a target."""
    message = (
        f"at {at.rate_per_s:g}/s only {served:,.1f}/s are served, and still {format_share(at.share)} of requests meet "
        "their targets: the run ends before its queue is as long as they allow; add --lasting with a longer time, or "
        "tighter targets"
    )
    return InputError(scenario.problem("targets", message))
