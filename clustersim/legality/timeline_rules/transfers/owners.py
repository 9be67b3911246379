"""Where SP ranks keep whole sequences each, K/V moves from and to the rank that keeps the sequence (rule DP-2)."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ADMITTED, Declared, History
from clustersim.legality.timeline_rules.views.grouping import last_before, numbered
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.timeline.tables import HOST, Table

KEPT: Final = "say of each sequence that is admitted which SP rank keeps it, where SP ranks keep whole ones"


def kept_where_it_moves(history: History) -> Finding:
    """Judge whether what leaves or reaches a rank is of a sequence that this SP coordinate keeps at that time."""
    moves, tables = history.moves, history.folded
    if moves is None or tables is None:
        return NOTHING
    findings = []
    for declared in history.pools:
        if declared.sp == 1 or declared.sp_decode != "dp" or not declared.mesh:
            rows = _inside(declared, tables.owners["replica"])
            findings.append(judged(
                0, np.ones(len(rows), bool), "replica {owner.replica}, request {owner.request}",
                "SP rank {owner.owner} is told to keep it, and none keeps sequences by itself", KEPT,
                owner=Rows(tables.owners, rows),
            ))  # fmt: skip
            continue
        findings.append(_each_admitted(history, declared, tables.owners))
        if not len(tables.owners["request"]):
            continue
        for side, word in (("from", "leave"), ("to", "reach")):
            replica = moves[f"{side}_replica"].astype(np.int64)
            rows = _inside(declared, replica, moves[f"{side}_rank"] != HOST)
            owner = owner_at(tables.owners, replica[rows], moves["request"][rows], moves["start_ns"][rows])
            found = (moves[f"{side}_rank"][rows] - declared.first_rank) % declared.stage_ranks // declared.tp
            findings.append(judged(
                len(rows), found != owner, "request {move.request}",
                Rows(
                    ("its entries {word} SP rank {found}, and none keeps it",
                     "its entries {word} SP rank {found}, and rank {owner} keeps it"), owner >= 0,
                ),
                "move entries from and to the SP rank that keeps the sequence", move=Rows(moves, rows), found=found,
                owner=owner, word=word,
            ))  # fmt: skip
    return merged(*findings)


def _each_admitted(history: History, declared: Declared, owners: Table) -> Finding:
    """Judge whether each admission says which SP rank of the replica keeps the sequence, and nothing else does."""
    facts = history.facts
    if facts is None:
        return NOTHING
    names = ("replica", "request", "time_ns")
    told, due = (
        np.stack([table[name][rows].astype(np.int64) for name in names], axis=1)
        for table, rows in (
            (owners, _inside(declared, owners["replica"])),
            (facts, _inside(declared, facts["replica"], facts["kind"] == ADMITTED)),
        )
    )
    rows, counts = np.unique(np.concatenate((told, due, due)), axis=0, return_counts=True)  # one and two of each
    strange = np.concatenate((rows[counts % 3 != 0], told[_strange(declared, owners)]))
    return judged(
        len(due), np.ones(len(strange), bool), "replica {row[0]}, request {row[1]}",
        "the SP rank that keeps it from {row[2]:,} ns on is not told with its admission, or is none",
        KEPT, row=strange,
    )  # fmt: skip


def _inside(declared: Declared, replica: Int64Array, also: BoolArray | bool = True) -> Int64Array:
    return np.flatnonzero((replica >= declared.first_replica) & (replica < declared.first_replica + declared.dp) & also)


def _strange(declared: Declared, owners: Table) -> BoolArray:
    owner = owners["owner"][_inside(declared, owners["replica"])]
    found: BoolArray = (owner < 0) | (owner >= declared.sp)
    return found


def owner_at(owners: Table, replica: Int64Array, request: Int64Array, time: Int64Array) -> Int64Array:
    """Return which SP rank keeps requests from the last admission up to an instant; −1: none was recorded."""
    columns = (
        np.append(owners[name].astype(np.int64), more) for name, more in (("replica", replica), ("request", request))
    )
    place, told = numbered(np.stack(list(columns))), len(owners["request"])
    at = last_before(place[:told], owners["time_ns"].astype(np.int64), place[told:], time)
    return np.append(owners["owner"].astype(np.int64), -1)[at]
