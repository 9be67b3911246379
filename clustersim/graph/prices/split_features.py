"""What tells a step whose prompts are split over SP ranks from another one: its features, in plain whole numbers.

A batch is a sum over prompt chunks but for a few sums and maxima of that. What a chunk adds is a function of its
tokens; where it goes on with a prompt, each token of the context adds as much to what is attended to, so that a chunk
behind one token tells of all (not within sliding windows: there each context is looked up by itself).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import add
from typing import Final

from clustersim.graph.batch import Chunk, Features, StepBatch, features_of
from clustersim.graph.program import CostClass
from clustersim.plan.parallel import SequencePlan

BY_RANK: Final = ("tokens", "prefill_tokens", "decode_sequences", "rows")
"""Features of which each SP rank has its own."""
ALIKE: Final = (
    "stage_tokens", "peak_tokens", "segment_tokens", "all_prefill_tokens", "context_tokens", "exposed_tokens",
    "ring_tokens", "sequences",
)  # fmt: skip
"""Features that are the same on all of them."""
MOST_CHUNKS: Final = 1 << 15
"""Chunks that are remembered."""

Chunks = Sequence[tuple[int, int, int]]
"""(tokens before the chunk, its tokens, SP rank that keeps its sequence) of each prompt chunk."""


class SplitFeatures:
    """Counts of the steps of one stage.

    Parameters
    ----------
    sp : SequencePlan
    windows : tuple of int
        Sliding windows of the model.
    classes : iterable of CostClass
        All that the stage's steps consist of.

    Attributes
    ----------
    names : tuple of str
        The features that counts tell, each of all SP ranks.
    """

    def __init__(self, sp: SequencePlan, windows: tuple[int, ...], classes: Iterable[CostClass]) -> None:
        self.sp = sp
        self.windows = windows
        attended: dict[str, None] = {}
        for cls in classes:
            if cls.node.op == "attention_prefill":
                attended |= dict.fromkeys((f"pairs{cls.node.variant}", f"prefill_keys{cls.node.variant}"))
            attended |= {name: None for name, _ in cls.node.amount if name == "prefill_keys"}
        self.sums = ("prefill_tokens", "rows", *attended)
        self.names = (*BY_RANK, *ALIKE, *attended)
        self._place = {name: at * sp.degree for at, name in enumerate(self.names)}
        self._known: dict[tuple[int, ...], list[int]] = {}

    def place(self, name: str, s: int) -> int | None:
        """Return where counts have a feature of an SP rank; None where they don't tell it."""
        found = self._place.get(name)
        return found if found is None or name in ALIKE else found + s

    def of(self, chunks: Chunks, decodes: tuple[int, ...]) -> list[int]:
        """Return the counts of a step: of each of :attr:`names` what each SP rank has.

        Parameters
        ----------
        chunks : sequence of (int, int, int)
        decodes : tuple of int
            Sequences that decode on each SP rank.
        """
        degree = self.sp.degree
        found = self._chunk(*chunks[0])
        new, context = chunks[0][1], chunks[0][0]
        for chunk in chunks[1:]:
            found = list(map(add, found, self._chunk(*chunk)))
            context, new = context + chunk[0], new + chunk[1]
        prefill = found[:degree]
        segment = max(prefill)
        tokens = list(map(add, prefill, decodes))
        alike = (
            new + sum(decodes), max(tokens), segment, new, context, context + new, segment + context,
            sum(decodes) + len(chunks),
        )  # fmt: skip
        return [
            *tokens, *prefill, *decodes, *map(add, found[degree:], decodes),
            *[count for count in alike for _ in range(degree)], *found[2 * degree :],
        ]  # fmt: skip

    def features(self, counts: Sequence[int], places: Iterable[int]) -> Features:
        """Return the features that the counts at ``places`` tell, of all SP ranks."""
        degree = self.sp.degree
        wanted = sorted({at // degree for at in places})
        return {self.names[at]: tuple(map(float, counts[at * degree : (at + 1) * degree])) for at in wanted}

    def _chunk(self, start: int, count: int, owner: int) -> list[int]:
        """Return what one chunk adds to each of :attr:`sums`."""
        if not start:
            return self._alone(0, count, 0)
        if self.windows:
            return self._alone(start, count, owner)
        alone, beside = self._alone(0, count, 0), self._alone(1, count, owner)
        return [first + start * (second - first) for first, second in zip(alone, beside, strict=True)]

    def _alone(self, *chunk: int) -> list[int]:
        found = self._known.get(chunk)
        if found is None:
            told = _features(chunk, self.sp, self.windows)
            if len(self._known) >= MOST_CHUNKS:
                self._known.clear()
            self._known[chunk] = found = [int(value) for name in self.sums for value in told[name]]
        return found


@lru_cache(maxsize=MOST_CHUNKS)
def _features(chunk: tuple[int, int, int], sp: SequencePlan, windows: tuple[int, ...]) -> Features:
    """Return the features of a step of one chunk; equal for all plans that split prompts alike."""
    start, count, owner = chunk
    return features_of(StepBatch(chunks=(Chunk(request=0, start=start, count=count, owner=owner),)), sp, windows)
