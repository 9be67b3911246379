"""Orders in which the nodes of a script's steps may run: as programmed, at random, or as a timeline recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.proof.execution import Event
from clustersim.proof.script import Script, program_of
from clustersim.proof.wiring import WiredGraph

UNKNOWN: Final = -1

Graphs = Mapping[str, WiredGraph]


def program_order(script: Script, graphs: Graphs) -> list[Event]:
    """Return the order of the program: step by step, each graph from its first node to its last."""
    return [(step, node) for step, parts in enumerate(script.steps) for node in range(len(graphs[program_of(parts)]))]


def random_order(script: Script, graphs: Graphs, seed: int) -> list[Event]:
    """Return a random order that the edges allow; a step follows the earlier ones of its sequences (rule PH-3).

    Parameters
    ----------
    script : Script
    graphs : mapping
        Kind of step → its graph.
    seed : int
    """
    draw = np.random.default_rng(np.random.SeedSequence([seed, 3]))
    by_step = [graphs[program_of(parts)] for parts in script.steps]
    missing = [list(graph.needs) for graph in by_step]
    left = [len(graph) for graph in by_step]
    waits = [set(script.needs(step)) for step in range(len(by_step))]
    ready: list[Event] = []

    def open_steps(ended: int | None) -> None:
        for step, needed in enumerate(waits):
            if ended in needed or (ended is None and not needed):
                needed.discard(ended or 0)
                if not needed:
                    ready.extend((step, node) for node, count in enumerate(missing[step]) if count == 0)

    open_steps(None)
    order: list[Event] = []
    while ready:
        chosen = int(draw.random() * len(ready))
        ready[chosen], ready[-1] = ready[-1], ready[chosen]
        step, node = ready.pop()
        order.append((step, node))
        for after in by_step[step].followers[node]:
            missing[step][after] -= 1
            if missing[step][after] == 0:
                ready.append((step, after))
        left[step] -= 1
        if not left[step]:
            open_steps(step)
    return order


def orders_from_spans(
    script: Script, graphs: Graphs, starts: Sequence[Mapping[tuple[int, int, str, int], tuple[int, int]]]
) -> list[Event]:
    """Return the order in which a recorded timeline ran the nodes of a script's steps.

    Nodes without a span take no time: a K/V read runs just before the first node that needs it, a boundary, and
    whatever else has no span, just after the last one that it needs.

    Parameters
    ----------
    script : Script
    graphs : mapping
        Kind of step → its graph.
    starts : sequence of mapping
        Per step: (rank within the replica, layer, operator, half of the step) → start and end of its span in ns. A node
        starts with the last of its ranks.
    """
    events: list[tuple[tuple[int, int, int, int], Event]] = []
    for step, parts in enumerate(script.steps):
        graph = graphs[program_of(parts)]
        sources: list[list[int]] = [[] for _ in range(len(graph))]
        for source, followers in enumerate(graph.followers):
            for after in followers:
                sources[after].append(source)
        times: list[tuple[int, int]] = []
        for index, node in enumerate(graph.nodes):
            spans = [starts[step].get((rank, node.layer, node.node.name, node.half)) for rank in node.ranks]
            known = [span for span in spans if span is not None]
            if known:
                times.append((max(start for start, _ in known), max(end for _, end in known)))
            else:
                times.append((UNKNOWN, UNKNOWN) if not sources[index] else _after(sources[index], times))
        for index, time in enumerate(times):
            if time[0] == UNKNOWN:
                first = min((times[one][0] for one in graph.followers[index]), default=UNKNOWN)
                times[index] = first, first
        events += [((*time, step, index), (step, index)) for index, time in enumerate(times)]
    return [event for _, event in sorted(events)]


def _after(sources: list[int], times: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the instant at which the last of the sources has ended."""
    last = max((times[one][1] for one in sources if one < len(times)), default=UNKNOWN)
    return last, last
