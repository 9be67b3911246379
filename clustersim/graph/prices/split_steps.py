"""Prices of single steps of one stage whose prompts are split over SP ranks, memoised.

As in :mod:`clustersim.graph.prices.steps` classes that do not attend are priced in parts, and a *row* of them is
remembered; attention is worked out for each step. Ranks do different work here, and wait for one another: how long the
pass takes is the longest path through its series (:mod:`clustersim.graph.longest_path`). Every nanosecond is the
pricer's own, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from clustersim.cost.scalar import DecodeNs, PrefillNs
from clustersim.errors import InputError
from clustersim.graph.batch import Chunk, Features, StepBatch
from clustersim.graph.prices.owner_decodes import OwnerDecodes, lengths_of
from clustersim.graph.prices.parts import ATTENDED, MOST_ROWS, Part, Row, decode_price, prefill_price, window_of
from clustersim.graph.prices.pricer import Pricer, payload_bytes
from clustersim.graph.prices.split_features import Chunks, SplitFeatures
from clustersim.graph.prices.steps import StepPrices
from clustersim.graph.program import CostClass, StageProgram

SplitPrice = tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""What :data:`StepPrice` says, and of each local rank's output when it leaves, in ns of the pass, and its bytes."""
Core = tuple[int, PrefillNs | None, tuple[int, ...], list[tuple[int, int]], int, int | None]
"""A column; its price if it prefills; where counts have its pairs, queries and keys; its terms; SP rank; window."""
Keys = Mapping[int | None, Sequence[int]]
"""Sliding window or None → keys within it that the decodes of each SP rank attend to."""

MOST_ALONE: Final = 20_000
"""Steps with prompts alone whose prices are remembered, of each stage: prompts of a trace come again and again."""


