"""TP-8, EP-4 and EP-5: with every group contracted, each rank's dataflow is the single-device one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.graph_rules.census import all_ranks, complete
from clustersim.legality.graph_rules.finding import NOTHING, GraphFault, GraphFinding, fault_at, merged, operator, place
from clustersim.legality.graph_rules.kinds import of_their_kind
from clustersim.legality.graph_rules.views.dataflow import contains, contracted, on_one_rank
from clustersim.legality.graph_rules.views.graph import ORDER, BoolArray, GraphView, base_name
from clustersim.legality.reference import EXITS, EXPERT_CHAIN, HEAD, PREVIOUS, Inputs, inputs_of
from clustersim.plan.parallel import ParallelPlan

MOE_ENTRY: Final = ("moe_norm",)
CACHE: Final = ("kv_write", "kv_read")
"""What attention needs of these is rule PH-5."""
CORES: Final = ("attention_prefill", "attention_decode")

About = Callable[[str, str], bool]
"""Whether a rule is about the edge from one operator to another."""

Edge = tuple[int, int, int, str, str]
"""(step, layer, rank, needed, operator)"""


def keeps_the_graph(view: GraphView) -> GraphFinding:
    """TP-8: with each TP group contracted and its collectives dropped, the graph is that of a single device."""

    def looked_at(needed: str, name: str) -> bool:
        inside = name in EXPERT_CHAIN or (name in MOE_ENTRY and needed == "attention_add")
        return not inside and not (needed in CACHE and name in CORES)

    present = merged(all_ranks(view), complete(view, "TP-8"))
    if view.model is not None:
        present = merged(present, of_their_kind(view, view.model))
    return merged(present, _compared(view, looked_at, "TP keeps it"), _crossing(view))


def chains_experts(view: GraphView) -> GraphFinding:
    """EP-4: gate, dispatch, expert, combine and aggregate follow each other, within one step."""
    inner = view.named(*EXPERT_CHAIN)
    within = _compared(view, lambda _, name: name in EXPERT_CHAIN, "experts come in this order")
    across = ~view.within_step & (inner[view.source] | inner[view.target])
    told = _first(view, np.flatnonzero(across), "crosses from one step into another", "within a step")
    return merged(within, told, complete(view, "EP-4"))


def sees_attention(view: GraphView) -> GraphFinding:
    """EP-5: what routes a token is the output of attention on that token, in that layer and step."""
    entry = view.named(*MOE_ENTRY)
    gates = view.named("gate")
    if not gates.any():
        return NOTHING
    fed = np.zeros(len(view), bool)
    layer, step, recv = view.layer, view.step, view.mask(lambda node: node.op == "recv")
    own = view.named("attention_add")[view.source] & (layer[view.source] == layer[view.target])
    fed[view.target[view.within_step & (view.kind != ORDER) & (own | recv[view.source])]] = True
    hungry = np.flatnonzero(entry & ~fed)
    faults = []
    if len(hungry):
        node = int(hungry[0])
        message = f"{operator(view, node)} has no edge from the attention of its layer and step"
        fix = "route a token by the output of its attention in this layer and step"
        faults.append(fault_at(view, node, message, fix))
    across = np.flatnonzero((step[view.source] != step[view.target]) & entry[view.target])
    told = _first(view, across, "feeds experts from another step", "experts only from attention of their own step")
    return merged(GraphFinding(looked_at=int(entry.sum()), faults=tuple(faults)), told)


def _first(view: GraphView, edges: Int64Array, what: str, fix: str) -> GraphFinding:
    if not len(edges):
        return GraphFinding(looked_at=0)
    source, target = int(view.source[edges[0]]), int(view.target[edges[0]])
    message = f"the edge from {place(view, source)} {what}"
    return GraphFinding(looked_at=0, faults=(fault_at(view, target, message, f"keep it {fix}"),))


def _crossing(view: GraphView) -> GraphFinding:
    """Dataflow between operators of two ranks of a stage that no collective carries."""
    plan = view.plan
    if plan is None:
        return NOTHING
    single = view.mask(lambda node: node.op not in COLLECTIVE_OPS)
    source, target = view.source, view.target
    bad = (
        view.within_step
        & single[source]
        & single[target]
        & (view.rank[source] != view.rank[target])
        & (view.rank[source] // plan.stage_ranks == view.rank[target] // plan.stage_ranks)
    )
    bad |= view.within_step & _strangers(view, plan)
    return _first(view, np.flatnonzero(bad), "comes from another rank without a collective", "on one rank")


def _strangers(view: GraphView, plan: ParallelPlan) -> BoolArray:
    """Return which edges join a collective of a whole group to what has no rank in it."""
    sizes = {"tp": plan.tp, "expert_tp": plan.expert_tp, "sp": plan.sp.degree, "stage": plan.stage_ranks}
    size = np.array([sizes.get(symbol.axis or "", 0) for symbol in view.symbols], np.int64)[view.symbol]
    joins = view.mask(lambda node: node.op in COLLECTIVE_OPS) & (view.size == size)
    source, target = view.source, view.target
    same_stage = view.rank[source] // plan.stage_ranks == view.rank[target] // plan.stage_ranks
    found: BoolArray = (joins[source] | joins[target]) & ~on_one_rank(view) & same_stage & (view.size[source] > 0)
    return found & (view.size[target] > 0)


def elsewhere(name: str) -> str:
    """Return what an operator inside a layer is called where it feeds another one."""
    return f"{name} of another layer"


class _Cells:
    """Edges as integers: which (step, layer, rank) needs which operator for which."""

    def __init__(self, view: GraphView, expected: dict[tuple[int, str], Inputs]) -> None:
        self.full = [symbol.name for symbol in view.symbols]
        names = dict.fromkeys((*view.names, *self.full, *map(elsewhere, view.names), PREVIOUS, *HEAD))
        for inputs in expected.values():
            names |= dict.fromkeys(inputs)
            names |= dict.fromkeys(name for needed in inputs.values() for name in needed)
        self.names = list(names)
        self.number = {name: at for at, name in enumerate(self.names)}
        self.base = {symbol.name: base_name(symbol) for symbol in view.symbols}
        self.parts: dict[str, list[str]] = {}
        for symbol in dict.fromkeys(view.symbols):
            parts = self.parts.setdefault(base_name(symbol), [])
            parts += [symbol.name] if symbol.name not in parts else []
        self.layers = int(view.layer.max(initial=-1)) + 2
        self.ranks = max(1, view.num_ranks)

    def wanted(self, inputs: Inputs) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield (base name, name, what it needs) of every operator, the parts of a ring one by one."""
        for base, needs in inputs.items():
            for name in self.parts.get(base, [base]):
                yield base, name, needs

    def cell(self, step: Int64Array, layer: Int64Array, rank: Int64Array) -> Int64Array:
        return (step * self.layers + layer + 1) * self.ranks + rank

    def key(self, cell: Int64Array, needed: Int64Array | int, name: Int64Array | int) -> Int64Array:
        return (cell * len(self.names) + needed) * len(self.names) + name

    def edge(self, key: int) -> Edge:
        rest, name = divmod(key, len(self.names))
        rest, needed = divmod(rest, len(self.names))
        rest, rank = divmod(rest, self.ranks)
        step, layer = divmod(rest, self.layers)
        return step, layer - 1, rank, self.names[needed], self.names[name]


