"""Small legal deployments whose step graphs the tests break, and the ways to break one thing in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from plans import EXPERTS, LATENT, model, normed

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import EDGE_KINDS, STREAMS, Node
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.simulation.graph_legality import StepContents, graph_view

PRECISION = Precision(weights="fp8", activations="bf16", kv_cache="fp8")
RING = SequencePlan(degree=4, scheme="ring", partition="zigzag", decode="idle")
GATHER = SequencePlan(degree=3, scheme="all_gather", partition="contiguous", decode="dp")
HALVES = (Cut(layer=5),)
COLUMNS = TensorSplit(ffn_down="columns", attention_out="columns")

CASES: dict[str, tuple[ModelSpec, ParallelPlan]] = {
    "dense": (model(layers=10), ParallelPlan(dp=2, pp=2, tp=2, stages=HALVES)),
    "wide": (model(layers=5), ParallelPlan(tp=4)),
    "ring": (model(layers=10), ParallelPlan(pp=2, tp=2, sp=RING, stages=HALVES)),
    "gather": (model(layers=5), ParallelPlan(tp=2, sp=GATHER)),
    "heads": (model(layers=5), ParallelPlan(tp=2, sp=replace(RING, degree=2, scheme="all_to_all"))),
    "latent": (model(LATENT, layers=5), ParallelPlan(tp=2, sp=replace(GATHER, degree=2))),
    "experts": (model(ffn=EXPERTS, layers=5), ParallelPlan(tp=2)),
    "spread": (model(ffn=EXPERTS, layers=5), ParallelPlan(tp=4, ep=ExpertPlan(degree=4))),
    "once": (
        model(ffn=EXPERTS, layers=5),
        ParallelPlan(tp=4, ep=ExpertPlan(degree=4, exchange="deepep_normal")),
    ),
    "gathered": (
        model(ffn=EXPERTS, layers=5),
        ParallelPlan(tp=4, ep=ExpertPlan(degree=4, exchange="all_gather")),
    ),
    "straight": (
        model(ffn=EXPERTS, layers=5),
        ParallelPlan(tp=2, sp=replace(RING, degree=2), ep=ExpertPlan(degree=4, exchange="deepep_low_latency")),
    ),
    "kept": (
        model(ffn=EXPERTS, layers=5),
        ParallelPlan(tp=4, ep=ExpertPlan(degree=2, exchange="all_reduce")),
    ),
    "shared": (
        model(ffn=EXPERTS, layers=5),
        ParallelPlan(tp=2, sp=replace(RING, degree=2), ep=ExpertPlan(degree=2)),
    ),
    "cut": (model(layers=6), ParallelPlan(pp=2, tp=2, stages=(Cut(layer=3, before="ffn"),))),
    "columns": (model(layers=5), ParallelPlan(tp=2, split=COLUMNS)),
    "normed": (normed(model(layers=5)), ParallelPlan(tp=2)),
}
"""``once``, ``straight``: DeepEP's exchanges, the first with a copy for each rank; ``kept``: tokens stay.

