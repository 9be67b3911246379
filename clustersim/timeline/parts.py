"""The part of some tables that one pool of replicas has: tables of their own, in which all replicas are alike.

:func:`of_pool` keeps the numbers of replicas, and so do :func:`of_ranges` and :func:`of_replicas`, without a copy;
:func:`as_a_run` numbers replicas and ranks from 0 on; :func:`as_one_replica` takes replicas in lockstep for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import AT_A_TIME, is_one, parts, room, shelved
from clustersim.memory import let_go
from clustersim.timeline.layout import Layout
from clustersim.timeline.rows_of import rows_between
from clustersim.timeline.tables import HOST, Table, Tables

MOST_ROWS: Final = 1 << 19
"""Rows of steps and facts of a range of replicas: some 100,000 requests."""
_SPARSE: Final = 16
"""Times as many requests as rows name, from which on these are sorted, and not looked up in a list of all."""
_BY_REPLICA: Final = ("passes", "transfers", "steps", "chunks", "decodes", "facts")


def rows_of(table: Table, chosen: Int64Array) -> dict[str, Any]:
    """Return some rows of a table."""
    return {name: values[chosen] for name, values in table.items()}


def of_pool(tables: Tables, number: int) -> Tables:
    """Return what the replicas of one pool did; they keep their numbers, and refer to the same durations.

    Parameters
    ----------
    tables : Tables
    number : int
        Of the pool in ``tables.layout``.
    """
    layout = tables.layout
    mine = {
        name: rows_of(table, np.flatnonzero(layout.of_replica(table["replica"]) == number))
        for name in ("passes", "steps", "chunks", "decodes", "facts", "owners")
        for table in (getattr(tables, name),)
    }
    (rows, times) = list(tables.sends())[number]
    width = 2 * layout.pools[number].stage_ranks
    transfers = rows_of(tables.transfers, rows) | {"at": np.arange(len(rows)) * width}
    used = set(mine["passes"]["irregular"].tolist()) - {-1}
    irregular = np.full(len(tables.irregular) + 1, -1)
    irregular[sorted(used)] = np.arange(len(used))
    return Tables(
        templates=tables.templates,
        layout=Layout(pools=(layout.pools[number],)),
        passes=mine["passes"] | {"irregular": irregular[mine["passes"]["irregular"]]},
        starts=tables.starts,
        varying=tables.varying,
        rows=tables.rows,
        row_values=tables.row_values,
        column_sets=tables.column_sets,
        irregular=tuple(tables.irregular[at] for at in sorted(used)),
        transfers=transfers,
        transfer_times=times.ravel(),
        transfer_bytes=tables.sent_bytes(rows, width // 2).ravel(),
        steps=mine["steps"],
        chunks=mine["chunks"],
        decodes=mine["decodes"],
        facts=mine["facts"],
        moves=rows_of(tables.moves, np.empty(0, np.int64)),
        owners=mine["owners"],
    )


def ranges_of(tables: Tables) -> list[range]:
    """Split the replicas of a long timeline into ranges of some ``MOST_ROWS`` rows, or of one replica; found once.

    There is one, of all, where rows are not in order of replicas, and where a request is in two ranges: so whatever is
    known of a request follows from one of them.
    """
    found: list[range] | None = tables.made.get(range)
    if found is None:
        found = tables.made.setdefault(range, _ranges(tables))
    return found


def of_ranges(tables: Tables) -> Iterator[Tables]:
    """Yield the parts of tables that the ranges of their replicas have: themselves, where there is one."""
    many = len(ranges_of(tables))
    for number in range(many):
        yield of_range(tables, number)
        if many > 1:
            let_go()


def of_range(tables: Tables, number: int) -> Tables:
    """Return the part of tables that a range of their replicas has: themselves, where there is one."""
    divided = ranges_of(tables)
    if len(divided) < 2:
        return tables
    kept: dict[range, Tables] = tables.made.setdefault(Tables, {})
    some = divided[number]
    if some not in kept:
        kept[some] = of_replicas(tables, some)
    return kept[some]


def of_replicas(tables: Tables, some: range) -> Tables:
    """Return what some replicas of one pool did, where rows are in order of them: slices, with the same numbers."""
    mine: dict[str, Any] = {}
    for name in _BY_REPLICA:
        table = getattr(tables, name)
        low, high = rows_between(table["replica"], some)
        mine[name] = {column: values[low:high] for column, values in table.items()}
        if name == "transfers":
            ranks = tables.layout.only.stage_ranks
            mine[name]["at"] = mine[name]["at"] - 2 * ranks * low
            mine["transfer_times"] = tables.transfer_times[2 * ranks * low : 2 * ranks * high]
            mine["transfer_bytes"] = tables.transfer_bytes[ranks * low : ranks * high]
    return tables.part(**mine)


def with_own_requests(tables: Tables) -> tuple[Int64Array, Tables]:
    """Return the requests of a range of replicas, ascending, and what these did, with the requests numbered by that."""
    named = [table["request"] for table in (tables.facts, tables.chunks, tables.decodes)]
    most = max(int(one.max(initial=-1)) for one in named) + 1
    if most > _SPARSE * sum(map(len, named)):
        requests = np.unique(np.concatenate(named)).astype(np.int64)
        numbers = [np.searchsorted(requests, one).astype(np.int32) for one in named]
    else:
        there = np.zeros(most, bool)
        for one in named:
            there[one] = True
        requests, number = np.flatnonzero(there), np.empty(most, np.int32)
        number[requests] = np.arange(len(requests))
        numbers = [number[one] for one in named]
    mine: dict[str, Any] = {
        name: {**getattr(tables, name), "request": number}
        for name, number in zip(("facts", "chunks", "decodes"), numbers, strict=True)
    }
    return requests, tables.part(**mine)


def by_ranges(tables: Tables, columns: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return what columns of a row per request have of each range, in order of requests; None where some are in none.

    All columns are put in order of ranges first: each range for itself would read all of their pages.
    """
    divided, home = ranges_of(tables), tables.made[_RangeOf]
    count = len(next(iter(columns.values())))
    if len(home) != count or (home < 0).any():
        return None
    many = np.zeros(len(divided), np.int64)
    for some in parts(count, 32):
        many += np.bincount(home[some], minlength=len(divided))
    at = np.cumsum(many) - many
    bounds = [*at.tolist(), count]
    found = {name: values if is_one(values) else room(values.dtype, count) for name, values in columns.items()}
    for some in parts(count, AT_A_TIME):  # so many that what a range gets of them fills some pages
        order = np.argsort(home[some], kind="stable")
        many = np.bincount(home[some], minlength=len(divided))
        places = np.repeat(at - (np.cumsum(many) - many), many) + np.arange(len(order))
        at += many
        for name, values in columns.items():
            if found[name] is not values:
                found[name][places] = values[some][order]
    return [{name: values[low:high] for name, values in found.items()} for low, high in pairwise(bounds)]


