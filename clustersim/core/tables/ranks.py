"""The tables of steps of SP ranks (:mod:`clustersim.core.ranks`), filled in when a step first asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.compiled import Storage
from clustersim.core.prices import OF_DECODE, OF_MIXED, OF_PREFILL
from clustersim.core.ranks import PROGRAMS
from clustersim.core.tables.paths import PathTables, longer
from clustersim.cost.attention import UNKNOWN
from clustersim.graph.prices.counts import ALIKE, BY_RANK, COUNTS, SplitCounts
from clustersim.graph.prices.step_table import StepTable
from clustersim.graph.prices.steps import StepPrices
from clustersim.graph.prices.table import SENT

Member = tuple[int, int, int]
"""(computed tokens, tokens of the chunk, owner) of a sequence in a step"""
FEW_CHUNKS: Final = 1 << 8
"""Chunks of which it is noted at first what they add."""
CONTEXTS = "context_tokens", "exposed_tokens", "ring_tokens"


class RankTables:
    """The tables of kinds of stage whose prompts are split.

    Parameters
    ----------
    kinds : sequence of StepPrices
    most : sequence of int
        The most that each count of a step can be, in the order of ``graph.prices.counts.ALIASES``.
    ranks : int
        Ranks that send.
    storage : Storage
    """

    def __init__(self, kinds: Sequence[StepPrices], most: Sequence[int], ranks: int, storage: Storage) -> None:
        self.storage, self.pricer = storage, kinds[0].pricer
        pricer, engine = self.pricer, self.pricer.engine
        programs = [one.programs[kind] for one in kinds for kind in ("prefill", "mixed")]
        self.counts = SplitCounts(pricer.sp, pricer.windows, [cls for one in programs for cls in one.classes])
        tables = [
            StepTable(pricer, one.programs[kind], self.counts, one.rows[kind], graph=graph)
            for one in kinds
            for kind, graph in (("prefill", False), ("mixed", False), ("decode", False), ("decode", True))
        ]
        decodes = range(most[COUNTS["decode_sequences"]] + 1)
        self.padded = [engine.padded(one) if engine.graph_sizes and one else one for one in decodes]
        attention = [3 * kind + of for kind in range(len(kinds)) for of in (OF_PREFILL, OF_MIXED, OF_DECODE, OF_DECODE)]
        self.most_tokens = most[COUNTS["tokens"]]
        self.paths = PathTables(tables, attention, self._radix(most), ranks, storage)
        chains = all(one.programs["decode"].template.is_chain for one in kinds)
        self.decodes = pricer.sp.decode == "dp" or not chains
        """Whether not one rank alone decodes, operator by operator."""
        self.chunks: dict[Member, int] = {}
        """Where what chunks add begins."""
        self.chunk_sums = storage.numbers(FEW_CHUNKS * len(self.counts.sums) * pricer.sp.degree)

    def _radix(self, most: Sequence[int]) -> list[int]:
        """Return how many values each count may have, but for pairs that attend."""
        tokens = max(most[COUNTS["tokens"]], *self.padded) + 1
        contexts = most[COUNTS["exposed_tokens"]] + tokens
        few = {*BY_RANK, *ALIKE, SENT}.difference(CONTEXTS)
        found = {at: tokens if name in few else contexts for name, own in self.counts.places.items() for at in own}
        return [found.get(at, 1) for at in range(max(found) + 1)]

    @property
    def whole(self) -> dict[str, int]:
        """What the core knows by name."""
        return {
            "degree": self.pricer.sp.degree, "sums": len(self.counts.sums) * self.pricer.sp.degree,
            "graph_most": self.pricer.engine.graph_max_tokens, "part_kinds": len(self.paths.kinds),
            "value_places": self.paths.size, "chunk_width": self.most_tokens + 1,
        }  # fmt: skip

    def lists(self) -> dict[str, Any]:
        """Return the lists, by the names of ``core.prices.Prices``."""
        self.chunk_at = self.storage.numbers((1 + self.pricer.sp.degree) * (self.most_tokens + 1), UNKNOWN)
        return {
            **self.paths.lists(),
            "sums": self.storage.numbers(len(self.counts.sums) * self.pricer.sp.degree),
            "chunk_at": self.chunk_at,
            "chunk_sums": self.chunk_sums,
            "padded": self.storage.column(np.array(self.padded, np.int64)),
            "asked": self.storage.numbers(2),
        }

    def learn_chunks(self, chunks: Iterable[Member], p: Any) -> dict[str, Any]:
        """Fill in what prompt chunks add to sums; within windows these are asked for."""
        if self.pricer.windows:
            added = np.sum([self.counts.alone(start, taken, owner) for start, taken, owner in chunks], axis=0)
            for place, value in enumerate(added.tolist()):
                p.sums[place] = value
            p.asked[0] = 1
            return {}
        before = self.chunk_sums
        for start, taken, owner in chunks:
            for one in ((0, taken, 0), (1, taken, owner))[: 1 + (start > 0)]:
                if one not in self.chunks:
                    sums = self.counts.alone(*one)
                    at = self.chunks[one] = len(sums) * len(self.chunks)
                    row = 0 if one[0] == 0 else 1 + owner
                    self.chunk_at[row * (self.most_tokens + 1) + taken] = at
                    if at == len(self.chunk_sums):
                        self.chunk_sums = longer(self.chunk_sums, self.storage.numbers(at))
                    self.chunk_sums[at : at + len(sums)] = sums
        return {} if self.chunk_sums is before else {"chunk_sums": self.chunk_sums}

    def number(self, kind: int, of: int) -> int:
        """Return the table of a kind of step on a kind of stage."""
        return kind * PROGRAMS + of

    def found_of(self, kinds: Sequence[int], of: int) -> int:
        """Return how many parts a step has on stages of these kinds."""
        if of == OF_DECODE and not self.decodes and len(kinds) == 1:
            return 0
        return sum(len(self.paths.parts[self.number(kind, of)]) for kind in kinds)

    def untangle(
        self, kinds: Sequence[int], ofs: Int64Array, ends: Int64Array, values: Int64Array, keep: Any
    ) -> tuple[Int64Array, Int64Array]:
        """Take where values were found out of what varies in steps: ``keep`` is false there afterwards.

        Parameters
        ----------
        kinds : sequence of int
            Of the stages of a replica.
        ofs, ends : int64 array of shape (rows,)
            The kind of each row of steps, and where its values end.
        values : int64 array
        keep : bool array

        Returns
        -------
        (numbers, sent)
            The row of each stage, −1 of those that were asked for, (rows, stages), and the bytes that each rank sends.
        """
        numbers = np.full((len(ofs), len(kinds)), -1, np.int64)
        sent = np.zeros((len(ofs), len(kinds) - 1, self.paths.ranks), np.int64)
        for of in (OF_PREFILL, OF_MIXED, OF_DECODE):
            mine = np.flatnonzero(ofs == of)
            width = self.found_of(kinds, of)
            at = ends[mine] - width
            for stage, kind in enumerate(kinds if width and len(mine) else ()):
                number = self.number(kind, of)
                parts = len(self.paths.parts[number])
                places = at[:, None] + np.arange(parts)
                found = values[places]
                keep[places] = False
                numbers[mine, stage] = self.paths.rows(number, found)
                if stage < len(kinds) - 1:
                    sent[mine, stage] = self.paths.sent_bytes(number, found)
                at += parts
        return numbers, sent
