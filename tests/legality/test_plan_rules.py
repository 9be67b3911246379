"""Every rule of level P: a legal plan, one thing broken, and exactly that rule's violation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_mutations import BASES, LAYOUT_MUTATIONS, MUTATIONS, ONE_TOKEN, PLAN_RULE, shaped, verdict_of
from plans import COMPRESSED, DENSE, GQA, RING, SPREAD, broken, check, model, planned

from clustersim.legality import check as checking
from clustersim.legality.check import PLAN_CHECKS
from clustersim.legality.deployment import Deployment, ServingLimits
from clustersim.legality.layout import layout_of
from clustersim.legality.repair.candidates import changed
from clustersim.legality.repair.nearest import Scope, Search
from clustersim.legality.rule import LookedAt, Verdict, Violation, together
from clustersim.legality.rulebook import RULES
from clustersim.model.architecture import Ffn
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from tests.legality.timeline.golden import compare


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


@pytest.mark.parametrize("name", LAYOUT_MUTATIONS)
def test_mutation_of_who_holds_what_breaks_exactly_its_rule(name: str) -> None:
    rule, where, deployment, mutate = LAYOUT_MUTATIONS[name]
    layout = layout_of(deployment)
    verdict = check(deployment, replace(layout, **mutate(layout)))
    assert [(found.rule, found.where) for found in verdict.violations] == [(rule, where)]


@pytest.mark.parametrize("name", PLAN_RULE)
def test_rule_is_necessary(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its rule switched off, an illegal plan passes."""
    others = {rule: look for rule, look in PLAN_CHECKS.items() if rule != PLAN_RULE[name]}
    monkeypatch.setattr(checking, "PLAN_CHECKS", others)
    assert verdict_of(name).violations == ()


def test_matrix_of_mutations_and_rules_is_as_it_was(request: pytest.FixtureRequest) -> None:
    caught = {name: " ".join(broken(verdict_of(name))) for name in PLAN_RULE}
    lines = [f"{PLAN_RULE[name]:6}  {name:52}  {rules}" for name, rules in caught.items()]
    compare(request, Path(__file__).with_name("plan_matrix.txt"), "\n".join(sorted(lines)) + "\n")


def test_every_rule_of_level_p_is_checked_and_has_a_mutation() -> None:
    of_level_p = [rule.id for rule in RULES if "P" in rule.levels]
    assert list(PLAN_CHECKS) == of_level_p
    assert set(PLAN_RULE.values()) == set(of_level_p)


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


def test_what_is_not_built_is_neither_illegal_nor_offered() -> None:
    assert check(planned(COMPRESSED, sp=RING)).violations == ()
    silent = planned(COMPRESSED, sp=replace(RING, scheme=None))
    (violation,) = check(silent).violations
    assert (violation.fix, violation.change) == ("use all_gather", (("plan.sp.scheme", "all_gather"),))
    found = next(Search([Scope(deployment=planned(COMPRESSED, sp=replace(RING, decode=None)))]).legal())
    assert found.state == {"plan.sp.decode": "idle", "plan.sp.scheme": "all_gather"}


def test_message_and_fix_read_as_the_style_guide_shows() -> None:
    attention = replace(GQA, num_heads=64, num_kv_heads=8)
    spec = replace(model(attention, Ffn(intermediate=28672)), vocab=128256, name="llama-3.1-70b")
    plan = replace(DENSE.plan, tp=6, dp=1, placement=None)
    deployment = Deployment(plan=plan, model=spec, num_devices=64, memory_bytes=2**36)
    (violation,) = check(deployment).violations
    assert f"{violation.where}: {violation.message}; {violation.fix}" == (
        "plan.tp: 6 does not divide 64 attention heads (llama-3.1-70b); use 1, 2, 4, 8 or 16"
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


@pytest.mark.parametrize(
    "absurd", [{"kv_block_tokens": 2**53 - 1}, {"max_batch_requests": 2**53 - 1}, {"memory_utilization": 1e-300}]
)
def test_one_absurd_limit_is_named_and_mended(absurd: dict[str, Any]) -> None:
    plain = replace(DENSE, plan=ParallelPlan(), limits=ServingLimits(kv_blocks=2, **absurd))
    assert check(replace(plain, limits=ServingLimits(kv_blocks=2))).verdict == "legal"
    (violation,) = check(plain).violations
    ((path, value),) = violation.change
    assert violation.where == path == f"serving.{next(iter(absurd))}"
    assert violation.fix == f"use {path} {value}"


def test_rule_with_nothing_to_look_at_is_not_checkable() -> None:
    alone = replace(DENSE, plan=type(DENSE.plan)())
    verdict = check(alone)
    assert verdict.verdict == "legal"
    silent = [rule for rule in PLAN_CHECKS if verdict.of(rule) == "not_checkable"]
    assert silent == ["TP-1", "TP-9", "SP-1", "SP-3", "SP-7", "SP-9", "EP-1", "EP-6", "EP-8"]


def test_verdict_of_rules_that_all_saw_nothing_is_not_checkable() -> None:
    nothing = Verdict(violations=(), rules=(LookedAt(id="EP-2", level="T", looked_at=0),))
    assert nothing.verdict == "not_checkable"
    assert together((nothing, check(DENSE))).verdict == "legal"


def test_verdict_as_json_has_the_keys_of_the_contract() -> None:
    violation = Violation(rule="EP-1", level="P", where="plan.ep", message="no", fix="use 1", change=(("a", 1),))
    verdict = Verdict(violations=(violation,), rules=(LookedAt(id="EP-1", level="P", looked_at=3),))
    assert verdict.as_json() == {
        "verdict": "illegal",
        "levels": {"P": "illegal"},
        "violations": [
            {"rule": "EP-1", "level": "P", "where": "plan.ep", "message": "no", "fix": "use 1"},
        ],
        "rules": [{"id": "EP-1", "level": "P", "looked_at": 3}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("deployment", "rule", "words"),
    [
        (planned(DENSE, sp=replace(RING, decode=None)), "SP-3", "SP can't parallelise it"),
        (DENSE, "SP-9", "SP is not TP"),
    ],
)
def test_failure_prone_assumption_is_named(deployment: Deployment, rule: str, words: str) -> None:
    layout = layout_of(deployment)
    halved = replace(layout, weight_bytes=tuple(size / 2 for size in layout.weight_bytes))
    found = [violation.message for violation in check(deployment, halved).violations if violation.rule == rule]
    assert [words in message for message in found] == [True] * len(found)
    assert found
