"""Laws of level P over random models and plans: a fix mends, mending ends, and what is legal can be simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.cost.precision import Precision, formats_of
from clustersim.legality.check import examine
from clustersim.legality.deployment import Deployment, ServingLimits
from clustersim.legality.layout import layout_of
from clustersim.legality.repair.candidates import changed
from clustersim.legality.repair.mending import SIZE_RULES, mended
from clustersim.legality.rule import Violation
from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.plan.memory import stage_memory
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.plan.segments import segments
from clustersim.plan.stages import stage_layers
from tests.effort import examples

DEGREES = st.sampled_from([1, 1, 2, 2, 3, 4, 5, 6, 8, 16])
SIZES = st.sampled_from([12, 16, 24, 30, 32, 64, 96])


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3, 4]))
    if draw(st.booleans()):
        kind = "mqa" if kv_heads == 1 else "mha" if heads == kv_heads else "gqa"
        return Attention(kind=kind, num_heads=heads, num_kv_heads=kv_heads, head_dim=8, v_head_dim=8)
    return Attention(
        kind="mla", num_heads=heads, num_kv_heads=1, head_dim=12, v_head_dim=8, kv_lora_rank=20,
        qk_nope_head_dim=8, qk_rope_head_dim=4, q_lora_rank=draw(st.none() | st.just(16)),
    )  # fmt: skip


@st.composite
def moes(draw: st.DrawFn) -> Moe:
    shared = draw(st.sampled_from([0, 1]))
    return Moe(
        num_experts=draw(st.sampled_from([4, 6, 8, 16])),
        top_k=2,
        expert_intermediate=draw(SIZES),
        bias=draw(st.booleans()),
        num_shared_experts=shared,
        shared_intermediate=shared * draw(SIZES),
    )


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    attention = draw(attentions())
    dense, sparse = Ffn(intermediate=draw(SIZES)), draw(moes())
    dense_layers, sparse_layers = draw(st.sampled_from([(4, 0), (0, 4), (1, 5), (8, 0)]))
    layers = (Layer(attention=attention, ffn=dense),) * dense_layers
    layers += (Layer(attention=attention, ffn=sparse),) * sparse_layers
    vocab, hidden = draw(st.sampled_from([(960, 64), (1000, 48), (500, 60)]))
    return ModelSpec(name="random", hidden=hidden, vocab=vocab, layers=layers, tied_embeddings=draw(st.booleans()))


CUTS = st.builds(Cut, layer=st.integers(0, 9), before=st.sampled_from(["attention", "ffn"]))
SPLITS = st.builds(
    TensorSplit,
    embedding=st.sampled_from(["vocab", "hidden"]),
    attention_out=st.sampled_from(["rows", "columns"]),
    ffn_up=st.sampled_from(["columns", "rows"]),
    ffn_down=st.sampled_from(["rows", "columns"]),
    lm_head=st.sampled_from(["vocab", "hidden"]),
)


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    dp, pp, tp, sp = draw(DEGREES), draw(DEGREES), draw(DEGREES), draw(DEGREES)
    few = st.sampled_from(["contiguous", "strided"])
    ranks = st.lists(st.integers(0, 4), min_size=2, max_size=8).map(tuple)
    world = dp * pp * tp * sp
    lists = st.lists(st.integers(-1, 70), min_size=max(1, min(world, 64) - 1), max_size=min(world, 64) + 1)
    return ParallelPlan(
        dp=dp,
        pp=pp,
        tp=tp,
        split=draw(st.just(TensorSplit()) | SPLITS),
        sp=SequencePlan(
            degree=sp,
            scheme=draw(st.sampled_from([None, "ring", "all_gather", "all_to_all"])),
            partition=draw(st.sampled_from([None, "contiguous", "zigzag", "striped"])),
            decode=draw(st.sampled_from([None, "idle", "dp"])),
        ),
        ep=ExpertPlan(
            degree=draw(DEGREES), scope=draw(st.sampled_from(["replica", "global"])), placement=draw(few | ranks)
        ),
        stages=draw(st.none() | st.none() | st.lists(CUTS, max_size=4).map(tuple)),
        placement=draw(st.none() | st.none() | lists.map(tuple)),
    )


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    return Deployment(
        plan=draw(plans()),
        model=draw(models()),
        num_devices=draw(st.sampled_from([1, 4, 8, 16, 64])),
        memory_bytes=draw(st.sampled_from([10**5, 4 * 10**5, 10**6, 2**30])),
        precision=Precision(weights=draw(st.sampled_from(["bf16", "fp8"]))),
        limits=ServingLimits(
            max_batch_tokens=draw(st.sampled_from([1, 64, 8192])),
            max_batch_requests=draw(st.sampled_from([1, 8])),
            kv_blocks=draw(st.none() | st.none() | st.integers(1, 1000)),
        ),
    )


def violations(deployment: Deployment) -> list[Violation]:
    return list(mended(deployment, examine(deployment), examine))


def faults(deployment: Deployment) -> set[tuple[str, str]]:
    return {(rule, fault.where) for rule, finding in examine(deployment).items() for fault in finding.faults}


def mended_throughout(deployment: Deployment) -> Deployment:
    """Return the deployment with one change after the other applied, until no violation has any."""
    for _ in range(30):
        changes = [violation.change for violation in violations(deployment) if violation.change]
        if not changes:
            return deployment
        deployment = changed(deployment, changes[-1])
    raise AssertionError("mending does not end")


@given(deployment=deployments())
@examples(60)
def test_fix_mends_its_violation_and_breaks_no_rule_of_shape(deployment: Deployment) -> None:
    before = faults(deployment)
    for violation in violations(deployment):
        assert violation.fix
        if violation.change:
            after = faults(changed(deployment, violation.change))
            assert (violation.rule, violation.where) not in after
            broken = {rule for rule, _ in after} - {rule for rule, _ in before}
            assert broken <= SIZE_RULES - {violation.rule}


@given(deployment=deployments())
@examples(40)
def test_mending_one_violation_after_the_other_ends_in_a_legal_plan(deployment: Deployment) -> None:
    # What no change of the plan mends is a model that no plan fits into these devices.
    assert {rule for rule, _ in faults(mended_throughout(deployment))} <= {"KV-6"}


@given(deployment=deployments())
@examples(60)
def test_legal_plan_is_the_same_to_the_simulator(deployment: Deployment) -> None:
    deployment = mended_throughout(deployment)
    plan, model, precision = deployment.plan, deployment.model, deployment.precision
    if faults(deployment):
        return
    layout = layout_of(deployment)
    inner = [[module for module in stage if 0 <= module[0] < len(model.layers)] for stage in layout.stages]
    assert inner == [list(stage) for stage in stage_layers(model, plan)]
    for tokens, parts in layout.segments.items():
        assert plan.sp.partition is not None
        assert list(parts) == segments(tokens, plan.sp.degree, plan.sp.partition)
    simulated = stage_memory(
        model,
        plan,
        format_of=formats_of(precision, model),
        activation_bytes=precision.activation_bytes,
        kv_bytes=precision.kv_bytes,
        max_batch_tokens=deployment.limits.max_batch_tokens,
        max_batch_requests=deployment.limits.max_batch_requests,
        rule=deployment.pool,
    )
    assert len(simulated) == len(layout.weight_bytes)
    for charged, rank in zip(layout.weight_bytes, simulated, strict=True):
        assert charged == pytest.approx(rank.weights_bytes)


@given(deployment=deployments(), factor=st.integers(2, 5))
@examples(30)
def test_more_devices_and_memory_never_break_a_rule(deployment: Deployment, factor: int) -> None:
    larger = replace(
        deployment,
        num_devices=deployment.num_devices * factor,
        memory_bytes=deployment.memory_bytes * factor,
    )
    grown = {rule for rule, _ in faults(larger)}
    assert grown <= {rule for rule, _ in faults(deployment)}


@given(deployment=deployments(), tokens=st.integers(1, 10**5), requests=st.integers(1, 10**4))
@examples(30)
def test_batch_size_changes_nothing_but_the_memory_that_buffers_take(
    deployment: Deployment, tokens: int, requests: int
) -> None:
    limits = replace(deployment.limits, max_batch_tokens=tokens, max_batch_requests=requests)
    other = faults(replace(deployment, limits=limits))
    assert {one for one in other if one[0] != "KV-6"} == {one for one in faults(deployment) if one[0] != "KV-6"}
