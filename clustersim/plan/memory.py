"""What one rank keeps in device memory: weights, K/V cache, activation and communication buffers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from clustersim.model import weights
from clustersim.model.architecture import Attention, Ffn, FormatOf, ModelSpec, Moe, WithFormats
from clustersim.model.kv import kv_elements_per_token
from clustersim.model.weight_parts import MODULE_OF, MODULES
from clustersim.model.weights import Linear
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.pool import PoolRule
from clustersim.plan.stages import stage_layers
from clustersim.values import dataclass

_LOGIT_BYTES: Final = 4.0
_Parts = dict[tuple[str, str], tuple[float, float]]
"""(module, format) → parameters and bytes"""
_Held = Iterator[tuple[str, float]]
"""Linear map, or ``norms`` of vectors and biases, and its parameters on one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on one rank of a stage.

    Parameters
    ----------
    weights : tuple of (str, str, float, float)
        Module, format, parameters and bytes.
    weights_bytes, buffers_bytes : float
    kv_bytes_per_token : float
        What one token of a sequence that this rank keeps adds.
    """

    weights: tuple[tuple[str, str, float, float], ...] = ()
    weights_bytes: float
    buffers_bytes: float
    kv_bytes_per_token: float


def stage_memory(
    model: ModelSpec,
    plan: ParallelPlan,
    *,
    format_of: FormatOf,
    activation_bytes: float,
    kv_bytes: float,
    max_batch_tokens: int,
    max_batch_requests: int,
    rule: PoolRule,
) -> tuple[RankMemory, ...]:
    """Return the memory of a rank of each stage; the ranks of a stage hold equal shares.

    TP divides matrices, EP divides experts, SP divides neither (rule SP-9). Norms, router, latent projections,
    learned positions and the biases of what is summed over ranks are on every rank.

    Buffers are what rule KV-6 reserves, so that the pool that memory leaves is a legal one (assumed; engines measure
    theirs at start-up). For the tokens of the largest batch: the residual stream, its norm, a module's output, and
    one buffer each to send and to receive it; the widest intermediate result of a module on one rank (of experts,
    when every token comes here with all its experts); with SP the K/V of one layer. Where replicas gather all tokens
    for experts that they share, theirs: what is gathered and what experts make of it, and the results of experts for
    so many at once as an engine takes. On the last stage, the 32-bit logits of every request.
    """
    found = []
    known: dict[tuple[int, bool], tuple[_Parts, float, float]] = {}  # by module: layers share them
    for stage, modules in enumerate(stage_layers(model, plan)):
        counts: Counter[tuple[int, bool]] = Counter()
        kv = 0.0
        for layer, part in modules:
            spec = model.layers[layer]
            module = spec.attention if part == "attention" else spec.ffn
            key = id(module), spec.post_norms
            if key not in known:
                own: _Parts = {}
                _weigh(own, _of_module(model, module, plan), module, format_of)
                _weigh(own, [("norms", weights.module_norm_parameters(model, spec))], model, format_of)
                elements = kv_elements_per_rank(module, plan.tp) if isinstance(module, Attention) else 0.0
                known[key] = own, elements, _width(module, model, plan, max_batch_tokens, rule)
            counts[key] += 1
            kv += known[key][1] * kv_bytes
        parts: _Parts = {}
        for key, count in counts.items():
            for which, (parameters, size) in known[key][0].items():
                _add(parts, which, count * parameters, count * size)
        _weigh(parts, _ends(model, plan, stage), model, format_of)
        exposed = max((known[key][1] for key in counts), default=0.0) if plan.sp.degree > 1 else 0.0
        widest = max((known[key][2] for key in counts), default=0.0)
        buffers = (max_batch_tokens * (5 * model.hidden + exposed) + widest) * activation_bytes
        if stage == plan.pp - 1:
            buffers += max_batch_requests * model.vocab * _LOGIT_BYTES
        found.append(
            RankMemory(
                weights=tuple((module, name, *parts[module, name]) for module, name in sorted(parts, key=_place)),
                weights_bytes=math.fsum(size for _, size in parts.values()),
                buffers_bytes=buffers,
                kv_bytes_per_token=kv,
            )
        )
    return tuple(found)


def _place(part: tuple[str, str]) -> tuple[int, str]:
    return list(MODULES).index(part[0]), part[1]


def _add(parts: _Parts, which: tuple[str, str], parameters: float, size: float) -> None:
    before = parts.get(which, (0.0, 0.0))
    parts[which] = before[0] + parameters, before[1] + size


def _weigh(parts: _Parts, held: Iterable[tuple[str, float]], of: WithFormats, format_of: FormatOf) -> None:
    """Add linear maps and vectors (what, parameters) of a part of a model."""
    for linear, parameters in held:
        name, each = format_of(linear, of)
        _add(parts, (MODULE_OF[linear], name), parameters, parameters * each)


def _ends(model: ModelSpec, plan: ParallelPlan, stage: int) -> _Held:
    """Yield what is before the first layer and behind the last one, on the stages that have these."""
    if stage == 0:
        yield "embedding", (model.vocab / plan.tp + model.learned_positions) * model.hidden
    if stage == plan.pp - 1:
        if not model.tied_embeddings or stage > 0:
            yield "lm_head", model.vocab * model.hidden / plan.tp
        yield "norms", weights.norm_parameters(model)


def _of_module(model: ModelSpec, module: Attention | Ffn | Moe, plan: ParallelPlan) -> _Held:
    if isinstance(module, Attention):
        return _attention(model, module, plan.tp)
    if isinstance(module, Moe):
        return _moe(model, module, plan)
    return _up_and_down(weights.ffn_linears(model, module), plan.tp)


def _width(module: Attention | Ffn | Moe, model: ModelSpec, plan: ParallelPlan, tokens: int, rule: PoolRule) -> float:
    """Return the elements of a module's widest results on one rank, for the tokens of the largest batch."""
    if isinstance(module, Attention):
        return tokens * _attention_width(module, plan.tp)
    if isinstance(module, Ffn):
        return tokens * _maps(module) * module.intermediate / plan.tp
    gathers = plan.is_lockstep and plan.ep.exchange == "all_gather"
    each = module.top_k * (_maps(module) * module.expert_intermediate / plan.expert_tp + model.hidden)
    tokens *= plan.dp if gathers else 1
    return min(tokens, rule.expert_tokens or tokens) * each + (2 * model.hidden * tokens if gathers else 0)


