"""Shrinks a model to a few narrow layers of the same structure, for tests and proofs by execution.

What is kept: the kinds of layers in their order (dense before experts, sliding before full attention),
the ratio of query to K/V heads, of experts to experts per token, shared experts, latent attention with or
without compressed queries, biases, norms, sinks, soft caps, scales and tied embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from clustersim.errors import InputError, Problem
from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe


def tiny(
    model: ModelSpec,
    *,
    layers: int | None = None,
    hidden: int = 32,
    heads: int | None = None,
    head_dim: int = 4,
    intermediate: int = 32,
    experts: int | None = None,
    expert_intermediate: int = 16,
    vocab: int = 64,
    positions: int = 256,
    sliding_window: int = 4,
) -> ModelSpec:
    """Return a small model of the same structure.

    Parameters
    ----------
    model : ModelSpec
    layers : int or None
        Number of layers. Runs of equal layers shrink, their order stays. None: two, or as many as it takes to
        have one of each kind.
    hidden, intermediate, expert_intermediate, vocab : int
        The new widths; shared experts keep their width relative to a routed one.
    heads : int or None
        Query heads, a multiple of the query heads per K/V head. None: what two K/V heads serve (MLA, MQA: 4).
    head_dim : int
        Width of a head, a multiple of 4. For MLA the width of values and of the part of keys without rotary
        embedding; the rotary part has half of it.
    experts : int or None
        Routed experts of a MoE layer; experts per token keep their ratio. None: the fewest that give two
        experts per token where the ratio allows.
    positions : int
        Longest context.
    sliding_window : int
        The window of layers that have one.

    Raises
    ------
    InputError
        With every size that is not positive or that cannot keep the structure.
    """
    sizes = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "head_dim": head_dim,
        "intermediate": intermediate,
        "experts": experts,
        "expert_intermediate": expert_intermediate,
        "vocab": vocab,
        "positions": positions,
        "sliding_window": sliding_window,
    }
    problems = [
        _problem(key, f"{size} is not positive") for key, size in sizes.items() if size is not None and size < 1
    ]
    if head_dim % 4:
        problems.append(_problem("head_dim", f"{head_dim} is no multiple of 4"))
    kinds = tuple(dict.fromkeys(model.layers))
    for kind in kinds if not problems else ():
        problems += _layer_problems(kind, heads, experts)
    chosen = _chosen(model.layers, layers, problems)
    if problems:
        raise InputError(dict.fromkeys(problems))
    small = {
        kind: Layer(
            attention=_attention(kind.attention, hidden, heads, head_dim, sliding_window),
            ffn=_ffn(kind.ffn, intermediate, experts, expert_intermediate),
            post_norms=kind.post_norms,
        )
        for kind in kinds
    }
    offset = model.learned_positions - (model.max_positions or 0)
    return replace(
        model,
        name=f"{model.name}-tiny",
        hidden=hidden,
        vocab=vocab,
        layers=tuple(small[kind] for kind in chosen),
        learned_positions=positions + offset if model.learned_positions else 0,
        max_positions=positions,
        source=f"shrunk from {model.name}",
    )


def _problem(key: str, message: str) -> Problem:
    return Problem(message=message, path=key)


def _layer_problems(layer: Layer, heads: int | None, experts: int | None) -> list[Problem]:
    found = []
    per_kv = _heads_per_kv(layer.attention)
    if heads is not None and heads % per_kv:
        found.append(_problem("heads", f"{heads} is no multiple of the {per_kv} query heads per K/V head"))
    if experts is not None and isinstance(layer.ffn, Moe):
        least = layer.ffn.num_experts // gcd(layer.ffn.num_experts, layer.ffn.top_k)
        if experts % least:
            ratio = f"{layer.ffn.top_k} of {layer.ffn.num_experts}"
            found.append(_problem("experts", f"{experts} cannot keep the ratio {ratio}; use a multiple of {least}"))
    return found


def _heads_per_kv(attention: Attention) -> int:
    """Return the query heads per K/V head, 1 where any number of query heads shares the one that there is."""
    return 1 if attention.kind in ("mla", "mqa") else attention.num_heads // attention.num_kv_heads


def _chosen(layers: tuple[Layer, ...], count: int | None, problems: list[Problem]) -> list[Layer]:
    """Pick ``count`` layers: one of each run of equal ones, the others from the runs with most left."""
    runs: list[tuple[Layer, int]] = []
    for layer in layers:
        length = runs.pop()[1] if runs and runs[-1][0] == layer else 0
        runs.append((layer, length + 1))
    kinds = len(set(layers))
    cover = next(n for n in range(1, len(runs) + 1) if len({layer for layer, _ in runs[:n]}) == kinds)
    wanted = max(cover, min(2, len(layers))) if count is None else count
    if not cover <= wanted <= len(layers):
        problems.append(_problem("layers", f"{wanted} is not between {cover} (one of each kind) and {len(layers)}"))
        return []
    runs = runs[:wanted]
    taken = [1] * len(runs)
    for _ in range(wanted - len(runs)):
        left = [length - have for (_, length), have in zip(runs, taken, strict=True)]
        taken[left.index(max(left))] += 1
    return [layer for (layer, _), have in zip(runs, taken, strict=True) for _ in range(have)]


def _attention(a: Attention, hidden: int, heads: int | None, head_dim: int, window: int) -> Attention:
    shared = replace(a, sliding_window=None if a.sliding_window is None else window)
    if a.kind == "mla":
        return replace(
            shared,
            num_heads=heads or 4,
            head_dim=head_dim + head_dim // 2,
            v_head_dim=head_dim,
            q_lora_rank=None if a.q_lora_rank is None else max(1, hidden // 2),
            kv_lora_rank=2 * head_dim,
            qk_nope_head_dim=head_dim,
            qk_rope_head_dim=head_dim // 2,
        )
    per_kv = _heads_per_kv(a)
    num_heads = heads or (4 if a.kind == "mqa" else per_kv * min(2, a.num_kv_heads))
    kv_heads = 1 if a.kind == "mqa" else num_heads // per_kv
    return replace(shared, num_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)


def _ffn(f: Ffn | Moe, intermediate: int, experts: int | None, expert_intermediate: int) -> Ffn | Moe:
    if isinstance(f, Ffn):
        return replace(f, intermediate=intermediate)
    common = gcd(f.num_experts, f.top_k)
    least, least_k = f.num_experts // common, f.top_k // common
    times = min(common, 2 if least_k == 1 else 1) if experts is None else experts // least
    groups = gcd(f.groups, least * times)
    visited = max(groups * f.groups_per_token // f.groups, -(-groups // least * least_k))  # enough for top_k experts
    return replace(
        f,
        num_experts=least * times,
        top_k=least_k * times,
        groups=groups,
        groups_per_token=visited,
        expert_intermediate=expert_intermediate,
        shared_intermediate=f.shared_intermediate * expert_intermediate // f.expert_intermediate,
    )
