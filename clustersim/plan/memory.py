"""What one rank keeps in device memory: weights, K/V cache, activation and communication buffers."""

from __future__ import annotations

from dataclasses import dataclass

from clustersim.model import weights
from clustersim.model.architecture import Attention, ModelSpec, Moe
from clustersim.model.kv import kv_elements_per_token
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.stages import stage_layers


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
) -> tuple[RankMemory, ...]:
    """Return the memory of a rank of each stage; the ranks of a stage hold equal shares.

    TP divides matrices, EP divides experts, SP divides neither (rule SP-9). Norms, router and latent projections
    are on every rank. Buffers hold, for the tokens of the largest batch, the residual stream twice, the widest
    intermediate result of a rank, and the logits of one batch in 32-bit; that is the part of a memory profile that
    is a function of the batch (assumed; engines measure it at start-up).
    """
    found = []
    for stage, modules in enumerate(stage_layers(model, plan)):
        parameters = kv = 0.0
        widest = 3.0 * model.hidden
        for layer, part in modules:
            spec = model.layers[layer]
            parameters += weights.norm_parameters(model)
            if part == "attention":
                parameters += _attention(model, spec.attention, plan.tp)
                kv += kv_elements_per_rank(spec.attention, plan.tp) * kv_bytes
                widest = max(widest, spec.attention.num_heads * spec.attention.head_dim * 3 / plan.tp)
            elif isinstance(spec.ffn, Moe):
                parameters += _moe(model, spec.ffn, plan)
                widest = max(widest, spec.ffn.expert_intermediate * 3 * spec.ffn.top_k / plan.expert_tp)
            else:
                parameters += weights.ffn_parameters(model, spec.ffn) / plan.tp
                widest = max(widest, spec.ffn.intermediate * 3 / plan.tp)
        if stage == 0:
            parameters += weights.embedding_parameters(model) / plan.tp
        if stage == plan.pp - 1:
            head = weights.lm_head_parameters(model)
            shared = weights.embedding_parameters(model) if head == 0 and stage > 0 else 0
            parameters += (head + shared) / plan.tp + weights.norm_parameters(model)
        buffers = max_batch_tokens * (2 * model.hidden + widest) * activation_bytes
        found.append(RankMemory(weights_bytes=parameters * weight_bytes, buffers_bytes=buffers, kv_bytes_per_token=kv))
    return tuple(found)


def kv_elements_per_rank(attention: Attention, tp: int) -> float:
    """Return the cache elements per token that one rank of a TP group holds; what cannot be split is replicated."""
    whole = kv_elements_per_token(attention)
    if attention.kind == "mla":
        return whole
    return whole * max(1, attention.num_kv_heads // tp) / attention.num_kv_heads


def _attention(model: ModelSpec, attention: Attention, tp: int) -> float:
    parameters = float(weights.attention_vector_parameters(attention))
    for linear in weights.attention_linears(model, attention):
        size = linear.inputs * linear.outputs + linear.outputs * linear.bias
        whole = attention.kind == "mla" and linear.name in ("q_a_proj", "kv_a_proj")
        parameters += size if whole else size / tp
    if attention.kind != "mla" and attention.num_kv_heads < tp:
        extra = 1 / attention.num_kv_heads - 1 / tp
        parameters += model.hidden * attention.num_kv_heads * (attention.head_dim + attention.v_head_dim) * extra
    return parameters


def _moe(model: ModelSpec, moe: Moe, plan: ParallelPlan) -> float:
    experts = moe.num_experts * weights.expert_parameters(model, moe) / (plan.ep.degree * plan.expert_tp)
    gate = model.hidden if moe.shared_gate else 0
    shared = (weights.shared_expert_parameters(model, moe) - gate) / plan.tp + gate
    return weights.router_parameters(model, moe) + experts + shared


def kv_pool_blocks(
    memory: tuple[RankMemory, ...], *, device_bytes: float, utilization: float, block_tokens: int
) -> int:
    """Return how many K/V blocks fit beside weights and buffers on the fullest rank; negative when these do not fit."""
    blocks = []
    for rank in memory:
        if rank.kv_bytes_per_token == 0:
            continue
        free = device_bytes * utilization - rank.weights_bytes - rank.buffers_bytes
        blocks.append(int(free // (rank.kv_bytes_per_token * block_tokens)))
    return min(blocks)
