"""What an execution computed beside what the unsharded model does: logits, greedy tokens, the cache."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.operators.weights import Weights, random_weights
from clustersim.proof.place import Memory
from clustersim.proof.reference import Trace, generate
from clustersim.proof.script import Script
from clustersim.values import dataclass

TOLERANCE: Final = 1e-9
"""Largest difference of a logit, relative to the largest one of its token, that is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expected:
    """What the unsharded model computes for a script: the same under every plan.

    Parameters
    ----------
    weights : Weights
    tokens : tuple of tuple of int
        Greedy output of each sequence.
    traces : tuple of Trace
    """

    weights: Weights
    tokens: tuple[tuple[int, ...], ...]
    traces: tuple[Trace, ...]


def expected_of(model: ModelSpec, script: Script, seed: int = 0) -> Expected:
    """Run the unsharded model on a script's prompts, with parameters drawn under ``seed``."""
    weights = random_weights(model, seed)
    runs = [generate(model, weights, prompt, script.output_tokens) for prompt in script.prompts]
    return Expected(
        weights=weights, tokens=tuple(tuple(tokens) for tokens, _ in runs), traces=tuple(trace for _, trace in runs)
    )


def same_logits(one: Memory, other: Memory) -> bool:
    """Whether two executions have the same logits to the last bit."""
    by_rank = [
        {(key, rank): logits for key, found in memory.logits.items() for rank, logits in found}
        for memory in (one, other)
    ]
    return by_rank[0].keys() == by_rank[1].keys() and all(
        np.array_equal(logits, by_rank[1][at]) for at, logits in by_rank[0].items()
    )


class Comparison:
    """Logits and tokens of an execution beside those of the unsharded model."""

    def __init__(self, script: Script, expected: Expected, memory: Memory) -> None:
        self.error, self.vectors, self.complete, self.tokens_equal = 0.0, 0, True, True
        for parts in script.steps:
            for part in parts:
                key = part.sequence, part.start + part.count - 1
                found = memory.logits.get(key, [])
                self.complete = self.complete and bool(found)
                for _, logits in found:
                    wanted = expected.traces[part.sequence].logits[key[1]]
                    self.vectors += 1
                    self.error = float(np.maximum(self.error, relative_error(logits, wanted)))
        for sequence, (prompt, tokens) in enumerate(zip(script.prompts, expected.tokens, strict=True)):
            found_tokens = [memory.sampled.get((sequence, len(prompt) - 1 + at)) for at in range(len(tokens))]
            self.tokens_equal = self.tokens_equal and found_tokens == list(tokens)

    @property
    def holds(self) -> bool:
        """Whether nothing is missing or different."""
        return self.complete and self.tokens_equal and self.error <= TOLERANCE


def relative_error(found: FloatArray, wanted: FloatArray) -> float:
    """Return the largest difference relative to the largest number that was wanted; NaN where one is missing."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def same_cache(memory: Memory, plan: ParallelPlan, script: Script, expected: Expected) -> bool:
    """Whether the ranks of each sequence's owner together hold its whole cache, as one device would."""
    sp, tp = plan.sp.degree, plan.tp
    for part in (part for parts in script.steps for part in parts if part.decodes):
        trace, slots = expected.traces[part.sequence], slice(part.sequence * script.positions, None)
        for layer, keys in trace.keys.items():
            found = np.full(keys.shape, np.nan)
            for (rank, cached), cache in memory.caches.items():
                if cached == layer and rank % (sp * tp) // tp == part.owner:
                    held = cache[slots][: len(keys)]
                    there = ~np.isnan(held[: part.start + 1]).any(axis=2)
                    if (there.any(axis=0) & ~there.all(axis=0)).any():
                        return False  # of what a rank keeps of a head it keeps all tokens
                    found = np.where(np.isnan(found), held, found)
            same = np.abs(found[: part.start + 1] - keys[: part.start + 1]).max() <= TOLERANCE * np.abs(keys).max()
            if not same:
                return False
    return True
