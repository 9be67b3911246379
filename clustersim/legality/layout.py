"""Who holds what under a plan, as plain data: the rules read it, and a test may break it.

:func:`layout_of` derives it from plan and architecture alone, without the code that expands or runs plans; a
simulator that has its own idea of one of these fields can have it checked instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.legality.deployment import Deployment
from clustersim.legality.memory import rank_weight_bytes
from clustersim.legality.shards import Segment, expert_map, kv_heads_held, probe_lengths, segments_of
from clustersim.legality.stages import Module, stages_of
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Contents of the ranks of one replica.

    Parameters
    ----------
    stages : tuple of tuple of Module
        Modules of each stage in order.
    kv_heads : tuple of tuple of tuple of int
        Per layer and TP rank, the K/V heads that it keeps; MLA's latent counts as head 0.
    segments : Mapping from int to tuple of tuple of Segment
        Prompt tokens → runs of tokens that each SP rank prefills; empty at sp 1.
    expert_maps : Mapping from int to tuple of tuple of int
        Number of experts → per rank of a stage, the EP rank of each expert as that rank has it.
    weight_bytes : tuple of float
        Per stage, what its fullest rank is charged for weights.
    exchanges : Mapping from str to tuple of tuple of int
        ``dispatch`` and ``combine``, or the ``all_reduce`` for which tokens stay → the groups of ranks that take it
        together, of a stage, or of all replicas that share experts; none without EP.
    """

    stages: tuple[tuple[Module, ...], ...]
    kv_heads: tuple[tuple[tuple[int, ...], ...], ...]
    segments: Mapping[int, tuple[tuple[Segment, ...], ...]]
    expert_maps: Mapping[int, tuple[tuple[int, ...], ...]]
    weight_bytes: tuple[float, ...]
    exchanges: Mapping[str, tuple[tuple[int, ...], ...]]


def layout_of(deployment: Deployment) -> Layout:
    """Return who holds what, as the plan says."""
    plan, model = deployment.plan, deployment.model
    stages = stages_of(model, plan)
    distinct = {id(layer.attention): layer.attention for layer in model.layers}  # layers share them
    kinds = {key: kv_heads_held(attention, plan.tp) for key, attention in distinct.items()}
    ranks = min(plan.sp.degree * plan.tp, deployment.num_devices)
    return Layout(
        stages=stages,
        kv_heads=tuple(kinds[id(layer.attention)] for layer in model.layers),
        segments={tokens: segments_of(tokens, plan) for tokens in probe_lengths(plan)},
        expert_maps={moe.num_experts: (expert_map(moe.num_experts, plan),) * ranks for moe in deployment.moes},
        weight_bytes=tuple(rank_weight_bytes(deployment, stage) for stage in stages),
        exchanges=_exchanges(deployment),
    )


def _exchanges(deployment: Deployment) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return which ranks exchange together what experts take and make, as the plan's way of it has them."""
    plan, ranks = deployment.plan, deployment.expert_ranks
    if plan.ep.degree == 1 or not deployment.moes or ranks > deployment.num_devices:
        return {}
    if not plan.ep.sends:
        return {"all_reduce": tuple(tuple(range(first, first + plan.tp)) for first in range(0, ranks, plan.tp))}
    return dict.fromkeys(("dispatch", "combine"), (tuple(range(ranks)),))
