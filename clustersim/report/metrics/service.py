"""What users and operators of a service ask for besides latencies: parts of TTFT, rates per user, goodput, the cache.

Each metric is defined once, in the function that computes it; tables are those of
:mod:`clustersim.report.metrics.latencies`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_MS, NS_PER_S, FloatArray
from clustersim.column import by_parts, parts
from clustersim.memory import let_go
from clustersim.report.figures.bins import StepFunction
from clustersim.report.metrics.gauges import blocks_of_all, gauge
from clustersim.report.metrics.latencies import (
    Columns,
    kv_peak,
    latency_summary,
    makespan_ns,
    of_finished,
    share_within,
    tpot_ns,
    ttft_ns,
    weighted_percentile,
    within_targets,
)

USER_STATISTICS: Final = ("mean", "p50", "p10", "p5", "p1", "min")
"""Statistics of a rate: low percentiles are the users who wait most."""


def queueing_ns(requests: Columns) -> FloatArray:
    """Queueing part of TTFT of each request, ns: first admission − arrival. NaN where it was not admitted."""
    return requests["admitted_ns"].astype(np.float64) - requests["arrived_ns"]


def prefill_ns(requests: Columns) -> FloatArray:
    """Prefill part of TTFT of each request, ns: first token − first admission. NaN without a token.

    What a request loses to a preemption before its first token is here and not in the queueing part: it had been
    admitted. So is the hand-over to another pool that gives its client the first token.
    """
    found: FloatArray = requests["first_token_ns"].astype(np.float64) - requests["admitted_ns"]
    return found


def ttft_parts(requests: Columns) -> dict[str, dict[str, float] | None]:
    """Return mean, percentiles and maximum of the parts of TTFT in ms, over finished requests, as TTFT has them."""
    found: dict[str, dict[str, float] | None] = {}
    for name, part in (("ttft_queueing_ms", queueing_ns), ("ttft_prefill_ms", prefill_ns)):
        values, ones = of_finished(requests, partial(_with_ttft, part))
        summary = latency_summary(values, ones) if len(values) else {}
        found[name] = {key: value / NS_PER_MS for key, value in summary.items()} or None
    return found


def _with_ttft(part: Callable[[Columns], FloatArray], requests: Columns) -> FloatArray:
    return np.where(np.isnan(ttft_ns(requests)), np.nan, part(requests))


def _rate(requests: Columns) -> FloatArray:
    gaps = tpot_ns(requests)
    found: FloatArray = np.divide(NS_PER_S, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
    return found


def user_rates(requests: Columns) -> dict[str, float] | None:
    """Return output tokens per second that one user sees, over finished requests; None where none is defined.

    The rate of a request is 1 / TPOT: its output tokens after the first, over the time from first to last token
    ("interactivity"). One-token requests have none. ``p10`` is what nine in ten users exceed.
    """
    rates, ones = of_finished(requests, _rate)
    if not len(rates):
        return None
    low = weighted_percentile(rates, ones, [50, 10, 5, 1])
    values = (float(rates.mean()), *map(float, low), float(rates.min()))
    return dict(zip(USER_STATISTICS, values, strict=True))


def goodput(requests: Columns, limits_ns: Mapping[str, float]) -> dict[str, float | None] | None:
    """Return the requests per second that met every target, and the share that did; None without targets.

    A request counts when it finished and none of its own TTFT, TPOT and E2E is above its target [1]_; one that was
    rejected or did not finish has not met them. DistServe [2]_ calls goodput the highest rate at which a given share
    (say 90 %) still meets its targets: that is the largest arrival rate whose ``share`` here is at least that.

    .. [1] vLLM, ``vllm/benchmarks/serve.py`` (commit 009e6d4), ``--goodput``.
    .. [2] Zhong et al., "DistServe", OSDI 2024, arXiv:2401.09670, sections 1 and 2.
    """
    if not limits_ns:
        return None
    good = int(within_targets(requests, limits_ns).sum())
    span = makespan_ns(requests)
    return {
        "requests_per_s": good * NS_PER_S / span if span else None,
        "share": share_within(requests, limits_ns),
    }


def kv_occupancy(steps: Columns) -> dict[str, float] | None:
    """Return the share, 0 to 1, of the K/V blocks of all replicas in use: its mean over time and its maximum.

    ``replica_max`` is the largest share of one replica's own blocks.
    Over the time from the first step to the last end; None where no pool was seen. A replica between two steps holds
    what it held (:mod:`clustersim.report.metrics.gauges`).
    """
    total = blocks_of_all(steps)
    if not total:
        return None
    used = gauge(steps, "kv_blocks_used")
    return {
        "mean": time_mean(used) / total,
        "max": float(used.value.max()) / total,
        "replica_max": kv_peak(steps) or 0.0,
    }


def batch_sizes(steps: Columns) -> dict[str, float] | None:
    """Return how full steps were: means over steps of their sequences and new tokens, and over time of what runs.

    ``requests`` and ``tokens`` weigh every step alike; ``running`` and ``waiting`` are means over time, of all
    replicas together. None where no step ran.
    """
    many = requests = tokens = 0
    for some in parts(len(steps["count"]), 8):
        count = steps["count"][some].astype(np.int64)
        many += int(count.sum())
        requests += int(steps["batch_requests"][some].astype(np.int64) @ count)
        tokens += int((steps["prefill_tokens"][some].astype(np.int64) + steps["decode_tokens"][some]) @ count)
    let_go()
    if not many:
        return None
    return {
        "requests": requests / many,
        "tokens": tokens / many,
        **{name: time_mean(gauge(steps, name)) for name in ("running", "waiting")},
    }


def time_mean(function: StepFunction) -> float:
    """Return the mean over time of a step function; 0 where it lasts no time.

    Products are added up by numpy: OpenBLAS (``@``) does that in another order on other processors.
    """
    start, value, count = function.start_ns, function.value, len(function.start_ns)
    total, end = int(function.end_ns) - int(start[0]) if count else 0, np.full(1, function.end_ns)

    def products(some: slice) -> FloatArray:
        after = start[some.stop : some.stop + 1] if some.stop < count else end
        return np.diff(start[some], append=after).astype(np.float64) * value[some]

    return float(by_parts("float64", count, products).sum() / total) if total else 0.0


def service_summary(
    requests: Columns, steps: Columns, kv_rows: Columns, limits_ns: Mapping[str, float]
) -> dict[str, Any]:
    """Return these metrics by their key in ``summary.json``; rows are those of ``clustersim.simulation.step_rows``."""
    let_go()
    return {
        **ttft_parts(requests),
        "user_tokens_per_s": user_rates(requests),
        "goodput": goodput(requests, limits_ns),
        "kv_occupancy": kv_occupancy(kv_rows) if len(kv_rows["start_ns"]) else None,
        "batch": batch_sizes(steps),
    }
