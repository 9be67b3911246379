"""What each step spent its time on: operators, collectives, host work, sends and waits between stages; no remainder.

A chain is the sum of its operators. Where operators overlap, the time is that of the critical path: from the operator
that ends last back to the one that it started after, and so on to the start of the pass. Between the passes of a
step are its sends, and the wait for a stage that is still busy. Passes that overlap, since a stage lets its output go
before its pass ends, count less, each alike. All of it is whole nanoseconds from 0, and the parts of a row of ``steps``
add up to its length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.longest_path import LongestPath
from clustersim.graph.template import PassTemplate
from clustersim.timeline.passes import Passes
from clustersim.timeline.passes import parts as blocks_of
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

SEND: Final = ("send", "send")
WAIT: Final = ("a stage", "wait")
CONTENTION: Final = ("shared or weak links", "collective")
IDLE: Final = ("wait inside a pass", "bubble")
KINDS: Final = {"compute": "operator", "comm": "collective", "host": "host"}
"""Stream → kind of a part."""

Label = tuple[str, str]
"""Name and kind of a part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepParts:
    """What the rows of ``steps`` spent their time on.

    Parameters
    ----------
    labels : tuple of (name, kind)
    ns : int64 array of shape (rows of steps, labels)
        Each row adds up to the time from its start to its end.
    """

    labels: tuple[Label, ...]
    ns: Int64Array


class StepRows:
    """Finds the row of ``steps`` that a step of a replica is in."""

    def __init__(self, tables: Tables) -> None:
        steps = tables.steps
        code = steps["replica"].astype(np.int64)
        code <<= 32
        code |= steps["step"]
        in_order = (code[1:] >= code[:-1]).all()
        self._order = None if in_order else np.argsort(code, kind="stable")
        self._codes = code if self._order is None else code[self._order]

    def of(self, replica: Int64Array, step: Int64Array) -> Int64Array:
        """Return rows of ``steps``."""
        code = replica.astype(np.int64) << 32 | step.astype(np.int64)
        found: Int64Array = np.searchsorted(self._codes, code, side="right") - 1
        return found if self._order is None else self._order[found]


class Labels:
    """Numbers the labels that parts are merged into, as they come."""

    def __init__(self, merged: Callable[[Label], Label] | None) -> None:
        self._merged = merged
        self.numbers: dict[Label, int] = {}
        for label in (SEND, WAIT, CONTENTION, IDLE):
            self.number(label)

    def number(self, label: Label) -> int:
        """Return the number of what a part is merged into."""
        into = label if self._merged is None else self._merged(label)
        return self.numbers.setdefault(into, len(self.numbers))


def labels_of(tables: Tables, merged: Callable[[Label], Label] | None = None) -> tuple[Label, ...]:
    """Return the labels that parts of steps may have, in the order that :func:`step_parts` tells them in."""
    labels = Labels(merged)
    for template in tables.templates:
        _labels(template, labels)
    return tuple(labels.numbers)


def step_parts(tables: Tables, merged: Callable[[Label], Label] | None = None) -> StepParts:
    """Split the time of every row of ``steps``.

    Parameters
    ----------
    tables : Tables
        Of a timeline. A run of passes lies in one row of steps, as replays record them.
    merged : callable, optional
        Label of a part → what it counts as; itself without it.
    """
    passes, rows = Passes(tables), StepRows(tables)
    labels = Labels(merged)
    of_instances = [_labels(template, labels) for template in tables.templates]
    total = np.zeros((len(tables.steps["step"]), len(labels.numbers)), np.int64)
    table = tables.passes
    sharing = tables.layout.values("lockstep")[tables.layout.of_replica(table["replica"])]
    members = int(sharing.max(initial=0))
    for number, template in enumerate(tables.templates):
        every = np.flatnonzero(table["template"] == number)
        if not len(every):
            continue
        found = _Template(passes, template, number, of_instances[number], labels)
        for some in blocks_of(len(every), 8):
            runs = every[some]
            ns = found.parts(runs)
            for member in range(members):
                mine = np.flatnonzero(sharing[runs] > member)
                at = rows.of(table["replica"][runs[mine]] + member, table["first_step"][runs[mine]])
                if (at[1:] > at[:-1]).all() or np.bincount(at - at.min(initial=0)).max(initial=0) <= 1:
                    total[at] += ns[mine]
                else:
                    np.add.at(total, at, ns[mine])
    length = tables.steps["end_ns"] - tables.steps["start_ns"]
    rest = length - total.sum(axis=1)
    if (rest < 0).any():
        total, rest = scaled(total, np.minimum(total.sum(axis=1), length)), np.maximum(rest, 0)
    sent = np.minimum(_sent(tables, rows), rest)
    total[:, labels.number(SEND)] += sent
    total[:, labels.number(WAIT)] += rest - sent
    kept = np.flatnonzero(total.any(axis=0))
    names = list(labels.numbers)
    ns = total if len(kept) == len(names) else total[:, kept]
    return StepParts(labels=tuple(names[at] for at in kept.tolist()), ns=ns)