def kv_elements_per_rank(attention: Attention, tp: int) -> float:
    """Return the cache elements per token that one rank of a TP group holds; what cannot be split is replicated."""
    whole = kv_elements_per_token(attention)
    if attention.kind == "mla":
        return whole
    return whole * max(1, attention.num_kv_heads // tp) / attention.num_kv_heads


def _attention_width(attention: Attention, tp: int) -> float:
    """Return the elements per token of queries, keys, values and result on one rank."""
    heads = attention.num_heads / tp
    keys = heads if attention.kind == "mla" else max(1.0, attention.num_kv_heads / tp)
    return (heads + keys) * (attention.head_dim + attention.v_head_dim)


def _maps(module: Ffn | Moe) -> int:
    """Return how many results of the intermediate width a module has: gate and up, and their product."""
    return 3 if module.gated else 2


def _attention(model: ModelSpec, attention: Attention, tp: int) -> _Held:
    yield "norms", float(weights.attention_vector_parameters(attention))
    for linear in weights.attention_linears(model, attention):
        whole = attention.kind == "mla" and linear.name in ("q_a_proj", "kv_a_proj")
        summed = linear.name == "o_proj"
        yield linear.name, linear.inputs * linear.outputs / (1 if whole else tp)
        yield "norms", linear.outputs * linear.bias / (1 if whole or summed else tp)
    if attention.kind != "mla" and attention.num_kv_heads < tp:
        extra = 1 / attention.num_kv_heads - 1 / tp
        width = attention.num_kv_heads * (attention.head_dim + attention.v_head_dim) * extra
        yield "qkv_proj", model.hidden * width
        yield "norms", attention.qkv_bias * width


def _up_and_down(linears: tuple[Linear, ...], share: float) -> _Held:
    """Yield what one of ``share`` ranks holds of an FFN: a share of both maps, and the whole bias of the sum."""
    up, down = linears[:2]
    yield up.name, up.inputs * up.outputs / share
    yield down.name, down.inputs * down.outputs / share
    yield "norms", up.outputs * up.bias / share + down.outputs * down.bias


def _moe(model: ModelSpec, moe: Moe, plan: ParallelPlan) -> _Held:
    held = (moe.num_experts + plan.ep.redundant) / plan.ep.degree
    for linear, parameters in _up_and_down(weights.expert_linears(model, moe), plan.expert_tp):
        yield linear, held * parameters
    yield "gate", weights.router_parameters(model, moe)
    shared = weights.shared_expert_linears(model, moe)
    if shared:
        yield from _up_and_down(shared, plan.tp)
        yield "shared_gate", model.hidden if moe.shared_gate else 0


def kv_pool_blocks(
    memory: tuple[RankMemory, ...], *, device_bytes: float, utilization: float, block_tokens: int, rule: PoolRule
) -> int:
    """Return how many K/V blocks an engine takes on the fullest rank; negative when weights and buffers do not fit."""
    blocks = []
    for rank in memory:
        if rank.kv_bytes_per_token == 0:
            continue
        pool = pool_bytes(rank, device_bytes=device_bytes, utilization=utilization, rule=rule)
        blocks.append(int(pool // (rank.kv_bytes_per_token * block_tokens)))
    return min(blocks)


def pool_bytes(rank: RankMemory, *, device_bytes: float, utilization: float, rule: PoolRule) -> float:
    """Return the bytes of the K/V pool that an engine takes on a rank."""
    beside = rank.buffers_bytes + rule.outside_bytes
    free = device_bytes - rank.weights_bytes - beside
    within = device_bytes * (utilization - rule.margin) - rank.weights_bytes
    match rule.share_of:
        case "free":
            return free * utilization
        case "static":
            return min(within - rule.outside_bytes, free)
    return within - beside


def utilization_of(rank: RankMemory, pool: float, *, device_bytes: float, rule: PoolRule) -> float:
    """Return the share with which an engine takes a pool of so many bytes on a rank."""
    beside = rank.buffers_bytes + rule.outside_bytes
    if rule.share_of == "free":
        return pool / (device_bytes - rank.weights_bytes - beside)
    within = rank.weights_bytes + pool + (rule.outside_bytes if rule.share_of == "static" else beside)
    return within / device_bytes + rule.margin
