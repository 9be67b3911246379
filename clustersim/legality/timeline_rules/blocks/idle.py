"""KV-7: where no sequence runs on a replica, all blocks of its pool are back."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged
from clustersim.legality.history import ADMITTED, ARRIVED, FINISHED, PREEMPTED, REJECTED
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.columns import is_any, is_one, taken
from clustersim.timeline.tables import Table

UNDERSTOOD: Final = (ARRIVED, REJECTED, ADMITTED, PREEMPTED, FINISHED)
"""Kinds of facts that tell who runs: a replica with others, such as moves of entries, is not judged here."""


def none_left(reading: Reading) -> Finding:
    """Judge whether blocks are in use when the last sequence of a replica has finished, or was preempted."""
    facts = reading.history.facts
    if facts is None or "used" not in facts or not len(facts["kind"]):
        return NOTHING
    order = reading.facts_in_time
    replica, kind, used = (taken(facts[name], order) for name in ("replica", "kind", "used"))
    time = facts["time_ns"][order].astype(np.int64, copy=False)
    of_replica = Groups(replica[:1] if is_one(replica) else replica)
    odd = np.zeros(len(of_replica), bool)
    odd[of_replica.find(taken(replica, np.flatnonzero(~is_any(kind, UNDERSTOOD))))] = True
    begins = np.flatnonzero(np.append(True, (replica[1:] != replica[:-1]) | (time[1:] != time[:-1])))
    last = np.append(begins[1:], len(order)) - 1
    others = _running(reading, facts, replica, kind)[last]
    told, again = kind == ADMITTED, np.zeros(len(order), bool)
    if (kind == PREEMPTED).any():
        # Who is preempted and admitted again at one instant was gone in between; others may have come first.
        of = np.repeat(np.arange(len(begins)), last + 1 - begins)
        turn = of * (int(facts["request"].max()) + 1) + facts["request"][order]
        again = told & np.isin(turn, turn[kind == PREEMPTED])
        others = others - np.add.reduceat(again.astype(np.int64), begins)
    comes = np.logical_or.reduceat(told & ~again, begins)
    never = np.int64(np.iinfo(np.int64).max)  # numpy makes a plain int as narrow as what is used, and −1
    least = np.minimum.reduceat(np.where((used >= 0) & is_any(kind, (PREEMPTED, FINISHED)), used, never), begins)
    silent = odd[0] if len(odd) == 1 else odd[of_replica.find(replica[last])]
    looked = (others == 0) & ~comes & ~silent & (least < never)
    return judged(
        int(looked.sum()), looked & (least > 0), "replica {replica}, request {fact.request}",
        "{least:,} blocks are in use at {time:,} ns, when no sequence runs any longer",
        "give the blocks of a sequence back when it ends or is preempted", replica=Rows(replica, begins),
        fact=Rows(facts, order, last), least=least, time=Rows(time, begins),
    )  # fmt: skip


def _running(reading: Reading, facts: Table, replica: Int64Array, kind: Int64Array) -> Int64Array:
    """Return how many sequences run on the replica of each fact after it; where no admission is told, have not ended.

    Facts are in order of (replica, time).
    """
    told = kind == ADMITTED
    change = told.astype(np.int8) - is_any(kind, (PREEMPTED, FINISHED))
    first = Groups(replica[:1] if is_one(replica) else replica)
    begun = np.zeros(len(first), np.int64)
    if not told.any():
        change = -(kind == FINISHED).astype(np.int8)
        come = facts["kind"] != REJECTED
        pairs = [np.stack((facts["replica"][come], facts["request"][come]))]
        if reading.pieces is not None:
            pairs.append(np.stack((reading.pieces.replica, reading.pieces.request)))
        owners = np.unique(np.concatenate(pairs, axis=1), axis=1)[0]
        at = first.find(owners)
        begun = np.bincount(at[at >= 0], minlength=len(first))
    found: Int64Array = np.cumsum(change, dtype=np.int64)
    if len(first) == 1:
        found += begun[0]
        return found
    before = (found - change)[first.some]
    at = first.find(replica)
    found += begun[at] - before[at]
    return found
