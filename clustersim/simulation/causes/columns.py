"""Causes as columns of ``requests.parquet``, and as shares of a latency: of the mean, and of the slowest requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_MS, Int64Array
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
    done = np.flatnonzero(np.asarray(columns["outcome"]) == "finished")
    generated = np.asarray(columns["generated_tokens"], np.int64)
    gaps = np.maximum(generated - 1, 0)
    found: dict[str, Any] = {}
    for name, ns in _sides(causes):
        some = done[{"ttft": generated, "tpot": gaps}.get(name, generated + 1)[done] > 0]  # some ask for no token
        per = gaps[some] if name == "tpot" else np.ones(len(some), np.int64)
        of_some = ns.T if len(some) == len(ns) else ns.T[:, some]
        found[name] = _shares_of(causes.labels, of_some, per) if len(some) else None
    return found


def _sides(causes: Causes) -> Iterator[tuple[str, Int64Array]]:
    """Yield latencies, and what they went to; each is dropped before the next one is added up."""
    yield "ttft", causes.to_first_ns
    yield "tpot", causes.after_ns
    yield "e2e", causes.ns


def _shares_of(labels: tuple[Label, ...], ns: Int64Array, per: Int64Array) -> dict[str, Any]:
    """Return means and shares of all requests, and of those that took longest by what they are divided by.

    ``ns`` are of shape (labels, requests).
    """
    latency = ns.sum(axis=0) / per
    few = -(-len(latency) // SLOWEST)
    some = np.flatnonzero(latency >= -np.partition(-latency, few - 1)[few - 1])  # the last one's equals, too
    slowest = some[np.argsort(-latency[some], kind="stable")[:few]]
    return {
        "mean_ms": float(latency.mean()) / NS_PER_MS,
        "mean": _shares(labels, ns.sum(axis=1)),
        "slowest_ms": float(latency[slowest].mean()) / NS_PER_MS,
        "slowest": _shares(labels, ns[:, slowest].sum(axis=1)),
    }


def _shares(labels: tuple[Label, ...], ns: Int64Array) -> dict[str, float]:
    whole = max(1, int(ns.sum()))
    found = dict(zip(labels, ns.tolist(), strict=True))
    return {name: found.get(label, 0) / whole for label, name in NAMES.items()}
