"""The work of one step of one layer, module by module, before any sharding: FLOPs and bytes moved.

An independent oracle for the step graph: it is written from the formulas alone and shares no code with
what builds the graph; only the names of the modules agree. A multiplication of m×k by k×n takes 2·m·n·k
FLOPs; element-wise work (norms, activations, softmax, rotary) is not counted as FLOPs. The attention
formulas are those of Narayanan et al. (arXiv:2104.04473, appendix) with the attended pairs in place of
the square of the length, and of DeepSeek-V2 (arXiv:2405.04434, section 2.1.2) for latents, expanded
(prefill) or absorbed (decode).
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.model.kv import kv_elements_per_token


def attended_pairs(new_tokens: int, context_tokens: int, window: int | None = None) -> int:
    """Return the (query, key) pairs of ``new_tokens`` causal queries behind ``context_tokens`` cached keys.

    Query i of 1 … n sees ``context + i`` keys, at most ``window`` of them.

    Examples
    --------
    >>> attended_pairs(4, 0), attended_pairs(1, 9), attended_pairs(4, 0, window=2)
    (10, 10, 7)
    """
    whole = new_tokens * context_tokens + new_tokens * (new_tokens + 1) // 2
    if window is None:
        return whole
    # Queries whose view exceeds the window lose 1, 2, … keys, starting at context + i = window + 1.
    longest = context_tokens + new_tokens - window
    if longest <= 0:
        return whole
    first = max(context_tokens + 1 - window, 1)
    return whole - (first + longest) * (longest - first + 1) // 2


def attended_keys(new_tokens: int, context_tokens: int, window: int | None = None) -> int:
    """Return the distinct keys that ``new_tokens`` causal queries behind ``context_tokens`` read together.

    Examples
    --------
    >>> attended_keys(4, 6), attended_keys(1, 9, window=4), attended_keys(4, 6, window=4)
    (10, 4, 7)
    """
    keys = context_tokens + new_tokens
    return keys if window is None else min(keys, window + new_tokens - 1)


def module_flops(
    model: ModelSpec,
    layer: Layer,
    tokens: int,
    pairs: int,
    *,
    keys: int | None = None,
    absorbed: bool = False,
) -> dict[str, int]:
    """Return the FLOPs of each module of one layer in one step.

    Parameters
    ----------
    model : ModelSpec
    layer : Layer
    tokens : int
        New tokens of the step.
    pairs : int
        Attended (query, key) pairs, summed over sequences; see :func:`attended_pairs`.
    keys : int or None
        Latents that MLA expands to heads: cached and new ones. None: the new ones only.
    absorbed : bool
        Whether MLA runs on the latents themselves, its expansion absorbed into queries and outputs.

    Returns
    -------
    dict
        FLOPs by name of the module; the core of attention is ``attention``.
    """
    shapes = _attention_shapes(model, layer.attention, tokens, tokens if keys is None else keys, absorbed)
    flops = {name: 2 * rows * n * k for name, (rows, n, k, _) in shapes.items()}
    flops["attention"] = _core_flops(layer.attention, pairs, absorbed)
    shapes = _ffn_shapes(model, layer.ffn, tokens)
    return flops | {name: 2 * rows * n * k for name, (rows, n, k, _) in shapes.items()}


def module_bytes(
    model: ModelSpec,
    layer: Layer,
    tokens: int,
    keys: int,
    *,
    weight_bytes: float,
    activation_bytes: float,
    kv_bytes: float,
    active_experts: float | None = None,
    absorbed: bool = False,
) -> dict[str, float]:
    """Return the bytes that each module of one layer moves to and from memory in one step.

    Each matrix is read once, each input and output of a module once; the scores of attention stay on chip
    (Dao et al., "FlashAttention", arXiv:2205.14135). Biases, norms and residuals are not counted.

    Parameters
    ----------
    model : ModelSpec
    layer : Layer
    tokens : int
        New tokens of the step.
    keys : int
        Keys that attention reads, summed over sequences; see :func:`attended_keys`.
    weight_bytes, activation_bytes, kv_bytes : float
        Bytes per weight, per element of the residual stream, per element of the cache.
    active_experts : float or None
        Routed experts that at least one token visits. None: the mean of :func:`expected_active_experts`.
    absorbed : bool
        As in :func:`module_flops`.

    Returns
    -------
    dict
        Bytes by name of the module, ``attention`` and ``kv_write`` included.
    """
    shapes = _attention_shapes(model, layer.attention, tokens, keys, absorbed)
    shapes |= _ffn_shapes(model, layer.ffn, tokens)
    if isinstance(layer.ffn, Moe) and active_experts is None:
        active_experts = expected_active_experts(layer.ffn, tokens)
    moved = {}
    for name, (rows, n, k, copies) in shapes.items():
        read = active_experts if name.startswith("expert_") and active_experts is not None else copies
        moved[name] = read * n * k * weight_bytes + rows * (n + k) * activation_bytes
    cached = kv_elements_per_token(layer.attention)
    moved["attention"] = _core_bytes(
        layer.attention, tokens, keys, activation_bytes=activation_bytes, kv_bytes=kv_bytes, absorbed=absorbed
    )
    moved["kv_write"] = tokens * cached * (activation_bytes + kv_bytes)
    return moved


def step_flops(model: ModelSpec, sequences: Sequence[tuple[int, int]], rows: int, *, absorbed: bool = False) -> int:
    """Return the FLOPs of one step of the whole model.

    Parameters
    ----------
    model : ModelSpec
    sequences : sequence of (int, int)
        New and cached tokens of each sequence.
    rows : int
        Tokens whose logits are computed.
    absorbed : bool
        As in :func:`module_flops`.
    """
    tokens = sum(new for new, _ in sequences)
    keys = sum(new + context for new, context in sequences)
    total = 2 * rows * model.hidden * model.vocab
    for layer in model.layers:
        window = layer.attention.sliding_window
        pairs = sum(attended_pairs(new, context, window) for new, context in sequences)
        total += sum(module_flops(model, layer, tokens, pairs, keys=keys, absorbed=absorbed).values())
    return total


def expected_active_experts(moe: Moe, tokens: int) -> float:
    """Return the mean number of routed experts that at least one of ``tokens`` visits.

    Routing is assumed uniform and independent: an expert is missed by one token with 1 − k/E, by all with
    that to the power of ``tokens``.
    """
    return moe.num_experts * (1.0 - (1.0 - moe.top_k / moe.num_experts) ** tokens)


_Shapes = dict[str, tuple[int, int, int, int]]
"""Module → rows m, outputs n, inputs k, number of matrices n×k."""


def _attention_shapes(model: ModelSpec, a: Attention, tokens: int, keys: int, absorbed: bool) -> _Shapes:
    h, heads = model.hidden, a.num_heads
    out: _Shapes = {"o_proj": (tokens, h, heads * a.v_head_dim, 1)}
    if a.kind != "mla":
        width = heads * a.head_dim + a.num_kv_heads * (a.head_dim + a.v_head_dim)
        return {"qkv_proj": (tokens, width, h, 1)} | out
    latent, nope, rope = a.kv_lora_rank or 0, a.qk_nope_head_dim or 0, a.qk_rope_head_dim or 0
    shapes: _Shapes = {"kv_a_proj": (tokens, latent + rope, h, 1)}
    if a.q_lora_rank is not None:
        shapes["q_a_proj"] = (tokens, a.q_lora_rank, h, 1)
    shapes["q_b_proj"] = (tokens, heads * a.head_dim, a.q_lora_rank or h, 1)
    if absorbed:
        shapes["q_absorb"] = (tokens, heads * latent, nope, 1)
        shapes["v_absorb"] = (tokens, heads * a.v_head_dim, latent, 1)
    else:
        shapes["kv_b_proj"] = (keys, heads * (nope + a.v_head_dim), latent, 1)
    return shapes | out


def _core_flops(a: Attention, pairs: int, absorbed: bool) -> int:
    """Scores, then weighted values: 2 FLOPs per pair, head and element of each."""
    if a.kind == "mla" and absorbed:
        latent, rope = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0
        return 2 * pairs * a.num_heads * (latent + rope + latent)
    return 2 * pairs * a.num_heads * (a.head_dim + a.v_head_dim)


def _core_bytes(
    a: Attention, tokens: int, keys: int, *, activation_bytes: float, kv_bytes: float, absorbed: bool
) -> float:
    """Queries in, outputs out, keys and values read."""
    if a.kind != "mla":
        ends = tokens * a.num_heads * (a.head_dim + a.v_head_dim) * activation_bytes
        return ends + keys * kv_elements_per_token(a) * kv_bytes
    if not absorbed:
        return (tokens + keys) * a.num_heads * (a.head_dim + a.v_head_dim) * activation_bytes
    latent, rope = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0
    ends = tokens * a.num_heads * (latent + rope + latent) * activation_bytes
    return ends + keys * (latent + rope) * kv_bytes


def _ffn_shapes(model: ModelSpec, f: Ffn | Moe, tokens: int) -> _Shapes:
    h, up = model.hidden, 2 if f.gated else 1
    if isinstance(f, Ffn):
        return {"ffn_up": (tokens, up * f.intermediate, h, 1), "ffn_down": (tokens, h, f.intermediate, 1)}
    rows, width, shared = tokens * f.top_k, f.expert_intermediate, f.shared_intermediate
    shapes: _Shapes = {
        "gate": (tokens, f.num_experts, h, 1),
        "expert_up": (rows, up * width, h, f.num_experts),
        "expert_down": (rows, h, width, f.num_experts),
    }
    if f.num_shared_experts:
        shapes |= {"shared_up": (tokens, up * shared, h, 1), "shared_down": (tokens, h, shared, 1)}
    if f.shared_gate:
        shapes["shared_gate"] = (tokens, 1, h, 1)
    return shapes
