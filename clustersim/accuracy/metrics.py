"""From the summary of a run to the figure of a row, in the row's unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from clustersim.accuracy.row import Inexpressible, Row, nearest_first

_LATENCIES: Final = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "latency": "e2e_ms", "first_token_latency": "ttft_ms"}
_STATISTICS: Final = {"": "mean", "mean": "mean", "median": "p50", "p50": "p50", "p90": "p90", "p99": "p99"}
_OUTPUT: Final = ("total output throughput", "output throughput", "output throughput over makespan")
_PER_DEVICE: Final = "output_token_throughput_per_gpu"
_MAKESPAN: Final = "makespan"
_PER_MS: Final = {"ms": 1.0, "s": 1e-3}
_PER_S: Final = re.compile(r"tok(?:en)?s?/s(ec)?(?P<each>/(?:GPU|device))?", re.I)
FORMS: Final = (
    *((f"{name} STATISTIC", "`ms`, `s`") for name in _LATENCIES),
    *((name, "`tok/s`; `tok/s/GPU` is per device") for name in _OUTPUT),
    (_PER_DEVICE, "`tok/s/GPU`"),
    (_MAKESPAN, "`s`, `ms`"),
    ("bandwidth", "of F11: `GB/s`"),
    ("latency", "of F11: `us`"),
    ("STATISTIC", ", ".join(f"`{name}`" for name in _STATISTICS if name) + "; none is a mean"),
)
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
    rate = _PER_S.fullmatch(row.unit)
    if rate:
        is_each = bool(rate["each"]) or row.metric == _PER_DEVICE
        return float(summary["throughput"]["output_tokens_per_s"]) / (row.num_gpus if is_each else 1.0)
    if row.metric == _MAKESPAN:
        return float(summary["makespan_s"]) * 1e3 * _PER_MS[row.unit]
    name, _, statistic = row.metric.partition(" ")
    return float(summary[_LATENCIES[name]][_STATISTICS[statistic]]) * _PER_MS[row.unit]


def check_metric(row: Row) -> None:
    """Raise with the metrics that are known, where the one of a row is none of them, or in another unit.

    Raises
    ------
    Inexpressible
    """
    name, _, statistic = row.metric.partition(" ")
    rates = (*_OUTPUT, _PER_DEVICE)
    times = [name, *(f"{name} {one}" for one in _STATISTICS if one)] if name in _LATENCIES else list(_LATENCIES)
    told = f"no such metric: {row.metric!r} in {row.unit!r}"
    is_time = row.metric == _MAKESPAN or (name in _LATENCIES and statistic in _STATISTICS)
    if not is_time and row.metric not in rates:
        raise Inexpressible(f"{told}; known are {nearest_first(row.metric, [*times, _MAKESPAN, *rates])}")
    if is_time and row.unit not in _PER_MS:
        raise Inexpressible(f"{told}; it is known in {nearest_first(row.unit, _PER_MS)}")
    if not is_time and not _PER_S.fullmatch(row.unit):
        raise Inexpressible(f"{told}; it is known in {nearest_first(row.unit, ('tok/s', 'tok/s/GPU'))}")
