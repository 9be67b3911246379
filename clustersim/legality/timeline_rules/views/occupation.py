"""When each pass holds its stage, when its outputs leave, and when they are sent: from the folded form, vectorised.

Ends are computed anew from durations: as a sum where operators form a chain, else by a longest path over the
template's instances, for many passes at once.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.timeline_rules.views.unfolding import TemplateRows, is_loss
from clustersim.timeline.columns import is_one, shelved
from clustersim.timeline.passes import Passes, parts
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

AT_A_TIME: Final = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Occupation:
    """Passes, or runs of passes that follow each other without a gap, in order of (replica, stage, step).

    Parameters
    ----------
    replica, stage, step, count : integer arrays of shape (passes,)
        ``step`` is the first of ``count``. As narrow as they were recorded: where they are added to, :meth:`part` has
        them as int64.
    start, end : int64 arrays
        Of the first and the last of them, ns.
    leaves : int64 array of shape (passes, ranks) or None
        When the output of each local rank leaves; None where there is one stage.
    sends_for : int64 array of shape (passes, ranks) or None
        What its send costs at least; −1 where the rank sends nothing.
    keys : int64 array, optional
        ``key``, where it was needed to put them in order.
    """

    replica: Int64Array
    stage: Int64Array
    step: Int64Array
    count: Int64Array
    start: Int64Array
    end: Int64Array
    leaves: Int64Array | None
    sends_for: Int64Array | None
    keys: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def key(self) -> Int64Array:
        """What orders them (:func:`order_key`)."""
        columns = self.replica, self.stage, self.step
        return order_key(*(column.astype(np.int64) for column in columns)) if self.keys is None else self.keys

    def part(self, some: slice) -> Occupation:
        """Return some of them, all columns as int64."""
        leaves, sends_for = self.leaves, self.sends_for
        return Occupation(
            replica=self.replica[some].astype(np.int64),
            stage=self.stage[some].astype(np.int64),
            step=self.step[some].astype(np.int64),
            count=self.count[some].astype(np.int64),
            start=self.start[some],
            end=self.end[some],
            keys=None if self.keys is None else self.keys[some],
            leaves=None if leaves is None else leaves[some],
            sends_for=None if sends_for is None else sends_for[some],
        )

    @cached_property
    def distinct(self) -> bool:
        """Whether there is one pass of each stage and first step."""
        return bool((self.key[1:] > self.key[:-1]).all())

    def where(self, at: int) -> str:
        """Return where a pass is."""
        return f"replica {self.replica[at]}, stage {self.stage[at]}, step {self.step[at]}"

    def last_step(self, at: int) -> int:
        """Return the last of the steps of a run of passes."""
        return int(self.step[at]) + int(self.count[at]) - 1


def order_key(replica: Int64Array, stage: Int64Array, step: Int64Array) -> Int64Array:
    """Return a number that orders by (replica, stage, step), int64 as these are."""
    found: Int64Array = replica << 48
    found |= stage << 36
    found |= step
    return found


FEW_PASSES: Final = 4
"""Up to so many are walked one by one, where all together last less than:"""
SAFE_NS: Final = 1 << 62


def in_order(replica: Int64Array, stage: Int64Array, step: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return where rows go in that order, equal ones as they are, and the keys there.

    What is put where it goes, part by part, is read and written in runs: rows are mostly in order of their steps, and
    so each stage's are in order already.
    """
    place, key = np.empty(len(stage), np.int64), np.empty(len(stage), np.int64)
    goes = np.concatenate(([0], np.cumsum(np.bincount(stage))))
    for some in parts(len(stage)):
        for number, rows in RowsOf(stage[some]):
            place[some.start + rows] = goes[number] + np.arange(len(rows))
            goes[number] += len(rows)
        key[place[some]] = order_key(*(column[some].astype(np.int64) for column in (replica, stage, step)))
    if (key[1:] >= key[:-1]).all():
        return place, key
    order = np.argsort(key, kind="stable")
    last = np.empty(len(order), np.int64)
    last[order] = np.arange(len(order))
    return last[place], key[order]


def put(values: Int64Array, place: Int64Array) -> Int64Array:
    """Return values, each where it goes."""
    if not any(values.strides):  # one for all
        return values
    found = np.empty_like(values)
    for some in parts(len(place)):
        found[place[some]] = values[some]
    return found


