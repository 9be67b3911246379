"""From the summary of a run to the figure of a row, in the row's unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clustersim.accuracy.row import Inexpressible, Row

_LATENCIES: Final = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "latency": "e2e_ms", "first_token_latency": "ttft_ms"}
_STATISTICS: Final = {"": "mean", "mean": "mean", "median": "p50", "p50": "p50", "p90": "p90", "p99": "p99"}
_OUTPUT: Final = ("total output throughput", "output throughput", "output throughput over makespan")
_PER_MS: Final = {"ms": 1.0, "s": 1e-3}


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
    if row.metric in _OUTPUT:
        return float(summary["throughput"]["output_tokens_per_s"])
    if row.metric == "output_token_throughput_per_gpu":
        return float(summary["throughput"]["output_tokens_per_s"]) / row.num_gpus
    if row.metric == "makespan":
        return float(summary["makespan_s"])
    name, _, statistic = row.metric.partition(" ")
    if name not in _LATENCIES or statistic not in _STATISTICS or row.unit not in _PER_MS:
        raise Inexpressible(f"no such metric: {row.metric!r} in {row.unit!r}")
    return float(summary[_LATENCIES[name]][_STATISTICS[statistic]]) * _PER_MS[row.unit]