def _compared(view: GraphView, looked_at: About, fix: str) -> GraphFinding:
    """Compare the edges into the operators that ``looked_at(needed, name)`` is about with the single-device ones."""
    model, plan = view.model, view.plan
    if model is None or plan is None or any(step.kind == "unknown" for step in view.steps):
        return NOTHING
    kinds = dict.fromkeys(step.kind for step in view.steps)
    expected = {
        (layer, kind): inputs_of(spec, prefills=kind != "decode", decodes=kind != "prefill")
        for kind in kinds
        for layer, spec in enumerate(model.layers)
    } | {(-1, kind): HEAD for kind in kinds}
    cells = _Cells(view, expected)
    found = _found_keys(view, cells, looked_at)
    wanted = _wanted_keys(view, cells, expected, looked_at)
    missing, extra = np.setdiff1d(wanted, found), np.setdiff1d(found, wanted)
    faults = []
    for keys, words in ((missing, "has no edge from"), (extra, "has an edge from")):
        if len(keys):
            step, layer, rank, needed, name = cells.edge(int(keys[0]))
            others = f" (and {len(keys) - 1:,} more such edges)" if len(keys) > 1 else ""
            here = (view.step == step) & (view.layer == layer) & view.mask(lambda node, name=name: node.name == name)  # type: ignore[misc]
            at = np.flatnonzero(here)
            own = at[view.takes_part(at, np.full(len(at), rank))]
            lacks = "" if keys is missing else ", which the model does not have"
            message = f"on rank {rank} {name} {words} {needed}{lacks}{others}"
            advice = f"draw the edges of the single-device graph on every rank: {fix}"
            where = f"step {step}, layer {layer}, rank {rank}, {name}"
            missing_one = GraphFault(where=where, message=message, fix=advice)
            faults.append(fault_at(view, int(own[0]), message, advice) if len(own) else missing_one)
    return GraphFinding(looked_at=len(wanted), faults=tuple(faults))


