"""The steps of a timeline one by one: when each ended and which slot it carried, in order of (replica, step)."""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.memory import MANY
from clustersim.timeline.columns import is_one, shelved
from clustersim.timeline.passes import Passes, blocks, within
from clustersim.timeline.tables import Table, Tables

MISSING = -1


class Steps:
    """Ends and slots of all steps, by a position that (replica, step) has.

    Parameters
    ----------
    tables : Tables

    Attributes
    ----------
    end_ns : int64 array
        End of each step; −1 at positions that no step has.
    slot : int16 array
        Slot of each step; −1 where it carried no decode.
    """

    def __init__(self, tables: Tables) -> None:
        steps = tables.steps
        last = steps["step"].astype(np.int64) + steps["count"]
        replicas = int(steps["replica"].max(initial=-1)) + 1
        many = np.zeros(replicas, np.int64)
        np.maximum.at(many, steps["replica"], last)
        self.base = np.cumsum(many) - many
        total = int(many.sum())
        self.end_ns = np.full(total, MISSING, np.int64)
        if (steps["count"] > 1).any():
            self._ends_inside_runs(tables)
        self.end_ns[self.base[steps["replica"]] + last - 1] = steps["end_ns"]
        self.slot = self._slots(steps, total)
        kept = shelved({"end_ns": self.end_ns, "slot": self.slot})
        self.end_ns, self.slot = kept["end_ns"], kept["slot"]

    def _slots(self, steps: Table, total: int) -> Any:
        if is_one(steps["replica"]) and _follow(steps["step"], steps["count"], total):
            return np.repeat(steps["slot"].astype(np.int16, copy=False), steps["count"])
        found = np.full(total, MISSING, np.int16)
        for some in blocks(steps["count"]):
            count = steps["count"][some]
            first = self.at(steps["replica"][some], steps["step"][some])
            found[np.repeat(first, count) + within(count)] = np.repeat(steps["slot"][some], count)
        return found

    def _ends_inside_runs(self, tables: Tables) -> None:
        """Fill in the ends of all steps that end when the next one of their replica starts."""
        passes = Passes(tables)
        table, layout = tables.passes, tables.layout
        alone = is_one(table["replica"]) and is_one(table["stage"]) and not layout.values("lockstep").max() > 1
        if alone and table["stage"][0] == 0 and _follow(table["first_step"], table["steps"], len(self.end_ns)):
            at = 0
            for block in passes.blocks(np.arange(len(table["steps"]))):
                starts = passes.starts(block)
                self.end_ns[max(at - 1, 0) : at - 1 + len(starts)] = starts[at == 0 :]
                at += len(starts)
            return
        for block in passes.blocks(np.flatnonzero(table["stage"] == 0)):
            after_another = table["first_step"][block.runs][block.of] + block.index > 0
            ends = passes.starts(block)[after_another]
            replica = table["replica"][block.runs].astype(np.int64)
            sharing = layout.values("lockstep")[layout.of_replica(replica)]
            for member in range(int(sharing.max(initial=0))):
                shares = (member < sharing)[block.of[after_another]]
                first = self.at(np.where(member < sharing, replica + member, 0), table["first_step"][block.runs])
                self.end_ns[(first[block.of] + block.index)[after_another][shares] - 1] = ends[shares]

    def at(self, replica: Int64Array, step: Int64Array) -> Int64Array:
        """Return the positions of steps."""
        return self.base[replica] + step


def _follow(first: Any, count: Any, total: int) -> bool:
    """Whether runs of steps of a lone replica, from 0 to so many, follow each other."""
    return bool(first[0] == 0 and first[-1] + count[-1] == total and (first[1:] == first[:-1] + count[:-1]).all())


def steps_of(tables: Tables) -> Steps:
    """Return the steps of tables, which are worked out once; nobody may change them."""
    found: Steps = tables.made.get(Steps) or tables.made.setdefault(Steps, Steps(tables))
    return found


def drop_steps(tables: Tables) -> None:
    """Drop the steps of large tables: who asks for them again has them worked out again."""
    if len(tables.steps["step"]) >= MANY:
        tables.made.pop(Steps, None)