def scaled(parts: Int64Array, sums: Int64Array) -> Int64Array:
    """Return parts scaled so that they add up to so much, in whole nanoseconds from 0.

    Parameters
    ----------
    parts : int64 array of shape (rows, labels)
        From 0.
    sums : int64 array of shape (rows,)
        At most what the parts of a row add up to.
    """
    whole = parts.sum(axis=1)
    some = np.flatnonzero(whole != sums)
    if not len(some):
        return parts
    found, wanted = parts.copy(), sums[some]
    up_to = np.cumsum(parts[some], axis=1)
    up_to = np.floor(up_to * (wanted / whole[some])[:, None]).astype(np.int64)
    up_to = np.minimum(up_to, wanted[:, None])
    up_to[:, -1] = wanted
    found[some] = np.diff(up_to, axis=1, prepend=0)
    return found


def _labels(template: PassTemplate, labels: Labels) -> Int64Array:
    """Return the number of the label of each instance."""
    if Labels not in template.made:
        template.made[Labels] = _own_labels(template)
    own, of_instance = template.made[Labels]
    found: Int64Array = np.array([labels.number(label) for label in own], np.int64)[of_instance]
    return found


def _own_labels(template: PassTemplate) -> tuple[list[Label], Int64Array]:
    """Return the labels of a template in order of its nodes, and which of them each instance has."""
    code = template.node_symbol * len(STREAMS) + template.instance_stream[template.node_instance]
    codes, firsts, of_node = np.unique(code, return_index=True, return_inverse=True)
    order, labels = np.argsort(firsts), []
    for number in codes[order].tolist():
        symbol, stream = divmod(number, len(STREAMS))
        labels.append((template.symbols[symbol][0], KINDS.get(STREAMS[stream], STREAMS[stream])))
    found = np.zeros(len(template.instance_class), np.int64)
    found[template.node_instance] = np.argsort(order)[of_node]
    return labels, found


def _sent(tables: Tables, rows: StepRows) -> Int64Array:
    """Return how long the sends of each row of ``steps`` took: from the first rank's start to the last one's end."""
    found = np.zeros(len(tables.steps["step"]), np.int64)
    for mine, times in tables.sends():
        took = times[:, 1].max(axis=1) - times[:, 0].min(axis=1, where=times[:, 1] > 0, initial=np.iinfo(np.int64).max)
        took = np.where(times[:, 1].any(axis=1), took, 0)
        at = rows.of(tables.transfers["replica"][mine], tables.transfers["step"][mine])
        np.add.at(found, at, took)
    return found


