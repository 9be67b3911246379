"""Along TP, what layout each operator needs of its inputs and makes, told from its shape on one rank.

``FULL``: each rank has all of it; ``SPLIT``: a slice of its features (or, after experts, of its tokens); ``PARTIAL``:
a term of a sum. A product Y = X·W whose W has fewer columns than the model's makes a split, one with fewer rows a
partial sum (tensor_parallelism.md, Hidden Dimension Partitioning).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS, Node
from clustersim.legality.graph_rules.views.graph import BoolArray, GraphView
from clustersim.legality.reference import shapes_of
from clustersim.legality.shards import kv_heads_held
from clustersim.legality.traits import POST_NORMS
from clustersim.model.architecture import Layer, ModelSpec
from clustersim.plan.parallel import ParallelPlan

UNKNOWN: Final = 0
FULL: Final = 1
SPLIT: Final = 2
PARTIAL: Final = 3
INHERITS: Final = 4
"""Element-wise: any layout but a partial sum, and makes what it takes."""
ADDS_UP: Final = 5
"""Linear: partial sums of all inputs or of none, and makes what it takes."""
GATHERS: Final = 6
"""Takes a split, and nothing else: what is whole would be concatenated with itself."""

WORDS: Final = {FULL: "whole", SPLIT: "a slice", PARTIAL: "a partial sum"}
ELEMENTWISE: Final = ("ffn_act", "shared_act", "expert_act")
"""What takes its producer's partition (rule TP-3)."""
CAPS: Final = ("logits_cap",)
"""Element-wise, of slices or of the whole: engines put logits together first."""
BY_HEADS: Final = ("rope", "qk_norm_rope", "attention_prefill", "attention_decode", "q_absorb", "v_absorb")
WHOLE: Final = (
    "attention_norm", "ffn_norm", "moe_norm", "final_norm", "q_a_norm", "kv_a_norm_rope", "attention_add", "ffn_add",
    "moe_add", "dispatch", "sample", "send", "recv", "schedule", *POST_NORMS,
)  # fmt: skip
_BY_COLLECTIVE: Final = {
    "all_reduce": (PARTIAL, FULL),
    "all_gather": (GATHERS, FULL),
    "reduce_scatter": (PARTIAL, SPLIT),
}


def layouts(view: GraphView, plan: ParallelPlan, model: ModelSpec) -> tuple[Int64Array, Int64Array]:
    """Return (wanted, made) of each node, before layouts that are inherited are filled in."""
    width = len(model.layers) + 1
    pairs, which = np.unique(view.symbol * width + view.layer + 1, return_inverse=True)
    found = [
        (UNKNOWN, UNKNOWN)
        if view.unsaid_of(pair // width) & _shaping(view.symbols[pair // width])
        else _layout(view.symbols[pair // width], model.layers[pair % width - 1] if pair % width else None, model, plan)
        for pair in pairs.tolist()
    ]
    wanted, made = np.array(found, np.int64).reshape(-1, 2)[which.ravel()].T
    return wanted, made


def filled(made: Int64Array, source: Int64Array, target: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Return what operators make, layouts inherited, and which add a partial sum to something else."""
    passes = np.isin(made, (INHERITS, ADDS_UP))
    found = np.where(passes, UNKNOWN, made)
    inner = passes[target]
    for _ in range(16):
        grown = found.copy()
        np.maximum.at(grown, target[inner], found[source[inner]])
        if np.array_equal(grown, found):
            break
        found = grown
    least = np.full(len(made), PARTIAL + 1, np.int64)
    told = inner & (found[source] != UNKNOWN)
    np.minimum.at(least, target[told], found[source[told]])
    return found, (made == ADDS_UP) & (found == PARTIAL) & (least < PARTIAL)


def _shaping(node: Node) -> frozenset[str]:
    """Return the fields that tell the layout of an operator: where they are not said, it is unknown."""
    if node.op in COLLECTIVE_OPS:
        return frozenset({"axis", "layer"})
    return frozenset({"n", "k", "layer"} if node.op in ("gemm", "grouped_gemm") else {"layer"})


def _layout(node: Node, layer: Layer | None, model: ModelSpec, plan: ParallelPlan) -> tuple[int, int]:
    name = "attention_prefill" if node.op == "attention_prefill" else node.name
    tp, spread = plan.tp, plan.ep.sends
    if node.op in COLLECTIVE_OPS and node.axis in ("tp", "expert_tp"):
        return _BY_COLLECTIVE.get(node.op, (INHERITS, INHERITS))  # others put nothing together
    if name in ("dispatch", "combine") and (spread or name == "dispatch"):
        return FULL, FULL
    if node.op in COLLECTIVE_OPS:
        return INHERITS, INHERITS
    if name in ELEMENTWISE or name in CAPS:
        return INHERITS, INHERITS
    if name == "aggregate" and spread:
        return FULL, SPLIT if tp > 1 else FULL
    if name in ("combine", "aggregate", "shared_add"):
        return ADDS_UP, ADDS_UP
    if name == "embedding":
        return FULL, FULL if tp == 1 else PARTIAL if plan.split.embedding == "vocab" else SPLIT
    if name in WHOLE:
        return FULL, FULL
    if name in BY_HEADS or (name == "kv_write" and layer is not None and layer.attention.kind != "mla"):
        return (SPLIT, SPLIT) if tp > 1 else (FULL, FULL)
    if name == "kv_write":
        return FULL, FULL
    return _product(node, name, layer, model, plan)


def _product(node: Node, name: str, layer: Layer | None, model: ModelSpec, plan: ParallelPlan) -> tuple[int, int]:
    whole = shapes_of(layer, model).get(name)
    if whole is None:
        return UNKNOWN, UNKNOWN
    n, k = whole
    parts = plan.expert_tp if node.op == "grouped_gemm" else plan.tp
    if (node.n, node.k) == (n, k):  # experts of tokens that stay make a term of what all ranks' experts make
        return FULL, PARTIAL if name == "expert_down" and plan.ep.degree > 1 and not plan.ep.sends else FULL
    if node.k == k and (node.n * parts == n or node.n == qkv_width(name, layer, plan.tp)):
        return FULL, SPLIT
    if node.n == n and node.k * parts == k:
        return SPLIT, PARTIAL
    return UNKNOWN, UNKNOWN


def qkv_width(name: str, layer: Layer | None, tp: int) -> int | None:
    """Return the columns of the Q/K/V projection on one rank, K/V heads replicated where tp exceeds them."""
    if name != "qkv_proj" or layer is None:
        return None
    a = layer.attention
    held = max(map(len, kv_heads_held(a, tp)))
    return a.num_heads // tp * a.head_dim + held * (a.head_dim + a.v_head_dim)
