"""What one device runs for one layer, as tables: who needs whom, and the whole matrix of each product.

Written from the architecture, not from the code that builds graphs (Vaswani et al., 2017; DeepSeek-AI, "DeepSeek-V2",
arXiv:2405.04434, section 2.1; Lepikhin et al., "GShard", 2020, section 3). Names are those of graphs' operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe

PREVIOUS: Final = "the previous layer"
"""As an input: what the layer, or the embedding, before this one made."""

Inputs = Mapping[str, tuple[str, ...]]
Shapes = Mapping[str, tuple[int, int]]

EXPERT_CHAIN: Final[Inputs] = {
    "gate": ("moe_norm",),
    "dispatch": ("gate", "moe_norm"),
    "expert_up": ("dispatch",),
    "expert_act": ("expert_up",),
    "expert_down": ("expert_act",),
    "combine": ("expert_down",),
    "aggregate": ("combine",),
}
"""The order of rule EP-4."""

KINDS_OF_OPERATOR: Final[Mapping[str, str]] = {
    "schedule": "schedule",
    "sample": "sample",
    "boundary": "boundary",
    "kv_read": "kv_read",
    "attention_prefill": "attention_prefill",
    "attention_decode": "attention_decode",
    "send": "send",
    "recv": "recv",
    "expert_up": "grouped_gemm",
    "expert_down": "grouped_gemm",
}
"""Name → kind of operator; others are products of matrices (those with a shape), or move memory."""

EXITS: Final = ("embedding", "ffn_add", "moe_add")
"""What leaves a layer, or what enters the first."""


def head_inputs(model: ModelSpec) -> Inputs:
    """Return operator → the operators that it needs, for those outside the layers."""
    cap: Inputs = {} if model.logit_cap is None else {"logits_cap": ("lm_head",)}
    return {
        "embedding": ("schedule",),
        "final_norm": (PREVIOUS,),
        "lm_head": ("final_norm",),
        **cap,
        "sample": tuple(cap) or ("lm_head",),
    }


def inputs_of(layer: Layer, *, prefills: bool, decodes: bool) -> Inputs:
    """Return operator → the operators that it needs, for one layer of a step that prefills, decodes, or both."""
    return {**attention_inputs(layer, prefills=prefills, decodes=decodes), **ffn_inputs(layer)}


def attention_inputs(layer: Layer, *, prefills: bool, decodes: bool) -> Inputs:
    """Return the part of :func:`inputs_of` that is attention; ``kv_read`` is what the cache gives, of no operator."""
    attention = _latent if layer.attention.kind == "mla" else _heads
    return _added(attention(layer.attention, prefills, decodes), "attention", "o_proj", PREVIOUS, layer)


def ffn_inputs(layer: Layer) -> Inputs:
    """Return the part of :func:`inputs_of` behind attention: FFN, or experts."""
    if isinstance(layer.ffn, Moe):
        total = "shared_add" if layer.ffn.num_shared_experts else "aggregate"
        return _added(_moe(layer.ffn), "moe", total, "attention_add", layer)
    return _added(_ffn(), "ffn", "ffn_down", "attention_add", layer)


def _added(inside: Inputs, module: str, last: str, stream: str, layer: Layer) -> Inputs:
    """Return a module with the sum of its output, normed where the layer norms it, and the residual stream."""
    norm = {f"{module}_post_norm": (last,)} if layer.post_norms else {}
    return {**inside, **norm, f"{module}_add": (*(norm or (last,)), stream)}


def _heads(a: Attention, prefills: bool, decodes: bool) -> Inputs:
    rope = "qk_norm_rope" if a.qk_norm else "rope" if a.rotary else None
    ready = rope or "qkv_proj"
    cores = [name for name, present in (("attention_prefill", prefills), ("attention_decode", decodes)) if present]
    return {
        "attention_norm": (PREVIOUS,),
        "qkv_proj": ("attention_norm",),
        **({rope: ("qkv_proj",)} if rope else {}),
        "kv_write": (ready,),
        **dict.fromkeys(cores, (ready, "kv_write", "kv_read")),
        "o_proj": tuple(cores),
    }


def _latent(a: Attention, prefills: bool, decodes: bool) -> Inputs:
    found: dict[str, tuple[str, ...]] = {"attention_norm": (PREVIOUS,)}
    if a.q_lora_rank is not None:
        found |= {"q_a_proj": ("attention_norm",), "q_a_norm": ("q_a_proj",)}
    found |= {
        "q_b_proj": ("attention_norm" if a.q_lora_rank is None else "q_a_norm",),
        "kv_a_proj": ("attention_norm",),
        "kv_a_norm_rope": ("kv_a_proj",),
        "kv_write": ("kv_a_norm_rope",),
    }
    cores: tuple[str, ...] = ()
    if prefills:
        found["kv_b_proj"] = ("kv_a_norm_rope", "kv_write", "kv_read")
        found["attention_prefill"] = ("q_b_proj", "kv_b_proj", "kv_write", "kv_read")
        cores += ("attention_prefill",)
    if decodes:
        found["q_absorb"] = ("q_b_proj",)
        found["attention_decode"] = ("q_absorb", "kv_write", "kv_read")
        found["v_absorb"] = ("attention_decode",)
        cores += ("v_absorb",)
    return {**found, "o_proj": cores}


def _ffn() -> Inputs:
    return {
        "ffn_norm": ("attention_add",),
        "ffn_up": ("ffn_norm",),
        "ffn_act": ("ffn_up",),
        "ffn_down": ("ffn_act",),
    }


def _moe(f: Moe) -> Inputs:
    found: dict[str, tuple[str, ...]] = {"moe_norm": ("attention_add",), **EXPERT_CHAIN}
    if f.num_shared_experts:
        gates = ("shared_gate",) if f.shared_gate else ()
        found |= {"shared_up": ("moe_norm",), **dict.fromkeys(gates, ("moe_norm",))}
        found |= {"shared_act": ("shared_up", *gates), "shared_down": ("shared_act",)}
        found["shared_add"] = ("aggregate", "shared_down")
    return found


def shapes_of(layer: Layer | None, model: ModelSpec) -> Shapes:
    """Return product → (n, k) of its whole matrix; None: of what is outside the layers."""
    h = model.hidden
    if layer is None:
        return {"lm_head": (model.vocab, h)}
    a, f = layer.attention, layer.ffn
    q, out = a.num_heads * a.head_dim, a.num_heads * a.v_head_dim
    found = {"o_proj": (h, out)}
    if a.kind == "mla":
        latent, rope, nope = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0, a.qk_nope_head_dim or 0
        found |= {
            "q_a_proj": (a.q_lora_rank or 0, h),
            "q_b_proj": (q, h if a.q_lora_rank is None else a.q_lora_rank),
            "kv_a_proj": (latent + rope, h),
            "kv_b_proj": (a.num_heads * (nope + a.v_head_dim), latent),
            "q_absorb": (a.num_heads * latent, nope),
            "v_absorb": (out, latent),
        }
    else:
        found["qkv_proj"] = (q + a.num_kv_heads * (a.head_dim + a.v_head_dim), h)
    return {**found, **(_moe_shapes(f, h) if isinstance(f, Moe) else _ffn_shapes(f, h))}


def _ffn_shapes(f: Ffn, h: int) -> Shapes:
    return {"ffn_up": (f.intermediate * (2 if f.gated else 1), h), "ffn_down": (h, f.intermediate)}


def _moe_shapes(f: Moe, h: int) -> Shapes:
    double = 2 if f.gated else 1
    return {
        "gate": (f.num_experts, h),
        "expert_up": (f.expert_intermediate * double, h),
        "expert_down": (h, f.expert_intermediate),
        "shared_up": (f.shared_intermediate * double, h),
        "shared_gate": (1, h),
        "shared_down": (h, f.shared_intermediate),
    }


def entry_elements(a: Attention, kv_heads: int) -> int:
    """Return the elements of one token's cache entry that a rank with so many K/V heads keeps in one layer."""
    if a.kind == "mla":
        return (a.kv_lora_rank or 0) + (a.qk_rope_head_dim or 0)
    return kv_heads * (a.head_dim + a.v_head_dim)
