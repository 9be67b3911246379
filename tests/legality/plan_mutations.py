"""Every mutation of RULES.md's level P: a plan, or who holds what under it, with one thing broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plans import BY_HEADS, COMPRESSED, DENSE, EXPERTS, GQA, RING, SPREAD, check, model, planned

from clustersim.legality.deployment import Deployment, ServingLimits
from clustersim.legality.layout import Layout, layout_of
from clustersim.legality.rule import Verdict
from clustersim.model.architecture import Ffn
from clustersim.plan.parallel import Cut, ExpertPlan, SequencePlan, TensorSplit
from clustersim.plan.pool import PoolRule

BASES = {"dense": DENSE, "by heads": BY_HEADS, "experts": SPREAD, "latent": COMPRESSED}


def limited(**limits: Any) -> Deployment:
    return replace(DENSE, limits=ServingLimits(**limits))


def shaped(deployment: Deployment, **model_parts: Any) -> Deployment:
    return replace(deployment, model=model(**model_parts))


ONE_TOKEN = ServingLimits(max_batch_tokens=1, max_batch_requests=1)
TIGHT = replace(DENSE, memory_bytes=140_000, limits=ONE_TOKEN)
"""126,000 bytes may be filled; stage 1 has weights of 126,080 (see the test of the boundary)."""

MUTATIONS: dict[str, tuple[str, str, Deployment]] = {
    "heads that tp does not divide": (
        "TP-1", "plan.tp",
        shaped(planned(DENSE, tp=4, dp=1, placement=None), attention=replace(GQA, num_heads=10, num_kv_heads=2)),
    ),
    "an FFN that tp does not divide": ("TP-1", "plan.tp", shaped(DENSE, ffn=Ffn(intermediate=97))),
    "a vocabulary that tp does not divide": (
        "TP-1", "plan.tp", replace(DENSE, model=replace(model(), vocab=1001)),
    ),
    "a hidden size that a split by columns does not divide": (
        "TP-1", "plan.tp",
        replace(
            planned(DENSE, split=TensorSplit(attention_out="columns")), model=replace(model(), hidden=65)
        ),
    ),
    "a hidden size that an FFN split by rows does not divide": (
        "TP-1", "plan.tp",
        replace(
            planned(DENSE, split=TensorSplit(ffn_up="rows", ffn_down="columns")), model=replace(model(), hidden=65)
        ),
    ),
    "an expert that its ranks do not divide": (
        "TP-1", "plan.ep", shaped(SPREAD, ffn=replace(EXPERTS, expert_intermediate=25)),
    ),
    "shared experts that tp does not divide": (
        "TP-1", "plan.tp",
        shaped(SPREAD, ffn=replace(EXPERTS, num_shared_experts=1, shared_intermediate=25)),
    ),
    "tp 3 on 8 heads": ("TP-1", "plan.tp", planned(DENSE, tp=3, dp=1, placement=None)),
    # 16 ranks for 8 heads: each head's softmax would be over half of its scores.
    "a softmax that is split between two ranks": (
        "TP-1", "plan.tp", planned(DENSE, tp=16, dp=1, pp=1, sp=SequencePlan(), stages=None, placement=None),
    ),
    "an operator that is split along its softmax": (
        "TP-1", "plan.tp.attention_out",
        planned(DENSE, split=TensorSplit(attention_out="softmax")),  # type: ignore[arg-type]  # not one of the choices
    ),
    "tp 0": ("TP-1", "plan.tp", planned(DENSE, tp=0)),
    "K/V heads of a TP rank that split unevenly over SP": (
        "KV-4", "plan.sp.scheme",
        shaped(
            planned(BY_HEADS, sp=replace(RING, degree=2, scheme="all_to_all")),
            attention=replace(GQA, num_heads=12, num_kv_heads=6),
        ),
    ),
    "more weights than a device holds": ("KV-6", "plan.tp", TIGHT),
    "a pool larger than what is left": ("KV-6", "serving.kv_blocks", limited(kv_blocks=10**6)),
    "a pool larger than its share of what weights and buffers leave": (
        "KV-6", "serving.kv_blocks",
        replace(limited(kv_blocks=10**6), pool=PoolRule(share_of="free", outside_bytes=2**20)),
    ),
    "a pool larger than weights leave of what both share": (
        "KV-6", "serving.kv_blocks",
        replace(limited(kv_blocks=10**6), pool=PoolRule(share_of="static", outside_bytes=2**20)),
    ),
    "a pool larger than what the engine leaves": (
        "KV-6", "serving.kv_blocks", replace(limited(kv_blocks=10**6), pool=PoolRule(outside_bytes=2**20)),
    ),
    "a batch whose buffers leave no room": (
        "KV-6", "serving.max_batch_tokens", limited(max_batch_tokens=2**21),
    ),
    "no scheme": ("SP-1", "plan.sp.scheme", planned(DENSE, sp=replace(RING, scheme=None))),
    "no partition": ("SP-1", "plan.sp.partition", planned(DENSE, sp=replace(RING, partition=None))),
    "heads of a TP rank that sp does not divide": (
        "SP-1", "plan.sp.scheme", shaped(BY_HEADS, attention=replace(GQA, num_heads=10, num_kv_heads=2)),
    ),
    "silence about decode": ("SP-3", "plan.sp.decode", planned(DENSE, sp=replace(RING, decode=None))),
    "segments in a pool that only decodes": ("SP-3", "plan.sp", replace(DENSE, decodes_only=True)),
    "a cut too many": ("PP-1", "plan.stages.cuts", planned(DENSE, stages=(Cut(layer=1), Cut(layer=2)))),
    "a cut too few": ("PP-1", "plan.stages.cuts", planned(DENSE, stages=())),
    "a cut behind the last layer": ("PP-1", "plan.stages.cuts[0]", planned(DENSE, stages=(Cut(layer=4),))),
    "a cut inside a layer that is not there": (
        "PP-1", "plan.stages.cuts[0]", planned(DENSE, stages=(Cut(layer=4, before="ffn"),)),
    ),
    "a cut before the first module": ("PP-1", "plan.stages.cuts[0]", planned(DENSE, stages=(Cut(layer=0),))),
    "cuts out of order": (
        "PP-1", "plan.stages.cuts[1]",
        planned(DENSE, dp=1, pp=3, stages=(Cut(layer=3), Cut(layer=1)), placement=None),
    ),
    "the same cut twice": (
        "PP-1", "plan.stages.cuts[1]",
        planned(DENSE, dp=1, pp=3, stages=(Cut(layer=2), Cut(layer=2)), placement=None),
    ),
    "more stages than modules": (
        "PP-1", "plan.pp",
        planned(DENSE, dp=1, pp=16, tp=1, sp=SequencePlan(), stages=None, placement=tuple(range(16))),
    ),
    "tokens stay, and experts are on other SP ranks": (
        "EP-8", "plan.ep.exchange", planned(SPREAD, ep=ExpertPlan(degree=2, exchange="all_reduce")),
    ),
    "EP on a dense model": ("EP-1", "plan.ep", planned(DENSE, ep=ExpertPlan(degree=2))),
    "a placement of experts on a dense model": (
        "EP-1", "plan.ep", planned(DENSE, ep=ExpertPlan(placement=(0, 0))),
    ),
    "experts that ep does not divide": (
        "EP-1", "plan.ep", shaped(planned(SPREAD, ep=ExpertPlan(degree=4)), ffn=replace(EXPERTS, num_experts=6)),
    ),
    "ranks that ep does not divide": ("EP-1", "plan.ep", planned(SPREAD, ep=ExpertPlan(degree=8))),
    "an expert nowhere": (
        "EP-1", "plan.ep.placement", planned(SPREAD, ep=ExpertPlan(degree=2, placement=(0, 1, 0, 1, 0, 1, 0))),
    ),
    "an expert that the model does not have": (
        "EP-1", "plan.ep.placement", planned(SPREAD, ep=ExpertPlan(degree=2, placement=(0, 1) * 5)),
    ),
    "an expert on a rank that is not there": (
        "EP-1", "plan.ep.placement[7]",
        planned(SPREAD, ep=ExpertPlan(degree=2, placement=(0, 1, 0, 1, 0, 1, 0, 2))),
    ),
    "EP ranks with unequal numbers of experts": (
        "EP-1", "plan.ep.placement",
        planned(SPREAD, ep=ExpertPlan(degree=2, placement=(0, 1, 0, 1, 0, 1, 0, 0))),
    ),
    "copies of experts that don't spread evenly": (
        "EP-1", "plan.ep.redundant", planned(SPREAD, ep=ExpertPlan(degree=2, redundant=3)),
    ),
    "more copies than there are places": (
        "EP-1", "plan.ep.redundant", planned(SPREAD, ep=ExpertPlan(degree=2, redundant=10)),
    ),
    # sp 3 × tp 2 = 6 ranks, ep 2: ranks 0 1 2 | 3 4 5 share experts, and cut the TP group 2 3.
    "an expert that cuts across TP groups": (
        "EP-6", "plan.ep",
        planned(SPREAD, dp=1, sp=replace(RING, degree=3), ep=ExpertPlan(degree=2), placement=None),
    ),
    "more ranks than devices": ("DP-1", "plan.dp", planned(DENSE, dp=3, placement=None)),
    "half a replica": ("DP-1", "plan.placement", planned(DENSE, placement=tuple(range(12)))),
    "ranks that the plan does not have": ("DP-1", "plan.placement", planned(DENSE, dp=1)),
    "a device twice": ("DP-1", "plan.placement[1]", planned(DENSE, placement=(0, 0, *range(2, 16)))),
    "a device that is not there": ("DP-1", "plan.placement[15]", planned(DENSE, placement=(*range(15), 16))),
    "32 devices stated, 8 used": (
        "DP-1", "plan.devices",
        replace(planned(DENSE, dp=1, devices=32, placement=None), num_devices=32),
    ),
    "16 devices used, 15 stated": ("DP-1", "plan.devices", planned(DENSE, devices=15)),
    "dp 0": ("DP-1", "plan.dp", planned(DENSE, dp=0)),
}  # fmt: skip


SWAPPED = ((2, 3), (0, 1))


def _moved(stages: Any, source: int, target: int) -> Any:
    """Return stages with the last module of one added at the front of the other."""
    return tuple((stages[source][-1], *stage) if at == target else stage for at, stage in enumerate(stages))


LAYOUT_MUTATIONS: dict[str, tuple[str, str, Deployment, Callable[[Layout], dict[str, Any]]]] = {
    "an orphaned head": (
        "KV-4", "plan.tp", DENSE, lambda layout: {"kv_heads": (((0,), (2, 3)), *layout.kv_heads[1:])},
    ),
    "an undeclared copy": (
        "KV-4", "plan.tp", DENSE, lambda layout: {"kv_heads": (((0, 1), (1, 2, 3)), *layout.kv_heads[1:])},
    ),
    "a latent on one TP rank only": (
        "KV-4", "plan.tp", COMPRESSED, lambda layout: {"kv_heads": (((0,), ()), *layout.kv_heads[1:])},
    ),
    "heads in another order": (
        "TP-9", "plan.tp", DENSE, lambda layout: {"kv_heads": (SWAPPED, *layout.kv_heads[1:])},
    ),
    "heads in another order in two layers apart": (
        "TP-9", "plan.tp", DENSE,
        lambda layout: {"kv_heads": (SWAPPED, layout.kv_heads[1], SWAPPED, layout.kv_heads[3])},
    ),
    "a gap between segments": (
        "SP-1", "plan.sp.partition", DENSE, lambda _: {"segments": {8: (((0, 2), (6, 8)), ((3, 6),))}},
    ),
    "overlapping segments": (
        "SP-1", "plan.sp.partition", DENSE, lambda _: {"segments": {8: (((0, 4),), ((3, 8),))}},
    ),
    "stripes that begin a token late": (
        "SP-1", "plan.sp.partition", DENSE, lambda _: {"segments": {8: (((1, 8, 2),), ((2, 8, 2),))}},
    ),
    "a segment that reaches into the next sequence": (
        "SP-7", "plan.sp.partition", DENSE, lambda _: {"segments": {8: (((0, 4),), ((4, 9),))}},
    ),
    "weights divided by sp": (
        "SP-9", "plan.sp", DENSE,
        lambda layout: {"weight_bytes": tuple(size / 2 for size in layout.weight_bytes)},
    ),
    "a module left out": (
        "PP-1", "plan.stages", DENSE, lambda layout: {"stages": (layout.stages[0][:-1], layout.stages[1])},
    ),
    "a module placed twice": (
        "PP-1", "plan.stages", DENSE, lambda layout: {"stages": _moved(layout.stages, 0, 1)},
    ),
    "two stages as one": (
        "PP-1", "plan.stages", DENSE,
        lambda layout: {
            "stages": (layout.stages[0] + layout.stages[1],), "weight_bytes": (sum(layout.weight_bytes),),
        },
    ),
    "modules in another order": (
        "PP-1", "plan.stages", DENSE,
        lambda layout: {"stages": (tuple(reversed(layout.stages[0])), layout.stages[1])},
    ),
    "two ranks with different maps of experts": (
        "EP-6", "plan.ep.placement", SPREAD,
        lambda layout: {"expert_maps": {8: (*layout.expert_maps[8][:3], (1, 0) * 4)}},
    ),
    "each rank dispatches by itself": (
        "EP-8", "plan.ep.exchange", SPREAD,
        lambda layout: {"exchanges": layout.exchanges | {"dispatch": ((0,), (1,), (2,), (3,))}},
    ),
    "two halves of the ranks dispatch": (
        "EP-8", "plan.ep.exchange", SPREAD,
        lambda layout: {"exchanges": layout.exchanges | {"dispatch": ((0, 1), (2, 3))}},
    ),
    "the combine has another group": (
        "EP-8", "plan.ep.exchange", SPREAD,
        lambda layout: {"exchanges": layout.exchanges | {"combine": ((0, 1, 2, 5),)}},
    ),
}  # fmt: skip

PLAN_RULE: dict[str, str] = {name: rule for name, (rule, *_) in (*MUTATIONS.items(), *LAYOUT_MUTATIONS.items())}
"""Mutation → the rule that it breaks."""


def verdict_of(name: str) -> Verdict:
    """Check a mutation."""
    if name in MUTATIONS:
        return check(MUTATIONS[name][2])
    _, _, deployment, mutate = LAYOUT_MUTATIONS[name]
    layout = layout_of(deployment)
    return check(deployment, replace(layout, **mutate(layout)))
