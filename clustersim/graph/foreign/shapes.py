"""What the sizes of a declared architecture rule out: no attention, and no experts, have such sizes together.

Not looked at: what only weights depend on (biases, norms, tied embeddings), which a step graph does not show.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.model.architecture import Attention, Moe

LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
"""Sizes of latent attention alone."""


def of_attention(found: Attention) -> Iterator[tuple[str, str]]:
    """Yield (field, what is wrong with it), of an attention whose heads do not go with its kind."""
    heads = {"mha": found.num_heads, "mqa": 1, "mla": 1}.get(found.kind, found.num_kv_heads)
    if found.num_kv_heads != heads:
        yield "num_kv_heads", f"{found.num_kv_heads}, but {found.kind} with {found.num_heads} heads has {heads}"
    if found.kind != "mla":
        for name in LATENT:
            if getattr(found, name) is not None:
                yield name, f"is of mla, and the attention is {found.kind}"
        if found.v_head_dim != found.head_dim:
            yield "v_head_dim", f"{found.v_head_dim}, but {found.kind} has values as wide as keys ({found.head_dim})"
        return
    if found.sliding_window is not None:
        yield "sliding_window", "mla attends to all keys"
    if found.qk_nope_head_dim is None or found.qk_rope_head_dim is None:
        return  # said elsewhere
    wide = found.qk_nope_head_dim + found.qk_rope_head_dim
    if found.head_dim != wide:
        yield "head_dim", f"{found.head_dim}, but qk_nope_head_dim and qk_rope_head_dim make {wide}"


def of_experts(found: Moe) -> Iterator[tuple[str, str]]:
    """Yield (field, what is wrong with it), of experts that no token could choose so."""
    if found.top_k > found.num_experts:
        yield "top_k", f"{found.top_k}, of {found.num_experts} experts"
    if found.num_experts % found.groups:
        yield "groups", f"{found.groups} does not divide {found.num_experts} experts"
    elif found.groups_per_token > found.groups:
        yield "groups_per_token", f"{found.groups_per_token}, of {found.groups} groups"
    elif found.top_k > (most := found.groups_per_token * found.num_experts // found.groups):
        words = f"{found.groups_per_token} groups have {most} experts, and a token visits {found.top_k}"
        yield "groups_per_token", words
    if bool(found.num_shared_experts) != bool(found.shared_intermediate):
        words = f"{found.num_shared_experts} shared experts of width {found.shared_intermediate} in all"
        yield "shared_intermediate", f"{words}; expected both or neither"
    elif found.shared_gate and not found.num_shared_experts:
        yield "shared_gate", "there are no shared experts that it could scale"
