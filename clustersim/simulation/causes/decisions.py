"""What each replica's decisions kept requests from: functions of time, added up so that any wait is a difference.

A scheduler decides when a step starts, and what it could not take up then waits until the next decision. Up to the
first decision after it came, a request waits for the step under way. Rows are those of ``simulation.step_rows``, which
begin with every decision that finds another queue: so all replays give the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import LATEST_NS, Int64Array
from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import ADMITTED
from clustersim.simulation.causes.conditions import Conditions
from clustersim.simulation.causes.labels import BATCH, BLOCKS, BUDGET, CHOICE, DEAD, PROMPTS, STEP
from clustersim.timeline.passes import parts
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.step_parts import Label
from clustersim.timeline.tables import Table, Tables
from clustersim.values import dataclass

REASONS: Final[tuple[Label, ...]] = (STEP, BATCH, BLOCKS, BUDGET, CHOICE, DEAD, PROMPTS)
"""What a decision may keep a request from; the first also until there is one."""
_NUMBER: Final = {label: number for number, label in enumerate(REASONS)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Replica:
    """Decisions of one replica in order, and what each keeps those from that wait, and those that run.

    ``prompts`` is the time before each decision in steps that only prefill; ``sums`` are kept where they are asked for.
    """

    at_ns: Int64Array
    waiting: Any
    running: Any
    prompts: Int64Array
    sums: dict[bool, tuple[list[int], list[Int64Array]]]

    def before(self, *, running: bool) -> tuple[list[int], list[Int64Array]]:
        """Return the reasons that there are, and how long decisions before each one lasted that had each of them."""
        if running not in self.sums:
            reasons, lasts = self.running if running else self.waiting, np.diff(self.at_ns)
            numbers = np.flatnonzero(np.bincount(reasons)).tolist()
            sums = [np.append(0, np.cumsum(np.where(reasons[:-1] == number, lasts, 0))) for number in numbers]
            self.sums[running] = numbers, sums
        return self.sums[running]


class Decisions:
    """All decisions of a run.

    Parameters
    ----------
    tables : Tables
        Of its timeline.
    rows : mapping
        ``rows`` of :class:`clustersim.simulation.step_rows.StepRows`.
    conditions : Conditions
    """

    def __init__(self, tables: Tables, rows: Mapping[str, Any], conditions: Conditions) -> None:
        self._tables, self._conditions = tables, conditions
        self._facts_of, self._replicas = RowsOf(tables.facts["replica"]), {}
        for replica, mine in RowsOf(rows["replica"]):
            self._replicas[replica] = self._replica(replica, {name: rows[name][mine] for name in rows})

    def _replica(self, replica: int, rows: Table) -> _Replica:
        pool = int(self._tables.layout.of_replica(np.array([replica]))[0])
        at = rows["start_ns"].astype(np.int64)
        waiting, running = self._reasons(replica, rows, self._conditions.serving[pool])
        alone = np.where(rows["decode_tokens"] == 0, rows["end_ns"] - at, 0)
        alone[rows["prefill_tokens"] == 0] = 0
        down = [one for one in self._conditions.outages if one.replica == replica]
        if down:
            ends = [LATEST_NS if one.until_ns is None else one.until_ns for one in down]
            at = np.concatenate((at, [one.at_ns for one in down], ends))
            stops = np.repeat([_NUMBER[DEAD], _NUMBER[STEP]], len(down))
            waiting, running = (np.concatenate((reasons, stops)) for reasons in (waiting, running))
            alone = np.concatenate((alone, np.zeros(2 * len(down), np.int64)))
        if (at[1:] < at[:-1]).any():
            order = np.argsort(at, kind="stable")
            at, waiting, running, alone = at[order], waiting[order], running[order], alone[order]
        return _Replica(
            at_ns=at,
            waiting=waiting,
            running=running,
            sums={},
            prompts=np.concatenate((np.zeros(1, np.int64), np.cumsum(alone))),
        )

    def _reasons(self, replica: int, rows: Table, serving: ServingConfig) -> tuple[Any, Any]:
        """Return why each decision took up no more of those that wait, and of those that run."""
        tokens = rows["prefill_tokens"].astype(np.int64) + rows["decode_tokens"]
        spent = tokens >= serving.max_batch_tokens
        if not isinstance(serving.scheduler, str):
            free, busy = CHOICE, CHOICE
        else:
            free, busy = BATCH if serving.scheduler == "static" else BLOCKS, BLOCKS
        if serving.scheduler == "continuous":
            spent = spent | (tokens + self._next_prompt(replica, rows["start_ns"]) > serving.max_batch_tokens)
            spent &= rows["prefill_tokens"] > 0
        full = rows["running"] >= serving.max_batch_requests
        waiting = np.select([full, spent], [_NUMBER[BATCH], _NUMBER[BUDGET]], _NUMBER[free])
        prompts = rows["prefill_tokens"] > 0
        running = np.select([spent, prompts], [_NUMBER[BUDGET], _NUMBER[PROMPTS]], _NUMBER[busy])
        return waiting.astype(np.int8), running.astype(np.int8)

    def _next_prompt(self, replica: int, start_ns: Int64Array) -> Int64Array:
        """Return the known tokens of the request that is admitted next after each decision; 0 where none is."""
        facts = self._tables.facts
        mine = self._facts_of.of(replica)
        mine = mine[facts["kind"][mine] == ADMITTED]
        mine = mine[np.argsort(facts["time_ns"][mine], kind="stable")]
        found = np.searchsorted(facts["time_ns"][mine], start_ns, side="right")
        return np.append(facts["value"][mine], 0)[found].astype(np.int64)

    def waits(self, replica: Int64Array, since: Int64Array, until: Int64Array, *, running: bool) -> Int64Array:
        """Split waits at replicas by reason, int64 of shape (``REASONS``, waits)."""
        found = np.zeros((len(REASONS), len(replica)), np.int64)
        found[0] = until - since
        for one, every in RowsOf(replica):
            of = self._replicas.get(one)
            if of is None or not len(of.at_ns):
                continue
            reasons = of.running if running else of.waiting
            numbers, sums = of.before(running=running)
            for part in parts(len(every), 4):
                mine = every[part]
                first, last = (np.searchsorted(of.at_ns, side[mine]) for side in (since, until))
                some = np.flatnonzero(last > first)
                first, before, at = first[some], last[some] - 1, mine[some]
                split = np.zeros((len(REASONS), len(some)), np.int64)
                for number, up_to in zip(numbers, sums, strict=True):
                    split[number] = up_to[before] - up_to[first]
                split[reasons[before], np.arange(len(some))] += until[at] - of.at_ns[before]
                found[0, at] -= split.sum(axis=0)
                found[:, at] += split
        return found

    def prompts(self, replica: Int64Array, since: Int64Array, until: Int64Array) -> Int64Array:
        """Return the time between two decisions that was that of steps which only prefill."""
        found = np.zeros(len(replica), np.int64)
        for one, mine in RowsOf(replica):
            of = self._replicas.get(one)
            if of is not None:
                first, last = (np.searchsorted(of.at_ns, side[mine]) for side in (since, until))
                found[mine] = of.prompts[last] - of.prompts[first]
        return found