``shared``: each expert shared by 2 of a stage's 4 ranks; ``cut``: between attention and FFN; ``normed``: norms
behind attention and FFN, and soft caps; others as they say."""


@cache
def view_of(name: str, in_full: bool = False, steps: tuple[StepContents, ...] | None = None) -> GraphView:
    """Return the columns of a case."""
    spec, plan = CASES[name]
    return graph_view(spec, plan, PRECISION, in_full=in_full, steps=steps)


# --- picking ------------------------------------------------------------------------------------------------------


def pick(view: GraphView, name: str, **where: int) -> list[int]:
    """Return the nodes of a name, at a step, layer, stage or rank."""
    found = view.mask(lambda node: node.name == name)
    for column, value in where.items():
        if column == "rank":
            nodes = np.arange(len(view))
            found &= view.takes_part(nodes, np.full(len(view), value))
        else:
            found &= getattr(view, column) == value
    nodes = np.flatnonzero(found).tolist()
    assert nodes, (name, where)
    return nodes


def one(view: GraphView, name: str, **where: int) -> int:
    """Return the first of :func:`pick`."""
    return pick(view, name, **where)[0]


# --- breaking -----------------------------------------------------------------------------------------------------


def changed(view: GraphView, nodes: Iterable[int], **changes: Any) -> GraphView:
    """Return the view with fields of some operators changed."""
    symbols, symbol = list(view.symbols), view.symbol.copy()
    for node in nodes:
        symbols.append(replace(symbols[symbol[node]], **changes))
        symbol[node] = len(symbols) - 1
    return replace(view, symbols=tuple(symbols), symbol=symbol)


def valued(view: GraphView, nodes: Iterable[int], column: str, change: Callable[[float], float]) -> GraphView:
    """Return the view with a numeric column of some nodes changed."""
    values = getattr(view, column).copy()
    for node in nodes:
        values[node] = change(values[node])
    return replace(view, **{column: values})


def cut(view: GraphView, lost: np.ndarray | Iterable[int]) -> GraphView:  # type: ignore[type-arg]
    """Return the view without some edges, which must be there."""
    positions = np.flatnonzero(lost) if isinstance(lost, np.ndarray) and lost.dtype == bool else np.array(list(lost))
    assert len(positions)
    keep = np.ones(len(view.source), bool)
    keep[positions] = False
    return replace(view, source=view.source[keep], target=view.target[keep], kind=view.kind[keep])


def drawn(view: GraphView, edges: Iterable[tuple[int, int, str]]) -> GraphView:
    """Return the view with more edges."""
    more = np.array([(a, b, EDGE_KINDS.index(kind)) for a, b, kind in edges], np.int64).reshape(-1, 3).T
    columns = {name: np.concatenate((getattr(view, name), more[at])) for at, name in enumerate(("source", "target"))}
    return replace(view, **columns, kind=np.concatenate((view.kind, more[2])))


def edges(view: GraphView, source: Iterable[int], target: Iterable[int], kind: str | None = None) -> np.ndarray:  # type: ignore[type-arg]
    """Return which edges go from one of ``source`` to one of ``target``."""
    found = np.isin(view.source, list(source)) & np.isin(view.target, list(target))
    return found if kind is None else found & (view.kind == EDGE_KINDS.index(kind))


def parted(view: GraphView, node: int, groups: Iterable[Iterable[int]]) -> GraphView:
    """Return the view with a collective that groups of its ranks take apart from each other."""
    into, out = ([(int(a), int(b), EDGE_KINDS[int(kind)]) for a, b, kind in
                  zip(view.source[which], view.target[which], view.kind[which], strict=True)]
                 for which in (view.target == node, view.source == node))  # fmt: skip
    view, amount = cut(view, (view.source == node) | (view.target == node)), float(view.amount[node])
    for group in groups:
        view, part = added(view, node, view.symbols[view.symbol[node]], group)
        view = valued(view, [part], "amount", lambda _: amount)
        view = drawn(view, [(a, part, kind) for a, _, kind in into if int(view.rank[a]) in group])
        view = drawn(view, [(part, b, kind) for _, b, kind in out if int(view.rank[b]) in group])
    return _without(view, node)


def recast(view: GraphView, which: np.ndarray, kind: str) -> GraphView:  # type: ignore[type-arg]
    """Return the view with some edges, which must be there, of another kind."""
    assert which.any()
    return replace(view, kind=np.where(which, EDGE_KINDS.index(kind), view.kind))


def removed(view: GraphView, nodes: Iterable[int]) -> GraphView:
    """Return the view without some nodes; what went in goes on to what they fed, on each rank."""
    for node in sorted(nodes, reverse=True):
        into, out = np.flatnonzero(view.target == node), np.flatnonzero(view.source == node)
        single = view.size[node] == 1
        more = [
            (int(view.source[a]), int(view.target[b]), EDGE_KINDS[int(view.kind[b])])
            for a in into
            for b in out
            if single
            or view.rank[view.source[a]] == view.rank[view.target[b]]
            or view.size[view.target[b]] > 1
            or view.size[view.source[a]] > 1
        ]
        view = _without(drawn(view, more), node)
    return view


def _without(view: GraphView, node: int) -> GraphView:
    keep = np.arange(len(view)) != node
    number = np.cumsum(keep) - 1
    edge = (view.source != node) & (view.target != node)
    member = view.member_node != node
    columns = {name: getattr(view, name)[keep] for name in ("symbol", "step", "layer", "stage", "amount", "attended")}
    return replace(
        view, **columns, source=number[view.source[edge]], target=number[view.target[edge]], kind=view.kind[edge],
        member_node=number[view.member_node[member]], member_rank=view.member_rank[member],
        member_position=view.member_position[member],
    )  # fmt: skip


def added(view: GraphView, like: int, node: Node, ranks: Iterable[int]) -> tuple[GraphView, int]:
    """Return the view with one more node, in the step, layer and stage of ``like``, and its number."""
    position = int(view.member_position[view.member_node == like][0])
    ranks = list(ranks)
    number = len(view)
    symbols = (*view.symbols, node)
    values: dict[str, Any] = {"symbol": len(symbols) - 1, "amount": np.nan, "attended": np.nan}
    values |= {name: getattr(view, name)[like] for name in ("step", "layer", "stage")}
    columns = {name: np.append(getattr(view, name), value) for name, value in values.items()}
    members = {
        "member_node": np.append(view.member_node, [number] * len(ranks)),
        "member_rank": np.append(view.member_rank, ranks),
        "member_position": np.append(view.member_position, [position] * len(ranks)),
    }
    members = {name: column.astype(np.int64) for name, column in members.items()}
    return replace(view, symbols=symbols, **columns, **members), number


def between(view: GraphView, source: str, target: str, op: str, axis: str, ranks: list[int], **where: int) -> GraphView:
    """Return the view with a collective on the edges from one operator to another on these ranks."""
    sources = [node for rank in ranks for node in pick(view, source, rank=rank, **where)]
    targets = [node for rank in ranks for node in pick(view, target, rank=rank, **where)]
    module = view.symbols[view.symbol[targets[0]]].module
    node = Node(
        name=f"{source}_{op}",
        op=op,
        module=module,
        axis=axis,
        stream=STREAMS[1],
        amount=(),  # type: ignore[arg-type]
        width=view.symbols[view.symbol[sources[0]]].width,
    )
    view, number = added(view, targets[0], node, ranks)
    view = cut(view, edges(view, sources, targets, "data"))
    into = [(node, number, "data") for node in sources]
    return drawn(view, [*into, *((number, node, "data") for node in targets)])


def shifted(view: GraphView, first: int, second: int, rank: int) -> GraphView:
    """Return the view with two nodes in each other's place in one rank's program."""
    position = view.member_position.copy()
    a, b = (np.flatnonzero((view.member_node == node) & (view.member_rank == rank))[0] for node in (first, second))
    position[[a, b]] = position[[b, a]]
    return replace(view, member_position=position)


def left(view: GraphView, node: int, rank: int, *, edges_too: bool) -> GraphView:
    """Return the view with a rank no longer a member of a node."""
    keep = ~((view.member_node == node) & (view.member_rank == rank))
    found = replace(
        view, member_node=view.member_node[keep], member_rank=view.member_rank[keep],
        member_position=view.member_position[keep],
    )  # fmt: skip
    if not edges_too:
        return found
    lost = ((view.target == node) & (view.rank[view.source] == rank)) | (
        (view.source == node) & (view.rank[view.target] == rank)
    )
    return cut(found, lost)


def stepped(view: GraphView, step: int, **changes: Any) -> GraphView:
    """Return the view with what a step carries changed."""
    steps = list(view.steps)
    steps[step] = replace(steps[step], **changes)
    return replace(view, steps=tuple(steps))
