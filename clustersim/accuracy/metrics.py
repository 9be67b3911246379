"""From the summary of a run to the figure of a row, in the row's unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from clustersim.accuracy.row import Inexpressible, Row, nearest_first

_LATENCIES: Final = {
    "TTFT": "ttft_ms", "TPOT": "tpot_ms", "ITL": "itl_ms", "latency": "e2e_ms", "first_token_latency": "ttft_ms",
}  # fmt: skip
_STATISTICS: Final = {
    "": "mean", "mean": "mean", "median": "p50", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99",
}  # fmt: skip
_REQUESTS: Final = "request throughput"
PREFILLS: Final = "prefill throughput"
"""Prompt tokens of all that a run takes, over its time."""
_PER_DEVICE: Final = "output_token_throughput_per_gpu"
_RATES: Final = {
    "total output throughput": "output_tokens_per_s", "output throughput": "output_tokens_per_s",
    "output throughput over makespan": "output_tokens_per_s", _PER_DEVICE: "output_tokens_per_s",
    "total token throughput": "total_tokens_per_s", _REQUESTS: "requests_per_s", PREFILLS: "total_tokens_per_s",
}  # fmt: skip
_MAKESPAN: Final = "makespan"
_PER_MS: Final = {"ms": 1.0, "s": 1e-3, "us": 1e3}
_PER_S: Final = re.compile(r"(?:tok(?:en)?s?|req(?:uest)?s?)/s(ec)?(?P<each>/(?:GPU|device))?", re.I)
_WORDS: Final = re.compile(r"\b(ttft|tpot|itl|e2el|(?:e2e|end-to-end) latency)\b", re.I)
FORMS: Final = (
    *((f"{name} STATISTIC", "`ms`, `s`, `us`") for name in _LATENCIES),
    *((name, "`tok/s`; `tok/s/GPU` is per device") for name in _RATES if name not in (_PER_DEVICE, _REQUESTS)),
    (_PER_DEVICE, "`tok/s/GPU`"),
    (_REQUESTS, "`req/s`; `req/s/GPU` is per device"),
    (_MAKESPAN, "`s`, `ms`, `us`"),
    ("bandwidth", "of F11: `GB/s`"),
    ("latency", "of F11: `us`"),
    ("STATISTIC", ", ".join(f"`{name}`" for name in _STATISTICS if name) + "; none is a mean"),
)  # fmt: skip
"""Metrics, each with its units."""


def value_of(row: Row, summary: Mapping[str, Any]) -> float:
    """Return what a run says of the metric of ``row``; one without statistic is a mean.

    Parameters
    ----------
    row : Row
    summary : mapping
        ``summary.json``.

    Raises
    ------
    Inexpressible
        When the simulator has no such metric.
    """
    check_metric(row)
    metric, rate = _metric(row), _PER_S.fullmatch(row.unit)
    if rate:
        is_each = bool(rate["each"]) or metric == _PER_DEVICE
        rates = summary["throughput"]
        rate = rates[_RATES[metric]] - (rates["output_tokens_per_s"] if metric == PREFILLS else 0.0)
        return float(rate) / (row.num_gpus if is_each else 1.0)
    if metric == _MAKESPAN:
        return float(summary["makespan_s"]) * 1e3 * _PER_MS[row.unit]
    name, _, statistic = metric.partition(" ")
    found = summary[_LATENCIES[name]][_STATISTICS[statistic]]
    if found is None:
        raise Inexpressible(f"{name} is of requests with two output tokens or more; these have one")
    return float(found) * _PER_MS[row.unit]


def _metric(row: Row) -> str:
    """Return the metric of a row as it is called here, whichever its case: ``TPOT mean`` of ``tpot Mean``."""
    found = _WORDS.match(row.metric)
    if found:
        name = "latency" if found[1].lower().startswith("e") else found[1].upper()
        return name + row.metric[found.end() :].lower()
    return row.metric.lower()


def check_metric(row: Row) -> None:
    """Raise with the metrics that are known, where the one of a row is none of them, or in another unit.

    Raises
    ------
    Inexpressible
    """
    metric = _metric(row)
    name, _, statistic = metric.partition(" ")
    times = [name, *(f"{name} {one}" for one in _STATISTICS if one)] if name in _LATENCIES else list(_LATENCIES)
    told = f"no such metric: {row.metric!r} in {row.unit!r}"
    is_time = metric == _MAKESPAN or (name in _LATENCIES and statistic in _STATISTICS)
    if not is_time and metric not in _RATES:
        raise Inexpressible(f"{told}; known are {nearest_first(metric, [*times, _MAKESPAN, *_RATES])}")
    if is_time and row.unit not in _PER_MS:
        raise Inexpressible(f"{told}; it is known in {nearest_first(row.unit, _PER_MS)}")
    unit = "req" if metric == _REQUESTS else "tok"
    if not is_time and not (row.unit.lower().startswith(unit) and _PER_S.fullmatch(row.unit)):
        raise Inexpressible(f"{told}; it is known in {nearest_first(row.unit, (f'{unit}/s', f'{unit}/s/GPU'))}")
