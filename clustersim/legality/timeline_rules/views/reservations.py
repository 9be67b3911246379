"""The way of each request through two pools of which something fails: blocks set aside for it, in vain or not.

::

    prefill replica   admitted ─────────────────────── handed_over
    decode replica           admitted ─ ✕ preempted         ╎
    another one                        admitted ────── received ─ ✕ preempted     admitted (prefill, anew) …

On a decode replica ``admitted`` sets blocks aside for a sequence that is not there, and takes up one that is. What
ends there before a step of it has ended gives back what was set aside.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import ADMITTED, CANCELLED, PREEMPTED, RECEIVED
from clustersim.legality.timeline_rules.views.residency import Residency
from clustersim.timeline.tables import Table
from clustersim.values import dataclass


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
    kind, replica, time, decodes = facts["kind"], facts["replica"], facts["time_ns"], facts["replica"] >= first_decode
    then = np.select([kind == RECEIVED, kind != ADMITTED, ~decodes], [0, 1, 2], 3)
    order = Residency(facts, then)  # of replicas each is recorded by itself
    came, taken = decodes & (kind == RECEIVED), decodes & (kind == ADMITTED)
    begun = ~decodes & (kind == ADMITTED)
    drops = decodes & np.isin(kind, (PREEMPTED, CANCELLED))
    last = order.before(came | begun)
    there = (last >= 0) & came[last] & (replica[last] == replica)
    for failed, since in failures:
        hit = (came | taken | drops) & (replica == failed) & (time == since)
        until_then = drops & (time == since)  # what comes at that instant is there when it fails
        there &= (replica != failed) | ((~hit[last] | until_then) & (order.before(came | begun | hit) == last))
    reserved = taken & ~there
    aside = order.before(reserved | came)
    vain = drops & (aside >= 0) & reserved[aside] & (replica[aside] == replica)
    vain &= order.before(reserved | came | vain) == aside  # the first time only
    ended = drops & there & ~vain
    ended &= order.before(came | begun | ended) == last
    unused = reserved & (order.after(reserved | came | vain) < 0)
    rows, in_vain, stays = np.flatnonzero(reserved), order.among(vain), order.among(ended)
    return Reservations(
        reserved=rows, begun=order.before(begun)[rows], vain=in_vain, of_vain=aside[in_vain], ended=stays,
        of_ended=last[stays], open=facts["request"][order.among(unused)].astype(np.int64),
    )  # fmt: skip
