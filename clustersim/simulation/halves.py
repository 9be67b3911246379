"""Steps of two halves for the rules of level G: what they carry, and the graphs of both as lanes beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.passes.two_batch import half_of
from clustersim.graph.stepgraph import StepGraph
from clustersim.graph.steps import ChainedStep, DecodeToken, StepChain
from clustersim.plan.halves import cut_of
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContents:
    """What one step of a story carries."""

    chunks: tuple[Chunk, ...] = ()
    decodes: tuple[DecodeToken, ...] = ()
    lane: int = 0
    replica: int = 0


def two_batch_story(plan: ParallelPlan) -> tuple[StepContents, ...]:
    """Return steps of which all but the last can be split, each into halves of other kinds.

    Sequences 0 and 3 are in the first half of every step, 1, 2 and 4 in the second.
    """
    steps = [
        StepContents(chunks=(_chunk(0, 0, 11), _chunk(2, 0, 9))),
        StepContents(decodes=(_token(0, 11),), chunks=(_chunk(3, 0, 6), _chunk(1, 0, 7))),
        StepContents(decodes=(_token(0, 12), _token(3, 6), _token(2, 9)), chunks=(_chunk(1, 7, 2),)),
        StepContents(decodes=(_token(0, 13), _token(3, 7), _token(2, 10), _token(1, 9))),
        StepContents(decodes=(_token(0, 14),), chunks=(_chunk(4, 0, 5),)),
        StepContents(decodes=(_token(2, 11),), lane=1),
    ]
    if plan.dp > 1:
        steps.append(StepContents(decodes=(_token(5, 5),), replica=1))
    return tuple(steps)


def two_batch_lockstep_story(plan: ParallelPlan) -> tuple[StepContents, ...]:
    """Return steps of replicas in lockstep that all of them can split: each has a sequence in either half.

    Parameters
    ----------
    plan : ParallelPlan
        Of all replicas as one (``ParallelPlan.lockstep``).
    """
    replicas = range(plan.sp.degree)
    rest = _chunk(1, 6, 4)  # the second sequence of replica 0 is in prefill longer than the others
    steps = [
        StepContents(chunks=tuple(_chunk(2 * s + at, 0, 11 - 5 * at, s) for s in replicas for at in (0, 1))),
        StepContents(
            decodes=tuple(_token(2 * s + at, 11 - 5 * at, s) for s in replicas for at in (0, 1) if (s, at) != (0, 1)),
            chunks=(rest,),
        ),
        StepContents(
            decodes=tuple(
                _token(2 * s + at, 10 if (s, at) == (0, 1) else 12 - 5 * at, s) for s in replicas for at in (0, 1)
            )
        ),
    ]
    return tuple(steps)


def _chunk(request: int, start: int, count: int, owner: int = 0) -> Chunk:
    return Chunk(request=request, start=start, count=count, owner=owner)


def _token(request: int, position: int, owner: int = 0) -> DecodeToken:
    return DecodeToken(request=request, position=position, owner=owner)


def halves_of(step: StepContents, plan: ParallelPlan) -> tuple[StepContents, ...]:
    """Return the halves of a step as the simulator splits it, each replica's part for itself; empty where it is not."""
    if not plan.is_two_batch:
        return ()
    owners = range(plan.sp.degree if plan.sp.whole else 1)
    parts: tuple[list[DecodeToken | Chunk], ...] = ([], [])
    for owner in owners:
        both: list[DecodeToken | Chunk] = [*step.decodes, *step.chunks]
        mine = [one for one in both if one.owner == owner or not plan.sp.whole]
        if len(mine) < 2:
            return ()
        cut = cut_of([one.count if isinstance(one, Chunk) else one.tokens for one in mine])
        parts[0].extend(mine[:cut])
        parts[1].extend(mine[cut:])
    return tuple(
        replace(
            step,
            chunks=tuple(one for one in part if isinstance(one, Chunk)),
            decodes=tuple(one for one in part if isinstance(one, DecodeToken)),
            lane=lane,
        )
        for lane, part in enumerate(parts)
    )


def two_halves(
    halves: Sequence[StepContents], batches: Sequence[StepBatch], graphs: Mapping[str, StepGraph]
) -> list[ChainedStep]:
    """Return the halves of a step as steps of two lanes, each with its part of the one graph.

    Parameters
    ----------
    halves, batches
        What the two carry.
    graphs : mapping
        Name of a program → the graph of the whole step.
    """
    graph = graphs["+".join(batch.kind for batch in batches)]
    whole = tuple(request for half in halves for request in _requests(half))
    found = []
    for number, (half, batch) in enumerate(zip(halves, batches, strict=True), 1):
        own, order = half_of(graph, number, batch.kind)
        found.append(
            ChainedStep(
                graph=own, batch=batch, decodes=half.decodes, lane=half.lane, replica=half.replica, half=number,
                order=order, whole=whole,
            )
        )  # fmt: skip
    return found


def _requests(step: StepContents) -> list[int]:
    return [chunk.request for chunk in step.chunks] + [token.request for token in step.decodes]


def with_crossing(chain: StepChain, graphs: Mapping[str, StepGraph]) -> StepChain:
    """Return a chain with the edges that lead from one half of a step to the other, which no half's graph has."""
    links: list[tuple[int, int, int]] = []
    for at, first in enumerate(chain.steps):
        if first.half != 1:
            continue
        both = chain.steps[at : at + 2]
        graph = graphs["+".join(step.batch.kind for step in both)]
        firsts = chain.first[at : at + 2]
        place = [
            {node: start + own for own, node in enumerate(step.order)} for start, step in zip(firsts, both, strict=True)
        ]
        halves = graph.half[graph.source] * graph.half[graph.target]
        for edge in np.flatnonzero(halves == 2).tolist():
            ends = (int(graph.source[edge]), int(graph.target[edge]))
            before, after = (place[int(graph.half[node]) - 1][node] for node in ends)
            links.append((before, after, int(graph.kind[edge])))
    source, target, kind = np.array(links, np.int64).reshape(-1, 3).T
    return replace(
        chain,
        source=np.concatenate((chain.source, source)),
        target=np.concatenate((chain.target, target)),
        kind=np.concatenate((chain.kind, kind)),
    )
