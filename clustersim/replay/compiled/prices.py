"""The prices of a stage as the compiled lane reads them: arrays that are filled when a step first asks.

Constants of attention are those of ``cost.scalar``; everything else comes from
:class:`~clustersim.graph.prices.steps.StepPrices`, so that no price is worked out twice in two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import prod
from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.cost.scalar import DecodeTerms, Measured, PrefillTerms, roofline_of
from clustersim.cost.table import TableCost
from clustersim.graph.prices.parts import ALIASES, COUNTS, window_of
from clustersim.graph.prices.pricer import LONGEST_S
from clustersim.graph.prices.steps import StepPrices
from clustersim.graph.prices.table import attention_shape
from clustersim.graph.program import CostClass

UNKNOWN: Final = -1
CURVES: Final = max(len(fields(DecodeTerms)), len(fields(PrefillTerms)))
OUTSIDE: Final = CURVES + 2
"""The kernel's columns of these names: that module is read where something is compiled, and only there."""
FEW_ROWS: Final = (1 << 12) - 1
"""Places of the first table of rows; it grows when it is half full."""
MOST_VALUES: Final = 1 << 16
"""Values of a count up to which what depends on it alone is kept in an array."""
MOST_KEYS: Final = 1 << 62
PREFILL, MIXED, DECODE = range(3)
"""Kinds of step, in the order of the tables here."""