def longest_path(template: PassTemplate, by_class: Int64Array) -> Int64Array:
    """Return when every instance ends: the longest path through dependencies and in-order streams.

    Parameters
    ----------
    template : PassTemplate
    by_class : int64 array of shape (passes, classes)

    Returns
    -------
    int64 array of shape (passes, instances)
    """
    free: dict[tuple[int, int], int] = {}
    waits: list[dict[int, None]] = []
    for at, (after, stream, coordinates) in enumerate(
        zip(template.after, template.instance_stream.tolist(), template.instance_s, strict=True)
    ):
        waits.append(dict.fromkeys(after))
        for s in coordinates:
            if (s, stream) in free:
                waits[at][free[s, stream]] = None
            free[s, stream] = at
    durations = by_class.T[template.instance_class]
    if len(by_class) <= FEW_PASSES and np.abs(durations).sum(axis=0, dtype=np.float64).max(initial=0.0) < SAFE_NS:
        return _one_by_one(waits, durations.T)
    ends = np.zeros(durations.shape, np.int64)
    for at, befores in enumerate(waits):
        start = np.zeros(len(by_class), np.int64)
        for before in befores:
            np.maximum(start, ends[before], out=start)
        ends[at] = start + durations[at]
    return ends.T


def _one_by_one(waits: list[dict[int, None]], durations: Int64Array) -> Int64Array:
    """Return when every instance ends, pass by pass: plain numbers are faster than arrays of so few."""
    found = np.zeros(durations.shape, np.int64)
    for one, lasts in enumerate(durations.tolist()):
        ends = [0] * len(lasts)
        for at, befores in enumerate(waits):
            start = 0
            for before in befores:
                start = max(start, ends[before])
            ends[at] = start + lasts[at]
        found[one] = ends
    return found


def occupation_of(tables: Tables) -> Occupation:
    """Return when every pass holds its stage."""
    table, passes = tables.passes, Passes(tables)
    regular = table["irregular"] < 0
    folds = (table["steps"] == 1) | ((tables.stages == 1) & (table["starts_at"] < 0))
    chain = np.array([template.is_chain for template in tables.templates], bool)
    summed = regular & folds & (chain[table["template"]] if len(chain) else False)
    found = [_summed(tables, passes, np.flatnonzero(summed))]
    stretched, others = np.flatnonzero(~regular), np.flatnonzero(regular & ~summed)
    for number, template in enumerate(tables.templates):
        found.extend(_stretched(tables, passes, template, stretched[table["template"][stretched] == number]))
        found.extend(_expanded(tables, passes, template, others[table["template"][others] == number]))
    columns = {name: _joined(found, name) for name in ("replica", "stage", "step", "count", "start", "end")}
    if tables.lockstep > 1:  # a pass of several replicas holds the stage of each
        count = len(columns["replica"])
        columns = {name: np.repeat(values, tables.lockstep) for name, values in columns.items()}
        columns["replica"] = columns["replica"] + np.tile(np.arange(tables.lockstep), count)
    if tables.stages == 1 and _are_in_order(columns["replica"], columns["stage"], columns["step"]):
        return Occupation(**shelved(columns), leaves=None, sends_for=None)
    place, key = in_order(columns["replica"], columns["stage"], columns["step"])
    columns = {name: put(columns.pop(name), place) for name in tuple(columns)}
    leaves = sends = None
    if tables.stages > 1:
        sends = put(_joined(found, "sends_for"), place)
        leaves = np.broadcast_to(columns["end"][:, None], sends.shape)  # of chains, from all ranks at once
        if any("leaves" in part for part in found):
            each = [
                part.get("leaves", np.broadcast_to(part["end"][:, None], part["sends_for"].shape)) for part in found
            ]
            leaves = put(np.concatenate(each), place)
    return Occupation(**columns, keys=key, leaves=leaves, sends_for=sends)


def _are_in_order(replica: Int64Array, stage: Int64Array, step: Int64Array) -> bool:
    """Whether passes of one stage are in order of (replica, step)."""
    if not is_one(stage):
        return False
    later = (replica[1:] > replica[:-1]) | ((replica[1:] == replica[:-1]) & (step[1:] >= step[:-1]))
    return bool(later.all())


def _joined(found: list[dict[str, Int64Array]], name: str) -> Int64Array:
    return found[0][name] if len(found) == 1 else np.concatenate([part[name] for part in found])


def _part(tables: Tables, runs: Int64Array | slice, **more: Int64Array) -> dict[str, Int64Array]:
    columns = {"replica": "replica", "stage": "stage", "step": "first_step"}
    return {name: tables.passes[column][runs] for name, column in columns.items()} | more


def _summed(tables: Tables, passes: Passes, runs: Int64Array) -> dict[str, Int64Array]:
    table = tables.passes
    end = np.empty(len(runs), np.int64)
    at = 0
    for block in passes.blocks(runs):
        many = len(block.runs)
        each = passes.lengths(block)
        end[at : at + many] = each if block.is_single else np.add.reduceat(each, block.firsts)
        end[at : at + many] += table["start_ns"][block.runs]
        at += many
    rows = slice(None) if len(runs) == len(table["steps"]) else runs  # of all, no copies
    count = table["steps"][rows] if tables.stages == 1 else np.broadcast_to(np.int64(1), len(runs))
    found = _part(tables, rows, count=count, start=table["start_ns"][rows], end=end)
    if tables.stages > 1:
        found["sends_for"] = _send_costs(tables, passes, runs)
    return found


