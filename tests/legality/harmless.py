"""Proves that what is changed in a legal graph, and stays legal, does nothing, or makes another legal graph.

``same``: rules, executions and the features of the step read what they read before. ``waits``: they do but for edges
of kind ``order``, which allow fewer orders and bring nothing. ``launched``: they do but for streams and places in
programs, which allow an order, and what operators take is what edges bring. ``named``: they do but for what collectives
are called, which do what their kinds, ranks and ends say. ``declared``: it is, number for number,
the graph that clustersim makes of the step, plan, model and formats that it declares now. ``worded``: the rules read
what they read before, but for how a split is called (``columns`` of heads). ``executed``: see ``executing.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, Final

import numpy as np
from executing import executed
from foreign_cases import Document, document_of
from single_changes import GRAPHS, Change, document, view_of

from clustersim.errors import InputError
from clustersim.graph.blueprint import COLLECTIVE_OPS, Node
from clustersim.graph.foreign.read import ForeignGraph
from clustersim.graph.stepgraph import StepGraph
from clustersim.legality.graph_rules.views.graph import ORDER, GraphView
from clustersim.legality.graph_rules.views.reading import view_of_foreign
from clustersim.legality.merging.merge import merged
from clustersim.simulation.foreign.graph_file import graph_in
from clustersim.simulation.graph_legality import StepContents, graph_view
from tests.laws.graph_cases import PRECISION, Case

UNREAD: Final = ("fused", "included")
"""Fields of operators that are about their price, which neither rules nor executions read."""
AMOUNTS: Final = ("amount", "least", "loads", "visits")
"""Forms whose values for the step are columns of their own."""
DECLARED: Final = ("steps", "plan", "model", "precision", "devices")
PLAIN: Final = tuple(field.name for field in fields(Node) if field.name not in (*UNREAD, *AMOUNTS))


def proof_of(change: Change) -> str | None:
    """Return how a change that stays legal is proven to do nothing; None where it is not."""
    made = change.make()
    if not isinstance(made, dict):
        return _of_view(change.graph, made)
    name, _, kind = change.graph.partition(", ")
    return _of_file(name, kind, made)


# --- columns --------------------------------------------------------------------------------------------------------


def _of_view(name: str, made: GraphView) -> str | None:
    before = view_of(name)
    if same(before, made):
        return "same"
    if same(before, _without_waits(before, made)):
        return "waits"
    if same(before, _as_named(before, made)):
        return "named"
    if same(before, _as_worded(before, made)):
        return "worded"
    if same(before, _as_launched(before, made)):
        return "launched" if order_of(made, np.arange(len(made))) is not None else None
    spec, plan = GRAPHS[name]
    if made.steps != before.steps and not any(step.half for step in made.steps):
        together = plan.lockstep if plan.is_lockstep else plan
        steps = [_contents(step) for step in made.steps]
        if all(steps) and same(graph_view(spec, together, PRECISION, in_full=True, steps=steps), made):  # type: ignore[arg-type]
            return "declared"
    if any(step.half for step in made.steps) or not _same_figures(before, made):
        return None
    at = next((int(view.step[0]) for view in _changed_steps(before, made)), 0)
    graph = graph_of(made, at)
    return "executed" if graph is not None and executed(name, made.steps[at].kind, graph) else None


def _as_launched(before: GraphView, made: GraphView) -> GraphView:
    """Return a graph with streams and places in programs as they were."""
    if len(made) != len(before) or len(made.member_node) != len(before.member_node):
        return made
    pairs = zip(made.symbol.tolist(), before.symbol.tolist(), strict=True)
    symbols = [replace(made.symbols[own], stream=before.symbols[old].stream) for own, old in pairs]
    old, new = (np.lexsort((view.member_rank, view.member_node)) for view in (before, made))
    position = made.member_position.copy()
    position[new] = before.member_position[old]
    return replace(made, symbols=tuple(symbols), symbol=np.arange(len(made)), member_position=position)


def _as_named(before: GraphView, made: GraphView) -> GraphView:
    """Return a graph with collectives called as they were."""
    if len(made) != len(before):
        return made
    pairs = [(made.symbols[new], before.symbols[old].name) for new, old in zip(made.symbol, before.symbol, strict=True)]
    symbols = [replace(node, name=name) if node.op in COLLECTIVE_OPS else node for node, name in pairs]
    return replace(made, symbols=tuple(symbols), symbol=np.arange(len(made)))


WORDED: Final = {("qkv_proj", "columns"): "qkv", ("q_absorb", "heads"): "heads_columns"}
"""Operator and how a plan calls its split → how step graphs call it; its columns are those of heads in either."""


def _as_worded(before: GraphView, made: GraphView) -> GraphView:
    """Return a graph with splits called as step graphs call them."""
    if len(made) != len(before):
        return made
    symbols = [replace(node, rule=WORDED.get((node.name, node.rule), node.rule)) for node in made.symbols]
    return replace(made, symbols=tuple(symbols))


def _same_figures(first: GraphView, second: GraphView) -> bool:
    """Whether amounts and pairs are as they were, which executions do not read."""
    pairs = [(view.amount, view.attended) for view in (first, second)]
    return all(np.array_equal(np.sort(a), np.sort(b), equal_nan=True) for a, b in zip(*pairs, strict=True))


def _contents(step: Any) -> StepContents | None:
    if step.decodes is None:
        return None
    return StepContents(chunks=step.chunks, decodes=step.decodes, lane=step.lane, replica=step.replica)


def _changed_steps(before: GraphView, made: GraphView) -> list[GraphView]:
    """Return the operators of the steps that differ, step by step, as columns of nothing else."""
    found = []
    for at in range(len(before.steps)):
        first, second = (_only(view, view.step == at) for view in (before, made))
        if len(first) != len(second) or not same(first, second):
            found.append(second)
    return found


def _only(view: GraphView, nodes: np.ndarray) -> GraphView:  # type: ignore[type-arg]
    number = np.cumsum(nodes) - 1
    edge, member = nodes[view.source] & nodes[view.target], nodes[view.member_node]
    columns = {name: getattr(view, name)[nodes] for name in ("symbol", "step", "layer", "stage", "amount", "attended")}
    return replace(
        view, **columns, source=number[view.source[edge]], target=number[view.target[edge]], kind=view.kind[edge],
        member_node=number[view.member_node[member]], member_rank=view.member_rank[member],
        member_position=view.member_position[member],
    )  # fmt: skip


def same(first: GraphView, second: GraphView) -> bool:
    """Whether all that rules and executions read of two graphs is equal; edges and members in whatever order."""
    if len(first) != len(second):
        return False
    if any(
        getattr(first, name) != getattr(second, name) for name in ("steps", "plan", "model", "precision", "devices")
    ):
        return False
    alone = first.plan is not None and first.plan.sp.degree == 1  # one SP rank is all of them
    told = [[_facts(view.symbols[at], alone) for at in view.symbol.tolist()] for view in (first, second)]
    plain = ("step", "layer", "stage", "amount", "attended")
    equal = all(np.array_equal(getattr(first, n), getattr(second, n), equal_nan=True) for n in plain)
    rows = [
        [np.unique(np.stack(columns), axis=1) for columns in (
            (view.source, view.target, view.kind), (view.member_node, view.member_rank, view.member_position)
        )]
        for view in (first, second)
    ]  # fmt: skip
    return equal and told[0] == told[1] and all(np.array_equal(a, b) for a, b in zip(*rows, strict=True))


@cache
def _facts(node: Node, alone: bool) -> tuple[Any, ...]:
    return tuple(getattr(node, name) for name in PLAIN if name != "where" or not alone)


def _without_waits(before: GraphView, made: GraphView) -> GraphView:
    """Return a graph without the order edges that it did not have before."""
    width = max(len(before), len(made)) + 1
    old = (before.source * width + before.target)[before.kind == ORDER]
    kept = (made.kind != ORDER) | np.isin(made.source * width + made.target, old)
    return replace(made, source=made.source[kept], target=made.target[kept], kind=made.kind[kept])


def order_of(view: GraphView, own: np.ndarray) -> list[int] | None:  # type: ignore[type-arg]
    """Return an order of some operators that edges and the program of every stream of every rank allow.

    What takes no time is on no stream.
    """
    after: dict[int, set[int]] = {node: set() for node in own.tolist()}
    inside = np.isin(view.source, own) & np.isin(view.target, own)
    for source, target in zip(view.source[inside].tolist(), view.target[inside].tolist(), strict=True):
        after[target].add(source)
    lanes: dict[tuple[int, str], list[tuple[int, int]]] = {}
    columns = (view.member_node.tolist(), view.member_rank.tolist(), view.member_position.tolist())
    for node, rank, position in zip(*columns, strict=True):
        if node in after and not view.symbols[int(view.symbol[node])].is_structural:
            lanes.setdefault((rank, view.symbols[int(view.symbol[node])].stream), []).append((position, node))
    for lane in lanes.values():
        for (_, first), (_, second) in pairwise(sorted(lane)):
            after[second].add(first)
    try:
        return list(TopologicalSorter(after).static_order())
    except CycleError:
        return None


def graph_of(view: GraphView, at: int) -> StepGraph | None:
    """Return one step of one replica, in an order that the program of every stream of every rank allows."""
    own = np.flatnonzero(view.step == at)
    order = order_of(view, own)
    if order is None:
        return None
    inside = np.isin(view.source, own) & np.isin(view.target, own)
    offsets, members = view.members
    ranks = {node: members[offsets[node] : offsets[node + 1]].tolist() for node in order}
    number = {node: place for place, node in enumerate(order)}
    groups = list(dict.fromkeys(tuple(ranks[node]) for node in order))
    nodes = np.array(order, np.int64)
    return StepGraph(
        symbols=view.symbols, groups=tuple(groups), symbol=view.symbol[nodes], layer=view.layer[nodes],
        stage=view.stage[nodes], unit=np.zeros(len(nodes), np.int64), stream=np.zeros(len(nodes), np.int64),
        group=np.array([groups.index(tuple(ranks[node])) for node in order], np.int64),
        source=_numbered(view.source[inside], number), target=_numbered(view.target[inside], number),
        kind=view.kind[inside],
    )  # fmt: skip


def _numbered(nodes: Any, number: dict[int, int]) -> Any:
    return np.array([number[node] for node in nodes.tolist()], np.int64)


# --- files ----------------------------------------------------------------------------------------------------------


def _of_file(name: str, kind: str, made: Document) -> str | None:
    before, after = (_read(found) for found in (document(name, kind), made))
    views = [view_of_foreign(merged(found).graph) for found in (before, after)]
    if same(*views):
        return "same"
    if same(views[0], _without_waits(*views)):
        return "waits"
    if same(views[0], _as_named(*views)):
        return "named"
    if same(views[0], _as_worded(*views)):
        return "worded"
    if same(views[0], _as_launched(*views)):
        return "launched" if order_of(views[1], np.arange(len(views[1]))) is not None else None
    if _declared(after, made):
        return "declared"
    if not _same_figures(*views):
        return None
    return "executed" if executed(name, kind.rsplit(maxsplit=1)[-1], _in_order(views[1], after.graph)) else None


def _read(found: Document) -> ForeignGraph:
    return graph_in(json.dumps(found), "graph.json")


def graph_of_file(found: Document) -> StepGraph:
    """Return the graph that executions take of a file."""
    read = _read(found)
    return _in_order(view_of_foreign(merged(read).graph), read.graph)


def _in_order(view: GraphView, graph: StepGraph) -> StepGraph:
    return graph_of(view, 0) or graph


def _declared(found: ForeignGraph, made: Document) -> bool:
    assert found.declared is not None
    assert found.model is not None
    assert found.batch is not None
    assert found.precision is not None
    case = Case(model=found.model, plan=found.declared, batch=found.batch, prefills=(), decodes=())
    try:
        own = document_of(case, found.precision)
    except (InputError, ValueError, IndexError, ZeroDivisionError):
        return False  # a declaration of which nothing can be made
    return all(_words(own[part]) == _words(made[part]) for part in ("nodes", "edges"))


def _words(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [json.dumps(row, sort_keys=True) for row in rows]
