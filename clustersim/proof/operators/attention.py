"""Attention: each rank attends to the entries that arrive.

Entries of a rank's own tokens come from its own cache (edges from ``kv_write`` and ``kv_read``), those of other ranks
by communication. Which of them a token sees follows from positions, and from the window and the step of the ring that
the node's variant names.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.variant import Variant
from clustersim.proof.operators.cache import entry_shape, keys_in
from clustersim.proof.operators.values import Arrival, Attended, Dense, Expanded, Keys, bent, joined, per_head
from clustersim.proof.place import Place
from clustersim.proof.tokens import BoolArray


def attention(at: Place, arrived: list[Arrival]) -> Attended:
    """Attend from the node's rows and heads to the entries that arrived."""
    a, node = at.attention, at.node
    variant = node.variant
    first = at.t * node.heads
    if variant.by_heads:
        first = at.t * (a.num_heads // at.setting.plan.tp) + at.s * node.heads
    heads = np.arange(first, first + node.heads)
    if a.kind == "mla":
        return _latent_attention(at, arrived, heads, variant)
    own, brought = keys_in(at, arrived, own=True), keys_in(at, arrived, own=False)
    # A rank of a ring attends to its own segment first, and in step j to what the ring brought in j steps.
    entries = joined([own, brought] if variant.hop is None else [brought if variant.hop else own], own.shape)
    entries = entries[:, heads // (a.num_heads // a.num_kv_heads)]
    width = a.num_heads * a.head_dim
    if variant.by_heads:
        sent = [one.value.queries for one in arrived if isinstance(one.value, Keys) and one.value.queries is not None]
        queries = joined(sent, (len(at.tokens), width))
    else:
        plain = [one for one in arrived if not isinstance(one.value, Attended)]
        queries = at.dense(plain, _qkv_width(at))[:, :width]
    queries = per_head(queries, a.num_heads)[:, heads]
    before = [one.value for one in arrived if isinstance(one.value, Attended)]
    start = before[0] if before else None
    if variant.hop and start is None:
        queries = np.full_like(queries, np.nan)
    return _attend(at, heads, queries, entries[..., : a.head_dim], entries[..., a.head_dim :], variant, start)


def _qkv_width(at: Place) -> int:
    a = at.attention
    return a.num_heads * a.head_dim + a.num_kv_heads * (a.head_dim + a.v_head_dim)


def _latent_attention(at: Place, arrived: list[Arrival], heads: Int64Array, variant: Variant) -> Attended:
    a, own = at.attention, keys_in(at, arrived, own=True)
    latent = a.kv_lora_rank or 0
    if at.node.shared_kv:
        queries = per_head(at.dense(arrived, a.num_heads * entry_shape(at)[2]), a.num_heads)
        entries = np.broadcast_to(own, (len(own), len(heads), own.shape[2]))
        return _attend(at, heads, queries[:, heads], entries, entries[..., :latent], variant, None)
    queries = per_head(at.dense(arrived, a.num_heads * a.head_dim), a.num_heads)
    nope = a.qk_nope_head_dim or 0
    expanded = [one.value for one in arrived if isinstance(one.value, Expanded)]
    both = joined([one.data for one in expanded], (at.tokens.slots, a.num_heads, nope + a.v_head_dim))[:, heads]
    shared = own[:, 0, latent:]
    shared = joined([shared, *(one.turned for one in expanded)], shared.shape)
    shared = np.broadcast_to(shared[:, None], (len(both), len(heads), shared.shape[1]))
    keys = np.concatenate((both[..., :nope], shared), axis=2)
    return _attend(at, heads, queries[:, heads], keys, both[..., nope:], variant, None)


def _attend(
    at: Place,
    heads: Int64Array,
    queries: FloatArray,
    keys: FloatArray,
    values: FloatArray,
    variant: Variant,
    start: Attended | None,
) -> Attended:
    """Causal softmax attention over what is there, going on from ``start``.

    Parameters
    ----------
    queries : float64 array of shape (tokens, heads here, width)
    keys, values : float64 arrays of shape (slots, heads here, width)
    """
    a, rows, tokens = at.attention, at.rows, at.tokens
    there = ~(np.isnan(keys).any(axis=(1, 2)) | np.isnan(values).any(axis=(1, 2)))
    mask = _visible(at, rows, variant.window) & there
    at.memory.counts["pairs"] += int(mask.sum())
    slots = np.flatnonzero(mask.any(axis=0))
    scores = queries[rows].transpose(1, 0, 2) @ keys[slots].transpose(1, 2, 0) / np.sqrt(a.query_scalar or a.head_dim)
    scores = scores if a.score_cap is None else bent(scores, a.score_cap)
    scores = np.where(mask[:, slots], scores, -np.inf)
    before, weight = _started(at, heads, rows, values.shape[2], variant, start)
    top = np.maximum(scores.max(axis=2, initial=-np.inf), weight)
    top = np.where(np.isneginf(top), 0.0, top)
    shares, kept = np.exp(scores - top[..., None]), np.exp(weight - top)
    total = shares.sum(axis=2) + kept
    out = shares @ values[slots].transpose(1, 0, 2) + kept[..., None] * before
    out = out / np.where(total == 0, 1.0, total)[..., None]
    width = a.num_heads * values.shape[2]
    columns = (heads[:, None] * values.shape[2] + np.arange(values.shape[2])).ravel()
    made = at.made(out.transpose(1, 0, 2).reshape(len(rows), len(columns)), width, columns)
    ends = np.full((len(tokens), a.num_heads), -np.inf)
    ends[np.ix_(rows, heads)] = (top + np.log(total)).T
    seen = np.zeros((len(tokens), tokens.slots), bool) if start is None else start.seen.copy()
    seen[rows] |= mask
    return Attended(data=made.data, rows=rows, columns=columns, weight=ends, seen=seen)


def _visible(at: Place, rows: Int64Array, window: int | None) -> BoolArray:
    """Return which slots each row may see: those of its sequence, up to itself, inside the window."""
    tokens = at.tokens
    behind = tokens.position[rows][:, None] - tokens.slot_position[None, :]
    found: BoolArray = (tokens.sequence[rows][:, None] == tokens.slot_sequence[None, :]) & (behind >= 0)
    return found if window is None else found & (behind < window)


def _started(
    at: Place, heads: Int64Array, rows: Int64Array, width: int, variant: Variant, start: Attended | None
) -> tuple[FloatArray, FloatArray]:
    """Return output and weight (heads, rows) to go on from: of the keys so far, or of the sinks alone."""
    if start is not None and variant.hop:
        data = per_head(start.data, at.attention.num_heads)[np.ix_(rows, heads)].transpose(1, 0, 2)
        return data, start.weight[np.ix_(rows, heads)].T
    sinks = at.parameter("sinks")
    weight = np.full(len(heads), -np.inf) if sinks is None else sinks[heads]
    return np.zeros((len(heads), len(rows), width)), np.repeat(weight[:, None], len(rows), axis=1)


def kv_b_proj(at: Place, arrived: list[Arrival]) -> Expanded:
    """Expand the latents that arrived to keys and values of the rank's heads."""
    a = at.attention
    latent, both = a.kv_lora_rank or 0, (a.qk_nope_head_dim or 0) + a.v_head_dim
    matrix = at.parameter("kv_b_proj")
    assert matrix is not None
    own, brought = keys_in(at, arrived, own=True), keys_in(at, arrived, own=False)
    entries = joined([own, brought], own.shape)[:, 0]
    count = at.node.n // both
    heads = slice(at.t * count, (at.t + 1) * count)
    data = np.full((len(entries), a.num_heads, both), np.nan)
    data[:, heads] = np.einsum("sl,lhw->shw", entries[:, :latent], matrix.reshape(latent, -1, both)[:, heads])
    return Expanded(data=data, turned=brought[:, 0, latent:])


def q_absorb(at: Place, arrived: list[Arrival]) -> Dense:
    """Take the expansion of keys into the queries: they then meet latents."""
    a, matrix = at.attention, at.parameter("kv_b_proj")
    assert matrix is not None
    latent, nope, turned = a.kv_lora_rank or 0, a.qk_nope_head_dim or 0, a.qk_rope_head_dim or 0
    heads = np.arange(at.node.n // latent) + at.t * (at.node.n // latent)
    x = per_head(at.dense(arrived, a.num_heads * a.head_dim)[at.rows], a.num_heads)[:, heads]
    expansion = matrix.reshape(latent, a.num_heads, -1)[:, heads, :nope]
    block = np.concatenate((np.einsum("thn,lhn->thl", x[..., :nope], expansion), x[..., nope:]), axis=2)
    columns = (heads[:, None] * (latent + turned) + np.arange(latent + turned)).ravel()
    return at.made(block.reshape(len(at.rows), len(columns)), a.num_heads * (latent + turned), columns)


def v_absorb(at: Place, arrived: list[Arrival]) -> Dense:
    """Expand the attended latents to values."""
    a, matrix = at.attention, at.parameter("kv_b_proj")
    assert matrix is not None
    latent, nope, width = a.kv_lora_rank or 0, a.qk_nope_head_dim or 0, a.v_head_dim
    heads = np.arange(at.node.n // width) + at.t * (at.node.n // width)
    x = per_head(at.dense(arrived, a.num_heads * latent)[at.rows], a.num_heads)[:, heads]
    expansion = matrix.reshape(latent, a.num_heads, -1)[:, heads, nope:]
    columns = (heads[:, None] * width + np.arange(width)).ravel()
    block = np.einsum("thl,lhw->thw", x, expansion).reshape(len(at.rows), len(columns))
    return at.made(block, a.num_heads * width, columns)
