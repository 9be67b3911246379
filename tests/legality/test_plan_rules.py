"""Every rule of level P: a legal plan, one thing broken, and exactly that rule's violation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from plans import BY_HEADS, COMPRESSED, DENSE, EXPERTS, GQA, RING, SPREAD, broken, check, model, planned

from clustersim.legality.check import PLAN_CHECKS
from clustersim.legality.deployment import Deployment, ServingLimits
from clustersim.legality.layout import Layout, layout_of
from clustersim.legality.repair import changed
from clustersim.legality.rule import LookedAt, Verdict, Violation, together
from clustersim.legality.rulebook import RULES
from clustersim.model.architecture import Ffn
from clustersim.plan.parallel import Cut, ExpertPlan, TensorSplit

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
    "an expert that its ranks do not divide": (
        "TP-1", "plan.ep", shaped(SPREAD, ffn=replace(EXPERTS, expert_intermediate=25)),
    ),
    "shared experts that tp does not divide": (
        "TP-1", "plan.tp",
        shaped(SPREAD, ffn=replace(EXPERTS, num_shared_experts=1, shared_intermediate=25)),
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
    "a batch whose buffers leave no room": (
        "KV-6", "serving.max_batch_tokens", limited(max_batch_tokens=2**21),
    ),
    "no scheme": ("SP-1", "plan.sp.scheme", planned(DENSE, sp=replace(RING, scheme=None))),
    "no partition": ("SP-1", "plan.sp.partition", planned(DENSE, sp=replace(RING, partition=None))),
    "heads of a TP rank that sp does not divide": (
        "SP-1", "plan.sp.scheme", shaped(BY_HEADS, attention=replace(GQA, num_heads=10, num_kv_heads=2)),
    ),
    "a ring of latents": ("SP-1", "plan.sp.scheme", planned(COMPRESSED, sp=RING)),
    "silence about decode": ("SP-3", "plan.sp.decode", planned(DENSE, sp=replace(RING, decode=None))),
    "a cut too many": ("PP-1", "plan.stages.cuts", planned(DENSE, stages=(Cut(layer=1), Cut(layer=2)))),
    "a cut too few": ("PP-1", "plan.stages.cuts", planned(DENSE, stages=())),
    "a cut behind the last layer": ("PP-1", "plan.stages.cuts[0]", planned(DENSE, stages=(Cut(layer=4),))),
    "a cut before the first module": ("PP-1", "plan.stages.cuts[0]", planned(DENSE, stages=(Cut(layer=0),))),
    "cuts out of order": (
        "PP-1", "plan.stages.cuts[1]",
        planned(DENSE, dp=1, pp=3, stages=(Cut(layer=3), Cut(layer=1)), placement=None),
    ),
    "the same cut twice": (
        "PP-1", "plan.stages.cuts[1]",
        planned(DENSE, dp=1, pp=3, stages=(Cut(layer=2), Cut(layer=2)), placement=None),
    ),
    "more stages than layers": (
        "PP-1", "plan.pp", planned(DENSE, dp=1, pp=8, tp=1, stages=None, placement=tuple(range(16))),
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
    "an expert on a rank that is not there": (
        "EP-1", "plan.ep.placement[7]",
        planned(SPREAD, ep=ExpertPlan(degree=2, placement=(0, 1, 0, 1, 0, 1, 0, 2))),
    ),
    "EP ranks with unequal numbers of experts": (
        "EP-1", "plan.ep.placement",
        planned(SPREAD, ep=ExpertPlan(degree=2, placement=(0, 1, 0, 1, 0, 1, 0, 0))),
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
    "dp 0": ("DP-1", "plan.dp", planned(DENSE, dp=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", BASES)
def test_base_plan_is_legal(name: str) -> None:
    verdict = check(BASES[name])
    assert verdict.violations == ()
    assert verdict.verdict == "legal"


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_breaks_exactly_its_rule(name: str) -> None:
    rule, where, deployment = MUTATIONS[name]
    verdict = check(deployment)
    assert [(found.rule, found.where) for found in verdict.violations] == [(rule, where)]
    assert verdict.verdict == "illegal"
    assert verdict.of(rule) == "illegal"


@pytest.mark.parametrize("name", MUTATIONS)
def test_fix_of_a_mutation_makes_the_plan_legal(name: str) -> None:
    _, _, deployment = MUTATIONS[name]
    (violation,) = check(deployment).violations
    assert violation.change
    assert check(changed(deployment, violation.change)).verdict == "legal"


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
        "TP-9", "plan.tp", DENSE, lambda layout: {"kv_heads": (((2, 3), (0, 1)), *layout.kv_heads[1:])},
    ),
    "a gap between segments": (
        "SP-1", "plan.sp.partition", DENSE, lambda _: {"segments": {8: (((0, 2), (6, 8)), ((3, 6),))}},
    ),
    "overlapping segments": (
        "SP-1", "plan.sp.partition", DENSE, lambda _: {"segments": {8: (((0, 4),), ((3, 8),))}},
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
    "modules in another order": (
        "PP-1", "plan.stages", DENSE,
        lambda layout: {"stages": (tuple(reversed(layout.stages[0])), layout.stages[1])},
    ),
    "two ranks with different maps of experts": (
        "EP-6", "plan.ep.placement", SPREAD,
        lambda layout: {"expert_maps": {8: (*layout.expert_maps[8][:3], (1, 0) * 4)}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUT_MUTATIONS)
def test_mutation_of_who_holds_what_breaks_exactly_its_rule(name: str) -> None:
    rule, where, deployment, mutate = LAYOUT_MUTATIONS[name]
    layout = layout_of(deployment)
    verdict = check(deployment, replace(layout, **mutate(layout)))
    assert [(found.rule, found.where) for found in verdict.violations] == [(rule, where)]


def test_every_rule_of_level_p_is_checked_and_has_a_mutation() -> None:
    of_level_p = [rule.id for rule in RULES if "P" in rule.levels]
    assert list(PLAN_CHECKS) == of_level_p
    mutated = {rule for rule, *_ in (*MUTATIONS.values(), *LAYOUT_MUTATIONS.values())}
    assert sorted(mutated) == sorted(of_level_p)


def test_all_violations_are_reported_at_once() -> None:
    plan = planned(DENSE, sp=replace(RING, scheme=None, decode=None), stages=(), ep=ExpertPlan(degree=2))
    verdict = check(replace(plan, memory_bytes=100_000, num_devices=8))
    assert broken(verdict) == ["KV-6", "SP-1", "SP-3", "PP-1", "EP-1", "DP-1"]


def test_kv_heads_beside_tp_break_both_the_division_and_the_cache() -> None:
    # 12 query heads on 6 ranks, 4 K/V heads of 3 queries each: rank 1 has queries 2 and 3, of heads 0 and 1.
    deployment = shaped(
        planned(DENSE, tp=6, sp=replace(RING, degree=1), dp=1, pp=1, stages=None, placement=None),
        attention=replace(GQA, num_heads=12, num_kv_heads=4),
        ffn=Ffn(intermediate=96),
    )
    deployment = replace(deployment, model=replace(deployment.model, vocab=1200))
    assert broken(check(deployment)) == ["KV-4", "TP-1"]


def test_tp_beyond_the_kv_heads_replicates_them_as_declared() -> None:
    deployment = planned(DENSE, tp=8, dp=1, pp=1, stages=None, placement=None)
    assert layout_of(deployment).kv_heads[0] == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))
    assert check(deployment).of("KV-4") == "legal"


def test_message_and_fix_read_as_the_style_guide_shows() -> None:
    attention = replace(GQA, num_heads=64, num_kv_heads=8)
    spec = replace(model(attention, Ffn(intermediate=28672)), vocab=128256, name="llama-3.1-70b")
    plan = replace(DENSE.plan, tp=6, dp=1, placement=None)
    deployment = Deployment(plan=plan, model=spec, num_devices=64, memory_bytes=2**36)
    (violation,) = check(deployment).violations
    assert f"{violation.where}: {violation.message}; {violation.fix}" == (
        "plan.tp: 6 does not divide 64 attention heads (llama-3.1-70b); use 1, 2, 4, 8, 16, 32 or 64"
    )
    assert violation.change == (("plan.tp.degree", 4),)


def test_memory_rule_counts_to_the_byte() -> None:
    # A layer on a rank of stage 1 (tp 2, bf16): q, k, v 64·(4 + 2 + 2)·8, out 4·8·64, FFN 3·64·48, norms 2·64
    # = 15,488 parameters. Two layers, half the head 500·64, the last norm 64: 63,040 = 126,080 bytes.
    # Buffers for one token: 5·64, the FFN's 3·48, one layer's K/V 2·16 = 496 = 992 bytes; logits 1,000·4.
    # One block of K/V: 16 tokens · 2 layers · 2 heads · (8 + 8) = 2,048 bytes.
    needed = 126_080 + 992 + 4_000 + 2_048
    fits, short = (
        replace(DENSE, memory_bytes=memory, limits=replace(ONE_TOKEN, memory_utilization=0.5))
        for memory in (2 * needed, 2 * needed - 1)
    )
    assert broken(check(fits)) == []
    assert broken(check(short)) == ["KV-6"]


def test_memory_rule_names_gib_and_every_way_to_fit() -> None:
    spec = replace(model(ffn=Ffn(intermediate=2**20)), name="wide")  # 1.5 GiB of FFN in 4 layers
    alone = Deployment(plan=type(DENSE.plan)(), model=spec, num_devices=4, memory_bytes=2**30, limits=ONE_TOKEN)
    (violation,) = check(alone).violations
    assert violation.where == "plan.tp"
    assert violation.message.startswith("a rank of stage 0 needs 1.50 GiB of weights + 0.01 GiB of buffers")
    assert violation.message.endswith("= 1.51 GiB, but 90% of a device's 1.00 GiB is 0.90 GiB")
    assert violation.fix == "use plan.tp 2, plan.pp 2 or fp8 weights"
    assert violation.change == (("plan.tp.degree", 2),)


def test_model_that_fits_no_plan_of_the_cluster_asks_for_more_memory() -> None:
    (violation,) = check(replace(DENSE, memory_bytes=1_000)).violations
    assert violation.fix == "use devices with more memory, or more of them than 16"
    assert violation.change == ()


def test_plan_larger_than_the_cluster_names_the_numbers_and_the_largest_that_fits() -> None:
    (violation,) = check(planned(DENSE, dp=5, placement=None)).violations
    assert violation.message == "dp 5 × pp 2 × sp 2 × tp 2 = 40 ranks, but sixteen has 16 devices"
    assert violation.fix == "use plan.dp 2"


def test_degree_below_one_leaves_nothing_else_to_look_at() -> None:
    verdict = check(planned(DENSE, pp=0, sp=replace(RING, degree=-1)))
    assert [(found.rule, found.message) for found in verdict.violations] == [
        ("SP-1", "a degree must be at least 1, not -1"),
        ("PP-1", "a degree must be at least 1, not 0"),
    ]
    assert [rule.id for rule in verdict.rules if rule.looked_at] == ["SP-1", "PP-1"]


@pytest.mark.parametrize(
    "change",
    [
        {"dp": 10**12},
        {"pp": 10**12, "stages": None},
        {"tp": 10**12},
        {"sp": replace(RING, degree=10**12)},
        {"ep": ExpertPlan(degree=10**12)},
    ],
)
def test_degree_beyond_any_cluster_is_answered_at_once(change: dict[str, Any]) -> None:
    verdict = check(planned(SPREAD, placement=None, **change))
    assert verdict.verdict == "illegal"
    assert all(violation.change for violation in verdict.violations)


def test_rule_with_nothing_to_look_at_is_not_checkable() -> None:
    alone = replace(DENSE, plan=type(DENSE.plan)())
    verdict = check(alone)
    assert verdict.verdict == "legal"
    silent = [rule for rule in PLAN_CHECKS if verdict.of(rule) == "not_checkable"]
    assert silent == ["TP-1", "TP-9", "SP-1", "SP-3", "SP-7", "SP-9", "EP-1", "EP-6"]


def test_verdict_of_rules_that_all_saw_nothing_is_not_checkable() -> None:
    nothing = Verdict(violations=(), rules=(LookedAt(id="EP-2", level="T", looked_at=0),))
    assert nothing.verdict == "not_checkable"
    assert together((nothing, check(DENSE))).verdict == "legal"


def test_verdict_as_json_has_the_keys_of_the_contract() -> None:
    violation = Violation(rule="EP-1", level="P", where="plan.ep", message="no", fix="use 1", change=(("a", 1),))
    verdict = Verdict(violations=(violation,), rules=(LookedAt(id="EP-1", level="P", looked_at=3),))
    assert verdict.as_json() == {
        "verdict": "illegal",
        "violations": [
            {"rule": "EP-1", "level": "P", "where": "plan.ep", "message": "no", "fix": "use 1"},
        ],
        "rules": [{"id": "EP-1", "level": "P", "looked_at": 3}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("deployment", "rule", "words"),
    [
        (planned(DENSE, sp=replace(RING, decode=None)), "SP-3", "SP can parallelise decode is a failure-prone"),
        (DENSE, "SP-9", "SP is TP is a failure-prone"),
    ],
)
def test_failure_prone_assumption_is_named(deployment: Deployment, rule: str, words: str) -> None:
    layout = layout_of(deployment)
    halved = replace(layout, weight_bytes=tuple(size / 2 for size in layout.weight_bytes))
    found = [violation.message for violation in check(deployment, halved).violations if violation.rule == rule]
    assert [words in message for message in found] == [True] * len(found)
    assert found
