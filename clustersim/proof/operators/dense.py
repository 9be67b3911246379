"""Operators that work token by token on one rank: norms, linear maps, activations, sums, the embedding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clustersim.clock import FloatArray
from clustersim.proof.operators.values import (
    ALL,
    Arrival,
    Columns,
    Dense,
    Routed,
    TokenIds,
    Value,
    bent,
    nothing,
    per_head,
    routed,
)
from clustersim.proof.operators.weights import EPSILON, ROTARY_BASE
from clustersim.proof.place import Place, part_of, qkv_columns


def schedule(at: Place, arrived: list[Arrival]) -> TokenIds:
    """The host hands the rank the ids of its tokens: of the prompt, or sampled by an earlier step."""
    del arrived
    ids = np.full(len(at.tokens), -1)
    for row in at.rows.tolist():
        sequence, position = int(at.tokens.sequence[row]), int(at.tokens.position[row])
        prompt = at.memory.prompts[sequence]
        known = position < len(prompt)
        ids[row] = prompt[position] if known else at.memory.sampled.get((sequence, position - 1), -1)
    return TokenIds(ids=ids)


def embedding(at: Place, arrived: list[Arrival]) -> Dense:
    """Look tokens up in the rank's part of the table: its tokens of the vocabulary, or its features."""
    model, plan, table = at.setting.model, at.setting.plan, at.setting.weights.embedding
    table = table * model.hidden**0.5 if model.scaled_embedding else table
    ids = np.full(len(at.tokens), -1)
    for one in arrived:
        if isinstance(one.value, TokenIds):
            ids = one.value.ids
    here = ids[at.rows]
    found = table[here]
    found[here < 0] = np.nan
    positions = at.setting.weights.positions
    if positions is not None:
        places = positions[at.tokens.position[at.rows]]
    if plan.split.embedding == "hidden" and plan.tp > 1:
        columns: Columns = part_of(model.hidden, at.t, plan.tp)
        found = found if positions is None else found + places
        return at.made(found[:, columns], model.hidden, columns)
    each = model.vocab // plan.tp
    found[(here >= 0) & (here // each != at.t)] = 0.0
    if positions is not None and at.t == 0:
        found = found + places
    return at.made(found, model.hidden, partial=plan.tp > 1)


def _rms(x: FloatArray, weight: FloatArray) -> FloatArray:
    found: FloatArray = x * weight / np.sqrt((x**2).sum(axis=-1, keepdims=True) / x.shape[-1] + EPSILON)
    return found


def norm(at: Place, arrived: list[Arrival]) -> Dense:
    """Normalise whole vectors."""
    weight, bias = at.parameter(at.node.name), at.parameter(f"{at.node.name}_bias")
    assert weight is not None
    x = at.dense(arrived, len(weight))[at.rows]
    if bias is None:
        return at.made(_rms(x, weight), len(weight))
    x = x - x.mean(axis=1, keepdims=True)
    return at.made(_rms(x, weight) + bias, len(weight))


def turned(x: FloatArray, positions: FloatArray) -> FloatArray:
    """Rotate pairs of features by their position, as complex numbers; the last axis is halved, the first is tokens."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * ROTARY_BASE ** (-np.arange(half) / half)
    angle = angle.reshape((len(x),) + (1,) * (x.ndim - 2) + (half,))
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate((pairs.real, pairs.imag), axis=-1)


def rope(at: Place, arrived: list[Arrival]) -> Dense:
    """Normalise (where the model does) and rotate the rank's heads of queries and keys; values pass."""
    a = at.attention
    q_width, k_width = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    width = q_width + k_width + a.num_kv_heads * a.v_head_dim
    x = at.dense(arrived, width)[at.rows].copy()
    positions = at.tokens.position[at.rows].astype(np.float64)
    for first, end, name in ((0, q_width, "q_norm"), (q_width, q_width + k_width, "k_norm")):
        heads = per_head(x[:, first:end], (end - first) // a.head_dim)
        weight = at.parameter(name)
        if weight is not None:
            heads = _rms(heads, weight)
        if a.rotary:
            heads = turned(heads, positions)
        x[:, first:end] = heads.reshape(len(x), end - first)
    made = at.made(x, width)
    return replace(made, columns=qkv_columns(at))


def kv_a_norm_rope(at: Place, arrived: list[Arrival]) -> Dense:
    """Normalise the latent and rotate the part of the key that all heads share."""
    latent = at.attention.kv_lora_rank or 0
    width = latent + (at.attention.qk_rope_head_dim or 0)
    weight = at.parameter("kv_a_norm_rope")
    assert weight is not None
    x = at.dense(arrived, width)[at.rows]
    positions = at.tokens.position[at.rows].astype(np.float64)
    block = np.concatenate((_rms(x[:, :latent], weight), turned(x[:, latent:], positions)), axis=1)
    return at.made(block, width)


def linear(at: Place, arrived: list[Arrival]) -> Dense:
    """Multiply with the rank's part of a matrix; of a sum over ranks only the first one adds the bias."""
    shard = at.shard()
    x = at.dense(arrived, shard.whole[0])[at.rows][:, shard.inputs]
    block = x @ shard.matrix
    if shard.bias is not None:
        block = block + shard.bias
    return at.made(block, shard.whole[1], shard.outputs, partial=shard.partial)


def q_b_proj(at: Place, arrived: list[Arrival]) -> Dense:
    """Make the queries of latent attention, their rotary part rotated."""
    made, a = linear(at, arrived), at.attention
    nope = a.qk_nope_head_dim or 0
    data = per_head(made.data, a.num_heads)
    data[..., nope:] = turned(data[..., nope:], at.tokens.position.astype(np.float64))
    return made


def gate(at: Place, arrived: list[Arrival]) -> Dense:
    """Return the router's logits."""
    made = linear(at, arrived)
    return Dense(data=made.data, rows=made.rows, what="router")


def shared_gate(at: Place, arrived: list[Arrival]) -> Dense:
    """Return how far each token opens the shared experts."""
    made = linear(at, arrived)
    return Dense(data=made.data, rows=made.rows, what="gate")


def activated(x: FloatArray, gated: bool) -> FloatArray:
    """Apply the activation to whole or shard: the first half gates the second where the block is gated."""
    if not gated:
        bent: FloatArray = x * (1 + np.tanh(np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x))) / 2
        return bent
    inner = x.shape[1] // 2
    opened: FloatArray = x[:, :inner] * x[:, inner:] / (1 + np.exp(-x[:, :inner]))
    return opened


def activation(at: Place, arrived: list[Arrival]) -> Dense:
    """Activate the features that the rank has."""
    plan, inner = at.setting.plan, at.node.width
    halves = 2 if at.gated else 1
    up = at.dense(arrived, halves * inner)[at.rows]
    columns: Columns = ALL
    if plan.tp > 1:
        columns = part_of(inner, at.t, plan.tp)
        up = up[:, part_of(halves * inner, at.t, plan.tp, halves)]
    block = activated(up, at.gated)
    if at.node.name == "shared_act" and at.moe.shared_gate:
        block = block / (1 + np.exp(-at.dense(arrived, 1, "gate")[at.rows]))
    return at.made(block, inner, columns)


def logits_cap(at: Place, arrived: list[Arrival]) -> Dense:
    """Bend logits to the model's cap: of all that arrived, or of the rank's slice."""
    width, cap = at.node.width, at.setting.model.logit_cap
    assert cap is not None
    slices = [one.value.columns for one in arrived if isinstance(one.value, Dense)]
    columns = slices[0] if slices else ALL
    return at.made(bent(at.dense(arrived, width)[at.rows][:, columns], cap), width, columns)


def add(at: Place, arrived: list[Arrival]) -> Dense:
    """Sum whatever arrived."""
    terms = [
        one.value
        for one in arrived
        if isinstance(one.value, Dense) and one.kind == "data" and one.value.data.shape[1] == at.node.width
    ]
    if not terms:
        return at.made(nothing(len(at.rows), at.node.width), at.node.width)
    total = terms[0].data[at.rows]
    for term in terms[1:]:
        total = total + term.data[at.rows]
    partial = at.node.rule == "linear" and any(term.partial for term in terms)
    return at.made(total, at.node.width, partial=partial)


def aggregate(at: Place, arrived: list[Arrival]) -> Dense:
    """Sum what the experts made of each token, by the router's shares: of the tokens that this rank sent out."""
    plan, width = at.setting.plan, at.node.width
    pairs = routed([one.value for one in arrived if isinstance(one.value, Routed)], width)
    rows = at.share if plan.ep.sends else at.rows
    data = np.full((len(at.tokens), width), np.nan)
    data[rows] = 0.0
    np.add.at(data, pairs.token, pairs.share[:, None] * pairs.data)
    partial = any(isinstance(one.value, Routed) and one.value.partial for one in arrived)
    partial |= plan.ep.degree > 1 and not plan.ep.sends  # of the rank's own experts
    return Dense(data=data, rows=rows, partial=partial)


def pass_on(at: Place, arrived: list[Arrival]) -> Value:
    """Hand on what arrived (send, receive)."""
    return at.made(at.dense(arrived, at.node.width)[at.rows], at.node.width)


def sample(at: Place, arrived: list[Arrival]) -> None:
    """Take the most likely token of each sequence whose last token is here; the host knows it from then on."""
    memory, tokens = at.memory, at.tokens
    logits = at.dense(arrived, at.setting.model.vocab)
    for row in tokens.rows("rows", at.s).tolist():
        key = int(tokens.sequence[row]), int(tokens.position[row])
        memory.logits.setdefault(key, []).append((at.rank, logits[row]))
        if not np.isnan(logits[row]).any():
            memory.sampled.setdefault(key, int(np.argmax(logits[row])))
