"""Latencies, throughput and targets of a run, from its requests: each metric is defined once, here.

Tables are mappings of column name → numpy array, as a run directory has them; a null is NaN (so a column with
nulls is float64, exact to 2⁵³ ns = 104 days). Percentiles are numpy's ``linear`` method everywhere, the one
that ``vllm bench serve`` uses [1]_, so figures can be laid side by side.

.. [1] vLLM, ``vllm/benchmarks/serve.py`` (commit 009e6d4): TPOT, percentiles over completed requests,
goodput.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_MS, NS_PER_S, FloatArray
from clustersim.column import Column, by_parts, constant, is_one, parts
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.memory import let_go
from clustersim.simulation.agreement import EXPLAINED
from clustersim.units import UnitError, parse

Columns = Mapping[str, npt.NDArray[Any]]
"""A table: column name → array, all of one length."""

Weighted = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Values and how often each occurs."""

PERCENTILES: Final = (50, 90, 95, 99)
LATENCIES: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end-to-end latency",
}
"""Name → what it stands for, in the order in which they are shown."""
_TIMED: Final = ("arrived_ns", "admitted_ns", "first_token_ns", "finished_ns", "front_end_ns", "generated_tokens")
"""Columns of which these are worked out."""


def ttft_ns(requests: Columns) -> FloatArray:
    """Time to first token of each request, ns: first token − arrival, so it includes the wait in the queue.

    Where the engine has a front end its time is added: a client's clock starts before the request is in a queue.
    NaN for a request that never got a token.
    """
    return _float(requests["first_token_ns"]) - _float(requests["arrived_ns"]) + _front_end_ns(requests)


def e2e_ns(requests: Columns) -> FloatArray:
    """End-to-end latency of each request, ns: last token − arrival, and the front end's time as TTFT has it.

    NaN for a request that did not finish.
    """
    return _float(requests["finished_ns"]) - _float(requests["arrived_ns"]) + _front_end_ns(requests)


def _front_end_ns(requests: Columns) -> FloatArray | float:
    return _float(requests["front_end_ns"]) if "front_end_ns" in requests else 0.0


def tpot_ns(requests: Columns) -> FloatArray:
    """Time per output token of each request, ns: (last token − first token) / (n − 1) for n generated tokens.

    It leaves out the first token, whose time is TTFT; so it is undefined (NaN) for one token, and for a
    request that did not finish.
    """
    gaps = _float(requests["generated_tokens"]) - 1.0
    time = _float(requests["finished_ns"]) - _float(requests["first_token_ns"])
    per_token: FloatArray = np.full(len(time), np.nan)
    np.divide(time, gaps, out=per_token, where=gaps > 0)
    return per_token


def is_finished(requests: Columns) -> npt.NDArray[np.bool_]:
    """Return which requests delivered all their tokens."""
    ends = np.asarray(requests["finished_ns"])
    return ~np.isnan(ends) if ends.dtype.kind == "f" else np.ones(len(ends), bool)


def of_finished(requests: Columns, per_request: Callable[[Columns], FloatArray]) -> Weighted:
    """Return what is worked out of each finished request, but for NaN, in their order, once each.

    It is worked out of some at a time, and many are in a file.
    """
    columns, found = _timed(requests), Column("float64")
    for some in parts(len(requests["arrived_ns"]), 8):
        mine = {name: column[some] for name, column in columns.items()}
        values = per_request(mine)[is_finished(mine)]
        found.append(values[~np.isnan(values)])
    values = found.whole()
    let_go()
    return values, constant(np.int64(1), len(values))


