"""A model and a plan made small enough to be executed: the plan's degrees stay, and so does what they split.

Kept: every degree, the splits, schemes and placement of experts, the kinds of layers and every cut between stages
(inside a layer where it is there), the ratio of query to K/V heads and whether TP splits or copies the latter, the
ratio of experts to experts per token. Reduced: widths, layers of a kind that a stage has already, replicas (each runs
the same graph).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, lcm

from clustersim.model.architecture import Layer, ModelSpec, Moe
from clustersim.model.tiny import tiny
from clustersim.plan.parallel import Cut, ParallelPlan
from clustersim.plan.stages import stage_cuts, stage_layers

_HIDDEN, _INNER, _EXPERT_INNER, _VOCAB, _WINDOW = 24, 16, 8, 48, 6


def shrunk(model: ModelSpec, plan: ParallelPlan, *, positions: int = 256) -> tuple[ModelSpec, ParallelPlan]:
    """Return a small model and the plan for one replica of it.

    Parameters
    ----------
    model : ModelSpec
    plan : ParallelPlan
        Legal for ``model``.
    positions : int
        Longest context.
    """
    small, (found,) = shrunk_together(model, (plan,), positions=positions)
    return small, found


def shrunk_together(
    model: ModelSpec, plans: Sequence[ParallelPlan], *, positions: int = 256
) -> tuple[ModelSpec, tuple[ParallelPlan, ...]]:
    """Return one small model, and each plan for one replica of it; see :func:`shrunk`."""
    kept = tuple(sorted(set().union(*(kept_layers(model, plan) for plan in plans))))
    tp = lcm(*(plan.tp for plan in plans))
    few = replace(model, layers=tuple(model.layers[layer] for layer in kept))
    small = tiny(
        few,
        layers=len(kept),
        hidden=_multiple(_HIDDEN, tp),
        heads=heads_for(model, *plans),
        intermediate=_multiple(_INNER, tp),
        experts=experts_for(model, *plans),
        expert_intermediate=_expert_width(*plans),
        vocab=_multiple(_VOCAB, tp),
        positions=positions,
        sliding_window=_WINDOW,
    )
    return _shared_width(small, tp), tuple(_few_layers(model, plan, kept) for plan in plans)


def _few_layers(model: ModelSpec, plan: ParallelPlan, kept: tuple[int, ...]) -> ParallelPlan:
    """Return a plan for one replica of a model that has only some of the layers."""
    cuts = tuple(
        Cut(layer=sum(layer < cut.layer for layer in kept), before=cut.before) for cut in stage_cuts(model, plan)
    )
    # how often experts are visited is what the random router makes of it, and one copy for each EP rank shows them all
    # and the steps of a proof have few tokens
    copies = plan.ep.degree if plan.ep.redundant else 0
    experts = replace(plan.ep, routing=None, redundant=copies, overlap_decode_tokens=0, overlap_prefill_tokens=0)
    return replace(plan, dp=1, ep=experts, stages=cuts if plan.pp > 1 else None, placement=None)


def kept_layers(model: ModelSpec, plan: ParallelPlan) -> tuple[int, ...]:
    """Return the layers to keep: one of each kind per stage, those that a cut divides, and at least two."""
    kept = {cut.layer for cut in stage_cuts(model, plan) if cut.before == "ffn"}
    for stage in stage_layers(model, plan):
        kinds: dict[tuple[Layer, str], int] = {}
        for layer, part in stage:
            kinds.setdefault((model.layers[layer], part), layer)
        held = {layer for layer, _ in stage}
        for layer in kinds.values():
            same = any(model.layers[one] == model.layers[layer] for one in kept & held)
            if not same:
                kept.add(layer)
    for layer in range(len(model.layers)):
        if len(kept) >= 2:
            break
        kept.add(layer)
    return tuple(sorted(kept))


def heads_for(model: ModelSpec, *plans: ParallelPlan) -> int:
    """Return the fewest query heads that TP and SP split as they split the model's."""
    a = model.layers[0].attention
    parts = lcm(*(plan.tp * (plan.sp.degree if plan.sp.scheme == "all_to_all" else 1) for plan in plans))
    if a.kind in ("mla", "mqa"):
        return _multiple(4, parts)
    share = a.num_heads // a.num_kv_heads
    for kv_heads in range(min(2, a.num_kv_heads), a.num_kv_heads):
        alike = all(_split_alike(kv_heads, a.num_kv_heads, plan.tp) for plan in plans)
        if alike and kv_heads * share % parts == 0:
            return kv_heads * share
    return a.num_heads


def _split_alike(few: int, kv_heads: int, tp: int) -> bool:
    """Return whether TP splits, or copies, so few K/V heads as it does all."""
    same_side = (few >= tp) == (kv_heads >= tp)
    return same_side and (few % tp == 0 or tp % few == 0) and (few > tp or kv_heads <= tp)


def experts_for(model: ModelSpec, *plans: ParallelPlan) -> int | None:
    """Return the fewest experts that keep the ratio to those per token and divide by EP; None without experts."""
    moes = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    if not moes:
        return None
    if any(isinstance(plan.ep.placement, tuple) for plan in plans):
        return moes[0].num_experts
    least = lcm(
        *(plan.ep.degree for plan in plans), *(moe.num_experts // gcd(moe.num_experts, moe.top_k) for moe in moes)
    )
    twice = 2 if all(moe.top_k > 1 for moe in moes) and least < moes[0].num_experts else 1
    return min(least * twice, moes[0].num_experts) if moes[0].num_experts % (least * twice) == 0 else least


def _expert_width(*plans: ParallelPlan) -> int:
    return _multiple(_EXPERT_INNER, lcm(*(degree for plan in plans for degree in (plan.expert_tp, plan.tp))))


def _shared_width(model: ModelSpec, tp: int) -> ModelSpec:
    """Round the width of shared experts up to what TP divides."""

    def wide(layer: Layer) -> Layer:
        moe = layer.ffn
        if not isinstance(moe, Moe) or not moe.num_shared_experts:
            return layer
        return replace(layer, ffn=replace(moe, shared_intermediate=_multiple(max(1, moe.shared_intermediate), tp)))

    return replace(model, layers=tuple(wide(layer) for layer in model.layers))


def _multiple(least: int, of: int) -> int:
    return -(-least // of) * of
