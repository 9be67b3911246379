"""What the steps of one program cost: classes × counts, and the longest path through what is left of a pass.

Classes that do not attend depend on few counts (:mod:`clustersim.graph.prices.counts`); those that depend on the same
ones are priced together, once for each value, for all SP ranks and replicas that do the same. Attention is worked out
for each step (:mod:`clustersim.graph.prices.attention`). Every nanosecond is the pricer's own, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.table import TableCost
from clustersim.errors import InputError
from clustersim.graph.prices.attention import Attention, DecodeNs
from clustersim.graph.prices.counts import Counts
from clustersim.graph.prices.pricer import Pricer, payload_bytes
from clustersim.graph.prices.table import SENT, PriceGroup, price_groups
from clustersim.graph.program import CostClass, StageProgram

MOST_ROWS: Final = 1_000_000
"""Rows that are remembered by their counts; one that is made again gets a number of its own."""
MOST_PRICES: Final = 100_000
"""Prices of a part that are remembered; they are cheap to make again."""
NEAR: Final = 64
"""Values that are priced together: twice as dear as eight (measured)."""
FEW_VALUES: Final = frozenset(
    ("tokens", "rows", "sequences", "prefill_tokens", "decode_sequences", "stage_tokens", "peak_tokens")
)
"""Features that limits of a batch bound."""
ATTENDED: Final = ("attention_prefill", "attention_decode")
"""Operators that attend."""

Row = tuple[Int64Array, tuple[int, ...]]
"""(nanoseconds by class, 0 at the columns; columns, which vary)"""
TablePrice = tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""(nanoseconds of the pass, number of its row, nanoseconds of the columns, nanoseconds of each local rank's send, when
the output of each SP coordinate leaves, bytes of each local rank's send)"""


class Part:
    """Classes that depend on the same counts, priced by the values of these.

    Parameters
    ----------
    pricer : Pricer
    classes : sequence of CostClass
    names : tuple of tuple of str
        What each of the counts is called.
    graph : bool
        Whether they run as a captured graph.
    """

    def __init__(
        self, pricer: Pricer, classes: Sequence[CostClass], names: tuple[tuple[str, ...], ...], *, graph: bool
    ) -> None:
        self.pricer, self.classes, self.names, self.graph = pricer, classes, names, graph
        self.known: dict[Any, Int64Array] = {}
        counted = isinstance(pricer.cost, TableCost) and bool(pricer.cost.outside)
        self.near = len(names) == 1 and FEW_VALUES.issuperset(names[0]) and not counted
        """Whether values are priced with those near them; not where it counts what is asked for."""
        self.ranges: set[int] = set()
        """The first values of the ranges of which somebody has had one."""
        self._groups: dict[int, tuple[PriceGroup, ...]] = {}

    def learn(self, keys: Iterable[Any]) -> None:
        """Price values of the counts: with the second one in a range all others there."""
        if len(self.known) >= MOST_PRICES:
            self.known.clear()
        missed = [key for key in dict.fromkeys(keys) if key not in self.known]
        if not missed:
            return
        if self.near:
            ranges = dict.fromkeys(key - key % NEAR for key in missed)
            if self.ranges.issuperset(ranges):
                try:
                    for first in ranges:
                        self._price(range(first, first + NEAR))
                    return
                except InputError:  # perhaps of a value that nobody has
                    missed = [key for key in missed if key not in self.known]
            self.ranges.update(ranges)
        self._price(missed)

    def _price(self, keys: Sequence[Any]) -> None:
        """Price values as if each were an SP coordinate's."""
        groups = self._groups.get(len(keys))
        if groups is None:
            groups = price_groups([replace(cls, s=s) for s in range(len(keys)) for cls in self.classes])
            self._groups[len(keys)] = groups
        each = [[key] for key in keys] if len(self.names) == 1 else keys
        told = {name: tuple([float(key[at]) for key in each]) for at, own in enumerate(self.names) for name in own}
        ns = self.pricer.price_groups(groups, told, graph=self.graph)
        self.known.update(zip(keys, ns.reshape(len(keys), -1), strict=True))


