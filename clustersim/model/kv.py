"""How large the K/V cache is, per token and per sequence, before any sharding.

Grouped-query attention [1]_ caches a key and a value of each K/V head. Multi-head latent attention [2]_
caches one compressed latent and one rotary key, shared by all heads. A layer with a sliding window keeps at
most the window's tokens; :func:`kv_elements_per_token` is what one token adds, :func:`kv_elements` what a
sequence holds.

References
----------
.. [1] Ainslie et al., "GQA", arXiv:2305.13245.
.. [2] DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, table 1: (d_c + d_h^R) elements per token and layer.
"""

from __future__ import annotations

from clustersim.model.architecture import Attention, ModelSpec


def kv_elements_per_token(attention: Attention) -> int:
    """Return the cache elements that one token adds in one layer."""
    if attention.kind == "mla":
        return (attention.kv_lora_rank or 0) + (attention.qk_rope_head_dim or 0)
    return attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)


def kv_bytes_per_token(model: ModelSpec, element_bytes: float) -> float:
    """Return the cache bytes that one token adds over all layers, sliding windows not yet full.

    Parameters
    ----------
    model : ModelSpec
    element_bytes : float
        Bytes of one cache element: 2 for bf16, 1 for fp8.
    """
    return sum(kv_elements_per_token(layer.attention) for layer in model.layers) * element_bytes


def kv_elements(attention: Attention, context_tokens: int) -> int:
    """Return the elements that one layer holds for ``context_tokens`` of a sequence, or for its window's."""
    window = attention.sliding_window
    held = context_tokens if window is None else min(context_tokens, window)
    return held * kv_elements_per_token(attention)


def kv_bytes(model: ModelSpec, context_tokens: int, element_bytes: float) -> float:
    """Return the cache bytes of a sequence of ``context_tokens`` over all layers, each within its window."""
    return sum(kv_elements(layer.attention, context_tokens) for layer in model.layers) * element_bytes