class _RangeOf:
    """Key of what is found once of a timeline: the number of the range that each request is in, −1 where in none."""


def _ranges(tables: Tables) -> list[range]:
    each = [getattr(tables, name) for name in _BY_REPLICA]
    after = int(max((table["replica"].max(initial=-1) for table in each), default=-1)) + 1
    whole, pools = [range(after)], tables.layout.pools
    if len(tables.steps["step"]) + len(tables.facts["kind"]) <= MOST_ROWS or len(pools) > 1 or pools[0].lockstep > 1:
        return whole
    if len(tables.moves["request"]) or not all((one["replica"][1:] >= one["replica"][:-1]).all() for one in each):
        return whole
    edges, found = np.arange(after + 1, dtype=np.int32), list[range]()
    rows = np.searchsorted(tables.steps["replica"], edges) + np.searchsorted(tables.facts["replica"], edges)
    while not found or found[-1].stop < after:
        first = found[-1].stop if found else 0
        found.append(
            range(first, max(first + 1, int(np.searchsorted(rows, rows[first] + MOST_ROWS, side="right")) - 1))
        )
    return found if _keep_requests(tables, found) else whole


def _keep_requests(tables: Tables, divided: list[range]) -> bool:
    """Return whether each request is in one range."""
    requests = [getattr(tables, name)["request"] for name in ("facts", "chunks", "decodes")]
    home = np.full(max(int(one.max(initial=-1)) for one in requests) + 1, -1, np.min_scalar_type(-len(divided)))
    for number, some in enumerate(divided):
        part = of_replicas(tables, some)
        for table in (part.facts, part.chunks, part.decodes):
            before = home[table["request"]]
            if ((before != -1) & (before != number)).any():
                return False
            home[table["request"]] = number
    tables.made[_RangeOf] = shelved({"": home})[""]
    return True


def as_one_replica(tables: Tables) -> Tables:
    """Return what replicas in lockstep did as if they were one, whose ranks are those of all.

    Its steps are those of the group: each replica has a row for every one of them, the first speaks for all.
    """
    shape = tables.layout.only
    steps = rows_of(tables.steps, np.flatnonzero(tables.steps["replica"] == shape.first_replica))
    one = replace(shape, sp=shape.sp * shape.lockstep, lockstep=1)
    return replace(tables, layout=Layout(pools=(one,)), steps=steps)


def as_a_run(tables: Tables, number: int) -> Tables:
    """Return what the replicas of one pool did as if there were no others: replicas and ranks are numbered from 0.

    Moves of K/V entries are those that one of its ranks takes part in; an end in another pool is called ``HOST``.

    Parameters
    ----------
    tables : Tables
    number : int
        Of the pool in ``tables.layout``.
    """
    if len(tables.layout.pools) == 1:
        return tables
    shape, mine = tables.layout.pools[number], of_pool(tables, number)

    def renumbered(table: Table) -> Table:
        return {**table, "replica": table["replica"] - shape.first_replica}

    pool = tables.layout.of_replica
    moves = dict(tables.moves)
    inside = {
        side: (moves[f"{side}_rank"] != HOST) & (pool(moves[f"{side}_replica"]) == number) for side in ("from", "to")
    }
    for side, here in inside.items():
        moves[f"{side}_rank"] = np.where(here, moves[f"{side}_rank"] - shape.first_rank, HOST)
        moves[f"{side}_replica"] = moves[f"{side}_replica"] - shape.first_replica
    return replace(
        mine,
        passes=renumbered(mine.passes),
        transfers=renumbered(mine.transfers),
        steps=renumbered(mine.steps),
        chunks=renumbered(mine.chunks),
        decodes=renumbered(mine.decodes),
        facts=renumbered(mine.facts),
        owners=renumbered(mine.owners),
        layout=Layout(pools=(replace(shape, first_replica=0, first_rank=0),)),
        moves=rows_of(moves, np.flatnonzero(inside["from"] | inside["to"])),
    )
