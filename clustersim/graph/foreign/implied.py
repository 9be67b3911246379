"""What a graph from outside may leave out because ranks, names and plan imply it.

Ranks are numbered as in a mesh, t fastest, then s, the stage and the replica. Where nothing is implied, nothing is
guessed: the answer is None.
"""

from __future__ import annotations

from typing import Final

from clustersim.graph.blueprint import COLLECTIVE_OPS, TRANSFER_OPS, Axis, EdgeKind, Node
from clustersim.plan.parallel import ParallelPlan

OUTSIDE_LAYERS: Final = (
    "schedule",
    "embedding",
    "final_norm",
    "lm_head",
    "logits_cap",
    "sample",
    "boundary",
    "kv_move",
    "send",
    "recv",
)
"""Operators of no layer; so is the collective behind one of them."""


def is_outside_layers(node: Node) -> bool:
    """Whether a node by its name belongs to no layer."""
    joined = tuple(f"{name}_" for name in OUTSIDE_LAYERS)
    return (
        node.name in OUTSIDE_LAYERS
        or node.op in TRANSFER_OPS
        or (node.op in COLLECTIVE_OPS and node.name.startswith(joined))
    )


def implied_stage(ranks: tuple[int, ...], plan: ParallelPlan) -> int | None:
    """Return the stage that ranks belong to; None where they belong to several, or the plan has none."""
    if plan.replica_ranks < 1:
        return None
    found = {rank % plan.replica_ranks // plan.stage_ranks for rank in ranks}
    return found.pop() if len(found) == 1 else None


def implied_axis(node: Node, ranks: tuple[int, ...], plan: ParallelPlan) -> Axis | None:
    """Return the axis along which a collective joins its ranks; None where its ranks and name leave it open."""
    if node.op not in COLLECTIVE_OPS or plan.stage_ranks < 1 or len({rank // plan.stage_ranks for rank in ranks}) != 1:
        return None
    if plan.ep.sends and node.name in ("dispatch", "combine"):
        return "stage"
    if node.name.startswith("expert_"):
        return "expert_tp" if plan.ep.degree > 1 else "tp"
    if (
        node.name in COLLECTIVE_OPS
        and plan.ep.degree > 1
        and len(ranks) == plan.stage_ranks // plan.ep.degree != plan.tp
    ):
        return "expert_tp"  # nothing says of what it is, and no other group is so large
    several_s = len({rank % plan.stage_ranks // plan.tp for rank in ranks}) > 1
    several_t = len({rank % plan.tp for rank in ranks}) > 1
    if several_s == several_t:  # one rank alone is no group: of TP, where there is no other axis
        return "tp" if plan.tp > 1 and plan.sp.degree == 1 else None
    return "sp" if several_s else "tp"


def implied_kind(source: Node, target: Node) -> EdgeKind:
    """Return the kind of an edge that says none: what passes between two such nodes."""
    if target.op == "boundary":
        return "boundary"
    if source.op == "send" and target.op == "recv":
        return "sync"
    exposes = source.op in COLLECTIVE_OPS and source.axis == "sp"
    cached = source.name in ("kv_write", "kv_read")
    if cached or target.name == "kv_move" or (exposes and source.name != "kv_move" and _takes_entries(target)):
        return "kv"
    return "data"


def _takes_entries(target: Node) -> bool:
    return target.op == "attention_prefill" or target.name == "kv_b_proj" or target.op == "ring_shift"
