"""The way of each request through two pools of which something fails: blocks set aside for it, in vain or not.

::

    prefill replica   admitted ─────────────────────── handed_over
    decode replica           admitted ─ ✕ preempted         ╎
    another one                        admitted ────── received ─ ✕ preempted     admitted (prefill, anew) …

On a decode replica ``admitted`` sets blocks aside for a sequence that is not there, and takes up one that is. What
ends there before a step of it has ended gives back what was set aside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import ADMITTED, CANCELLED, PREEMPTED, RECEIVED
from clustersim.timeline.tables import Table

KINDS = (ADMITTED, PREEMPTED, CANCELLED, RECEIVED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reservations:
    """What facts of a decode pool mean, by their rows.

    Parameters
    ----------
    reserved : int64 array
        Those that set blocks aside for a sequence which is elsewhere.
    begun : int64 array
        The rows that admitted these to the prefill pool; −1 where none did.
    vain, of_vain : int64 arrays
        Those that give such blocks back because the sequence does not come, and the rows that set them aside.
    ended, of_ended : int64 arrays
        Those that end a stay for the first time since the sequence was received, and the rows that received it.
    open : int64 array
        Requests for which blocks were set aside that have neither come nor been given back.
    """

    reserved: Int64Array
    begun: Int64Array
    vain: Int64Array
    of_vain: Int64Array
    ended: Int64Array
    of_ended: Int64Array
    open: Int64Array


def reservations_of(facts: Table, first_decode: int, failures: frozenset[tuple[int, int]]) -> Reservations:
    """Return what facts mean on replicas from ``first_decode`` on; ``failures`` are replicas and instants."""
    request, replica, kind = facts["request"], facts["replica"], facts["kind"]
    away = np.unique(request[replica >= first_decode])
    rows = np.flatnonzero(np.isin(kind, KINDS) & np.isin(request, away))
    then = np.select([kind[rows] == RECEIVED, kind[rows] != ADMITTED, replica[rows] < first_decode], [0, 1, 2], 3)
    rows = rows[np.lexsort((then, facts["time_ns"][rows], request[rows]))]  # of replicas each is recorded by itself
    reserved: list[tuple[int, int]] = []
    vain: list[tuple[int, int]] = []
    ended: list[tuple[int, int]] = []
    unused: list[int] = []
    owner, there, came, aside, begun = -1, -1, -1, -1, -1
    for row in rows.tolist():
        who, where, what = int(request[row]), int(replica[row]), int(kind[row])
        if who != owner:
            unused += [owner] if aside >= 0 else []
            owner, there, came, aside, begun = who, -1, -1, -1, -1
        if where < first_decode:
            there, begun = (-1, row) if what == ADMITTED else (there, begun)
        elif what == RECEIVED:
            there, came, aside = where, row, -1
        elif what == ADMITTED:
            if there != where:
                reserved.append((row, begun))
                aside = row
        elif aside >= 0 and int(replica[aside]) == where:
            vain.append((row, aside))
            aside = -1
        elif came >= 0 and there == where:
            ended.append((row, came))
            came = -1
        if there == where and (where, int(facts["time_ns"][row])) in failures:
            there = -1
    unused += [owner] if aside >= 0 else []
    (aside_at, begun_at), (in_vain, of_vain), (stays, of_stays) = (
        np.array(pairs, np.int64).reshape(-1, 2).T for pairs in (sorted(reserved), vain, ended)
    )
    return Reservations(
        reserved=aside_at, begun=begun_at, vain=in_vain, of_vain=of_vain, ended=stays, of_ended=of_stays,
        open=np.array(unused, np.int64),
    )  # fmt: skip
