"""RUN-2: passes run the operators of the plan's step graphs, which level G judges: each where, after what and on which.

Graphs come expanded, rank by rank; what a timeline folds them to is not looked at. A template is one of a graph when it
has the same operators in the same order on the same ranks, in the same layers and streams, and each waits for the
operators that it needs there, and for no others. What its operators cost is in ``slowness`` and ``execution``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STREAMS
from clustersim.graph.stepgraph import StepGraph
from clustersim.graph.template import PassTemplate
from clustersim.legality.timeline_rules.finding import Finding, judged, merged
from clustersim.legality.timeline_rules.reading import Reading

FIX: Final = "run the operators of the step graph, each on its ranks when all that it needs has ended"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A stage of a step graph, operator by operator in program order, sends and receives left out.

    Parameters
    ----------
    what : list of (name, op, module, layer, stream, half, ranks)
    shape : list of int
        Equal for operators of equal shape.
    needs : list of frozenset of int
        Operators that each needs, by position, through what takes no time.
    sent : dict from int to frozenset of int
        Local rank that sends → the operators whose output it sends.
    receives : bool
    """

    what: list[tuple[str, str, str, int, int, int, tuple[int, ...]]]
    shape: list[object]
    needs: list[frozenset[int]]
    sent: dict[int, frozenset[int]]
    receives: bool


def program_of(graph: StepGraph, stage: int, ranks: int) -> Program:
    """Return what a stage of a graph runs; ranks are numbered within the stage."""
    what, shape, needs = [], [], []
    place: dict[int, frozenset[int]] = {}
    sent: dict[int, frozenset[int]] = {}
    offsets, sources = graph.in_edges
    halves = graph.half if len(graph.half) else np.zeros(len(graph), np.int64)
    receives = False
    for at in np.flatnonzero(graph.stage == stage).tolist():
        node = graph.symbols[int(graph.symbol[at])]
        mine = tuple(rank - stage * ranks for rank in graph.ranks_of(at))
        before = [place[source] for source in sources[offsets[at] : offsets[at + 1]].tolist() if source in place]
        wants: frozenset[int] = frozenset().union(*before)
        if node.op == "send":
            sent[mine[0]] = wants
        elif node.op == "recv" or node.is_structural:
            receives |= node.op == "recv"
            place[at] = wants
        else:
            place[at] = frozenset((len(what),))
            stream = int(graph.stream[at])
            what.append((node.name, node.op, node.module, int(graph.layer[at]), stream, int(halves[at]), mine))
            shape.append((node.op, node.n, node.k, node.heads, node.kv_heads, node.qk_dim, node.v_dim, len(mine)))
            needs.append(wants)
    return Program(what=what, shape=shape, needs=needs, sent=sent, receives=receives)


def as_graphs(reading: Reading) -> Finding:
    """Judge every template against the stages of the graphs of its kind."""
    tables, graphs = reading.history.folded, reading.history.graphs
    if tables is None or not graphs:
        return Finding(looked_at=0)
    findings = []
    graphs = tuple(graph for graph in graphs if graph.first_replica == reading.given.first_replica)
    for number in np.unique(tables.passes["template"]).tolist():  # one that no pass runs says nothing
        template, found = tables.templates[number], None
        for graph in graphs:
            if graph.kind != template.kind or graph.ranks != template.ranks or template.stage >= graph.stages:
                continue
            program = program_of(graph.of_stage(template.stage), template.stage, graph.ranks)
            differences = list(_differences(template, program, graph.tp))
            found = differences if found is None or len(differences) < len(found) else found
        told = ["is of no kind of step, stage and number of ranks that the plan has"] if found is None else found
        where = f"template {number} ({template.kind}, stage {template.stage})"
        findings.append(
            judged(
                len(template.members),
                np.ones(len(told), bool),
                lambda i, where=where: where,  # type: ignore[misc]  # mypy can't infer a default of a lambda
                lambda i, told=told: told[i],  # type: ignore[misc]
                FIX,
            )
        )
    return merged(*findings)