def of_each(to: str, requests: Columns, per_request: Callable[[Columns], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return what is worked out of each request, of a type, of some at a time."""
    columns = _timed(requests)
    return by_parts(
        to,
        len(requests["arrived_ns"]),
        lambda some: per_request({name: column[some] for name, column in columns.items()}),
    )


def _timed(requests: Columns) -> Columns:
    return {name: requests[name] for name in _TIMED if name in requests}


def latencies_ns(requests: Columns, token_gaps: Weighted | None = None) -> dict[str, Weighted]:
    """Return the values of every latency that the run defines, by name, with their weights.

    Parameters
    ----------
    requests : Columns
        The table of requests. Only finished ones count, for every metric.
    token_gaps : (values, weights) or None
        Inter-token latency (ITL): the time from each token of a request to its next one, ns, pooled over
        requests, and how often each gap occurs. ``None`` when it was not recorded; then ITL is absent.

    Returns
    -------
    dict
        Keys of :data:`LATENCIES` in their order; a metric that no request defines is absent.
    """
    found: dict[str, Weighted] = {}
    for name, per_request in (("ttft", ttft_ns), ("tpot", tpot_ns), ("itl", None), ("e2e", e2e_ns)):
        if per_request is not None:
            found[name] = of_finished(requests, per_request)
        elif token_gaps is not None:
            found[name] = token_gaps
    return {name: weighted for name, weighted in found.items() if weighted[1].any()}


def weighted_percentile(values: npt.NDArray[Any], weights: npt.NDArray[Any], percents: npt.ArrayLike) -> FloatArray:
    """Return percentiles of values that occur several times each, without expanding them.

    Equal, bit for bit, to ``np.percentile(np.repeat(values, weights), percents)``.

    Parameters
    ----------
    values : ndarray
        The values, in any order.
    weights : ndarray of int
        How often each occurs (0 or more).
    percents : array_like
        Percentages, 0 to 100.

    Raises
    ------
    ValueError
        When the weights sum to zero: nothing has no percentile.
    """
    ordered, last = np.asarray(values), np.asarray(weights, np.int64)
    once = (is_one(last) and last[0] == 1) or bool((last == 1).all())
    if not once and (ordered[1:] < ordered[:-1]).any():
        order = np.argsort(ordered, kind="stable")
        ordered, last = ordered[order], last[order]
    last = last if once else np.cumsum(last)  # last[i]: how many expanded values are ≤ ordered[i]
    many = len(last) if once else int(last[-1]) if len(last) else 0
    if not many:
        raise ValueError("percentile of no values")
    position = (many - 1) * np.true_divide(np.asarray(percents, np.float64), 100.0)
    below = np.floor(position)
    fraction = position - below
    each = (below, np.minimum(below + 1, many - 1))
    places = [at.astype(np.int64) if once else np.searchsorted(last, at, side="right") for at in each]
    if once:  # of few places nothing else needs to be in order
        ordered = np.partition(ordered, np.unique(np.concatenate(places, axis=None)))
    low, high = (ordered[at].astype(np.float64, copy=False) for at in places)
    # numpy interpolates from the nearer end, so that the ends are exact
    return np.asarray(np.where(fraction >= 0.5, high - (high - low) * (1 - fraction), low + (high - low) * fraction))


def latency_summary(values: npt.NDArray[Any], weights: npt.NDArray[Any]) -> dict[str, float]:
    """Return mean, p50, p90, p95, p99 and max of weighted values, in their unit."""
    percentiles = weighted_percentile(values, weights, PERCENTILES)
    once = is_one(weights) and weights[0] == 1
    products = np.asarray(values, np.float64) if once else np.asarray(values, np.float64) * weights
    mean = float(products.sum() / (len(weights) if once else weights.sum()))  # as in ``service.time_mean``
    named = {f"p{percent}": float(value) for percent, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"mean": mean, **named, "max": float((values if once else values[weights > 0]).max())}


def makespan_ns(requests: Columns) -> float | None:
    """Time from the first arrival to the last token of a request that finishes, ns; None if none does.

    A request that comes later and is rejected ends it, as one that failed does in vLLM's benchmark [1]_.

    .. [1] vLLM, ``vllm/benchmarks/serve.py`` (commit 009e6d4), ``benchmark_duration``.
    """
    ends, arrived, outcome = np.asarray(requests["finished_ns"]), requests["arrived_ns"], requests["outcome"]
    if not len(ends) or np.isnan(last := np.fmax.reduce(ends)):
        return None
    turned_away = arrived[:0] if is_one(outcome) else arrived[outcome == "rejected"]
    return float(max(float(last), float(turned_away.max(initial=0))) - float(arrived.min()))


def throughput(requests: Columns) -> dict[str, float | None]:
    """Return what finished requests got per second of the makespan.

    ``output_tokens_per_s`` counts generated tokens, ``total_tokens_per_s`` prompt tokens too,
    ``requests_per_s`` requests. Tokens of requests that did not finish are not counted. None where the
    makespan is none or zero.
    """
    done = is_finished(requests)
    output, prompts = (int(requests[name].sum(where=done)) for name in ("generated_tokens", "prompt_tokens"))
    total = output + prompts
    span = makespan_ns(requests)
    return {
        "output_tokens_per_s": output * NS_PER_S / span if span else None,
        "total_tokens_per_s": total * NS_PER_S / span if span else None,
        "requests_per_s": int(done.sum()) * NS_PER_S / span if span else None,
    }


def summarise(requests: Columns, token_gaps: Weighted | None = None) -> dict[str, Any]:
    """Return what of ``summary.json`` follows from the requests: counts, latencies in ms, throughput.

    A latency that is undefined (no finished request, or TPOT of one token each) is None.
    """
    outcome = np.asarray(requests["outcome"])
    found = latencies_ns(requests, token_gaps)
    in_ms = {
        f"{name}_ms": {key: value / NS_PER_MS for key, value in latency_summary(*found[name]).items()}
        if name in found
        else None
        for name in LATENCIES
    }
    told, times = (outcome[:1], len(outcome)) if is_one(outcome) else (outcome, 1)
    words = ("finished", "rejected", "unfinished", "cancelled", "lost")
    counts = {key: int((told == key).sum()) * times for key in words}
    span = makespan_ns(requests)
    return {
        "requests": {"arrived": len(outcome), **counts},
        **in_ms,
        "throughput": throughput(requests),
        "makespan_s": None if span is None else span / NS_PER_S,
    }


_MOST_REASONS: Final = 20


def reasons(requests: Columns) -> dict[str, dict[str, int]]:
    """Return ``reasons`` of ``summary.json``: by outcome, how many requests ended so for which reason.

    Most frequent first; what is beyond the first twenty is counted together.
    """
    found: dict[str, dict[str, int]] = {}
    outcome, reason = np.asarray(requests["outcome"]), np.asarray(requests["reason"], object)
    for word in EXPLAINED if not is_one(outcome) or outcome[0] in EXPLAINED else ():
        counts = Counter(str(why) for why in reason[outcome == word])
        if counts:
            ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
            found[word] = dict(ranked[:_MOST_REASONS])
            if others := sum(count for _, count in ranked[_MOST_REASONS:]):
                found[word]["other reasons"] = others
    return found


def targets_ns(targets: Mapping[str, Any] | None) -> dict[str, float]:
    """Read a scenario's targets, such as ``{"ttft": "1 s", "tpot": "50 ms"}``, as ns by latency name.

    Raises
    ------
    InputError
        For an unknown latency, or a target that is no time with its unit.
    """
    found: dict[str, float] = {}
    problems: list[Problem] = []
    for name, text in (targets or {}).items():
        if text is None:
            continue
        if name not in LATENCIES:
            guess = did_you_mean(name, list(LATENCIES))
            problems.append(Problem(path=f"targets.{name}", message=f"unknown latency {name!r}{guess}"))
            continue
        try:
            found[name] = parse(text, "time") * NS_PER_S
        except UnitError as error:
            problems.append(Problem(path=f"targets.{name}", message=str(error)))
    if problems:
        raise InputError(problems)
    return found


def target_met(latency_ms: Mapping[str, float], limit_ns: float) -> bool:
    """Say whether a target is met: when the 99th percentile is at most the target."""
    return latency_ms["p99"] * NS_PER_MS <= limit_ns


def attainment(values: npt.NDArray[Any], weights: npt.NDArray[Any], target_ns: float) -> float:
    """Return the share, 0 to 1, of weighted values that are at most the target."""
    return float(weights[values <= target_ns].sum() / weights.sum())


def within_targets(requests: Columns, limits_ns: Mapping[str, float]) -> npt.NDArray[np.bool_]:
    """Return which requests finished within every per-request target (TTFT, TPOT, E2E).

    A one-token request has no TPOT and so can't miss it; ITL is no property of one request and is not counted.
    """
    each = {"ttft": ttft_ns, "tpot": tpot_ns, "e2e": e2e_ns}

    def good(mine: Columns) -> npt.NDArray[np.bool_]:
        late = [each[name](mine) > limit for name, limit in limits_ns.items() if name in each]
        return is_finished(mine) & ~np.any(late, axis=0) if late else is_finished(mine)

    return of_each("bool", requests, good)


def share_within(requests: Columns, limits_ns: Mapping[str, float]) -> float | None:
    """Return the share, 0 to 1, of requests that were within every target (:func:`within_targets`); None of none.

    Those that ask for no token failed where their trace was recorded: no server could have met their targets.
    """
    asked = int(np.count_nonzero(requests["output_tokens"]))
    return int(within_targets(requests, limits_ns).sum()) / asked if asked else None


def kv_peak(steps: Columns) -> float | None:
    """Return the largest share, 0 to 1, of a replica's K/V blocks in use in any step; None without blocks."""
    most = -1.0
    for some in parts(len(steps["kv_blocks_total"]), 8):
        there = steps["kv_blocks_total"][some]
        shares = np.divide(steps["kv_blocks_used"][some], there, out=np.full(len(there), -1.0), where=there > 0)
        most = max(most, float(shares.max()))
    return None if most < 0.0 else most


def _float(column: npt.NDArray[Any]) -> FloatArray:
    return np.asarray(column).astype(np.float64, copy=False)
