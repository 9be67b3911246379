"""Causes as columns of ``requests.parquet``, and as shares of a latency: of the mean, and of the slowest requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_MS, FloatArray, Int64Array
from clustersim.column import Column, by_parts, parts
from clustersim.simulation.causes.causes import Causes
from clustersim.simulation.causes.labels import COLUMNS, FRONT_END
from clustersim.timeline.step_parts import Label

SLOWEST: Final = 100
"""One in so many requests is among the slowest."""
NAMES: Final = {FRONT_END: "front_end", **{label: name.removesuffix("_ns") for name, label in COLUMNS.items()}}
"""Cause → what it is called in ``summary.json``."""


def cause_columns(causes: Causes, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column per cause, masked where a request did not finish.

    Parameters
    ----------
    causes : Causes
        By :func:`clustersim.simulation.causes.labels.by_column`.
    columns : mapping
        ``outcome`` of the same requests.
    """
    lacks = np.asarray(columns["outcome"]) != "finished"
    at, ns = {label: number for number, label in enumerate(causes.labels)}, causes.ns
    told = {name: ns[:, at[label]] for name, label in COLUMNS.items() if label in at}
    none = np.broadcast_to(np.int64(0), len(lacks))
    mask = lacks if lacks.any() else np.ma.nomask
    return {name: np.ma.MaskedArray(told.get(name, none), mask) for name in COLUMNS}


def cause_shares(causes: Causes, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``causes`` of ``summary.json``: which share of TTFT, TPOT and end-to-end latency each cause has.

    Of all requests that finished, and of the slowest 1 % of them by that latency (at least one); beside the shares,
    which add up to 1, the mean of what they are shares of. TPOT's are those of the time after the first token. None
    where nothing finished, or none has this latency.
    """
    outcome, generated = np.asarray(columns["outcome"]), np.asarray(columns["generated_tokens"])
    found: dict[str, Any] = {}
    for name, ns in _sides(causes):
        least = {"ttft": 1, "tpot": 2}.get(name, 0)  # some ask for no token, and one has no next
        some = _rows(len(ns), lambda part: (outcome[part] == "finished") & (generated[part] >= least))  # noqa: B023
        per = generated if name == "tpot" else None
        found[name] = _shares_of(causes.labels, ns.T, some, per) if len(some) else None
    return found


def _rows(count: int, chosen: Callable[[slice], Any]) -> Int64Array:
    """Return the rows that are chosen."""
    found = Column("int64")
    for part in parts(count, 8):
        found.append(part.start + np.flatnonzero(chosen(part)))
    rows: Int64Array = found.whole()
    return rows


def _sides(causes: Causes) -> Iterator[tuple[str, Int64Array]]:
    """Yield latencies, and what they went to; each is dropped before the next one is added up."""
    yield "ttft", causes.to_first_ns
    yield "tpot", causes.after_ns
    yield "e2e", causes.ns


def _shares_of(
    labels: tuple[Label, ...], ns: Int64Array, some: Int64Array, generated: Int64Array | None
) -> dict[str, Any]:
    """Return means and shares of some requests, and of those that took longest by what they are divided by.

    ``ns`` are of shape (labels, requests); ``generated`` are the tokens between which they are divided.
    """
    sums = [0] * len(labels)

    def latency_of(part: slice) -> FloatArray:
        rows: Any = some[part] if len(some) < ns.shape[1] else part
        mine = ns[:, rows]
        sums[:] = [one + more for one, more in zip(sums, mine.sum(axis=1).tolist(), strict=True)]
        found: FloatArray = mine.sum(axis=0) / (1 if generated is None else generated[rows] - 1)
        return found

    latency = by_parts("float64", len(some), latency_of)
    few = -(-len(latency) // SLOWEST)
    least = np.partition(latency, len(latency) - few)[-few]
    slowest = _rows(len(latency), lambda part: latency[part] >= least)  # the last one's equals, too
    slowest = slowest[np.argsort(-latency[slowest], kind="stable")[:few]]
    return {
        "mean_ms": float(latency.mean()) / NS_PER_MS,
        "mean": _shares(labels, sums),
        "slowest_ms": float(latency[slowest].mean()) / NS_PER_MS,
        "slowest": _shares(labels, ns[:, some[slowest]].sum(axis=1).tolist()),
    }


def _shares(labels: tuple[Label, ...], ns: list[int]) -> dict[str, float]:
    whole, found = max(1, sum(ns)), dict(zip(labels, ns, strict=True))
    return {name: found.get(label, 0) / whole for label, name in NAMES.items()}