def _send_costs(tables: Tables, passes: Passes, runs: Int64Array) -> Int64Array:
    """Return what the send of each rank costs, of single passes."""
    ranks = tables.sp_tp[0] * tables.sp_tp[1]
    costs = np.full((len(runs), ranks), -1, np.int64)
    for some in parts(len(runs), 8):
        here = runs[some]
        for number, mine in RowsOf(tables.passes["template"][here]):
            classes, at = list(tables.templates[number].send_classes), 0
            for block in passes.blocks(here[mine]) if classes else ():
                rows = some.start + mine[at : at + len(block.runs)]
                costs[rows, : len(classes)] = passes.durations(block, number, classes)
                at += len(block.runs)
    return costs


def _expanded(tables: Tables, passes: Passes, template: PassTemplate, runs: Int64Array) -> list[dict[str, Int64Array]]:
    """Step by step, for what is no chain or has stages."""
    made = []
    number = int(tables.passes["template"][runs[0]]) if len(runs) else 0
    ranks = tables.sp_tp[0] * tables.sp_tp[1]
    for block in passes.blocks(runs):
        durations, starts = passes.durations(block, number), passes.starts(block)
        for first in range(0, len(starts), AT_A_TIME):
            some = slice(first, first + AT_A_TIME)
            ends = longest_path(template, durations[some])
            here = block.runs[block.of[some]]
            start = starts[some].astype(np.int64)
            part = _part(tables, here, count=np.ones(len(start), np.int64), start=start, end=start + ends.max(axis=1))
            part["step"] = part["step"] + block.index[some]
            if tables.stages > 1:
                exits = np.array(template.exits)
                left = start[:, None] + np.where(exits >= 0, ends[:, exits], 0)
                part["leaves"] = np.repeat(left, ranks // len(exits), axis=1)
                costs = np.full((len(start), ranks), -1, np.int64)
                classes = list(template.send_classes)
                costs[:, : len(classes)] = durations[some][:, classes]
                part["sends_for"] = costs
            made.append(part)
    return made


def losses(tables: Tables) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return row of passes, instance and ns lost of every instance of a chain that contention made longer."""
    rows = np.flatnonzero(tables.passes["irregular"] >= 0)
    rows = rows[[is_loss(tables.irregular[at]) for at in tables.passes["irregular"][rows].tolist()]]
    pairs = [tables.irregular[at].pairs for at in tables.passes["irregular"][rows].tolist()]
    flat = np.concatenate([np.empty((0, 2), np.int64), *pairs])
    return np.repeat(rows, [len(some) for some in pairs]), flat[:, 0], flat[:, 1]


def _stretched(tables: Tables, passes: Passes, template: PassTemplate, runs: Int64Array) -> list[dict[str, Int64Array]]:
    """Passes that contention made longer: chains with their losses, others node by node."""
    found = [is_loss(tables.irregular[at]) for at in tables.passes["irregular"][runs].tolist()]
    lossy = np.array(found, bool)
    made = []
    if lossy.any():
        part = _summed(tables, passes, runs[lossy])
        rows, _, lost = losses(tables)
        total = np.bincount(rows, weights=lost, minlength=len(tables.passes["irregular"])).astype(np.int64)
        part["end"] = part["end"] + total[runs[lossy]]
        made.append(part)
    if not lossy.all():
        made.append(_node_by_node(tables, passes, template, runs[~lossy]))
    return made


def _node_by_node(tables: Tables, passes: Passes, template: PassTemplate, runs: Int64Array) -> dict[str, Int64Array]:
    """Passes whose times were recorded node by node."""
    table = tables.passes
    start = table["start_ns"][runs].astype(np.int64)
    recorded = [tables.irregular[at] for at in table["irregular"][runs].tolist()]
    ends = np.array([times[1].max() for times in recorded], np.int64).reshape(len(runs))
    part = _part(tables, runs, count=np.ones(len(runs), np.int64), start=start, end=start + ends)
    if tables.stages > 1:
        rows = TemplateRows(template)
        exits = np.repeat(np.array(template.exits), template.ranks // len(template.exits))
        row = np.where(exits >= 0, rows.row_of[exits, np.arange(template.ranks)], -1)
        left = np.zeros((len(runs), template.ranks), np.int64)
        for place, times in enumerate(recorded):
            left[place] = np.where(row >= 0, times[1][rows.node[row]], 0)
        part["leaves"] = start[:, None] + left
        part["sends_for"] = _send_costs(tables, passes, runs)
    return part
