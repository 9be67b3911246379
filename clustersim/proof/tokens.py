"""The tokens of one step: which sequence and position each row is, and which SP rank computes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.graph.turns import HALF
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.segments import segments
from clustersim.proof.script import Part
from clustersim.values import dataclass

BoolArray = npt.NDArray[np.bool_]

_SETS: Final = {
    "prefill_tokens": "prefill",
    "decode_sequences": "decode",
    "rows": "last",
    "all_prefill_tokens": "all_prefill",
}
"""Feature of the batch → set of rows that an operator with such an amount works on; all others: the rank's tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTokens:
    """The rows of every value of a step.

    Parameters
    ----------
    sequence, position : int64 arrays of shape (tokens,)
    s : int64 array of shape (tokens,)
        SP coordinate that computes the token; −1: none.
    owner : int64 array of shape (tokens,)
        SP coordinate where decode will read the sequence.
    prefill, last : bool arrays of shape (tokens,)
        Whether the token is of a prompt; whether it is the last one of its sequence in this step.
    sequences, positions : int
        Of the whole proof: a cache has a slot for each position of each sequence.
    sp, tp : int
    half : int64 array of shape (tokens,)
        1 or 2 where the step runs as two halves that overlap, else 0.
    """

    sequence: Int64Array
    position: Int64Array
    s: Int64Array
    owner: Int64Array
    prefill: BoolArray
    last: BoolArray
    sequences: int
    positions: int
    sp: int
    tp: int
    half: Int64Array

    def __len__(self) -> int:
        return len(self.position)

    @property
    def slots(self) -> int:
        """Slots of a cache."""
        return self.sequences * self.positions

    @cached_property
    def slot(self) -> Int64Array:
        """Slot of each token, int64 of shape (tokens,)."""
        return self.sequence * self.positions + self.position

    @cached_property
    def slot_sequence(self) -> Int64Array:
        """Sequence of each slot."""
        return np.repeat(np.arange(self.sequences), self.positions)

    @cached_property
    def slot_position(self) -> Int64Array:
        """Position of each slot."""
        return np.tile(np.arange(self.positions), self.sequences)

    @cached_property
    def context(self) -> BoolArray:
        """Whether a slot is context: a token before those that the step computes of its sequence."""
        start = np.full(self.sequences, -1)
        np.maximum.at(start, self.sequence, 0)
        for sequence in np.unique(self.sequence).tolist():
            start[sequence] = self.position[self.sequence == sequence].min()
        found: BoolArray = self.slot_position < start[self.slot_sequence]
        return found

    @cached_property
    def in_prefill(self) -> BoolArray:
        """Whether a slot belongs to a sequence in prefill."""
        found = np.zeros(self.sequences, bool)
        found[self.sequence[self.prefill]] = True
        return np.asarray(found[self.slot_sequence])

    @cached_property
    def _rows(self) -> dict[tuple[str, int, str], Int64Array]:
        found: dict[tuple[str, int, str], Int64Array] = {}
        for s in range(self.sp):
            for half, among in (("", self.half >= 0), ("1", self.half == 1), ("2", self.half == 2)):
                here = (self.s == s) & among
                found["tokens", s, half] = np.flatnonzero(here)
                found["prefill", s, half] = np.flatnonzero(here & self.prefill)
                found["decode", s, half] = np.flatnonzero(here & ~self.prefill)
                found["last", s, half] = np.flatnonzero(here & self.last)
                found["all_prefill", s, half] = np.flatnonzero(self.prefill & (self.s >= 0) & among)
        return found

    def rows(self, feature: str, s: int) -> Int64Array:
        """Return the rows that an operator at SP coordinate ``s`` with an amount of ``feature`` works on."""
        found = self._by_feature.get((feature, s))
        if found is None:
            name, _, half = feature.partition(HALF)
            found = self._by_feature[feature, s] = self._rows[_SETS.get(name, "tokens"), s, half]
        return found

    @cached_property
    def _by_feature(self) -> dict[tuple[str, int], Int64Array]:
        return {}

    @cached_property
    def _shares(self) -> dict[tuple[int, str], list[Int64Array]]:
        return {
            (s, half): np.array_split(rows, self.tp) for (name, s, half), rows in self._rows.items() if name == "tokens"
        }

    def share(self, s: int, t: int, half: str = "") -> Int64Array:
        """Return the rows that TP rank ``t`` sends to the experts: its even share of those (of a half) at ``s``."""
        return self._shares[s, half][t]


def lay_out(parts: Sequence[Part], plan: ParallelPlan, sequences: int, positions: int) -> StepTokens:
    """Spread the tokens of a step over SP ranks as the plan says."""
    sequence, position, s, owner = list[int](), list[int](), list[int](), list[int]()
    prefill, last, half = list[bool](), list[bool](), list[int]()
    for part in parts:
        holder = [part.owner] * part.count
        if not part.decodes and plan.sp.degree > 1 and not plan.sp.whole:
            holder = [-1] * part.count
            for rank, runs in enumerate(segments(part.count, plan.sp.degree, plan.sp.partition or "contiguous")):
                for token in (token for run in runs for token in range(*run)):
                    holder[token] = rank
        s += holder
        half += [part.half] * part.count
        sequence += [part.sequence] * part.count
        position += range(part.start, part.start + part.count)
        owner += [part.owner] * part.count
        prefill += [not part.decodes] * part.count
        last += [False] * (part.count - 1) + [True]
    return StepTokens(
        sequence=np.array(sequence),
        position=np.array(position),
        s=np.array(s),
        owner=np.array(owner),
        prefill=np.array(prefill),
        last=np.array(last),
        sequences=sequences,
        positions=positions,
        sp=plan.sp.degree,
        tp=plan.tp,
        half=np.array(half),
    )
