"""What the fullest rank of a stage keeps in device memory: weights, buffers, and K/V per token.

Written from the formulas of the architecture alone. A dimension that does not divide is charged at its largest
shard, and experts that can't be spread as the plan says (EP-1) as if all ranks shared each. Each matrix is in the
format of its module (``legality.formats``); biases and norms are vectors, in one of their own.

Buffers are an upper estimate (assumed; engines measure theirs at start-up), for the tokens of the largest batch: the
residual stream, its norm, a module's output, and one buffer each to send and to receive it; the widest
intermediate result of a module; with SP the K/V of one layer from all segments; the 32-bit logits of each
sequence on the last stage. SP divides none of it: decode steps and short prompts are not split. Replicas that gather
all tokens for experts that they share have buffers for all of these; what experts make of them is for so many at once
as the engine takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from clustersim.legality.deployment import Deployment
from clustersim.legality.formats import bytes_of, weights_in
from clustersim.legality.shards import expert_map, kv_heads_held
from clustersim.legality.stages import Module
from clustersim.model.architecture import Attention, Ffn, ModelSpec, Moe
from clustersim.model.kv import kv_elements_per_token
from clustersim.model.weights import attention_vector_parameters, norm_parameters, router_parameters
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """Bytes on the fullest rank of a stage; ``kv_per_token`` is for each token of a sequence kept there."""

    weights: float
    buffers: float
    kv_per_token: float


def rank_bytes(deployment: Deployment, stage: Sequence[Module]) -> RankBytes:
    """Return what the fullest rank of a stage with these modules keeps."""
    attending = [deployment.model.layers[layer].attention for layer, part in stage if part == "attention"]
    kept = {id(attention): attention for attention in attending}  # layers share them
    elements = {key: _kv_elements(deployment, attention) for key, attention in kept.items()}
    return RankBytes(
        weights=rank_weight_bytes(deployment, stage),
        buffers=_buffer_bytes(deployment, stage, max(elements.values(), default=0)),
        kv_per_token=deployment.precision.kv_bytes * math.fsum(elements[id(one)] for one in attending),
    )


def rank_weight_bytes(deployment: Deployment, stage: Sequence[Module]) -> float:
    """Return the weights of the fullest rank of a stage; SP takes no part in it (rule SP-9)."""
    known: dict[int, float] = {}  # by module: layers share them
    model = deployment.model
    each = _each(deployment, "norms", model)
    held, norm = 0.0, norm_parameters(model) * each
    for layer, part in stage:
        if part == "embedding":
            held += _embedding(deployment) * _each(deployment, "embedding", model)
        elif part == "lm_head":
            held += norm + _head(deployment, stage) * _each(deployment, "lm_head", model)
        else:
            spec = model.layers[layer]
            module = spec.attention if part == "attention" else spec.ffn
            if id(module) not in known:
                made = _module(deployment, module)
                known[id(module)] = math.fsum(many * _each(deployment, name, module) for name, many in made)
            norms = 1 + spec.post_norms  # before the module, and behind it
            held += known[id(module)] + norms * norm
    return held


def _each(deployment: Deployment, name: str, part: Attention | Ffn | Moe | ModelSpec) -> float:
    """Return the bytes of a weight of a matrix."""
    return bytes_of(weights_in(deployment.precision, deployment.model, name, part))


_Held = Iterator[tuple[str, float]]
"""Matrix, or ``norms`` of all vectors, and how many of its elements a rank holds."""


def _shard(size: int, degree: int) -> int:
    """Return the largest of ``degree`` shards."""
    return -(-size // degree)


def _module(deployment: Deployment, module: Attention | Ffn | Moe) -> _Held:
    if isinstance(module, Attention):
        return _attention(deployment, module)
    return _moe(deployment, module) if isinstance(module, Moe) else _ffn(deployment, module)


def _attention(deployment: Deployment, a: Attention) -> _Held:
    hidden, tp = deployment.model.hidden, deployment.plan.tp
    heads = _shard(a.num_heads, tp)
    by_rows = deployment.plan.split.attention_out == "rows"
    yield "o_proj", heads * a.v_head_dim * hidden if by_rows else a.num_heads * a.v_head_dim * _shard(hidden, tp)
    yield "norms", (hidden if a.out_bias else 0) + attention_vector_parameters(a)
    if a.kind != "mla":
        width = heads * a.head_dim + _most_kv_heads(a, tp) * (a.head_dim + a.v_head_dim)
        yield "qkv_proj", hidden * width
        yield "norms", a.qkv_bias * width
        return
    latent, rope, queries = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0, a.q_lora_rank
    if queries is not None:
        yield "q_a_proj", hidden * queries
    yield "kv_a_proj", hidden * (latent + rope)
    yield "norms", a.qkv_bias * ((queries or 0) + latent + rope)
    yield "q_b_proj", (queries or hidden) * heads * a.head_dim
    yield "kv_b_proj", latent * heads * ((a.qk_nope_head_dim or 0) + a.v_head_dim)


def _ffn(deployment: Deployment, f: Ffn) -> _Held:
    hidden, tp, split = deployment.model.hidden, deployment.plan.tp, deployment.plan.split
    maps = 2 if f.gated else 1
    inner, slice_ = _shard(f.intermediate, tp), _shard(hidden, tp)
    yield "ffn_up", maps * (hidden * inner if split.ffn_up == "columns" else slice_ * f.intermediate)
    yield "ffn_down", inner * hidden if split.ffn_down == "rows" else f.intermediate * slice_
    yield "norms", maps * inner + hidden if f.bias else 0


def _moe(deployment: Deployment, moe: Moe) -> _Held:
    model, plan = deployment.model, deployment.plan
    hidden, maps = model.hidden, 2 if moe.gated else 1
    owners = expert_map(moe.num_experts, plan)
    most = max((owners.count(rank) for rank in dict.fromkeys(owners)), default=moe.num_experts)
    if plan.ep.redundant:  # every rank holds as many, wherever they are
        most = _shard(moe.num_experts + plan.ep.redundant, plan.ep.degree)
    inner = _shard(moe.expert_intermediate, deployment.expert_tp)
    if moe.num_experts % plan.ep.degree or deployment.expert_ranks % plan.ep.degree:
        most, inner = moe.num_experts, _shard(moe.expert_intermediate, deployment.expert_ranks)
    wide = _shard(moe.shared_intermediate, plan.tp)
    yield "gate", router_parameters(model, moe)
    yield "expert_up", most * maps * hidden * inner
    yield "expert_down", most * hidden * inner
    yield "shared_up", maps * hidden * wide
    yield "shared_down", hidden * wide
    yield "shared_gate", hidden if moe.shared_gate else 0
    if moe.bias:
        yield "norms", most * (maps * inner + hidden) + (maps * wide + hidden if moe.num_shared_experts else 0)


def _embedding(deployment: Deployment) -> float:
    model, tp = deployment.model, deployment.plan.tp
    by_vocab = deployment.plan.split.embedding == "vocab"
    table = _shard(model.vocab, tp) * model.hidden if by_vocab else model.vocab * _shard(model.hidden, tp)
    return table + model.learned_positions * model.hidden


def _head(deployment: Deployment, stage: Sequence[Module]) -> float:
    """Return the LM head; one that is tied costs nothing on the stage that has the embedding."""
    model, plan = deployment.model, deployment.plan
    if model.tied_embeddings and stage[0][1] == "embedding":
        return 0.0
    by_vocab = plan.split.lm_head == "vocab"
    return _shard(model.vocab, plan.tp) * model.hidden if by_vocab else model.vocab * _shard(model.hidden, plan.tp)


def _most_kv_heads(attention: Attention, tp: int) -> int:
    return max(map(len, kv_heads_held(attention, tp)))


def _kv_elements(deployment: Deployment, attention: Attention) -> int:
    """Return the cache elements per token that the attention of one layer keeps on its fullest rank."""
    if attention.kind == "mla":
        return kv_elements_per_token(attention)
    return _most_kv_heads(attention, deployment.plan.tp) * (attention.head_dim + attention.v_head_dim)


def _buffer_bytes(deployment: Deployment, stage: Sequence[Module], exposed: int) -> float:
    """Return the bytes of buffers; ``exposed`` are the most cache elements per token of a layer of the stage."""
    model, limits, precision = deployment.model, deployment.limits, deployment.precision
    known: dict[int, float] = {}
    for layer, part in stage:
        if part in ("attention", "ffn"):
            spec = model.layers[layer]
            module = spec.attention if part == "attention" else spec.ffn
            if id(module) not in known:
                known[id(module)] = _width(deployment, module)
    per_token = 5 * model.hidden + (exposed if deployment.plan.sp.degree > 1 else 0)
    elements = limits.max_batch_tokens * per_token + max(known.values(), default=0)
    logits = limits.max_batch_requests * model.vocab * 4.0 if stage and stage[-1][1] == "lm_head" else 0.0
    return elements * precision.activation_bytes + logits


def _width(deployment: Deployment, module: Attention | Ffn | Moe) -> float:
    """Return the elements of a module's widest results on one rank, for the largest batch.

    Of a MoE module: the worst routing sends every token of the batch to this rank, for all experts that it visits.
    """
    plan, tokens = deployment.plan, deployment.limits.max_batch_tokens
    tp = plan.tp
    if isinstance(module, Ffn):
        return tokens * (3 if module.gated else 2) * _shard(module.intermediate, tp)
    if isinstance(module, Moe):
        hidden, gathered = deployment.model.hidden, 0
        inner = (3 if module.gated else 2) * _shard(module.expert_intermediate, deployment.expert_tp)
        if plan.ep.exchange == "all_gather" and plan.ep.scope == "global" and min(plan.dp, plan.ep.degree) > 1:
            tokens *= plan.dp
            gathered = 2 * tokens * hidden
        at_once = deployment.pool.expert_tokens
        rows = tokens if at_once is None else min(tokens, at_once)
        return gathered + rows * module.top_k * (inner + hidden)
    heads = _shard(module.num_heads, tp)
    keys = heads if module.kind == "mla" else _most_kv_heads(module, tp)
    return tokens * (heads + keys) * (module.head_dim + module.v_head_dim)
