"""Requests as columns: when each arrived and got tokens, what was decided about it, and the chunks of its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.report.metrics.latencies import Columns
from clustersim.serving.decision import ARRIVED, FACT_KINDS, FINISHED, REUSED
from clustersim.timeline.timeline import Timeline

_TOLD: Final = ("prompt_tokens", "output_tokens", "generated_tokens", "preemptions")
WAITS: Final = ("batch_wait", "blocks_wait", "budget_wait", "choice_wait", "step_wait", "replica_wait")
"""What a request may wait for before it is admitted: columns of ``requests.parquet``, without their unit."""
_ORDER: Final = (
    "arrived", "rejected", "preempted", "swapped_out", "admitted", "reused", "swapped_in", "handed_over", "received",
    "finished", "cancelled", "lost",
)  # fmt: skip
"""Facts of one request at one instant, as they follow each other."""


def request_columns(requests: Columns) -> dict[str, npt.NDArray[Any]]:
    """Return the numbers of requests, in their order, what each asked for, and when; −1 for what did not happen."""
    order = np.argsort(requests["request"], kind="stable")
    arrived = np.asarray(requests["arrived_ns"], np.int64)[order]
    after = {f"{name}_after": _after(requests[f"{name}_ns"][order], arrived) for name in ("first_token", "finished")}
    told = {name: requests[name][order] for name in ("request", *_TOLD)} | {"arrived_ns": arrived} | after
    return told | _waited({name: requests[f"{name}_ns"][order] for name in WAITS if f"{name}_ns" in requests})


def fact_columns(timeline: Timeline) -> dict[str, npt.NDArray[Any]]:
    """Return what was decided in between, in order of (request, time): arrivals and last tokens are with requests."""
    facts, rank = timeline.facts, np.array([_ORDER.index(kind) for kind in FACT_KINDS])
    some = np.flatnonzero(~np.isin(facts["kind"], (ARRIVED, FINISHED, REUSED)))
    kind, time, request = (facts[name][some] for name in ("kind", "time_ns", "request"))
    order = np.lexsort((facts["replica"][some], rank[kind], time, request))
    return {"request": request[order], "time_ns": time[order], "kind": kind[order]}


def chunk_columns(timeline: Timeline) -> dict[str, npt.NDArray[Any]]:
    """Return the chunks of prompts, in order of (request, replica, step)."""
    chunks = timeline.chunks
    order = np.lexsort((chunks["step"], chunks["replica"], chunks["request"]))
    return {name: chunks[name][order] for name in ("request", "replica", "step", "count", "sampled")}


def _waited(waits: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return for what each request waited longest, a number of ``WAITS``, and how long, ns; −1 where none is known."""
    if not waits:
        return {}
    table = np.stack([np.nan_to_num(np.asarray(column, np.float64), nan=-1.0) for column in waits.values()])
    most = table.argmax(axis=0)
    longest = table.max(axis=0).astype(np.int64)
    return {"waited_for": np.where(longest > 0, most, -1), "waited_ns": longest}


def _after(column: npt.NDArray[Any], arrived: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how long after its arrival something happened to a request, ns; −1 where it did not (NaN)."""
    values = np.asarray(column, np.float64)
    missing = np.isnan(values)
    found: npt.NDArray[np.int64] = np.where(missing, -1, np.where(missing, 0.0, values).astype(np.int64) - arrived)
    return found
