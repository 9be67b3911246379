"""Which tokens each SP rank has in each step, derived from the plan and from what the steps carry."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.batch import Chunk
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.legality.shards import Segment, segments_of
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Carried:
    """Numbers of tokens, each an int array of shape (steps, sp), context of shape (steps,).

    Parameters
    ----------
    prefill, decode
        New tokens of prompts, and sequences that decode, per SP rank.
    context
        Tokens that were cached before, of the sequences in prefill.
    """

    prefill: Int64Array
    decode: Int64Array
    context: Int64Array

    @property
    def tokens(self) -> Int64Array:
        """New tokens of both kinds."""
        return self.prefill + self.decode


def chunk_segments(chunk: Chunk, plan: ParallelPlan) -> tuple[tuple[Segment, ...], ...]:
    """Return per SP rank the runs of a chunk's tokens that it has, counted from the chunk's first.

    Of replicas in lockstep, whose chunk it is has all of it.
    """
    if plan.sp.whole:
        return tuple(((0, chunk.count),) if s == chunk.owner else () for s in range(plan.sp.degree))
    return segments_of(chunk.count, plan) if plan.sp.degree > 1 else (((0, chunk.count),),)


def carried(view: GraphView, plan: ParallelPlan) -> Carried:
    """Return how many tokens each SP rank has in each step."""
    sp = plan.sp.degree
    prefill = np.zeros((len(view.steps), sp), np.int64)
    decode = np.zeros((len(view.steps), sp), np.int64)
    context = np.zeros(len(view.steps), np.int64)
    for at, step in enumerate(view.steps):
        for chunk in step.chunks:
            context[at] += chunk.start
            for s, runs in enumerate(chunk_segments(chunk, plan)):
                prefill[at, s] += sum(len(range(*run)) for run in runs)
        if step.decodes is None:
            decode[at, : len(step.sequences)] = step.sequences[:sp]
        else:
            for token in step.decodes:
                decode[at, token.owner] += 1
    return Carried(prefill=prefill, decode=decode, context=context)


def read_keys(view: GraphView, plan: ParallelPlan) -> Int64Array:
    """Return (steps, sp): the keys that attention of prompts needs on each rank, from the first token to its last one.

    Of MLA, which has no sliding window: its latents are expanded to these.
    """
    found = np.zeros((len(view.steps), plan.sp.degree), np.int64)
    for at, step in enumerate(view.steps):
        for chunk in step.chunks:
            for s, runs in enumerate(chunk_segments(chunk, plan)):
                last = [range(*run)[-1] for run in runs if range(*run)]
                found[at, s] += chunk.start + max(last) + 1 if last else 0
    return found
