"""Small legal deployments of round numbers, from which the tests break one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clustersim.legality.check import check_plan
from clustersim.legality.deployment import Deployment
from clustersim.legality.layout import Layout
from clustersim.legality.rule import Verdict
from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan

GQA = Attention(kind="gqa", num_heads=8, num_kv_heads=4, head_dim=8, v_head_dim=8)
LATENT = Attention(
    kind="mla", num_heads=8, num_kv_heads=1, head_dim=12, v_head_dim=8, kv_lora_rank=20, qk_nope_head_dim=8,
    qk_rope_head_dim=4,
)  # fmt: skip
EXPERTS = Moe(num_experts=8, top_k=2, expert_intermediate=24)


def model(attention: Attention = GQA, ffn: Ffn | Moe | None = None, layers: int = 4) -> ModelSpec:
    """Return a model of 4 equal layers, hidden 64, 1,000 tokens of vocabulary."""
    layer = Layer(attention=attention, ffn=ffn or Ffn(intermediate=96))
    return ModelSpec(name="small", hidden=64, vocab=1000, layers=(layer,) * layers)


def normed(spec: ModelSpec) -> ModelSpec:
    """Return a model with norms behind attention and FFN, scores and logits with soft caps, and scaled embeddings."""
    layers = [replace(one, attention=replace(one.attention, score_cap=50.0), post_norms=True) for one in spec.layers]
    return replace(spec, layers=tuple(layers), logit_cap=30.0, scaled_embedding=True)


RING = SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="idle")
PLAN = ParallelPlan(dp=2, pp=2, tp=2, sp=RING, stages=(Cut(layer=2),), placement=tuple(range(16)))
DENSE = Deployment(plan=PLAN, model=model(), num_devices=16, memory_bytes=2**30, cluster="sixteen")
"""dp 2 × pp 2 × sp 2 × tp 2 on 16 devices; every list is written out."""

BY_HEADS = replace(DENSE, plan=replace(PLAN, sp=replace(RING, scheme="all_to_all")))
SPREAD = replace(
    DENSE,
    model=model(ffn=EXPERTS),
    plan=replace(PLAN, ep=ExpertPlan(degree=2, placement=(0, 1, 0, 1, 0, 1, 0, 1))),
)
"""The same with 8 experts over 2 EP ranks: each expert shared by 2 of a stage's 4 ranks."""
COMPRESSED = replace(DENSE, model=model(LATENT), plan=replace(PLAN, sp=replace(RING, scheme="all_gather")))


def planned(deployment: Deployment, **changes: Any) -> Deployment:
    """Return the deployment with fields of its plan changed."""
    return replace(deployment, plan=replace(deployment.plan, **changes))


def check(deployment: Deployment, layout: Layout | None = None) -> Verdict:
    """Check a deployment."""
    return check_plan(
        plan=deployment.plan,
        model=deployment.model,
        num_devices=deployment.num_devices,
        memory_bytes=deployment.memory_bytes,
        precision=deployment.precision,
        limits=deployment.limits,
        pool=deployment.pool,
        cluster=deployment.cluster,
        decodes_only=deployment.decodes_only,
        layout=layout,
    )


def broken(verdict: Verdict) -> list[str]:
    """Return the ids of the rules that are broken, each once, in order."""
    return list(dict.fromkeys(violation.rule for violation in verdict.violations))