def _differences(template: PassTemplate, program: Program, tp: int) -> Iterator[str]:
    """Yield where a template runs something else than a stage of a graph."""
    instance = template.node_instance
    halves = template.node_half if len(template.node_half) else np.zeros(len(template.members), np.int64)
    runs = [
        (*template.symbols[symbol], layer, stream, half, ranks)
        for symbol, layer, stream, half, ranks in zip(
            template.node_symbol.tolist(), template.node_layer.tolist(),
            template.instance_stream[instance].tolist(), halves.tolist(), template.members, strict=True,
        )
    ]  # fmt: skip
    if len(runs) != len(program.what):
        yield f"runs {len(runs):,} operators, and the step graph has {len(program.what):,}"
        return
    for at, (run, due) in enumerate(zip(runs, program.what, strict=True)):
        if run != due:
            yield f"operator {at} is {_words(run)}, and in the step graph {_words(due)}"
    if template.receives != program.receives:
        yield f"{'takes' if template.receives else 'does not take'} the output of another stage"
    yield from _waits(template, program, instance, tp)
    yield from _classes(template, program, instance)
    yield from _leaves(template, program, instance, tp)


def _words(what: tuple[str, str, str, int, int, int, tuple[int, ...]]) -> str:
    name, op, module, layer, stream, _, ranks = what
    return f"{name} ({op}, {module}) of layer {layer} on the {STREAMS[stream]} stream of ranks {list(ranks)}"


def _waits(template: PassTemplate, program: Program, instance: Int64Array, tp: int) -> Iterator[str]:
    """Yield operators that do not wait for what they need, or wait for more; those of a TP group are told as one."""
    needs: list[set[int]] = [set() for _ in template.after]
    joined: list[set[int]] = [set() for _ in template.after]
    same: list[set[object]] = [set() for _ in template.after]
    for at, of in enumerate(instance.tolist()):
        needs[of] |= {int(instance[need]) for need in program.needs[at]}
        joined[of] |= {rank // tp for rank in program.what[at][6]}
        same[of].add(program.what[at][:6])
    for of, (after, due, sharing) in enumerate(zip(template.after, needs, same, strict=True)):
        if len(sharing) != 1:
            yield f"operator {of} stands for {len(sharing)} operators of the step graph"
        if set(after) != due:
            yield f"operator {of} waits for {sorted(set(after))}, and in the step graph for {sorted(due)}"
        if set(template.instance_s[of]) != joined[of]:
            yield f"operator {of} is told on SP ranks {list(template.instance_s[of])}, and is on {sorted(joined[of])}"


def _classes(template: PassTemplate, program: Program, instance: Int64Array) -> Iterator[str]:
    """Yield classes of operators that cost the same and are of several shapes, or named after none of theirs."""
    shapes: dict[int, object] = {}
    names: dict[int, set[tuple[str, str, str]]] = {}
    for at, of in enumerate(instance.tolist()):
        cls = int(template.instance_class[of])
        if shapes.setdefault(cls, program.shape[at]) != program.shape[at]:
            yield f"operator {of} costs what operators of another shape do"
        names.setdefault(cls, set()).add(template.symbols[int(template.node_symbol[at])])
    for cls, symbol in enumerate(template.class_symbol):
        named = template.symbols[symbol]
        if named not in names.get(cls, {named}):  # one that no operator has says nothing
            yield f"class {cls} is told as {named[0]}, and no operator of it is"
    for cls in template.send_classes:
        if template.symbols[template.class_symbol[cls]][1] != "send":
            yield "its output is sent at the cost of another operator"


def _leaves(template: PassTemplate, program: Program, instance: Int64Array, tp: int) -> Iterator[str]:
    """Yield outputs that leave when something else has ended than what is sent."""
    if len(template.send_classes) != len(program.sent):
        yield f"{len(template.send_classes)} ranks send its output, and in the step graph {len(program.sent)}"
    for rank, wants in program.sent.items():
        left = template.exits[rank // tp]
        due = {int(instance[want]) for want in wants}
        if due != {left}:
            yield f"what rank {rank} sends leaves behind operator {left}, and in the step graph behind {sorted(due)}"
    if program.sent:
        return
    for s, left in enumerate(template.exits):
        last = max((of for of, on in enumerate(template.instance_s) if s in on), default=-1)
        if left not in (-1, last):
            yield f"ends with operator {left} on SP rank {s}, and the last one there is {last}"
