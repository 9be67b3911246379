"""What operators beside the products are on one rank: what they move per token, their width, how many repeat them.

Told from plan and architecture, not from the code that builds graphs. Element-wise work reads each input and writes its
output once: a norm 2·h elements per token, the sum of two values 3·h, a gated activation 3 times what it makes.
"""

from __future__ import annotations

from typing import Final

from clustersim.legality.reference import shapes_of
from clustersim.legality.shards import kv_heads_held
from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan

POST_NORMS: Final = ("attention_post_norm", "ffn_post_norm", "moe_post_norm")
NORMS: Final = ("attention_norm", "ffn_norm", "moe_norm", "final_norm", *POST_NORMS)
ADDS: Final = ("attention_add", "ffn_add", "moe_add", "shared_add")
ACTIVATIONS: Final = ("ffn_act", "shared_act", "expert_act")
ROTATIONS: Final = ("rope", "qk_norm_rope")
CORES: Final = ("attention_prefill", "attention_decode")
_PERMUTES: Final = ("dispatch", "combine")
_REPEATED: Final = (*NORMS, *ADDS, "q_a_norm", "kv_a_norm_rope", "schedule", "sample")
"""What all TP ranks do alike."""

SHAPE: Final = ("n", "k")
HEADS: Final = ("heads", "kv_heads", "qk_dim", "v_dim")
EXPERTS: Final = ("experts", "num_experts", "top_k")
_NO_OUTPUT: Final = ("schedule", "sample", "boundary", "kv_read")


def elements_moved(name: str, layer: Layer | None, model: ModelSpec, plan: ParallelPlan) -> float | None:
    """Return the elements that one rank reads and writes per row; None where another rule counts them, or none.

    Of an activation these are of its whole width: what its rank has of it, its producer decides.
    """
    h = model.hidden
    if name in NORMS:
        return 2.0 * h
    if name in ADDS:
        return 3.0 * h
    if layer is None:
        return 2.0 * model.vocab if name == "logits_cap" else None
    a, f = layer.attention, layer.ffn
    match name:
        case "q_a_norm":
            return 2.0 * (a.q_lora_rank or 0)
        case "kv_a_norm_rope":
            return 2.0 * latent_width(a)
        case "rope" | "qk_norm_rope":
            return 2.0 * (a.num_heads // plan.tp + max(map(len, kv_heads_held(a, plan.tp)))) * a.head_dim
        case "ffn_act" | "shared_act" | "expert_act":
            return (3.0 if f.gated else 2.0) * _inner(name, f)
        case "aggregate" if isinstance(f, Moe):
            return (f.top_k + 1.0) * h / (plan.tp if plan.ep.sends else 1)
    return None


def _inner(name: str, f: Ffn | Moe) -> int:
    """Return the width of an activation."""
    if isinstance(f, Ffn):
        return f.intermediate if name == "ffn_act" else 0
    return {"shared_act": f.shared_intermediate, "expert_act": f.expert_intermediate}.get(name, 0)


def latent_width(a: Attention) -> int:
    """Return the elements of the latent and of the rotated part that MLA caches per token."""
    return (a.kv_lora_rank or 0) + (a.qk_rope_head_dim or 0)


def is_absorbed(name: str, a: Attention) -> bool:
    """Whether an attention works on latents: MLA's, of new tokens."""
    return a.kind == "mla" and name == "attention_decode"


def output_width(name: str, layer: Layer | None, model: ModelSpec) -> int | None:
    """Return the elements per row of an operator's whole output; None where it has none, or it is not known."""
    whole = shapes_of(layer, model).get(name)
    if whole is not None:
        return whole[0]
    if name in (*NORMS, *ADDS, *_PERMUTES, "aggregate", "embedding", "send", "recv"):
        return model.hidden
    if layer is None:
        return model.vocab if name == "logits_cap" else None
    a = layer.attention
    keys_and_values = a.num_kv_heads * (a.head_dim + a.v_head_dim)
    match name:
        case "q_a_norm":
            return a.q_lora_rank or 0
        case "kv_a_norm_rope":
            return latent_width(a)
        case "rope" | "qk_norm_rope":
            return a.num_heads * a.head_dim + keys_and_values
        case "kv_write":
            return latent_width(a) if a.kind == "mla" else keys_and_values
        case "attention_prefill" | "attention_decode":
            return a.num_heads * ((a.kv_lora_rank or 0) if is_absorbed(name, a) else a.v_head_dim)
        case "ffn_act" | "shared_act" | "expert_act":
            return _inner(name, layer.ffn)
    return None


def repeats(name: str, plan: ParallelPlan) -> int | None:
    """Return how many ranks do the very same; None where a layout or another rule decides."""
    if name in _REPEATED:
        return plan.tp
    if name in (*_PERMUTES, "aggregate"):
        return 1 if plan.ep.sends else plan.tp if name == "aggregate" else plan.expert_tp
    return 1 if name in ("embedding", *ROTATIONS, "expert_act", "kv_read", "boundary", "send", "recv", *CORES) else None


def foreign_fields(name: str, op: str, layer: Layer | None) -> tuple[str, ...]:
    """Return the fields of a shape that an operator does not have."""
    by_heads = name in ("qkv_proj", *ROTATIONS, *CORES)
    by_heads |= name == "kv_write" and layer is not None and layer.attention.kind != "mla"
    lacks: tuple[str, ...] = () if op in ("gemm", "grouped_gemm") else SHAPE
    lacks += () if by_heads else HEADS
    lacks += ("width",) if name in _NO_OUTPUT else ()
    lacks += () if name in CORES else ("variant", "shared_kv")
    return lacks + (() if op == "grouped_gemm" else EXPERTS)


def words_of_split(name: str, layer: Layer | None, plan: ParallelPlan) -> tuple[str, ...]:
    """Return the words that say how TP splits an operator: those of step graphs, and those of ``plan.split``."""
    split = plan.split
    products = {
        "o_proj": ("attention_out", split.attention_out),
        "ffn_up": ("ffn_up", split.ffn_up),
        "ffn_down": ("ffn_down", split.ffn_down),
        "lm_head": ("lm_head", split.lm_head, "columns" if split.lm_head == "vocab" else "rows"),
        "embedding": ("embedding", split.embedding),
        "expert_up": ("expert_up", "columns"),
        "expert_down": ("expert_down", "rows"),
        "qkv_proj": ("qkv", "columns"),
        "shared_down": ("rows",),
        **dict.fromkeys(("q_b_proj", "kv_b_proj", "shared_up"), ("columns",)),
        **dict.fromkeys(("q_absorb", "v_absorb"), ("heads_columns", "heads", "columns")),
        **dict.fromkeys(("ffn_act", "shared_act"), ("elementwise",)),
        "logits_cap": ("replicate", "elementwise"),  # what is whole, or each rank its slice
        **dict.fromkeys(("aggregate", "shared_add"), ("linear",)),
        **{one: (one,) for one in (*_PERMUTES, "expert_act")},
    }
    if name in products:
        return products[name]
    latent = layer is not None and layer.attention.kind == "mla"
    if name in (*ROTATIONS, *CORES) or (name == "kv_write" and not latent):
        return ("latent_heads" if latent and name in CORES else "heads",)
    return ("replicate",)