class PlacedPart:
    """The classes of a program that a part prices: of one SP rank, or of several that do the same.

    Parameters
    ----------
    part : Part
    program : StageProgram
    places : tuple of int
        The counts that the first rank's depend on.
    """

    def __init__(self, part: Part, program: StageProgram, places: tuple[int, ...]) -> None:
        self.part = part
        self.places = places
        self.classes = len(program.classes)
        self.all_places: list[tuple[int, ...]] = []
        """Those of each rank."""
        self.indices: list[int] = []
        self.used: set[int] = set()
        self.picks: list[Callable[[Sequence[int]], Any]] = []
        self._counts = program.template.counts

    def add(self, indices: Sequence[int], places: tuple[int, ...]) -> None:
        """Add the classes of one more rank."""
        self.indices += indices
        self.all_places.append(places)
        self.used.update(places)
        self.picks.append(itemgetter(*places) if places else _nothing)

    def fill(self, row: Int64Array, counts: Sequence[int]) -> None:
        """Fill in nanoseconds by class."""
        keys, known = [pick(counts) for pick in self.picks], self.part.known
        try:
            row[self.indices] = np.concatenate([known[key] for key in keys])
        except KeyError:
            self.part.learn(keys)
            row[self.indices] = np.concatenate([known[key] for key in keys])

    def prices(self, counts: Sequence[int]) -> Iterator[tuple[int, Int64Array, int]]:
        """Yield the value of the one count that these depend on, 0 for none, with all known ones near it.

        With each there are nanoseconds by class, 0 at those of other parts, and the nanoseconds of a chain.
        """
        (pick,), known = self.picks, self.part.known
        key = pick(counts)
        self.part.learn([key])
        first = key - key % NEAR if self.places else 0
        for value in range(first, first + NEAR) if self.places else (0,):
            ns = known.get(value if self.places else key)
            if ns is not None:
                row = np.zeros(self.classes, np.int64)
                row[self.indices] = ns
                yield value, row, int(self._counts @ row)


