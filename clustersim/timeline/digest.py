"""The digest of a timeline: equal exactly when all unfolded spans and all facts are.

**The canonical form.** A SHA-256 over these parts, in this order, each the SHA-256 of its values (little-endian int64)
under its name. No part depends on how steps were folded into runs, how rows were numbered or in which order replicas
were recorded:

- ``templates``: the fingerprint of every template, in their order;
- for each template its passes, one record per step, in order of (replica, stage, step): ``places`` takes replica,
  stage, step; ``starts`` takes the start; ``durations`` takes the durations by class;
- ``irregular``: passes whose spans are not those that their durations imply (contention stretched something), in
  order of (replica, stage, step): these, template, start, durations by class, start and end of every node relative to
  the pass;
- ``transfers``, in order of (replica, stage, step): these, starts and ends by rank;
- ``chunks``: replica, step, request, start, count, sampled, in order of these;
- ``decodes``: the episodes as replica, slot, first step, request, last step, in order of these. Slots, and thereby
  what an episode is, follow from the steps in order of completion (``timeline.episodes``);
- ``steps``: one record per step, replica, step, kind, slot, in order of these;
- ``facts``: replica, time, kind, request, value, blocks in use, in order of these. A request can be preempted and
  admitted again at one instant, never the other way round, since what was just admitted is in flight and steps take
  time; so this order loses nothing about a request, and blocks in use tell in which order requests took turns;
- ``moves``, where there are any: the columns of ``MOVE_COLUMNS`` but for the heads, in order of these. Which heads
  move from rank to rank follows from both plans, and is what rule DP-2 looks at;
- ``owners``, where there are any: the columns of ``OWNER_COLUMNS``, in order of these.

Spans follow from templates, passes, transfers and moves; tokens from chunks, decodes and steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.memory import let_go
from clustersim.timeline.columns import taken
from clustersim.timeline.passes import BLOCK_STEPS, Passes, blocks, within
from clustersim.timeline.rows_of import in_order as rows_in_order
from clustersim.timeline.stretch import node_times
from clustersim.timeline.tables import CHUNK_COLUMNS, FACT_COLUMNS, MOVE_COLUMNS, OWNER_COLUMNS, Table, Tables

MOVES: Final = tuple(name for name in MOVE_COLUMNS if name not in ("head", "heads"))
_AT_A_TIME: Final = 1 << 21
"""Rows that are put in order together, where replicas are in order."""
EPISODE_ORDER: Final = ("replica", "slot", "first_step", "request", "last_step")


def digest_of(tables: Tables) -> str:
    """Return the SHA-256 of the canonical form, in hexadecimal."""
    total = hashlib.sha256()
    for name, value in digest_parts(tables):
        total.update(f"{name}:".encode() + value)
    return total.hexdigest()


def digest_parts(tables: Tables) -> Iterator[tuple[str, bytes]]:
    """Yield name and SHA-256 of each part of the canonical form, in their order."""
    listed = b"".join(template.fingerprint for template in tables.templates)
    yield "templates", hashlib.sha256(listed).digest()
    passes = Passes(tables)
    for template in range(len(tables.templates)):
        yield from _passes(passes, template)
    yield "irregular", _hash(_irregular(passes))
    yield "transfers", _hash(_transfers(tables))
    yield "chunks", _hash(_rows(tables.chunks, tuple(CHUNK_COLUMNS)))
    yield "decodes", _hash(_rows(tables.decodes, EPISODE_ORDER))
    yield "steps", _hash(_steps(tables.steps))
    yield "facts", _hash(_rows(tables.facts, tuple(FACT_COLUMNS)))
    if len(tables.moves["request"]):
        yield "moves", _hash(_rows(tables.moves, MOVES))
    if len(tables.owners["request"]):
        yield "owners", _hash(_rows(tables.owners, tuple(OWNER_COLUMNS)))


def _bytes(values: Any) -> memoryview:
    return np.ascontiguousarray(values, "<i8").data


def _hash(values: Iterable[Any]) -> bytes:
    found = hashlib.sha256()
    for part in values:
        found.update(_bytes(part))
    return found.digest()


def in_order(table: Table, columns: tuple[str, ...], chosen: Int64Array | None = None) -> Int64Array:
    """Return the numbers of rows (all, or those chosen) sorted by columns, the first one first."""
    order = rows_in_order(*(table[name] if chosen is None else taken(table[name], chosen) for name in columns))
    return order if chosen is None else chosen[order]


def _passes(passes: Passes, template: int) -> Iterator[tuple[str, bytes]]:
    table = passes.tables.passes
    places, starts, durations = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for some in _apart(table, "replica"):
        mine = np.flatnonzero((table["template"][some] == template) & (table["irregular"][some] < 0)) + some.start
        for block in passes.blocks(in_order(table, ("replica", "stage", "first_step"), mine)):
            replica, stage, step = (table[name][block.runs][block.of] for name in ("replica", "stage", "first_step"))
            places.update(_beside(replica, stage, step + block.index).data)
            starts.update(_bytes(passes.starts(block)))
            durations.update(_bytes(passes.durations(block, template)))
    yield f"places {template}", places.digest()
    yield f"starts {template}", starts.digest()
    yield f"durations {template}", durations.digest()


def _irregular(passes: Passes) -> Iterator[Any]:
    table = passes.tables.passes
    chosen = np.flatnonzero(table["irregular"] >= 0)
    order = in_order(table, ("replica", "stage", "first_step"), chosen)
    head = np.stack([table[name][order].astype(np.int64) for name in (
        "replica", "stage", "first_step", "template", "start_ns")], axis=1)  # fmt: skip
    for run, place in zip(order, head, strict=True):
        (block,) = passes.blocks(np.array([run]))
        yield place
        durations = passes.durations(block, int(place[3]))
        yield durations
        found = passes.tables.irregular[int(table["irregular"][run])]
        yield from node_times(found, passes.tables.templates[int(place[3])], durations[0])


def _transfers(tables: Tables) -> Iterator[Any]:
    table = tables.transfers
    for mine, times in tables.sends():  # replicas of a pool are numbered one after the other
        flat = times.reshape(len(mine), 2 * times.shape[2])
        place = np.empty(len(table["at"]), np.int64)
        place[mine] = np.arange(len(mine))
        order = in_order(table, ("replica", "stage", "step"), mine)
        for some in blocks(np.ones(len(order), np.int64)):
            rows = order[some]
            found = np.empty((len(rows), 3 + flat.shape[1]), "<i8")
            for column, name in enumerate(("replica", "stage", "step")):
                found[:, column] = table[name][rows]
            found[:, 3:] = flat[place[rows]]
            yield found


def _rows(table: Table, columns: tuple[str, ...]) -> Iterator[Any]:
    for some in _apart(table, columns[0]):
        part = {name: table[name][some] for name in columns}
        order = in_order(part, columns)
        for first in range(0, len(order), BLOCK_STEPS):
            rows = order[first : first + BLOCK_STEPS]
            yield _beside(*(part[name][rows] for name in columns))


def _apart(table: Table, column: str) -> Iterator[slice]:
    """Yield parts of many rows that are put in order by themselves, where those of a column are in order already."""
    values, first = table[column], 0
    if len(values) > _AT_A_TIME and (values[1:] >= values[:-1]).all():
        while first < len(values) - _AT_A_TIME:
            after = int(np.searchsorted(values, values[first + _AT_A_TIME - 1], side="right"))
            yield slice(first, after)
            let_go()
            first = after
    yield slice(first, len(values))


def _beside(*columns: Any) -> Any:
    """Return columns beside each other, as they are hashed."""
    found = np.empty((len(columns[0]), len(columns)), "<i8")
    for at, column in enumerate(columns):
        found[:, at] = column
    return found


def _steps(table: Table) -> Iterator[Any]:
    for part in _apart(table, "replica"):
        order = in_order({name: table[name][part] for name in ("replica", "step")}, ("replica", "step")) + part.start
        counts = table["count"][order].astype(np.int64)
        for some in blocks(counts):
            rows = order[some]
            of, index = np.repeat(np.arange(len(rows)), counts[some]), within(counts[some])
            replica, step, kind, slot = (table[name][rows][of] for name in ("replica", "step", "kind", "slot"))
            yield _beside(replica, step + index, kind, slot)
