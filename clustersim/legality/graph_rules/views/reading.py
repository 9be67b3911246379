"""From step graphs to the columns that the rules of level G read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cost.precision import Precision
from clustersim.graph.batch import Features, StepBatch, features_of
from clustersim.graph.blueprint import COLLECTIVE_OPS, TRANSFER_OPS, Node
from clustersim.graph.condense import Condensed
from clustersim.graph.prices.table import node_amount
from clustersim.graph.stepgraph import StepGraph
from clustersim.graph.steps import StepChain
from clustersim.legality.graph_rules.views.graph import GraphView, Step
from clustersim.legality.stages import stages_of
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan, SequencePlan

if TYPE_CHECKING:
    from clustersim.graph.foreign.read import ForeignGraph

COUNTED_IN_BYTES: Final = ("memory", *COLLECTIVE_OPS, *TRANSFER_OPS)
"""Operators whose amount is the bytes that they move; of the others bytes depend on what one counts."""

_ATTENDED: Final = {
    "attention_prefill": ("pairs", "prefill_keys"),
    "attention_decode": ("decode_keys", "decode_keys"),
}
"""Operator → the features that count what it attends to, and the keys that it reads for that."""

PRODUCTS: Final = ("gemm", "grouped_gemm")
"""Operators whose FLOPs are 2·m·n·k, whoever counts them."""


def view_of_chain(
    chain: StepChain, kept: Condensed, model: ModelSpec, plan: ParallelPlan, precision: Precision
) -> GraphView:
    """Return the columns of several steps.

    Parameters
    ----------
    chain : StepChain
        Steps of the kept layers and stages.
    kept : Condensed
        Which layers and stages these are.
    model, plan, precision
        The whole deployment.
    """
    symbols: dict[Node, int] = {}
    parts = []
    begins = 0
    for at, (step, first) in enumerate(zip(chain.steps, chain.first, strict=True)):
        rank = step.replica * kept.plan.replica_ranks
        part = _columns(step.graph, step.batch, kept.plan, windows(model), symbols, at, first, rank)
        begins = begins if step.half == 2 else first
        if step.half:  # the halves take turns in the program of their step
            part["member_position"] = np.array(step.order, np.int64)[part["member_node"] - first] + begins
        parts.append(part)
    joined: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name in ("source", "target", "kind"):
        joined[name] = np.concatenate((joined[name], getattr(chain, name)))
    steps = tuple(
        Step(
            kind=step.batch.kind, chunks=step.batch.chunks, decodes=step.decodes,
            sequences=step.batch.decode_sequences, keys=step.batch.decode_keys, lane=step.lane, replica=step.replica,
            half=step.half, whole=step.whole,
        )
        for step in chain.steps
    )  # fmt: skip
    cached = [sum(part == "attention" for _, part in stage) for stage in stages_of(model, plan)]
    return GraphView(
        symbols=tuple(symbols),
        **joined,
        steps=steps,
        plan=kept.plan,
        model=kept.model,
        precision=precision,
        layer_names=kept.layers,
        stage_names=kept.stages,
        cached_layers=tuple(cached[stage] for stage in kept.stages),
    )


def view_of_foreign(found: ForeignGraph) -> GraphView:
    """Return the columns of a graph from outside; what it does not say is None, NaN or of one step."""
    batch, plan, model = found.batch, found.plan, found.model
    known = windows(model) if model is not None else ()
    columns = _columns(found.graph, batch, plan, known, {}, 0, 0, 0)
    columns |= {"symbol": found.graph.symbol, "amount": said_amounts(found, columns["amount"])}
    step = (
        Step(kind="unknown")
        if batch is None
        else Step(kind=batch.kind, chunks=batch.chunks, sequences=batch.decode_sequences, keys=batch.decode_keys)
    )
    cached: tuple[int, ...] = ()
    if model is not None and plan is not None:
        cached = tuple(sum(part == "attention" for _, part in stage) for stage in stages_of(model, plan))
    return GraphView(
        symbols=found.graph.symbols, **columns, steps=(step,), plan=plan, model=model, precision=found.precision,
        cached_layers=cached, evenly_routed=False,
        in_features=any(node.amount for node in found.graph.symbols), unsaid=found.unsaid, shown=found.stages,
        not_asked=_of_the_host(found),
        split_said=found.split_said, devices=found.devices, topology=found.topology, whose=found.replica,
        unit=found.graph.unit, written=found.written,
        nameless=frozenset(found.naming.unknown) if found.naming is not None else frozenset(),
        names_are_foreign=found.naming is not None and found.naming.foreign,
    )  # fmt: skip


def _of_the_host(found: ForeignGraph) -> frozenset[str]:
    """Return what a graph of another program need not show: how its host schedules, where it says nothing of it."""
    shown = {node.name for node in found.graph.symbols}
    return frozenset() if found.naming is None else frozenset({"schedule"} - shown)


def said_amounts(found: ForeignGraph, worked_out: FloatArray) -> FloatArray:
    """Return amounts: of their terms, else of what is said for this step, be it as a value or in bytes."""
    if found.batch is None:
        return worked_out
    of = found.graph.symbol
    terms = np.array([bool(node.amount) for node in found.graph.symbols], bool)[of]
    in_bytes = np.array([node.op in COUNTED_IN_BYTES for node in found.graph.symbols], bool)[of]
    value, _, moved = found.figures.T
    said = np.where(np.isnan(value) & in_bytes, moved, value)
    empty = np.array(["amount" not in unsaid for unsaid in found.unsaid], bool)[of] & ~terms & np.isnan(said)
    return np.where(terms, worked_out, np.where(empty, 0.0, said))


def windows(model: ModelSpec) -> tuple[int, ...]:
    """Return the distinct sliding windows of a model."""
    found = (layer.attention.sliding_window for layer in model.layers)
    return tuple(dict.fromkeys(window for window in found if window is not None))


def _columns(
    graph: StepGraph,
    batch: StepBatch | None,
    plan: ParallelPlan | None,
    sizes: tuple[int, ...],
    symbols: dict[Node, int],
    step: int,
    first: int,
    first_rank: int,
) -> dict[str, Any]:
    numbers = np.array([symbols.setdefault(node, len(symbols)) for node in graph.symbols], np.int64)
    offsets = np.concatenate(([0], np.cumsum([len(ranks) for ranks in graph.groups])))
    flat = np.array([rank for ranks in graph.groups for rank in ranks], np.int64) + first_rank
    counts = np.diff(offsets)[graph.group]
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    node = np.repeat(np.arange(len(graph)), counts)
    values, attended, _ = figures_of(graph, batch, plan, sizes).T
    return {
        "symbol": numbers[graph.symbol],
        "step": np.full(len(graph), step, np.int64),
        "layer": graph.layer,
        "stage": graph.stage,
        "amount": values,
        "attended": attended,
        "member_node": node + first,
        "member_rank": flat[offsets[graph.group][node] + inside],
        "member_position": node + first,
        "source": graph.source + first,
        "target": graph.target + first,
        "kind": graph.kind,
    }


def figures_of(
    graph: StepGraph, batch: StepBatch | None, plan: ParallelPlan | None, sizes: tuple[int, ...]
) -> FloatArray:
    """Return amounts, attended pairs or keys, and keys read, for a batch: (nodes, 3), NaN where they can't be told."""
    if batch is None or (plan is None and len(batch.decode_sequences) > 1):
        return np.full((len(graph), 3), np.nan)
    sp = plan.sp if plan is not None else SequencePlan()
    features = features_of(batch, sp, sizes)
    stage_ranks, tp = (plan.stage_ranks, plan.tp) if plan is not None else (1, 1)
    s_of_group = np.array([ranks[0] for ranks in graph.groups], np.int64) % stage_ranks // tp
    pairs, which = np.unique(np.stack([graph.symbol, s_of_group[graph.group]]), axis=1, return_inverse=True)
    found = [_figure(graph.symbols[symbol], features, s) for symbol, s in pairs.T.tolist()]
    figures: FloatArray = np.array(found, np.float64).reshape(-1, 3)[which.ravel()]
    return figures


def _figure(node: Node, features: Features, s: int) -> tuple[float, float, float]:
    known = all(feature in features for feature, _ in (*node.amount, *node.least))
    seen = [
        features[f"{prefix}{node.variant}"][s] if f"{prefix}{node.variant}" in features else np.nan
        for prefix in _ATTENDED.get(node.op, ("", ""))
    ]
    return (node_amount(node, features, s) if node.amount and known else np.nan, seen[0], seen[1])
