"""Where the time of each request went, from its arrival to its last token, without remainder.

A request waits in front of a replica (``queue``) until its first step, is in steps, whose time is that of their
operators, collectives, host work and bubbles (:mod:`clustersim.timeline.step_parts`), and waits between them: because
it was preempted, is handed over, or another step is under way. Chunks of one prompt that are in the pipeline together
count twice; ``chunks together`` takes that back, and is negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.step_parts import Label, StepParts, StepRows, step_parts
from clustersim.timeline.tables import Tables

FRONT_END: Final = ("front end", "host")
QUEUE: Final = ("queue", "wait")
BETWEEN: Final = ("between steps", "wait")
PREEMPTED: Final = ("preempted", "wait")
HAND_OVER: Final = ("hand-over", "wait")
TOGETHER: Final = ("chunks together", "overlap")
WAITS: Final = (FRONT_END, QUEUE, BETWEEN, PREEMPTED, HAND_OVER, TOGETHER)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Causes:
    """What the time of requests was.

    Parameters
    ----------
    labels : tuple of (name, kind)
        Kinds are ``wait``, ``operator``, ``collective``, ``host``, ``send``, ``bubble`` and ``overlap``.
    ns : int64 array of shape (requests, labels)
        Of a request that finished they add up to its end-to-end latency; the others have zeros.
    """

    labels: tuple[Label, ...]
    ns: Int64Array


def causes_of(tables: Tables, columns: dict[str, Any]) -> Causes:
    """Split the time of every request that finished.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    columns : dict
        ``requests.parquet``: ``arrived_ns``, ``finished_ns``, ``front_end_ns``, ``preemptions``, ``outcome``.
    """
    parts = step_parts(tables)
    labels = (*WAITS, *parts.labels)
    finished = np.array([outcome == "finished" for outcome in columns["outcome"]], np.bool_)
    ns = np.zeros((len(finished), len(labels)), np.int64)
    ns[:, 0] = np.where(finished, np.asarray(columns["front_end_ns"], np.int64), 0)
    events = _events(tables, parts, finished)
    arrived = np.asarray(columns["arrived_ns"], np.int64)
    np.add.at(ns[:, len(WAITS) :], events.request, events.ns)
    opens = (
        np.concatenate(([True], events.request[1:] != events.request[:-1]))
        if len(events.request)
        else np.empty(0, bool)
    )
    np.add.at(ns[:, WAITS.index(BETWEEN)], events.request, events.end_ns - events.start_ns - events.ns.sum(axis=1))
    before = np.concatenate((np.zeros(1, np.int64), events.end_ns[:-1]))[: len(opens)]
    gap = events.start_ns - np.where(opens, arrived[events.request], before)
    lost = _changes(events.replica) | ((np.asarray(columns["preemptions"])[events.request] > 0) & events.again)
    chosen = np.select(
        [opens, gap < 0, _changes(tables.layout.of_replica(events.replica)), lost],
        [WAITS.index(label) for label in (QUEUE, TOGETHER, HAND_OVER, PREEMPTED)],
        WAITS.index(BETWEEN),
    )
    np.add.at(ns, (events.request, chosen), gap)
    kept = np.flatnonzero(ns.any(axis=0))
    return Causes(labels=tuple(labels[at] for at in kept.tolist()), ns=ns[:, kept])


def _changes(values: Int64Array) -> Any:
    """Tell where a value is another one than that before it; the first is."""
    return np.concatenate((np.ones(1, np.bool_), values[1:] != values[:-1]))[: len(values)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Events:
    """Chunks and episodes of decodes, in order of (request, start), and what of each was spent inside steps."""

    request: Int64Array
    replica: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    again: Any
    ns: Int64Array


def _events(tables: Tables, parts: StepParts, finished: Any) -> _Events:
    steps, rows = tables.steps, StepRows(tables)
    chunks, decodes = (
        {name: values[finished[table["request"]]] for name, values in table.items()}
        for table in (tables.chunks, tables.decodes)
    )
    prompts = rows.of(chunks["replica"], chunks["step"])
    order = np.lexsort((steps["step"], steps["slot"], steps["replica"]))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    summed = np.zeros((len(order) + 1, parts.ns.shape[1]), np.int64)
    np.cumsum(parts.ns[order], axis=0, out=summed[1:])
    first, last = (rows.of(decodes["replica"], decodes[key]) for key in ("first_step", "last_step"))
    inside = summed[position[last] + 1] - summed[position[first]]
    start = np.concatenate((steps["start_ns"][prompts], steps["start_ns"][first]))
    end = np.concatenate((steps["end_ns"][prompts], steps["end_ns"][last]))
    request = np.concatenate((chunks["request"], decodes["request"])).astype(np.int64)
    # a prompt that is computed again begins at its first tokens, after others
    again = np.concatenate((chunks["start"] == 0, np.zeros(len(first), np.bool_)))
    sequence = np.lexsort((end, start, request))
    ns = np.concatenate((parts.ns[prompts], inside))[sequence]
    replica = np.concatenate((chunks["replica"], decodes["replica"])).astype(np.int64)
    return _Events(
        request=request[sequence],
        replica=replica[sequence],
        start_ns=start[sequence],
        end_ns=end[sequence],
        again=again[sequence],
        ns=ns,
    )
