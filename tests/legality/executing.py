"""Proves by execution that a changed step graph computes what the unsharded model does, and that each change is seen.

Equal numbers alone may be luck. An edge more must be read: with other numbers on it, its operator makes something else,
in some step, where two values that differ are none. An edge less must not have been waited for: steps are also run with
what it came from as late as the other edges allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from heapq import heapify, heappop, heappush
from typing import Any, Final

import numpy as np
from single_changes import GRAPHS

from clustersim.errors import BrokenLawError
from clustersim.graph.blueprint import EDGE_KINDS, Node
from clustersim.graph.stepgraph import StepGraph
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.comparison import Expected, expected_of
from clustersim.proof.execution import Event, Execution, OutOfShapeError
from clustersim.proof.operators.values import Arrival, Moved, TokenIds, Value
from clustersim.proof.order import program_order
from clustersim.proof.place import Memory, Place
from clustersim.proof.proof import graphs_of, prove
from clustersim.proof.script import Script, chunked_script, program_of
from clustersim.proof.wiring import WiredGraph, wired

BRING: Final = ("data", "kv", "sync")
"""Kinds of edges that bring something."""

MOVE: Final = "kv_move"
"""Takes from the caches what was written before its edges, and nothing of what these bring: ``cached_layers``."""

End = tuple[str, int, tuple[int, ...]]
"""Name, layer and ranks of an operator."""


@cache
def setting(name: str) -> tuple[ModelSpec, ParallelPlan, Script, Expected, dict[str, StepGraph]]:
    """Return what a graph of the adversary is executed with, and clustersim's own graph of each kind of step."""
    spec, plan = GRAPHS[name]
    plan = replace(plan, dp=1) if not plan.is_lockstep else plan.lockstep
    script = chunked_script((9, 6, 8), output_tokens=3, budget=10, vocab=spec.vocab, plan=plan)
    return spec, plan, script, expected_of(spec, script), dict(graphs_of(spec, plan, script))


def executed(name: str, kind: str, graph: StepGraph) -> bool:
    """Whether steps of a kind that run as this graph compute what the unsharded model does, changes and all."""
    spec, plan, script, expected, graphs = setting(name)
    assert kind in graphs, (name, kind, list(graphs))
    changed = graphs | {kind: graph}
    ready = {one: wired(found) for one, found in changed.items()}
    before, after = edges_of(graphs[kind]), edges_of(graph)
    lost = {source for (source, _, way) in before - after if way in BRING}
    try:
        late = list(_late(script, ready, kind, lost))
        found = prove(spec, plan, script, expected=expected, graphs=changed, orders=1, recorded={"late": late})
        if found.verdict.violations or not found.tokens_equal:
            return False
        more = {(source, target) for (source, target, way) in after - before if way in BRING and target[0] != MOVE}
        return not more or more <= _read(spec, plan, script, expected, ready, more)
    except (BrokenLawError, KeyError):
        return False  # an operator whose meaning executions do not know


def edges_of(graph: StepGraph) -> Counter[tuple[End, End, str]]:
    """Return the edges of a graph, by what they join."""
    ends = [
        (graph.symbols[symbol].name, layer, graph.ranks_of(at))
        for at, (symbol, layer) in enumerate(zip(graph.symbol.tolist(), graph.layer.tolist(), strict=True))
    ]
    columns = (graph.source.tolist(), graph.target.tolist(), graph.kind.tolist())
    return Counter((ends[a], ends[b], EDGE_KINDS[kind]) for a, b, kind in zip(*columns, strict=True))


def _end(node: Node, layer: int, ranks: tuple[int, ...]) -> End:
    return node.name, layer, ranks


def _late(script: Script, graphs: dict[str, WiredGraph], kind: str, lost: set[End]) -> Iterator[Event]:
    """Yield steps in order, with some operators, and what needs them, behind all that does not."""
    for step, parts in enumerate(script.steps):
        graph = graphs[program_of(parts)]
        if program_of(parts) != kind or not lost:
            yield from (event for event in program_order(script, graphs) if event[0] == step)
            continue
        held = [_end(one.node, one.layer, one.ranks) in lost for one in graph.nodes]
        missing = list(graph.needs)
        ready = [(held[node], node) for node, count in enumerate(missing) if count == 0]
        heapify(ready)
        while ready:
            _, node = heappop(ready)
            yield step, node
            for after in graph.followers[node]:
                missing[after] -= 1
                held[after] = held[after] or held[node]
                if missing[after] == 0:
                    heappush(ready, (held[after], after))


class _Reading(Execution):
    """An execution that notes which of some edges their operators read."""

    def __init__(self, *given: Any, more: set[tuple[End, End]]) -> None:
        super().__init__(*given)
        self.more, self.read = more, set[tuple[End, End]]()

    def _made(self, node: Node, ats: list[Place], arrived: list[list[Arrival]]) -> Sequence[Value]:
        target = _end(node, ats[0].layer, tuple(at.rank for at in ats))
        for edge in [edge for edge in self.more - self.read if edge[1] == target]:
            other = [[self._altered(one, edge) for one in inputs] for inputs in arrived]
            if self._trial(node, ats, arrived) != self._trial(node, ats, other):
                self.read.add(edge)
        return super()._made(node, ats, arrived)

    def _altered(self, one: Arrival, edge: tuple[End, End]) -> Arrival:
        found = self.named.get(one.source)
        return replace(one, value=_other(one.value)) if found == edge[0] and one.kind in BRING else one

    def _node(self, step: int, index: int) -> None:
        self.named = {
            wire.source: _end(source.node, source.layer, source.ranks)
            for wires in self.graphs[step].nodes[index].wires
            for wire in wires
            for source in [self.graphs[step].nodes[wire.source]]
        }
        super()._node(step, index)

    def _trial(self, node: Node, ats: list[Place], arrived: list[list[Arrival]]) -> list[Any]:
        """Return what an operator makes and leaves behind, as plain values, on memory of its own."""
        kept, self.memory = self.memory, Memory(
            prompts=self.memory.prompts, caches=dict(self.memory.caches), sampled=dict(self.memory.sampled),
            logits={key: list(found) for key, found in self.memory.logits.items()},
        )  # fmt: skip
        try:
            made = super()._made(node, [replace(at, memory=self.memory) for at in ats], arrived)
            return [*map(_plain, made), _plain(self.memory.caches), _plain(self.memory.logits)]
        finally:
            self.memory = kept


def _read(
    spec: ModelSpec, plan: ParallelPlan, script: Script, expected: Expected, graphs: dict[str, WiredGraph],
    more: set[tuple[End, End]],
) -> set[tuple[End, End]]:  # fmt: skip
    run = _Reading(spec, plan, expected.weights, script, graphs, more=more)
    try:
        run.run(program_order(script, graphs))
    except OutOfShapeError:
        return set()
    return run.read


def _other(value: Value) -> Value:
    """Return a value with other numbers in the same places."""
    if isinstance(value, TokenIds):
        return replace(value, ids=np.where(value.ids >= 0, value.ids ^ 1, value.ids))
    if isinstance(value, Moved):
        arriving = {layer: (slots, entries + 1) for layer, (slots, entries) in value.arriving.items()}
        return replace(value, arriving=arriving)
    if not is_dataclass(value):
        return value
    floats = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(value, **{n: x + 1 for n, x in floats.items() if getattr(x, "dtype", None) == np.float64})


def _plain(value: Any) -> Any:
    """Return a value in which equal numbers are equal, NaN and all."""
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, _plain(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in fields(value)]
    return value
