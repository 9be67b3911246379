"""How long the operators of each cost class took in all passes of a stage together, exact, without unfolding a pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.timeline.passes import Passes, blocks
from clustersim.timeline.stretch import Stretch
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTime:
    """All passes of one template on one stage of a replica.

    Parameters
    ----------
    replica, stage, template : int
    runs : int64 array
        Rows of ``passes``, those with times of their own for every node left out.
    passes : int
        How many passes these rows are.
    by_class : int64 array of shape (classes,)
        Sum over these passes of what one operator of the class takes, ns.
    lost : int64 array of shape (instances,)
        Sum of what each instance took longer than its class does, ns.
    odd : int64 array
        Rows of ``passes`` with times of their own for every node.
    """

    replica: int
    stage: int
    template: int
    runs: Int64Array
    passes: int
    by_class: Int64Array
    lost: Int64Array
    odd: Int64Array


def class_times(passes: Passes) -> list[ClassTime]:
    """Return the time by cost class of every (replica, stage, template) that has passes, in their order."""
    table, templates, tables = passes.tables.passes, passes.tables.templates, passes.tables
    code = (table["replica"].astype(np.int64) * tables.stages + table["stage"]) * len(templates) + table["template"]
    groups, group = np.unique(code, return_inverse=True)
    kept = np.array([isinstance(found, Stretch) for found in tables.irregular] + [True], np.bool_)
    regular = kept[table["irregular"]]  # −1 is the last: no entry
    varying = _varying_times(passes, np.flatnonzero(regular), group, len(groups))
    found = []
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(groups) + 1))
    for number, place in enumerate(groups.tolist()):
        mine = order[bounds[number] : bounds[number + 1]]
        stage, template = divmod(place, len(templates))
        replica, stage = divmod(stage, tables.stages)
        runs = mine[regular[mine]]
        found.append(
            ClassTime(
                replica=replica,
                stage=stage,
                template=template,
                runs=runs,
                passes=int(table["steps"][runs].sum()),
                by_class=_fixed_times(passes, runs, template) + varying[number, : templates[template].num_classes],
                lost=_lost(passes, runs, template),
                odd=mine[~regular[mine]],
            )
        )
    return found


def _fixed_times(passes: Passes, runs: Int64Array, template: int) -> Int64Array:
    """Add up what does not vary from step to step."""
    tables = passes.tables
    width = tables.templates[template].num_classes
    row = tables.passes["row"][runs]
    rows = np.flatnonzero(np.bincount(row))
    times = np.bincount(row, weights=tables.passes["steps"][runs])[rows].astype(np.int64)
    total = np.zeros(width, np.int64)
    for some in blocks(np.ones(len(rows), np.int64)):
        values = tables.row_values[tables.rows["at"][rows[some]][:, None] + np.arange(width)]
        for number in np.unique(tables.rows["columns"][rows[some]]).tolist():
            alike = np.flatnonzero(tables.rows["columns"][rows[some]] == number)
            values[np.ix_(alike, list(tables.column_sets[number]))] = 0
        total += times[some] @ values
    return total


def _varying_times(passes: Passes, runs: Int64Array, group: npt.NDArray[np.intp], groups: int) -> Int64Array:
    """Add up what varies, by group of passes and class, int64 of shape (groups, classes)."""
    tables = passes.tables
    total = np.zeros((groups, max((t.num_classes for t in tables.templates), default=0)), np.int64)
    some = np.array([bool(columns) for columns in tables.column_sets] or [False])
    vary = some[tables.rows["columns"][tables.passes["row"][runs]]] if len(runs) else np.zeros(0, np.bool_)
    for block in passes.blocks(runs[vary]):
        for _, columns, steps, values in passes.varying(block):
            of = block.of[steps]
            firsts = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))
            sums = np.add.reduceat(values, firsts, axis=0)
            np.add.at(total, (group[block.runs[of[firsts]]][:, None], np.array(columns)[None, :]), sums)
    return total


def _lost(passes: Passes, runs: Int64Array, template: int) -> Int64Array:
    """Add up what contention made instances of a chain lose."""
    tables = passes.tables
    lost = np.zeros(len(tables.templates[template].instance_class), np.int64)
    numbers = tables.passes["irregular"][runs]
    parts = [found.packed for n in numbers[numbers >= 0].tolist() if isinstance(found := tables.irregular[n], Stretch)]
    pairs = np.frombuffer(b"".join(parts), "<i8").reshape(-1, 2)
    np.add.at(lost, pairs[:, 0], pairs[:, 1])
    return lost