class _Template:
    """The passes of one template."""

    def __init__(
        self, passes: Passes, template: PassTemplate, number: int, of_instance: Int64Array, labels: Labels
    ) -> None:
        self._passes, self._template, self._number = passes, template, number
        self._of_instance, self._labels = of_instance, labels

    def parts(self, runs: Int64Array) -> Int64Array:
        """Return ns by label of each run of passes."""
        tables = self._passes.tables
        irregular = tables.passes["irregular"][runs]
        own = np.zeros(len(runs), bool)
        for at in np.flatnonzero(irregular >= 0).tolist():
            own[at] = not isinstance(tables.irregular[int(irregular[at])], Stretch)
        found = np.zeros((len(runs), len(self._labels.numbers)), np.int64)
        for row in np.flatnonzero(own).tolist():
            found[row] = self._of_nodes(int(irregular[row]))
        plain = np.flatnonzero(~own)
        found[plain] = self._chained(runs[plain]) if self._template.is_chain else self._laid_out(runs[plain])
        if self._template.is_chain:
            for row in np.flatnonzero(~own & (irregular >= 0)).tolist():
                stretch = tables.irregular[int(irregular[row])]
                assert isinstance(stretch, Stretch)
                found[row, self._labels.number(CONTENTION)] += stretch.lost_ns
        return found

    def _chained(self, runs: Int64Array) -> Int64Array:
        """Add up durations by class, then by label."""
        tables, template = self._passes.tables, self._template
        width = template.num_classes
        weights = np.zeros((width, len(self._labels.numbers)), np.int64)
        np.add.at(weights, (template.instance_class, self._of_instance), 1)
        row = tables.passes["row"][runs]
        rows = np.flatnonzero(np.bincount(row))
        back = np.searchsorted(rows, row)
        values = tables.row_values[tables.rows["at"][rows][:, None] + np.arange(width)]
        for number in np.unique(tables.rows["columns"][rows]).tolist():
            alike = np.flatnonzero(tables.rows["columns"][rows] == number)
            values[np.ix_(alike, list(tables.column_sets[number]))] = 0
        total: Int64Array = _product(values, weights)[back] * tables.passes["steps"][runs].astype(np.int64)[:, None]
        done = 0
        for block in self._passes.blocks(runs):
            for _, columns, steps, varying in self._passes.varying(block):
                of = block.of[steps]
                firsts = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))
                total[done + of[firsts]] += _product(np.add.reduceat(varying, firsts, axis=0), weights[list(columns)])
            done += len(block.runs)
        return total

    def _laid_out(self, runs: Int64Array) -> Int64Array:
        """Add up what lies on the critical path of every pass."""
        path, classes, labels = self._critical_path
        weights = np.zeros((len(classes), len(self._labels.numbers)), np.int64)
        weights[np.arange(len(classes)), labels] = 1
        found = np.zeros((len(runs), weights.shape[1]), np.int64)
        done = 0
        for block in self._passes.blocks(runs):
            durations = self._passes.durations(block, self._number)
            for first in range(0, len(durations), 2048):
                by_class = durations[first : first + 2048][:, classes]
                spent = _product(by_class * path.follow(by_class), weights)
                np.add.at(found, done + block.of[first : first + 2048], spent)
            done += len(block.runs)
        return found

    @cached_property
    def _critical_path(self) -> tuple[LongestPath, Int64Array, Int64Array]:
        """The longest path with a class of its own for each label; the cost class and the label of each of them."""
        template, many = self._template, len(self._labels.numbers)
        codes, of_instance = np.unique(template.instance_class * many + self._of_instance, return_inverse=True)
        path = LongestPath(template.waits, of_instance.astype(np.int64), len(codes), kinds=template.kinds, merge=False)
        return path, codes // many, codes % many

    def _of_nodes(self, number: int) -> Int64Array:
        """Walk back over the nodes of a pass with times of their own: to the one that ends last before each starts."""
        times = self._passes.tables.irregular[number]
        assert not isinstance(times, Stretch)
        starts, ends = (np.asarray(side, np.int64) for side in times)
        if self._template.is_chain:
            return self._of_chain(ends)
        order = np.argsort(ends, kind="stable")
        found = np.zeros(len(self._labels.numbers), np.int64)
        at, until = int(order[-1]), int(ends[order[-1]])
        sorted_ends = ends[order]
        while until > 0:
            begin = int(starts[at])
            found[self._of_instance[self._template.node_instance[at]]] += until - begin
            before = int(np.searchsorted(sorted_ends, begin, side="right")) - 1
            while before >= 0 and starts[order[before]] >= begin:
                before -= 1
            until = int(ends[order[before]]) if before >= 0 else 0
            found[self._labels.number(IDLE)] += begin - until
            at = int(order[max(before, 0)])
        return found

    def _of_chain(self, ends: Int64Array) -> Int64Array:
        """Take each operator to last from when the one before it ended on all ranks until it did."""
        last = np.zeros(len(self._of_instance), np.int64)
        np.maximum.at(last, self._template.node_instance, ends)
        lasts = np.diff(np.maximum.accumulate(last), prepend=0)
        return np.bincount(self._of_instance, lasts, len(self._labels.numbers)).astype(np.int64)


def _product(values: Int64Array, weights: Int64Array) -> Int64Array:
    """Multiply two matrices of whole numbers from 0: in floats, which is much faster, while these are exact."""
    if int(values.max(initial=0)) * max(1, int(weights.sum(axis=0).max(initial=0))) < 1 << 53:
        return (values.astype(np.float64) @ weights.astype(np.float64)).astype(np.int64)
    product: Int64Array = values @ weights
    return product
