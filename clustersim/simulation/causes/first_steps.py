"""First steps of episodes that give clients their first tokens: what they spent belongs to TTFT, the rest to TPOT.

That is so where a decode pool samples these tokens. A replay that folds records the steps of an episode as one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.simulation.causes.episodes import in_slots
from clustersim.timeline.parts import rows_of
from clustersim.timeline.step_parts import Label, StepParts, StepRows, scaled, step_parts
from clustersim.timeline.steps import steps_of
from clustersim.timeline.tables import Table, Tables


def with_first_steps(
    tables: Tables, parts: StepParts, first_ns: Int64Array, merged: Callable[[Label], Label] | None
) -> tuple[Tables, StepParts]:
    """Return tables and their parts with the step that ends as a request gets its first token by itself.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    parts : StepParts
        Of its rows of ``steps``.
    first_ns : int64 array of shape (requests,)
        When each client got its first token.
    merged : callable, optional
        As :func:`step_parts` has it.
    """
    if len(tables.layout.pools) == 1:
        return tables, parts
    steps, decodes, every = tables.steps, tables.decodes, steps_of(tables)
    replica, first = (decodes[name].astype(np.int64) for name in ("replica", "first_step"))
    ends, row = every.end_ns[every.at(replica, first)], StepRows(tables).of(replica, first)
    cut = (ends == first_ns[decodes["request"]]) & (first < decodes["last_step"]) & (steps["step"][row] == first)
    episodes = np.flatnonzero(cut)
    if not len(episodes):
        return tables, parts
    alone = {**decodes, "last_step": np.where(cut, first, decodes["last_step"])}
    split = _and(alone, {**rows_of(decodes, episodes), "first_step": _next_steps(steps, row[episodes])})
    rows, at = np.unique(row[episodes], return_index=True)
    rows, ends = rows[several := steps["count"][rows] > 1], ends[episodes][at[several]]
    if not len(rows):
        return tables.part(decodes=split), parts
    once, left = (rows_of(steps, rows) for _ in range(2))
    once |= {"count": np.ones_like(once["count"]), "end_ns": ends}
    left |= {"step": left["step"] + 1, "count": left["count"] - 1, "start_ns": ends}
    found = {name: values.copy() for name, values in steps.items()}
    for name in ("count", "end_ns"):
        found[name][rows] = once[name]
    first_parts = _first_parts(tables, rows, merged)
    return tables.part(decodes=split, steps=_and(found, left)), _divided(parts, first_parts, rows, left)


def _next_steps(steps: Table, rows: Int64Array) -> Int64Array:
    """Return which steps come after the first ones of some rows in their slots."""
    order = in_slots(steps)
    position = np.empty(len(steps["slot"]), np.int64)
    position[order] = np.arange(len(order))
    follows = order[np.minimum(position[rows] + 1, len(order) - 1)]
    found: Int64Array = np.where(steps["count"][rows] > 1, steps["step"][rows] + 1, steps["step"][follows])
    return found


def _and(table: Table, more: Table) -> dict[str, Any]:
    return {name: np.concatenate((values, more[name])) for name, values in table.items()}


def _divided(parts: StepParts, first: StepParts, rows: Int64Array, left: Table) -> StepParts:
    """Return the parts of all rows, some of which end after their first step, and then of what these were longer."""
    labels = tuple(dict.fromkeys((*parts.labels, *first.labels)))
    ns = np.zeros((len(parts.ns) + len(rows), len(labels)), np.int64)
    ns[: len(parts.ns), : len(parts.labels)] = parts.ns
    own = np.zeros((len(rows), len(labels)), np.int64)
    own[:, [labels.index(label) for label in first.labels]] = first.ns
    ns[len(parts.ns) :] = scaled(np.maximum(ns[rows] - own, 0), left["end_ns"] - left["start_ns"])
    ns[rows] = own
    return StepParts(labels=labels, ns=ns)


def _first_parts(tables: Tables, rows: Int64Array, merged: Callable[[Label], Label] | None) -> StepParts:
    """Return the parts of first steps of rows, which ascend, from the first of the runs of passes that these have."""
    layout, steps = tables.layout, tables.steps

    def keys(replica: Any, step: Any) -> Int64Array:
        """Return numbers of steps that replicas in lockstep have in common, as passes are recorded."""
        pool = layout.of_replica(replica)
        behind = (replica - layout.values("first_replica")[pool]) % layout.values("lockstep")[pool]
        found: Int64Array = (replica.astype(np.int64) - behind) << 32 | step.astype(np.int64)
        return found

    own = keys(steps["replica"], steps["step"])
    wanted = own[rows]
    alike = np.flatnonzero(np.isin(own, wanted))  # also those of replicas in lockstep
    once, every = rows_of(steps, alike), steps_of(tables)
    once |= {"count": np.ones_like(alike), "end_ns": every.end_ns[every.at(once["replica"], once["step"])]}
    passes, transfers = (
        rows_of(table, np.flatnonzero(np.isin(keys(table["replica"], table[step]), wanted)))
        for table, step in ((tables.passes, "first_step"), (tables.transfers, "step"))
    )
    passes["steps"] = np.ones_like(passes["steps"])
    found = step_parts(tables.part(passes=passes, transfers=transfers, steps=once), merged)
    return StepParts(labels=found.labels, ns=found.ns[np.searchsorted(alike, rows)])
