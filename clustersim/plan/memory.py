"""What one rank keeps in device memory: weights, K/V cache, activation and communication buffers."""

from __future__ import annotations

from typing import Final

from clustersim.model import weights
from clustersim.model.architecture import Attention, Ffn, ModelSpec, Moe
from clustersim.model.kv import kv_elements_per_token
from clustersim.model.weights import Linear
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.pool import PoolRule
from clustersim.plan.stages import stage_layers
from clustersim.values import dataclass

_LOGIT_BYTES: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on one rank of a stage.

    Parameters
    ----------
    weights_bytes, buffers_bytes : float
    kv_bytes_per_token : float
        What one token of a sequence that this rank keeps adds.
    """

    weights_bytes: float
    buffers_bytes: float
    kv_bytes_per_token: float


def stage_memory(
    model: ModelSpec,
    plan: ParallelPlan,
    *,
    weight_bytes: float,
    activation_bytes: float,
    kv_bytes: float,
    max_batch_tokens: int,
    max_batch_requests: int,
) -> tuple[RankMemory, ...]:
    """Return the memory of a rank of each stage; the ranks of a stage hold equal shares.

    TP divides matrices, EP divides experts, SP divides neither (rule SP-9). Norms, router, latent projections,
    learned positions and the biases of what is summed over ranks are on every rank.

    Buffers are what rule KV-6 reserves, so that the pool that memory leaves is a legal one (assumed; engines measure
    theirs at start-up). For the tokens of the largest batch: the residual stream, its norm, a module's output, and
    one buffer each to send and to receive it; the widest intermediate result of a module on one rank (of experts,
    when every token comes here with all its experts); with SP the K/V of one layer. On the last stage, the 32-bit
    logits of every request.
    """
    found = []
    known: dict[tuple[int, bool], tuple[float, float, float, float]] = {}  # by module: layers share them
    for stage, modules in enumerate(stage_layers(model, plan)):
        parameters = kv = 0.0
        widest = exposed = 0.0
        for layer, part in modules:
            spec = model.layers[layer]
            module = spec.attention if part == "attention" else spec.ffn
            key = id(module), spec.post_norms
            if key not in known:
                known[key] = weights.module_norm_parameters(model, spec), *_of_module(model, module, plan)
            norms, own, elements, width = known[key]
            parameters += norms
            parameters += own
            kv += elements * kv_bytes
            exposed = max(exposed, elements if plan.sp.degree > 1 else 0.0)
            widest = max(widest, width)
        if stage == 0:
            parameters += (model.vocab / plan.tp + model.learned_positions) * model.hidden
        if stage == plan.pp - 1:
            tied_elsewhere = model.tied_embeddings and stage > 0
            head = model.vocab * model.hidden if tied_elsewhere else weights.lm_head_parameters(model)
            parameters += head / plan.tp + weights.norm_parameters(model)
        buffers = max_batch_tokens * (5 * model.hidden + widest + exposed) * activation_bytes
        if stage == plan.pp - 1:
            buffers += max_batch_requests * model.vocab * _LOGIT_BYTES
        found.append(RankMemory(weights_bytes=parameters * weight_bytes, buffers_bytes=buffers, kv_bytes_per_token=kv))
    return tuple(found)


def _of_module(model: ModelSpec, module: Attention | Ffn | Moe, plan: ParallelPlan) -> tuple[float, float, float]:
    """Return the parameters of a module on one rank, its cache elements per token, and its widest result."""
    if isinstance(module, Attention):
        elements = kv_elements_per_rank(module, plan.tp)
        return _attention(model, module, plan.tp), elements, _attention_width(module, plan.tp)
    if isinstance(module, Moe):
        inner = _maps(module) * module.expert_intermediate / plan.expert_tp
        return _moe(model, module, plan), 0.0, module.top_k * (inner + model.hidden)
    parameters = _up_and_down(weights.ffn_linears(model, module), plan.tp)
    return parameters, 0.0, _maps(module) * module.intermediate / plan.tp


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


def _attention(model: ModelSpec, attention: Attention, tp: int) -> float:
    parameters = float(weights.attention_vector_parameters(attention))
    for linear in weights.attention_linears(model, attention):
        whole = attention.kind == "mla" and linear.name in ("q_a_proj", "kv_a_proj")
        summed = linear.name == "o_proj"
        matrix, bias = linear.inputs * linear.outputs, linear.outputs * linear.bias
        parameters += matrix / (1 if whole else tp) + bias / (1 if whole or summed else tp)
    if attention.kind != "mla" and attention.num_kv_heads < tp:
        extra = 1 / attention.num_kv_heads - 1 / tp
        inputs = model.hidden + attention.qkv_bias
        parameters += inputs * attention.num_kv_heads * (attention.head_dim + attention.v_head_dim) * extra
    return parameters


def _up_and_down(linears: tuple[Linear, ...], share: int) -> float:
    """Return what one of ``share`` ranks holds of an FFN: a share of both maps, and the whole bias of the sum."""
    up, down = linears[:2]
    return (up.parameters + down.inputs * down.outputs) / share + down.outputs * down.bias


def _moe(model: ModelSpec, moe: Moe, plan: ParallelPlan) -> float:
    held = (moe.num_experts + plan.ep.redundant) / plan.ep.degree
    experts = held * _up_and_down(weights.expert_linears(model, moe), plan.expert_tp)
    shared = weights.shared_expert_linears(model, moe)
    gate = model.hidden if moe.shared_gate else 0
    return weights.router_parameters(model, moe) + experts + (_up_and_down(shared, plan.tp) + gate if shared else 0)


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
            return min(within, free)
    return within - beside


def utilization_of(rank: RankMemory, pool: float, *, device_bytes: float, rule: PoolRule) -> float:
    """Return the share with which an engine takes a pool of so many bytes on a rank."""
    beside = rank.buffers_bytes + rule.outside_bytes
    if rule.share_of == "free":
        return pool / (device_bytes - rank.weights_bytes - beside)
    within = rank.weights_bytes + pool + (0.0 if rule.share_of == "static" else beside)
    return within / device_bytes + rule.margin
