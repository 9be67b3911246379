"""Requests as columns: when each arrived and got tokens, what was decided about it, and the chunks of its prompt."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.report.metrics.latencies import Columns
from clustersim.serving.decision import FACT_KINDS
from clustersim.timeline.timeline import Timeline

_TOLD: Final = ("prompt_tokens", "output_tokens", "generated_tokens", "preemptions")
_INSTANTS: Final = ("arrived_ns", "first_token_ns", "finished_ns")
_ORDER: Final = (
    "arrived", "rejected", "preempted", "swapped_out", "admitted", "reused", "swapped_in", "handed_over", "received",
    "finished", "cancelled", "lost",
)  # fmt: skip
"""Facts of one request at one instant, as they follow each other."""


def request_columns(requests: Columns) -> dict[str, npt.NDArray[Any]]:
    """Return the numbers of requests, in their order, with what each asked for and when; −1 for what did not happen."""
    order = np.argsort(requests["request"], kind="stable")
    instants = {name: _whole(requests[name][order]) for name in _INSTANTS}
    return {name: requests[name][order] for name in ("request", *_TOLD)} | instants


def fact_columns(timeline: Timeline) -> dict[str, npt.NDArray[Any]]:
    """Return what was decided, in order of (request, time)."""
    facts, rank = timeline.facts, np.array([_ORDER.index(kind) for kind in FACT_KINDS])
    order = np.lexsort((facts["replica"], rank[facts["kind"]], facts["time_ns"], facts["request"]))
    return {name: facts[name][order] for name in ("request", "time_ns", "kind", "replica")}


def chunk_columns(timeline: Timeline) -> dict[str, npt.NDArray[Any]]:
    """Return the chunks of prompts, in order of (request, replica, step)."""
    chunks = timeline.chunks
    order = np.lexsort((chunks["step"], chunks["replica"], chunks["request"]))
    return {name: chunks[name][order] for name in ("request", "replica", "step", "count", "sampled")}


def _whole(column: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return instants, which may be NaN, as whole numbers: −1 for those."""
    values = np.asarray(column, np.float64)
    return np.where(np.isnan(values), -1.0, values).astype(np.int64)
