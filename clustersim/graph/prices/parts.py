"""The parts that steps are priced in where there is no SP: classes that depend on the same counts, and attention.

Without SP every feature of a batch but those of attention is a function of seven counts (:data:`COUNTS`), so classes
that depend on the same ones are priced together, once for each value. Attention is worked out for each step, in plain
numbers where the roofline alone prices it and by arrays where not; the values are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.scalar import (
    DecodeNs,
    DecodeTerms,
    Measured,
    PrefillNs,
    PrefillTerms,
    decode_ns,
    prefill_ns,
    roofline_of,
)
from clustersim.graph.batch import Features
from clustersim.graph.prices.pricer import LONGEST_S, Pricer
from clustersim.graph.prices.table import attention_shape, price_groups
from clustersim.graph.program import CostClass, StageProgram

MOST_ROWS: Final = 1_000_000
"""Rows that are remembered by their counts; one that is made again gets a number of its own."""
MOST_PRICES: Final = 100_000
"""Prices of a part that are remembered; they are cheap to make again."""

Row = tuple[Int64Array, tuple[int, ...]]
"""(nanoseconds by class, 0 at the columns; columns, which vary)"""
Core = tuple[PrefillNs | None, DecodeNs, int, int | None]
"""A class of attention: its price if it is one of prefill, and of decode; instances in a pass; sliding window."""

Told = Callable[[Sequence[int], Iterable[int]], Features]
"""(counts, places) → the features that the counts at these places tell"""

ALIASES: Final = (
    ("tokens", "stage_tokens", "peak_tokens"),
    ("sequences", "rows"),
    ("prefill_tokens", "segment_tokens", "all_prefill_tokens"),
    ("decode_sequences",),
    ("context_tokens",),
    ("exposed_tokens", "ring_tokens"),
    ("prefill_keys", "prefill_keys*", "prefill_keys#0"),
)
COUNTS: Final = {name: place for place, names in enumerate(ALIASES) for name in names}
"""Feature → which of the counts that a step is told by it is, where there is no SP (``graph.batch``)."""

ATTENDED: Final = {"attention_prefill": "prefill_tokens", "attention_decode": "decode_sequences"}
"""Operators that attend → whose tokens."""


class Part:
    """Classes of a program that depend on the same counts, priced together.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    places : tuple of int
        The counts that the classes depend on.
    indices : list of int
        The classes.
    told : callable, optional
        Returns the features that the counts at some places tell; by default those of a step without SP.
    """

    def __init__(
        self,
        pricer: Pricer,
        program: StageProgram,
        places: tuple[int, ...],
        indices: list[int],
        told: Told | None = None,
    ) -> None:
        self.pricer = pricer
        self.told = told or count_features
        self.places = places
        self.indices = indices
        self.groups = price_groups([program.classes[index] for index in indices])
        self.classes = len(program.classes)
        self.times = program.template.counts[indices]
        self.known: dict[tuple[int, ...], tuple[Int64Array, int]] = {}

    def price(self, counts: Sequence[int]) -> tuple[Int64Array, int]:
        """Return nanoseconds by class, 0 at those of other parts, and the nanoseconds of a pass."""
        key = tuple([counts[place] for place in self.places])
        found = self.known.get(key)
        if found is None:
            ns = self.pricer.price_groups(self.groups, self.told(counts, self.places), graph=False)
            by_class = np.zeros(self.classes, np.int64)
            by_class[self.indices] = ns
            if len(self.known) >= MOST_PRICES:
                self.known.clear()
            self.known[key] = found = by_class, int(self.times @ ns)
        return found


class Prompts:
    """Rows and attention of one kind of step that prefills.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    rows : list
        Where rows are added.

    Attributes
    ----------
    used : tuple of int
        Places of the counts that the row depends on.
    known : dict
        Counts that the row depends on, as :attr:`pick` picks them → what :meth:`row` returned.
    cores : dict
        Decodes → what :meth:`cores_of` returned.
    told_by_counts : bool
        Whether every class is priced by what a step is told by.
    """

    def __init__(self, pricer: Pricer, program: StageProgram, rows: list[Row]) -> None:
        self.pricer = pricer
        self.program = program
        self.rows = rows
        classes = program.classes
        self.columns = tuple(index for index, cls in enumerate(classes) if cls.node.op in ATTENDED)
        self.told_by_counts = all(map(told_by_counts, classes))
        by_counts: dict[tuple[int, ...], list[int]] = {}
        for index, cls in enumerate(classes):
            if index not in self.columns:
                places = tuple(sorted({COUNTS[name] for name, _ in cls.node.amount if name in COUNTS}))
                by_counts.setdefault(places, []).append(index)
        self.parts = [Part(pricer, program, places, indices) for places, indices in by_counts.items()]
        self.used = tuple(sorted({place for places in by_counts for place in places}))
        self.pick: Callable[[tuple[int, ...]], object] = itemgetter(*(self.used or (0,)))
        self.known: dict[object, tuple[int, int, tuple[int, ...]]] = {}
        self.cores: dict[int, list[Core]] = {}

    def row(self, counts: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        """Make a row and return (nanoseconds of a pass without attention, its number, its sends)."""
        made = np.zeros(len(self.program.classes), np.int64)
        base = 0
        for part in self.parts:
            ns, total = part.price(counts)
            made += ns
            base += total
        sending = self.program.template.send_classes
        if len(self.known) >= MOST_ROWS:
            self.known.clear()
        found = base, len(self.rows), tuple(made[list(sending)].tolist()) if sending else ()
        self.rows.append((made, self.columns))
        self.known[self.pick(counts)] = found
        return found

    def cores_of(self, decodes: int) -> list[Core]:
        """Return the prices of the columns beside so many decodes."""
        pricer, times = self.pricer, self.program.template.counts.tolist()
        self.cores[decodes] = found = [
            (
                prefill_price(pricer, cls) if cls.node.op == "attention_prefill" else None,
                decode_price(pricer, cls, decodes, graph=False),
                times[column],
                window_of(cls),
            )
            for column, cls in ((column, self.program.classes[column]) for column in self.columns)
        ]
        return found

    def price_whole(self, counts: tuple[int, ...], attended: Mapping[int | None, tuple[int, int, int]]) -> None:
        """Price a step by arrays, so that an operator that takes too long is reported as the pricer reports it."""
        features = count_features(counts, range(len(ALIASES)))
        for window, (pairs, prefill_keys, decode_keys) in attended.items():
            suffix = "" if window is None else f"@{window}"
            features[f"pairs{suffix}"] = (float(pairs),)
            features[f"prefill_keys{suffix}"] = (float(prefill_keys),)
            features[f"decode_keys{suffix}"] = (float(decode_keys),)
        self.pricer.price_groups(price_groups(self.program.classes), features, graph=False)


def told_by_counts(cls: CostClass) -> bool:
    """Whether the amount of a class is what it is taken for here: sequences and tokens of attention, or counts."""
    if cls.node.op in ATTENDED:
        return cls.node.amount == ((ATTENDED[cls.node.op], 1.0),)
    return all(name in COUNTS for name, _ in cls.node.amount)


def count_features(counts: Sequence[int], places: Iterable[int]) -> Features:
    """Return the features that the counts at ``places`` tell."""
    return {name: (float(counts[place]),) for place in places for name in ALIASES[place]}


def window_of(cls: CostClass) -> int | None:
    """Return the sliding window of a class of attention."""
    return cls.node.variant.window


def decode_price(pricer: Pricer, cls: CostClass, sequences: int, *, graph: bool) -> DecodeNs:
    """Return the price of a class of decode attention by the keys that so many sequences attend to."""
    groups, ((many, _),), feature = price_groups([cls]), cls.node.amount, f"decode_keys{cls.node.variant}"

    def by_arrays(keys: int) -> int:
        features = {name: (0.0,) * cls.s + (float(count),) for name, count in ((many, sequences), (feature, keys))}
        return int(pricer.price_groups(groups, features, graph=graph)[0])

    roofline, shape = roofline_of(pricer.cost), attention_shape(cls.node)
    if roofline is None:
        return by_arrays
    measured = Measured.of(pricer.cost, "attention_decode", shape)
    return decode_ns(
        DecodeTerms.of(roofline, shape), sequences, pricer.gap_s(graph=graph), LONGEST_S, by_arrays, measured
    )


def prefill_price(pricer: Pricer, cls: CostClass) -> PrefillNs:
    """Return the price of a class of prefill attention by pairs, queries and keys."""
    groups, ((many, _),), variant = price_groups([cls]), cls.node.amount, cls.node.variant

    def by_arrays(pairs: int, queries: int, keys: int) -> int:
        told = {many: queries, f"pairs{variant}": pairs, f"prefill_keys{variant}": keys}
        features = {name: (0.0,) * cls.s + (float(count),) for name, count in told.items()}
        return int(pricer.price_groups(groups, features, graph=False)[0])

    roofline, shape = roofline_of(pricer.cost), attention_shape(cls.node)
    if roofline is None:
        return by_arrays
    measured = Measured.of(pricer.cost, "attention_prefill", shape)
    return prefill_ns(PrefillTerms.of(roofline, shape), pricer.gap_s(graph=False), LONGEST_S, by_arrays, measured)
