"""What the fullest rank of a stage keeps in device memory: weights, buffers, and K/V per token.

Written from the formulas of the architecture alone. A dimension that does not divide is charged at its largest
shard, and experts that can't be spread as the plan says (EP-1) as if all ranks shared each. Quantised formats apply
to every weight, norms included.

Buffers are an upper estimate (assumed; engines measure theirs at start-up), for the tokens of the largest batch: the
residual stream, its norm, a module's output, and one buffer each to send and to receive it; the widest
intermediate result of a module; with SP the K/V of one layer from all segments; the 32-bit logits of each
sequence on the last stage. SP divides none of it: decode steps and short prompts are not split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from clustersim.legality.deployment import Deployment
from clustersim.legality.shards import expert_map, kv_heads_held
from clustersim.legality.stages import Module
from clustersim.model.architecture import Attention, Ffn, Moe
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
    parameters, norm = 0.0, norm_parameters(deployment.model)
    for layer, part in stage:
        if part == "embedding":
            parameters += _embedding(deployment)
        elif part == "lm_head":
            parameters += norm + _head(deployment, stage)
        else:
            spec = deployment.model.layers[layer]
            module = spec.attention if part == "attention" else spec.ffn
            if id(module) not in known:
                known[id(module)] = _module(deployment, module)
            norms = 1 + spec.post_norms  # before the module, and behind it
            parameters += known[id(module)] + norms * norm
    return parameters * deployment.precision.weight_bytes


def _shard(size: int, degree: int) -> int:
    """Return the largest of ``degree`` shards."""
    return -(-size // degree)


def _module(deployment: Deployment, module: Attention | Ffn | Moe) -> float:
    if isinstance(module, Attention):
        return _attention(deployment, module)
    return _moe(deployment, module) if isinstance(module, Moe) else _ffn(deployment, module)


def _attention(deployment: Deployment, a: Attention) -> float:
    hidden, tp = deployment.model.hidden, deployment.plan.tp
    heads = _shard(a.num_heads, tp)
    by_rows = deployment.plan.split.attention_out == "rows"
    out = heads * a.v_head_dim * hidden if by_rows else a.num_heads * a.v_head_dim * _shard(hidden, tp)
    bias = hidden if a.out_bias else 0
    vectors = attention_vector_parameters(a)
    if a.kind != "mla":
        width = heads * a.head_dim + _most_kv_heads(a, tp) * (a.head_dim + a.v_head_dim)
        return (hidden + a.qkv_bias) * width + out + bias + vectors
    latent, rope = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0
    down = (a.q_lora_rank or 0) + latent + rope
    queries = (a.q_lora_rank or hidden) * heads * a.head_dim
    expand = latent * heads * ((a.qk_nope_head_dim or 0) + a.v_head_dim)
    return (hidden + a.qkv_bias) * down + queries + expand + out + bias + vectors


def _ffn(deployment: Deployment, f: Ffn) -> float:
    hidden, tp, split = deployment.model.hidden, deployment.plan.tp, deployment.plan.split
    maps = 2 if f.gated else 1
    inner, slice_ = _shard(f.intermediate, tp), _shard(hidden, tp)
    up = hidden * inner if split.ffn_up == "columns" else slice_ * f.intermediate
    down = inner * hidden if split.ffn_down == "rows" else f.intermediate * slice_
    return maps * up + down + (maps * inner + hidden if f.bias else 0)


def _moe(deployment: Deployment, moe: Moe) -> float:
    model, plan = deployment.model, deployment.plan
    maps = 2 if moe.gated else 1
    owners = expert_map(moe.num_experts, plan)
    most = max((owners.count(rank) for rank in dict.fromkeys(owners)), default=moe.num_experts)
    if plan.ep.redundant:  # every rank holds as many, wherever they are
        most = _shard(moe.num_experts + plan.ep.redundant, plan.ep.degree)
    inner = _shard(moe.expert_intermediate, deployment.expert_tp)
    if moe.num_experts % plan.ep.degree or deployment.expert_ranks % plan.ep.degree:
        most, inner = moe.num_experts, _shard(moe.expert_intermediate, deployment.expert_ranks)
    expert = (maps + 1) * model.hidden * inner + (maps * inner + model.hidden if moe.bias else 0)
    wide = _shard(moe.shared_intermediate, plan.tp)
    shared = (maps + 1) * model.hidden * wide + (model.hidden if moe.shared_gate else 0)
    if moe.bias and moe.num_shared_experts:
        shared += maps * wide + model.hidden
    return router_parameters(model, moe) + most * expert + shared


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
    known: dict[int, int] = {}
    for layer, part in stage:
        if part in ("attention", "ffn"):
            spec = model.layers[layer]
            module = spec.attention if part == "attention" else spec.ffn
            if id(module) not in known:
                known[id(module)] = _width(deployment, module)
    per_token = 5 * model.hidden + max(known.values(), default=0)
    per_token += exposed if deployment.plan.sp.degree > 1 else 0
    logits = limits.max_batch_requests * model.vocab * 4.0 if stage and stage[-1][1] == "lm_head" else 0.0
    return limits.max_batch_tokens * per_token * precision.activation_bytes + logits


def _width(deployment: Deployment, module: Attention | Ffn | Moe) -> int:
    """Return the elements per token of a module's widest results on one rank.

    Of a MoE module: the worst routing sends every token of the batch to this rank, for all experts that it visits.
    """
    tp = deployment.plan.tp
    if isinstance(module, Ffn):
        return (3 if module.gated else 2) * _shard(module.intermediate, tp)
    if isinstance(module, Moe):
        inner = (3 if module.gated else 2) * _shard(module.expert_intermediate, deployment.expert_tp)
        return module.top_k * (inner + deployment.model.hidden)
    heads = _shard(module.num_heads, tp)
    keys = heads if module.kind == "mla" else _most_kv_heads(module, tp)
    return (heads + keys) * (module.head_dim + module.v_head_dim)