class KernelPrices:
    """Those of one stage, for replicas with the same limits.

    Parameters
    ----------
    prices : StepPrices
    most : sequence of int
        The most that each count of a step can be, in the order of ``graph.prices.parts.ALIASES``.

    Attributes
    ----------
    obstacle : str
        Why the kernel cannot price these steps; empty if it can.
    plain : bool
        Whether the kernel prices attention itself, and need not ask at each step.
    """

    def __init__(self, prices: StepPrices, most: Sequence[int]) -> None:
        self.prices = prices
        pricer, programs = prices.pricer, prices.programs
        self.prompts = prices.prefill, prices.mixed
        self.classes = [
            [(program.classes[column], int(program.template.counts[column])) for column in columns]
            for program, columns in (
                (programs["prefill"], prices.prefill.columns),
                (programs["mixed"], prices.mixed.columns),
                (programs["decode"], attending_of(programs["decode"].classes)),
            )
        ]
        self.radix = np.array([1 + one for one in most], np.int64)
        self.seconds = np.array([pricer.gap_s(graph=False), pricer.gap_s(graph=True), LONGEST_S])
        self.decode_rows = np.full((most[COUNTS["decode_sequences"]] + 1, 4), UNKNOWN, np.int64)
        self.keys, self.values = _empty(FEW_ROWS)
        self.made = np.array([[len(prompts.rows), 0] for prompts in self.prompts])  # rows of others are there
        self.parts, self.part_ns, self.part_rows = self._parts()
        self.part_sends, self.sending = self._sends()
        self.plain = True
        self.obstacle = self._obstacle()
        if not self.obstacle:
            self.cores = np.array([len(one) for one in self.classes], np.int64)
            self.kinds, self.terms = self._terms()
            self.weights = self._weights()

    def _parts(self) -> tuple[Int64Array, Int64Array, list[list[Int64Array]]]:
        """Return the parts that the kernel adds rows up of, none where a part depends on more than one small count."""
        most = max(len(prompts.parts) for prompts in self.prompts)
        parts = np.zeros((2, 1 + most), np.int64)
        width, rows = 1, []
        for table, prompts in enumerate(self.prompts):
            radix = [int(self.radix[part.places[0]]) if part.places else 1 for part in prompts.parts]
            if all(len(part.places) <= 1 for part in prompts.parts) and max(radix) <= MOST_VALUES:
                parts[table, 0] = len(radix)
                parts[table, 1 : 1 + len(radix)] = [part.places[0] if part.places else -1 for part in prompts.parts]
                width = max(width, *radix)
                sizes = zip(radix, prompts.parts, strict=True)
                rows.append([np.zeros((size, part.classes), np.int64) for size, part in sizes])
            else:
                rows.append([])
        return parts, np.full((2, most, width), UNKNOWN, np.int64), rows

    def _sends(self) -> tuple[Int64Array, list[int]]:
        """Return the count that sends depend on and room for what they take; the part that they are in; −1 for none."""
        found, sending = np.zeros((2, 1 + self.part_ns.shape[2]), np.int64), []
        found[:, 0] = -1
        for table, prompts in enumerate(self.prompts):
            classes = prompts.program.template.send_classes
            sending.append(-1)
            for number, part in enumerate(prompts.parts):
                if classes and classes[0] in part.indices:
                    sending[table], found[table, 0] = number, part.places[0] if part.places else -1
        return found, sending

    def _weights(self) -> Int64Array:
        """Return what each count is worth in the keys of rows."""
        found = np.zeros((2, len(ALIASES)), np.int64)
        for table, prompts in enumerate(self.prompts):
            for at, place in enumerate(prompts.used):
                found[table, place] = prod(int(self.radix[later]) for later in prompts.used[at + 1 :])
        return found

    def _obstacle(self) -> str:
        for prompts in self.prompts:
            if prod(int(self.radix[place]) for place in prompts.used) >= MOST_KEYS:
                return "counts of a step exceed 62 bits"
        if len(self.prices.pricer.windows) > 1:
            return "the model attends within windows of several lengths"
        return ""

    def _terms(self) -> tuple[Int64Array, FloatArray]:
        """Return kind and instances of each class that attends, whether within the window, and its constants."""
        most = max(map(len, self.classes))
        kinds = np.zeros((3, most, 3), np.int64)
        rows: dict[tuple[int, int], list[float]] = {}
        for table, classes in enumerate(self.classes):
            for place, (cls, instances) in enumerate(classes):
                kinds[table, place] = cls.node.op != "attention_prefill", instances, window_of(cls) is not None
                rows[table, place] = self._terms_of(cls)
        terms = np.zeros((3, most, max(map(len, rows.values()), default=OUTSIDE + 1)))
        for at, row in rows.items():
            terms[at][: len(row)] = row
        return kinds, terms

    def _terms_of(self, cls: CostClass) -> list[float]:
        """Return the constants of a class; where plain numbers do not price it, they are good for no key at all."""
        pricer, shape = self.prices.pricer, attention_shape(cls.node)
        prefills = cls.node.op == "attention_prefill"
        roofline = roofline_of(pricer.cost)
        plain = False
        record: DecodeTerms | PrefillTerms | None = None
        measured = Measured.of(pricer.cost, cls.node.op, shape)
        if roofline is not None and prefills:
            record = PrefillTerms.of(roofline, shape)
            plain = record.plain(pricer.gap_s(graph=False), measured.least)
        elif roofline is not None:
            record = DecodeTerms.of(roofline, shape)
            plain = record.plain(1, min(pricer.gap_s(graph=False), pricer.gap_s(graph=True)), measured.least)
        self.plain = self.plain and plain
        if record is None or not plain:
            none = [*[0.0] * (len(fields(PrefillTerms if prefills else DecodeTerms)) - 1), -1.0]
            return [*none, *[0.0] * (OUTSIDE + 1 - len(none))]
        row = [getattr(record, one.name) for one in fields(record)]
        return [*row, *[0.0] * (CURVES - len(row)), *_in_a_row(measured)]

    def learn_decode(self, count: int) -> None:
        """Fill in what steps of so many decodes cost."""
        price = self.prices.decode(count)
        send = price.sends[0] if price.sends else 0
        self.decode_rows[count] = price.base_ns, price.number, self.prices.pricer.in_graph((count,)), send

    def learn_parts(self, table: int, counts: Sequence[int]) -> None:
        """Fill in what the parts of a step that are not known cost."""
        for number, part in enumerate(self.prompts[table].parts):
            at = counts[part.places[0]] if part.places else 0
            if self.part_ns[table, number, at] == UNKNOWN:
                by_class, ns = part.price(tuple(counts))
                self.part_ns[table, number, at] = ns
                self.part_rows[table][number][at] = by_class
                if number == self.sending[table]:
                    self.part_sends[table, 1 + at] = by_class[self.prompts[table].program.template.send_classes[0]]

    def learn_row(self, table: int, at: int, key: int, base_ns: int, number: int) -> None:
        """Fill in what a step costs besides attention, and its row, at a free place for its key."""
        self.keys[table, at] = key
        self.values[table, at] = base_ns, number
        self.made[table, 1] += 1
        if 2 * self.made[table, 1] > self.keys.shape[1]:
            self.widen()

    def settle(self) -> None:
        """Tell the prices of rows that the kernel has made since."""
        for table, prompts in enumerate(self.prompts):
            known, made = len(prompts.rows), int(self.made[table, 0])
            if made > known:
                at = np.flatnonzero((self.keys[table] != UNKNOWN) & (self.values[table, :, 1] >= known))
                at = at[np.argsort(self.values[table, at, 1])]
                keys, places = self.keys[table, at], prompts.used
                values = {}
                for place in reversed(places):
                    keys, values[place] = np.divmod(keys, self.radix[place])
                found = np.zeros((len(at), prompts.parts[0].classes), np.int64)
                for part, rows in zip(prompts.parts, self.part_rows[table], strict=True):
                    found += rows[values[part.places[0]] if part.places else 0]
                prompts.rows.extend((row, prompts.columns) for row in found)
        self.made[:, 0] = [len(prompts.rows) for prompts in self.prompts]
        self._count_outside()

    def _count_outside(self) -> None:
        """Tell a table how many durations lay outside of its points."""
        cost = self.prices.pricer.cost
        if isinstance(cost, TableCost):
            for table, classes in enumerate(self.classes):
                for place, (cls, _) in enumerate(classes):
                    cost.count_outside(cls.node.op, int(self.terms[table, place, OUTSIDE]))
            self.terms[:, :, OUTSIDE] = 0.0

    def widen(self) -> None:
        """Make room for more rows."""
        old_keys, old_values = self.keys, self.values
        self.keys, self.values = _empty(4 * old_keys.shape[1] + 3)
        size = self.keys.shape[1]
        for table in (PREFILL, MIXED):
            for place in np.flatnonzero(old_keys[table] != UNKNOWN).tolist():
                at = int(old_keys[table, place]) % size
                while self.keys[table, at] != UNKNOWN:
                    at = (at + 1) % size
                self.keys[table, at], self.values[table, at] = old_keys[table, place], old_values[table, place]


def attending_of(classes: Sequence[CostClass]) -> tuple[int, ...]:
    """Return the classes of decode steps that attend."""
    return tuple(index for index, cls in enumerate(classes) if cls.node.op == "attention_decode")


def _empty(size: int) -> tuple[Int64Array, Int64Array]:
    return np.full((2, size), UNKNOWN, np.int64), np.zeros((2, size, 2), np.int64)


def _in_a_row(measured: Measured) -> list[float]:
    """Return measured points as the kernel reads them behind the terms of a class."""
    curves = measured.curves
    if curves is None:
        return [0.0, 1.0, 0.0]
    each = (curves.outer, curves.starts, curves.place, curves.inner, curves.ratio)
    return [float(len(curves.outer)), float(measured.known), 0.0, *np.concatenate(each).tolist()]