class StepTable:
    """The steps of one program.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    counts : Counts
    rows : list, optional
        Where rows are added.
    graph : bool
        Whether they run as captured graphs.

    Attributes
    ----------
    told_by_counts : bool
        Whether every class is priced by what counts tell.
    columns : tuple of int
        Classes that attend.
    parts : list of PlacedPart
        All others.
    attention : list of (Attention, list of (int, int))
        Each of those, and which terms of the path have it how often.
    used : tuple of int
        Counts that the row depends on.
    known : dict
        These, as :attr:`pick` picks them → what :meth:`row` returned.
    """

    def __init__(
        self, pricer: Pricer, program: StageProgram, counts: Counts, rows: list[Row] | None = None, *,
        graph: bool = False,
    ) -> None:  # fmt: skip
        self.pricer, self.program, self.counts, self.graph = pricer, program, counts, graph
        self.rows = [] if rows is None else rows
        classes = program.classes
        self.columns = tuple(index for index, cls in enumerate(classes) if cls.node.op in ATTENDED)
        self.told_by_counts = all(map(self._is_told, classes))
        self.path = program.template.path
        self.parts = self._parts() if self.told_by_counts else []
        alike: dict[CostClass, dict[int, DecodeNs]] = {}
        self.attention = [
            self._attention(column, alike.setdefault(replace(classes[column], s=0), {}))
            for column in (self.columns if self.told_by_counts else ())
        ]
        self.used = tuple(sorted({place for part in self.parts for place in part.used}))
        self.pick: Callable[[Sequence[int]], object] = itemgetter(*(self.used or (0,)))
        self.known: dict[object, tuple[int, list[int], tuple[int, ...], tuple[int, ...]]] = {}

    def _is_told(self, cls: CostClass) -> bool:
        """Whether the amount of a class, and for attention its shape, is what counts tell."""
        if cls.node.op in ATTENDED and (len(cls.node.amount) != 1 or cls.node.amount[0][1] != 1.0):
            return False
        return all(self.counts.place(name, cls.s) is not None for name in _names(cls))

    def _place(self, name: str, cls: CostClass) -> int:
        """Return which count a feature of a class is; what is sent to the next stage is not padded."""
        if name == "tokens" and cls.node.op == "send" and SENT in self.counts.places:
            name = SENT
        return self.counts.places[name][cls.s]

    def _parts(self) -> list[PlacedPart]:
        """Put classes that depend on the same counts together."""
        classes = self.program.classes
        by_counts: dict[tuple[int, ...], list[int]] = {}
        for index, cls in enumerate(classes):
            if cls.node.op not in ATTENDED:
                mine = {self._place(name, cls) for name in _names(cls)}
                by_counts.setdefault(tuple(sorted(mine)), []).append(index)
        parts: dict[object, PlacedPart] = {}
        for places, indices in by_counts.items():
            names: list[dict[str, None]] = [{} for _ in places]
            for cls in (classes[index] for index in indices):
                for name in _names(cls):
                    names[places.index(self._place(name, cls))][name] = None
            own, called = [replace(classes[index], s=0) for index in indices], tuple(map(tuple, names))
            key = called, tuple(own)
            if key not in parts:
                part = Part(self.pricer, own, called, graph=self.graph)
                parts[key] = PlacedPart(part, self.program, places)
            parts[key].add(indices, places)
        return list(parts.values())

    def _attention(self, column: int, known: dict[int, DecodeNs]) -> tuple[Attention, list[tuple[int, int]]]:
        cls = self.program.classes[column]
        variant, queries = cls.node.variant, cls.node.amount[0][0]
        prefills = cls.node.op == "attention_prefill"
        names = (
            (f"pairs{variant}", queries, f"prefill_keys{variant}") if prefills else (queries, f"decode_keys{variant}")
        )
        places = tuple([self.counts.places[name][cls.s] for name in names])
        terms = [(at, times) for at, times in enumerate(self.path.counts[:, column].tolist()) if times]
        return Attention(self.pricer, cls, column, places, known, graph=self.graph), terms

    def fill(self, counts: Sequence[int]) -> Int64Array:
        """Return nanoseconds by class but for attention."""
        found = np.zeros(len(self.program.classes), np.int64)
        for part in self.parts:
            part.fill(found, counts)
        return found

    def row(self, counts: Sequence[int]) -> tuple[int, list[int], tuple[int, ...], tuple[int, ...]]:
        """Make a row and return (its number, nanoseconds of each term without attention, its sends, their bytes)."""
        made = self.fill(counts)
        sending = self.program.template.send_classes
        carried = tuple([round(self.payload_bytes(counts, cls)) for cls in sending])
        if len(self.known) >= MOST_ROWS:
            self.known.clear()
        found = len(self.rows), self.path.terms(made).tolist(), tuple(made[list(sending)].tolist()), carried
        self.rows.append((made, self.columns))
        self.known[self.pick(counts)] = found
        return found

    def payload_bytes(self, counts: Sequence[int], cls: int) -> float:
        """Return the payload of a communication class in bytes."""
        chosen = self.program.classes[cls]
        return payload_bytes(self.program, self.counts.features(counts, _names(chosen)), cls)

    def price(self, counts: Sequence[int]) -> TablePrice:
        """Return the price of a step.

        Raises
        ------
        InputError
            When an operator would take a day.
        """
        try:
            number, base, sends, carried = self.known.get(self.pick(counts)) or self.row(counts)
            terms = base.copy()
            varying = []
            for one, mine in self.attention:
                ns = one.ns(counts)
                varying.append(ns)
                for at, times in mine:
                    terms[at] += times * ns
        except InputError:
            self.price_whole(counts)
            raise
        end, exits = self.path.ends(terms)
        return end, number, tuple(varying), sends, exits, carried

    def price_whole(self, counts: Sequence[int]) -> None:
        """Price a step by arrays, so that an operator that takes too long is reported as the pricer reports it."""
        self.pricer.price_groups(price_groups(self.program.classes), self.counts.features(counts), graph=self.graph)


def _names(cls: CostClass) -> tuple[str, ...]:
    """Return the features that a class depends on, each once."""
    return tuple(dict.fromkeys([name for name, _ in (*cls.node.amount, *cls.node.least)]))


def _nothing(counts: Sequence[int]) -> tuple[()]:
    del counts
    return ()
