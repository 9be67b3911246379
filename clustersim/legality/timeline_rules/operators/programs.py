"""RUN-2: passes run the operators of the plan's step graphs, which level G judges: each where, after what and on which.

Graphs come expanded, rank by rank; what a timeline folds them to is not looked at. A template is one of a graph when it
has the same operators in the same order on the same ranks, in the same layers and streams, and each waits for the
operators that it needs there, and for no others. What its operators cost is in ``slowness`` and ``execution``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STREAMS
from clustersim.graph.stepgraph import StepGraph
from clustersim.graph.template import PassTemplate
from clustersim.legality.finding import Finding, judged, merged
from clustersim.legality.timeline_rules.views.grouping import distinct, numbered
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.values import dataclass

FIX: Final = "run the operators of the step graph, each on its ranks when all that it needs has ended"


What = tuple[str, str, str]
"""Name, op and module of an operator."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A stage of a step graph, operator by operator in program order; sends, receives and what takes no time left out.

    Parameters
    ----------
    symbols : list of What
        By symbol of the graph; ``shapes`` is equal for operators of equal shape.
    symbol, layer, stream, half : int64 arrays of shape (operators,)
    members : list of tuple of int
        Local ranks of each.
    source, target : int64 arrays
        What each needs, through what takes no time.
    sent : dict from int to set of int
        Local rank that sends → the operators whose output it sends.
    receives : bool
    """

    symbols: list[What]
    shapes: list[object]
    symbol: Int64Array
    layer: Int64Array
    stream: Int64Array
    half: Int64Array
    members: list[tuple[int, ...]]
    source: Int64Array
    target: Int64Array
    sent: dict[int, set[int]]
    receives: bool


def program_of(graph: StepGraph, stage: int, ranks: int) -> Program:
    """Return what a stage of a graph runs; ranks are numbered within the stage."""
    own = graph.stage == stage
    through = np.array([node.is_structural or node.op == "recv" for node in graph.symbols], bool)[graph.symbol]
    sends = np.array([node.op == "send" for node in graph.symbols], bool)[graph.symbol]
    real = np.flatnonzero(own & ~through & ~sends)
    place = np.full(len(graph), -1, np.int64)
    place[real] = np.arange(len(real))
    offsets, sources = graph.in_edges
    needs: dict[int, set[int]] = {}  # of what takes no time, and of sends: the operators behind
    for at in np.flatnonzero(own & (through | sends)).tolist():
        needs[at] = set()
        for source in sources[offsets[at] : offsets[at + 1]].tolist():
            needs[at] |= needs.get(source, set()) if through[source] else {int(place[source])} - {-1}
    direct = (place[graph.source] >= 0) & (place[graph.target] >= 0)
    indirect = np.flatnonzero(own[graph.source] & through[graph.source] & (place[graph.target] >= 0))
    pairs = [
        (need, int(place[graph.target[edge]])) for edge in indirect.tolist() for need in needs[int(graph.source[edge])]
    ]
    more = np.array(pairs, np.int64).reshape(-1, 2).T
    groups = [tuple(rank - stage * ranks for rank in group) for group in graph.groups]
    halves = graph.half if len(graph.half) else np.zeros(len(graph), np.int64)
    return Program(
        symbols=[(node.name, node.op, node.module) for node in graph.symbols],
        shapes=[
            (node.op, node.n, node.k, node.heads, node.kv_heads, node.qk_dim, node.v_dim) for node in graph.symbols
        ],
        symbol=graph.symbol[real],
        layer=graph.layer[real],
        stream=graph.stream[real],
        half=halves[real],
        members=[groups[group] for group in graph.group[real].tolist()],
        source=np.concatenate((place[graph.source[direct]], more[0])),
        target=np.concatenate((place[graph.target[direct]], more[1])),
        sent={groups[int(graph.group[at])][0]: needs[at] for at in np.flatnonzero(own & sends).tolist()},
        receives=bool(own[through].any() and any(graph.symbols[int(graph.symbol[at])].op == "recv" for at in needs)),
    )


def as_graphs(reading: Reading) -> Finding:
    """Judge every template against the stages of the graphs of its kind."""
    tables, graphs = reading.history.folded, reading.history.graphs
    if tables is None or not graphs:
        return Finding(looked_at=0)
    findings = []
    programs: dict[tuple[int, int], Program] = {}
    graphs = tuple(graph for graph in graphs if graph.first_replica == reading.declared.first_replica)
    for number in np.unique(tables.passes["template"]).tolist():  # one that no pass runs says nothing
        template = tables.templates[number]
        found: list[str] | None = None
        for which, graph in enumerate(graphs):
            if (
                found == []
                or graph.kind != template.kind
                or graph.ranks != template.ranks
                or template.stage >= graph.stages
            ):
                continue
            if (which, template.stage) not in programs:
                expanded = graph.of_stage(template.stage)
                programs[which, template.stage] = program_of(expanded, template.stage, graph.ranks)
            differences = list(_differences(template, programs[which, template.stage], graph.tp))
            found = differences if found is None or len(differences) < len(found) else found
        told = ["is of no kind of step, stage and number of ranks that the plan has"] if found is None else found
        where = f"template {number} ({template.kind}, stage {template.stage})"
        findings.append(
            judged(len(template.members), np.ones(len(told), bool), "{where}", "{told}", FIX, where=where, told=told)
        )
    return merged(*findings)


def _differences(template: PassTemplate, program: Program, tp: int) -> Iterator[str]:
    """Yield where a template runs something else than a stage of a graph."""
    instance, count = template.node_instance, len(template.members)
    if count != len(program.members):
        yield f"runs {count:,} operators, and the step graph has {len(program.members):,}"
        return
    known = {what: number for number, what in enumerate(program.symbols)}
    named = np.array([known.get(what, -1) for what in template.symbols], np.int64)[template.node_symbol]
    first = np.array([known[what] for what in program.symbols], np.int64)[program.symbol]  # shapes may share a name
    halves = template.node_half if len(template.node_half) else np.zeros(count, np.int64)
    stream = template.instance_stream[instance]
    odd = (named != first) | (template.node_layer != program.layer) | (stream != program.stream)
    odd |= halves != program.half
    if list(template.members) != program.members:
        odd |= np.array([one != due for one, due in zip(template.members, program.members, strict=True)], bool)
    for at in np.flatnonzero(odd)[:1].tolist():
        run = (
            template.symbols[int(template.node_symbol[at])],
            template.node_layer[at],
            stream[at],
            template.members[at],
        )
        due = (program.symbols[int(program.symbol[at])], program.layer[at], program.stream[at], program.members[at])
        yield f"operator {at} is {_words(*run)}, and in the step graph {_words(*due)}"
    if template.receives != program.receives:
        yield f"{'takes' if template.receives else 'does not take'} the output of another stage"
    yield from _waits(template, program, tp, named)
    yield from _classes(template, program, named)
    yield from _leaves(template, program, tp)


def _words(what: What, layer: int, stream: int, ranks: tuple[int, ...]) -> str:
    name, op, module = what
    return f"{name} ({op}, {module}) of layer {layer} on the {STREAMS[stream]} stream of ranks {list(ranks)}"


def _waits(template: PassTemplate, program: Program, tp: int, named: Int64Array) -> Iterator[str]:
    """Yield operators that do not wait for what they need, or wait for more; those of a TP group are told as one."""
    instance, many = template.node_instance, len(template.after)
    due = distinct(instance[program.target] * many + instance[program.source])
    waiting, needed = template.flat("after")
    told = distinct(waiting * many + needed)
    for pair in [] if np.array_equal(due, told) else np.setxor1d(due, told, assume_unique=True)[:1].tolist():
        at, need = divmod(pair, many)
        verb = "waits" if pair in told else "does not wait"
        yield f"operator {at} {verb} for operator {need}, unlike in the step graph"
    what = np.stack((named, program.layer, program.stream, program.half))
    same = np.full((many, 4), -1, np.int64)
    same[instance] = what.T
    for at in np.flatnonzero((same[instance] != what.T).any(axis=1))[:1].tolist():
        yield f"operator {instance[at]} stands for several operators of the step graph"
    node, rank = template.flat("members")
    at, s = template.flat("instance_s")
    joined, said = np.zeros((2, many, max(template.ranks // tp, int(s.max(initial=0)) + 1)), bool)
    joined[instance[node], rank // tp], said[at, s] = True, True
    for at in np.flatnonzero((joined != said).any(axis=1))[:1].tolist():
        on = np.flatnonzero(joined[at]).tolist()
        yield f"operator {at} is told on SP ranks {list(template.instance_s[at])}, and is on {on}"


def _classes(template: PassTemplate, program: Program, named: Int64Array) -> Iterator[str]:
    """Yield classes of operators that cost the same and are of several shapes, or named after none of theirs."""
    cls = template.class_of_node
    shapes: dict[int, object] = {}
    names: dict[int, set[What]] = {}
    told = np.stack((cls, program.symbol, named))
    for of, symbol, _ in told[:, np.unique(numbered(told), return_index=True)[1]].T.tolist():
        if shapes.setdefault(of, program.shapes[symbol]) != program.shapes[symbol]:
            yield f"{program.symbols[symbol][0]} costs what operators of another shape do (class {of})"
        names.setdefault(of, set()).add(program.symbols[symbol])
    for of, symbol in enumerate(template.class_symbol):
        if template.symbols[symbol] not in names.get(
            of, {template.symbols[symbol]}
        ):  # one that no operator has is none
            yield f"class {of} is told as {template.symbols[symbol][0]}, and no operator of it is"
    for of in template.send_classes:
        if template.symbols[template.class_symbol[of]][1] != "send":
            yield "its output is sent at the cost of another operator"


def _leaves(template: PassTemplate, program: Program, tp: int) -> Iterator[str]:
    """Yield outputs that leave when something else has ended than what is sent."""
    if len(template.send_classes) != len(program.sent):
        yield f"{len(template.send_classes)} ranks send its output, and in the step graph {len(program.sent)}"
    for rank, wants in program.sent.items():
        left = template.exits[rank // tp]
        due = {int(template.node_instance[want]) for want in wants}
        if due != {left}:
            yield f"what rank {rank} sends leaves behind operator {left}, and in the step graph behind {sorted(due)}"
    lasts = {s: of for of, on in enumerate(template.instance_s) for s in on}
    for s, left in enumerate(() if program.sent else template.exits):
        if left not in (-1, lasts.get(s, -1)):
            yield f"ends with operator {left} on SP rank {s}, and the last one there is {lasts.get(s, -1)}"