class SplitPrompts:
    """Rows and attention of one kind of step that prefills.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    rows : list
        Where rows are added.
    counts : SplitFeatures

    Attributes
    ----------
    told_by_counts : bool
        Whether every class is priced by what counts tell.
    """

    def __init__(self, pricer: Pricer, program: StageProgram, rows: list[Row], counts: SplitFeatures) -> None:
        self.pricer = pricer
        self.program = program
        self.rows = rows
        self.counts = counts
        self.columns = tuple(index for index, cls in enumerate(program.classes) if cls.node.op in ATTENDED)
        self.told_by_counts = all(map(self._told, program.classes))
        by_counts: dict[tuple[int, ...], list[int]] = {}
        for index, cls in enumerate(program.classes if self.told_by_counts else ()):
            if index not in self.columns:
                by_counts.setdefault(self._places(cls), []).append(index)
        self.parts = [Part(pricer, program, places, own, counts.features) for places, own in by_counts.items()]
        used = tuple(sorted({place for places in by_counts for place in places}))
        self.pick: Callable[[Sequence[int]], object] = itemgetter(*(used or (0,)))
        self.known: dict[object, tuple[int, list[int], tuple[int, ...], tuple[int, ...]]] = {}
        self.path = program.template.path
        self._decode_prices: dict[tuple[int, int], DecodeNs] = {}
        self._cores = [self._core(column) for column in self.columns if self.told_by_counts]

    def _places(self, cls: CostClass) -> tuple[int, ...]:
        names = {name for name, _ in (*cls.node.amount, *cls.node.least)}
        found = (self.counts.place(name, cls.s) for name in names)
        return tuple(sorted({place for place in found if place is not None}))

    def _told(self, cls: CostClass) -> bool:
        """Whether the amount of a class, and for attention its shape, is what counts tell."""
        if cls.node.op in ATTENDED and (len(cls.node.amount) != 1 or cls.node.amount[0][1] != 1.0):
            return False
        names = [name for name, _ in (*cls.node.amount, *cls.node.least)]
        return all(self.counts.place(name, cls.s) is not None for name in names)

    def _core(self, column: int) -> Core:
        """Return what there is to know of a column."""
        cls, counts = self.program.classes[column], self.counts
        terms = [(at, times) for at, times in enumerate(self.path.counts[:, column].tolist()) if times]
        if cls.node.op != "attention_prefill":
            return column, None, (), terms, cls.s, window_of(cls)
        names = f"pairs{cls.node.variant}", cls.node.amount[0][0], f"prefill_keys{cls.node.variant}"
        places = [counts.place(name, cls.s) for name in names]
        told = tuple([place for place in places if place is not None])
        return column, prefill_price(self.pricer, cls), told, terms, cls.s, window_of(cls)

    def _row(self, counts: Sequence[int]) -> tuple[int, list[int], tuple[int, ...], tuple[int, ...]]:
        """Make a row and return (its number, nanoseconds of each term without attention, its sends, their bytes)."""
        made = np.zeros(len(self.program.classes), np.int64)
        for part in self.parts:
            made += part.price(counts)[0]
        sending = self.program.template.send_classes
        carried = [payload_bytes(self.program, self.features(counts, cls), cls) for cls in sending]
        if len(self.known) >= MOST_ROWS:
            self.known.clear()
        sends = tuple(made[list(sending)].tolist())
        found = len(self.rows), self.path.terms(made).tolist(), sends, tuple(map(round, carried))
        self.rows.append((made, self.columns))
        self.known[self.pick(counts)] = found
        return found

    def features(self, counts: Sequence[int], cls: int) -> Features:
        """Return the features that the amount of a class is made of."""
        return self.counts.features(counts, self._places(self.program.classes[cls]))

    def _decode_price(self, column: int, sequences: int) -> DecodeNs:
        """Work out the price of a column of decode attention, of so many sequences."""
        made = decode_price(self.pricer, self.program.classes[column], sequences, graph=False)
        self._decode_prices[column, sequences] = made
        return made

    def price(self, counts: Sequence[int], decodes: tuple[int, ...], keys: Keys) -> SplitPrice:
        """Return the price of a step, as :meth:`SplitPrices.split` does."""
        number, bases, sends, carried = self.known.get(self.pick(counts)) or self._row(counts)
        terms = bases.copy()
        varying = []
        known = self._decode_prices
        for column, of_prefill, places, mine, s, window in self._cores:
            if of_prefill is not None:
                pairs, queries, seen = places
                ns = of_prefill(counts[pairs], counts[queries], counts[seen])
            else:
                count = decodes[s]
                ns = (known.get((column, count)) or self._decode_price(column, count))(keys[window][s])
            varying.append(ns)
            for at, times in mine:
                terms[at] += times * ns
        tp = self.program.plan.tp
        end, exits = self.path.ends(terms)
        leaves = tuple([exits[rank // tp] for rank in range(len(sends))])
        return end, number, tuple(varying), sends, leaves, carried


class SplitPrices(StepPrices):
    """Prices of the steps of one stage of a plan with SP: exact, memoised, in plain numbers.

    Parameters
    ----------
    pricer : Pricer
    programs : mapping
        Kind of step → program of the stage.

    Attributes
    ----------
    leads, collective_ends : dict
        What is remembered of passes of the same stage of all replicas, where their collectives can meet something.
    """

    def __init__(self, pricer: Pricer, programs: Mapping[str, StageProgram]) -> None:
        super().__init__(pricer, programs)
        self.leads: dict[tuple[int, int], int] = {}
        self.collective_ends: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
        prefill, mixed = (programs[kind] for kind in ("prefill", "mixed"))
        self.counts = SplitFeatures(pricer.sp, pricer.windows, (*prefill.classes, *mixed.classes))
        self.split_prefill = SplitPrompts(pricer, prefill, self.rows["prefill"], self.counts)
        self.split_mixed = SplitPrompts(pricer, mixed, self.rows["mixed"], self.counts)
        self.owners = OwnerDecodes(pricer, programs["decode"], self.rows["decode"])
        self._bytes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._alone: dict[tuple[tuple[int, int, int], ...], SplitPrice] = {}

    @property
    def supported(self) -> bool:
        """Whether prices here are those of the pricer: ranks that decode don't meet, and counts tell all else."""
        return (
            all(program.even for program in self.programs.values())
            and self.owners.paths is not None
            and self.split_prefill.told_by_counts
            and self.split_mixed.told_by_counts
        )

    def decode_bytes(self, sequences: tuple[int, ...]) -> tuple[int, ...]:
        """Return the bytes that each local rank sends of a step that decodes so many sequences on each SP rank."""
        found = self._bytes.get(sequences)
        if found is None:
            program, tokens = self.programs["decode"], {"tokens": tuple(map(float, sequences))}
            found = tuple([round(payload_bytes(program, tokens, cls)) for cls in program.template.send_classes])
            self._bytes[sequences] = found
        return found

    def decoded(self, sequences: tuple[int, ...], keys: Keys, known: tuple[int, ...] = ()) -> SplitPrice:
        """Price a step in which SP ranks decode so many sequences of their own.

        ``keys`` are those of :meth:`split`, and ``known`` what classes that attend take, where another stage has told.
        """
        price, tp = self.owners[sequences], self.programs["decode"].plan.tp
        each = zip(price.ns, price.ranks, price.windows, strict=True)
        took = known or tuple([ns(keys[window][s]) for ns, s, window in each])
        lengths = [*lengths_of(price.paths, took)]
        by_rank = lengths if price.leaves is price.paths else [*lengths_of(price.leaves, took)]
        leaves = tuple([by_rank[rank // tp] for rank in range(len(price.sends))])
        return max(lengths), price.number, took, price.sends, leaves, self.decode_bytes(sequences)

    def split(self, chunks: Chunks, decodes: tuple[int, ...], keys: Keys) -> SplitPrice:
        """Price a step that prefills.

        Parameters
        ----------
        chunks : sequence of (int, int, int)
        decodes : tuple of int
            Sequences that decode beside them on each SP rank.
        keys : mapping

        Raises
        ------
        InputError
            When an operator would take a day.
        """
        if any(decodes):
            return self._price(self.split_mixed, chunks, decodes, keys)
        alone = tuple(chunks)
        found = self._alone.get(alone)
        if found is None:
            if len(self._alone) >= MOST_ALONE:
                self._alone.clear()
            found = self._alone[alone] = self._price(self.split_prefill, chunks, decodes, keys)
        return found

    def _price(self, prompts: SplitPrompts, chunks: Chunks, decodes: tuple[int, ...], keys: Keys) -> SplitPrice:
        try:
            return prompts.price(self.counts.of(chunks, decodes), decodes, keys)
        except InputError:
            parts = tuple(Chunk(request=0, start=start, count=count, owner=s) for start, count, s in chunks)
            windowed = {window: tuple(some) for window, some in keys.items() if window is not None}
            batch = StepBatch(
                chunks=parts, decode_sequences=decodes, decode_keys=tuple(keys[None]), windowed_keys=windowed
            )
            self.pricer.durations(prompts.program, batch, self.pricer.features(batch))
            raise