def _found_keys(view: GraphView, cells: _Cells, looked_at: About) -> Int64Array:
    source, target, rank = contracted(view)
    numbers = np.array([cells.number[name] for name in view.names], np.int64)
    others = np.array([cells.number[elsewhere(name)] for name in view.names], np.int64)
    same = view.layer[source] == view.layer[target]
    needed = np.where(same, numbers[view.name[source]], others[view.name[source]])
    needed[~same & view.named(*EXITS)[source]] = cells.number[PREVIOUS]  # which layer that is, is rule PP-6
    full = np.array([cells.number[name] for name in cells.full], np.int64)[view.symbol]
    name = full[target]
    apart = same & (numbers[view.name[target]] == needed)  # parts of one ring
    wide = len(cells.names)
    table = np.zeros(wide * wide, bool)
    for pair in np.unique(needed * wide + name).tolist():
        name_of = cells.names[pair % wide]
        table[pair] = looked_at(cells.names[pair // wide], cells.base[name_of])
    kept = table[needed * wide + name] & ~apart
    cell = cells.cell(view.step[target[kept]], view.layer[target[kept]], rank[kept])
    return np.unique(cells.key(cell, needed[kept], name[kept]))


def _wanted_keys(
    view: GraphView, cells: _Cells, expected: dict[tuple[int, str], Inputs], looked_at: About
) -> Int64Array:
    """Return the single-device edges whose both ends are on one rank."""
    node, rank = view.member_node, view.member_rank
    cell = cells.cell(view.step[node], view.layer[node], rank)
    numbers = np.array([cells.number[name] for name in view.names], np.int64)
    full = np.array([cells.number[name] for name in cells.full], np.int64)[view.symbol]
    wide = len(cells.names)
    present = np.unique(np.concatenate((cell * wide + numbers[view.name[node]], cell * wide + full[node])))
    step_of, layer_of = np.arange(len(view.steps)), np.arange(-1, cells.layers - 1)
    found = []
    first = _first_layers(view, cells)
    for (layer, kind), inputs in expected.items():
        steps = step_of[[step.kind == kind for step in view.steps]]
        if layer not in layer_of:
            continue
        grid = cells.cell(
            np.repeat(steps, cells.ranks),
            np.full(len(steps) * cells.ranks, layer),
            np.tile(np.arange(cells.ranks), len(steps)),
        )
        for base, name, needs in cells.wanted(inputs):
            has = contains(present, grid * len(cells.names) + cells.number[name])
            for needed in needs:
                if not looked_at(needed, base):
                    continue
                if needed == PREVIOUS:
                    both = has & ~contains(first, grid)
                else:
                    both = has & contains(present, grid * len(cells.names) + cells.number[needed])
                found.append(cells.key(grid[both], cells.number[needed], cells.number[name]))
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _first_layers(view: GraphView, cells: _Cells) -> Int64Array:
    """Return the cells whose input comes from another stage: the first layer on a rank of a later stage."""
    node, rank = view.member_node, view.member_rank
    inner = (view.layer[node] >= 0) & (view.stage[node] > 0)
    node, rank = node[inner], rank[inner]
    key, layer = view.step[node] * cells.ranks + rank, view.layer[node]
    least = np.full(len(view.steps) * cells.ranks, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(least, key, layer)
    has = np.flatnonzero(least < np.iinfo(np.int64).max)
    return np.sort(cells.cell(has // cells.ranks, least[has], has % cells.ranks))
