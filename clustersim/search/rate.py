"""The highest rate at which enough requests meet their targets: where it may lie is cut into four, again and again.

That is what DistServe [1]_ calls goodput and Vidur [2]_ capacity. All rates are tried with common random numbers: the
gaps between arrivals of a drawn workload are those of another rate, scaled, and its lengths are the same; a trace is
played faster or slower. Each run lasts for some time of arrivals, since a short one ends before its queue has grown.

.. [1] Zhong et al., "DistServe", OSDI 2024, arXiv:2401.09670, section 2.
.. [2] Agrawal et al., "Vidur", MLSys 2024, arXiv:2405.05465, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from clustersim.errors import InputError, UnreachedError
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import Load, has_rate, load_of
from clustersim.search.queue import growth_words, lowered
from clustersim.search.runs import Runs
from clustersim.search.tried import BETWEEN, Progress, RatesTried, Tried
from clustersim.units import format_asked, format_share, plural
from clustersim.values import dataclass

_MOST_DOUBLINGS: Final = 24
_ALONE: Final = 2.0**-12
"""Of the first rate: so rarely that requests don't meet (assumed)."""
_RARELY: Final = 2.0**-6
"""Requests per second above which they may meet all the same (assumed)."""
QUEUE: Final = "queue"
"""What limits a rate at which enough requests meet their targets, and the queue grows …"""
REJECTED: Final = "rejected"
"""… and one at which all meet them that are not rejected."""
_NEARLY: Final = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest rate that was found to do, the lowest that does not, and what breaks there.

    Parameters
    ----------
    best, worse : Tried
        Of requests that come one by one, both, where none of these meets its targets.
    tried : tuple of Tried
        All, by rate.
    limited_by : str
        ``ttft``, ``tpot`` or ``e2e``: the target that most requests miss at ``worse``; ``queue``: enough meet them, and
        the queue grows; ``rejected``: all meet them that are not rejected.
    why : str
    share : float
        Of all requests, that meets every target at ``best``.
    unreached : UnreachedError or None
        Where no rate reaches the share that was asked for, what the best one reaches; ``share`` is less then.
    """

    best: Tried
    worse: Tried
    tried: tuple[Tried, ...]
    limited_by: str
    why: str
    share: float
    unreached: UnreachedError | None = None


def highest_rate(
    runs: Runs,
    scenario: Scenario,
    *,
    share: float,
    tolerance: float,
    lasting_s: float,
    told: Callable[[Progress], None] = lambda _: None,
) -> Capacity:
    """Return the highest rate at which a share of all requests meets every target, and the queue does not grow.

    Where not even lone requests reach that share, the highest rate of about as many as do is looked for.

    Parameters
    ----------
    runs : Runs
    scenario : Scenario
        Whose rate is tried first.
    share : float
    tolerance : float
        How far, relatively, the lowest rate that does not may lie above the highest that does.
    lasting_s : float
        Arrivals of each run last as long, if the workload has not more requests; longer, until the queue is steady.
    told : callable, optional
        Called with how far it is, whenever a rate is tried or done.

    Raises
    ------
    InputError
        When nothing can be simulated, no request is served, or none ever misses a target.
    IllegalPlanError
    """
    runs.variants.refuse_illegal()
    load = load_of(scenario, runs.variants.requests, lasting_s)
    attempts = RatesTried(runs=runs, load=load, share=share, tolerance=tolerance, told=told)

    def attempt(rate: float) -> Tried:
        return attempts([rate])[0]

    best = worse = attempt(load.first)
    if best.does(share):
        for _ in range(_MOST_DOUBLINGS):
            worse = attempt(2.0 * best.rate_per_s)
            if not worse.does(share):
                break
            best = worse
        else:
            raise _endless(best, scenario)
    else:
        best = attempt(_rarer(load, worse.rate_per_s))
        while not best.does(share):
            if _is_alone(load, best.rate_per_s):
                nobody = _nobody(best, share, scenario)
                if not isinstance(nobody, UnreachedError):
                    raise nobody
                if less := lowered(best.share):
                    found = highest_rate(
                        runs, scenario, share=less, tolerance=tolerance, lasting_s=lasting_s, told=told
                    )
                else:
                    found = _capacity(best, best, attempts, scenario, share=0.0)
                return replace(found, unreached=nobody)
            worse, best = best, attempt(_rarer(load, best.rate_per_s))
    best, worse = _narrowed(best, worse, attempts, share, tolerance)
    return _capacity(best, worse, attempts, scenario, share=share)


def _narrowed(best: Tried, worse: Tried, attempts: RatesTried, share: float, tolerance: float) -> tuple[Tried, Tried]:
    """Return a rate that does and one that does not which are as close as asked, or as numbers allow."""
    while worse.rate_per_s > best.rate_per_s * (1.0 + tolerance):
        step = (worse.rate_per_s / best.rate_per_s) ** (1.0 / (BETWEEN + 1))
        between = attempts([best.rate_per_s * step**number for number in range(1, BETWEEN + 1)])
        each = [best, *between, worse]
        if len({one.rate_per_s for one in each}) < len(each):
            break
        first = next(number for number, one in enumerate(each) if not one.does(share))
        best, worse = each[first - 1], each[first]
    return best, worse


def _capacity(best: Tried, worse: Tried, attempts: RatesTried, scenario: Scenario, *, share: float) -> Capacity:
    """Return what was found; ``worse`` is ``best`` where not even requests that come one by one meet their targets."""
    numbers = worse.row["numbers"]
    limit = limiting(numbers) if worse.share < share or worse is best else QUEUE
    return Capacity(
        best=best,
        worse=worse,
        tried=tuple(attempts.tried[rate] for rate in sorted(attempts.tried)),
        limited_by=limit,
        why=reason(limit, numbers, scenario),
        share=share,
    )


def _rarer(load: Load, rate: float) -> float:
    """Return a rate at which requests hardly meet where they do at another one."""
    return max(_ALONE * rate, min(load.slowest, load.first))


def _is_alone(load: Load, rate: float) -> bool:
    """Whether requests come one by one at a rate."""
    return rate <= max(_RARELY, load.slowest)


def refuse_impossible(runs: Runs, scenario: Scenario, share: float, changes: Sequence[str]) -> None:
    """Refuse targets that even lone requests of a scenario with some changes miss; where arrivals have a rate to lower.

    Raises
    ------
    UnreachedError
        With what lone requests reach; an :class:`InputError` where none of them is served.
    """
    if not has_rate(scenario):
        return
    load = load_of(scenario, runs.variants.requests, 0.0)
    rate = _rarer(load, load.first)
    while not _is_alone(load, rate):
        rate = _rarer(load, rate)
    rate = float(f"{rate:.6g}")
    row = runs.row((*changes, *load.changes(rate)))
    alone = Tried(rate_per_s=rate, changes=(), row=row)
    if row["failed"] is None and alone.share < share:
        raise _nobody(alone, share, scenario)


def limiting(numbers: Mapping[str, Any]) -> str:
    """Return the target that the fewest requests meet; that some are rejected, where all others meet them."""
    met = {key.removeprefix("met."): value for key, value in numbers.items() if key.startswith("met.")}
    asked, unfit = int(numbers.get("met_of", numbers.get("requests.arrived", 0))), _unfit(numbers)
    if unfit > 0 and min(met.values(), default=0.0) * asked >= asked - unfit - 0.5:
        return REJECTED
    return min(met, key=lambda name: (met[name], name)) if met else "nothing"


def _unfit(numbers: Mapping[str, Any]) -> int:
    """Return how many requests were rejected, without those that failed where their trace was recorded."""
    arrived, rejected = (int(numbers.get(f"requests.{one}") or 0) for one in ("arrived", "rejected"))
    return rejected - (arrived - int(numbers.get("met_of", arrived)))


def reason(limit: str, numbers: Mapping[str, Any], scenario: Scenario) -> str:
    """Say in words why requests miss a target."""
    has = numbers.get
    told = [growth_words(numbers)] if limit == QUEUE else []
    if limit == REJECTED:
        told.append(f"{_unfit(numbers):,} of {plural(numbers['requests.arrived'], 'request')} do not fit")
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
    if name == REJECTED and alone.share > 0.0:
        message = (
            f"rejects {_unfit(numbers):,} of {plural(numbers['requests.arrived'], 'request')} even when "
            f"they come one by one, so that {format_share(alone.share)} meet every target; `clustersim run` says why"
        )
        return UnreachedError(scenario.problem("serving", message))
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
    return UnreachedError(scenario.problem(f"targets.{name}", message))


def _endless(at: Tried, scenario: Scenario) -> InputError:
    """Return the error for targets that requests meet at any rate."""
    message = f"still met by {format_share(at.share)} of requests at {at.rate_per_s:g}/s; expected tighter ones"
    return InputError(scenario.problem("targets", message))
