"""No false alarm: shipped models under plans that people run, and what the simulator derives from these plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustersim import catalog
from clustersim.cost.precision import Precision, formats_of
from clustersim.legality.check import check_plan
from clustersim.legality.deployment import Deployment
from clustersim.legality.layout import Layout, layout_of
from clustersim.legality.memory import rank_bytes, rank_weight_bytes
from clustersim.legality.plan_rules.memory import fits_memory
from clustersim.legality.stages import modules_of, stages_of
from clustersim.model.architecture import ModelSpec
from clustersim.model.kv import kv_elements_per_token
from clustersim.model.weights import total_parameters
from clustersim.plan.memory import kv_pool_blocks, pool_bytes, stage_memory, utilization_of
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan
from clustersim.plan.pool import PoolRule
from clustersim.plan.segments import segments
from clustersim.plan.stages import stage_layers
from clustersim.scenario.parts import load_model

H100 = 79.1 * 2**30
H200 = 139.8 * 2**30
EP8 = ExpertPlan(degree=8)
RING = SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="dp")
ULYSSES = SequencePlan(degree=4, scheme="all_to_all", partition="contiguous", decode="idle")
GATHER = SequencePlan(degree=2, scheme="all_gather", partition="contiguous", decode="idle")

CORPUS: list[tuple[str, float, ParallelPlan]] = [
    ("llama-2-7b", H100, ParallelPlan()),
    ("opt-13b", H100, ParallelPlan(tp=4)),
    ("llama-3.1-8b", H100, ParallelPlan(dp=8)),
    ("llama-3.1-8b", H100, ParallelPlan(tp=2, sp=RING)),
    ("llama-3.1-8b", H100, ParallelPlan(tp=2, sp=ULYSSES)),
    ("mistral-7b", H100, ParallelPlan(pp=3)),
    ("qwen3-14b", H100, ParallelPlan(tp=8, dp=2)),
    ("qwen3-32b", H100, ParallelPlan(tp=16)),
    ("llama-2-70b", H100, ParallelPlan(tp=8)),
    ("llama-3.1-70b", H100, ParallelPlan(tp=2)),
    ("llama-3.1-70b", H100, ParallelPlan(tp=4, pp=2, stages=(Cut(layer=39, before="ffn"),))),
    ("llama-3.3-70b", H100, ParallelPlan(tp=8, sp=RING)),
    ("mistral-large-123b", H100, ParallelPlan(tp=8, pp=2)),
    ("llama-3.1-405b", H100, ParallelPlan(tp=8, pp=2)),
    ("mixtral-8x7b", H100, ParallelPlan(tp=8, ep=EP8)),
    ("mixtral-8x7b", H100, ParallelPlan(tp=2)),
    ("mixtral-8x22b", H100, ParallelPlan(tp=8)),
    ("qwen3-30b-a3b", H100, ParallelPlan(tp=8, ep=EP8)),
    ("qwen3-235b-a22b", H100, ParallelPlan(tp=4, pp=2, sp=RING, ep=ExpertPlan(degree=8, placement="strided"))),
    ("gpt-oss-120b", H100, ParallelPlan()),
    ("gpt-oss-20b", H100, ParallelPlan(dp=2, tp=4)),
    ("deepseek-v2-lite", H100, ParallelPlan(tp=2, sp=GATHER, ep=ExpertPlan(degree=4))),
    ("deepseek-v3", H200, ParallelPlan(tp=8, ep=EP8)),
    ("deepseek-v3", H100, ParallelPlan(tp=8, pp=2, ep=EP8)),
    ("kimi-k2", H200, ParallelPlan(tp=8, pp=2, ep=EP8)),
]


def deployment(name: str, memory: float, plan: ParallelPlan) -> Deployment:
    model = load_model(name)
    precision = Precision(weights=model.default_weight_dtype)
    return Deployment(plan=plan, model=model, num_devices=16, memory_bytes=int(memory), precision=precision)


@pytest.mark.parametrize(("name", "memory", "plan"), CORPUS)
def test_plan_that_people_run_is_legal(name: str, memory: float, plan: ParallelPlan) -> None:
    given = deployment(name, memory, plan)
    verdict = check_plan(
        plan=plan, model=given.model, num_devices=16, memory_bytes=int(memory), precision=given.precision
    )
    assert verdict.violations == ()


RULES = (
    PoolRule(),
    PoolRule(share_of="free"),
    PoolRule(share_of="free", outside_bytes=1e9),
    PoolRule(share_of="static"),
    PoolRule(share_of="static", margin=0.01),
)
"""What the K/V pool is a share of: all memory, what is free, that beside libraries, what K/V and weights have."""


@pytest.mark.parametrize(("name", "memory", "plan"), CORPUS)
def test_simulator_and_rules_derive_the_same_contents_of_ranks(name: str, memory: float, plan: ParallelPlan) -> None:
    given = deployment(name, memory, plan)
    layout = layout_of(given)
    assert _inner(layout) == stage_layers(given.model, plan)
    for tokens, parts in layout.segments.items():
        assert plan.sp.partition is not None
        assert list(parts) == segments(tokens, plan.sp.degree, plan.sp.partition)
    simulated = stage_memory(
        given.model,
        plan,
        format_of=formats_of(given.precision, given.model),
        activation_bytes=given.precision.activation_bytes,
        kv_bytes=given.precision.kv_bytes,
        max_batch_tokens=given.limits.max_batch_tokens,
        max_batch_requests=given.limits.max_batch_requests,
        rule=given.pool,
    )
    checked = [rank_bytes(given, stage) for stage in layout.stages]
    assert [rank.weights for rank in checked] == pytest.approx([rank.weights_bytes for rank in simulated], rel=0.005)
    assert [rank.kv_per_token for rank in checked] == [rank.kv_bytes_per_token for rank in simulated]
    assert [rank.buffers for rank in checked] == pytest.approx([rank.buffers_bytes for rank in simulated])
    # The pool that is simulated is the largest that the rules let pass, whatever it is a share of.
    limits, pools = given.limits, []
    for rule in RULES:
        pool = kv_pool_blocks(
            simulated,
            device_bytes=given.memory_bytes,
            utilization=limits.memory_utilization,
            block_tokens=limits.kv_block_tokens,
            rule=rule,
        )
        pools.append(pool)
        ruled = replace(given, pool=rule)
        fit = [fits_memory(replace(ruled, limits=replace(limits, kv_blocks=many)), layout) for many in (pool, pool + 1)]
        assert fit == [True, False]
        rank = simulated[-1]
        held = pool_bytes(rank, device_bytes=given.memory_bytes, utilization=limits.memory_utilization, rule=rule)
        share = utilization_of(rank, held, device_bytes=given.memory_bytes, rule=rule)
        assert share <= limits.memory_utilization + 1e-12
        assert pool_bytes(rank, device_bytes=given.memory_bytes, utilization=share, rule=rule) == pytest.approx(held)
    every, free, kept, static, apart = pools
    assert free >= every <= static > apart
    assert free > kept


def _inner(layout: Layout) -> tuple[tuple[tuple[int, str], ...], ...]:
    return tuple(tuple(module for module in stage if module[1] in ("attention", "ffn")) for stage in layout.stages)


@pytest.mark.parametrize("name", catalog.names("scenarios/models"))
def test_one_device_holds_every_parameter_and_the_whole_cache(name: str) -> None:
    given = deployment(name, H100, ParallelPlan())
    whole = rank_bytes(given, modules_of(given.model))
    if given.precision.weights == "bf16":
        assert whole.weights == pytest.approx(2 * total_parameters(given.model), rel=1e-12)
    assert whole.kv_per_token == 2 * sum(kv_elements_per_token(layer.attention) for layer in given.model.layers)


def _llama(plan: ParallelPlan) -> tuple[ModelSpec, Deployment]:
    given = deployment("llama-3.1-8b", H100, plan)
    return given.model, given


def test_ranks_of_a_tp_group_hold_the_model_once_but_for_norms() -> None:
    model, given = _llama(ParallelPlan(tp=8))
    norms = (2 * 32 + 1) * 4096
    each = rank_weight_bytes(given, modules_of(model)) / 2
    assert 8 * each == total_parameters(model) + 7 * norms


def test_sp_divides_no_weights() -> None:
    model, alone = _llama(ParallelPlan(tp=2))
    _, split = _llama(ParallelPlan(tp=2, sp=RING))
    assert rank_weight_bytes(split, modules_of(model)) == rank_weight_bytes(alone, modules_of(model))


def test_tied_head_is_kept_again_by_a_stage_without_the_embedding() -> None:
    _, given = _llama(ParallelPlan(pp=2))
    tied = replace(given, model=replace(given.model, tied_embeddings=True))
    (first, last), (tied_first, tied_last) = [
        [rank_weight_bytes(one, stage) for stage in stages_of(one.model, one.plan)] for one in (given, tied)
    ]
    assert (tied_first, tied_last) == (first, last)
    assert rank_weight_bytes(tied, modules_of(tied.model)) == 2 * total_parameters(tied.model)
