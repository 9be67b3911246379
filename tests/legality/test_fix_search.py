"""The search for the nearest legal plan: what is meant is kept, and there is a reason for every change."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from clustersim.errors import InputError
from clustersim.legality.repair import nearest
from clustersim.legality.repair.candidates import changed
from clustersim.legality.repair.distance import change_distance, idle_distance
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario, load
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.schema import SHORTHANDS
from clustersim.simulation.legality import check_scenario, deployment_of
from clustersim.simulation.repair.fix import fix_scenario
from tests.effort import examples
from tests.laws.random_scenarios import documents

Document = dict[str, Any]

MUTATIONS = {
    "plan.tp": (3, 5, 6, 7, 8, 16, 32),
    "plan.pp": (5, 6, 9, 16),
    "plan.dp": (4, 7, 100),
    "plan.sp": (2, {"degree": 3, "scheme": "all_to_all", "partition": "zigzag", "decode": "dp"},
                {"degree": 2, "scheme": "ring", "partition": "zigzag"}),
    "plan.ep": (2, 3, 16, {"degree": 2, "placement": [0, 1, 0]}),
    "plan.stages": ({"cuts": [99]}, {"cuts": [1, 1]}, {"cuts": ["1.ffn"]}, {"cuts": [0]}),
    "plan.placement": ([0, 0], [1], list(range(8))),
    "serving.kv_blocks": (10**9,),
    "serving.max_batch_tokens": (10**8,),
}  # fmt: skip
"""Path → values that may make a small scenario illegal."""


def scenario_of(document: Document, changes: dict[str, Any] | None = None) -> Scenario:
    """Build a scenario with values changed."""
    base = parse_yaml(yaml.safe_dump(document | {"run": {}}), "random.yaml")
    texts = [f"{path}={yaml.safe_dump(value, default_flow_style=True).strip().removesuffix('...')}"
             for path, value in (changes or {}).items()]  # fmt: skip
    return build_scenario(apply_overrides(base, texts, SHORTHANDS))


def is_built(document: Document, changes: dict[str, Any] | None = None) -> bool:
    """Whether there is such a scenario: a ring of latents, say, is neither illegal nor built."""
    try:
        scenario_of(document, changes)
    except InputError:
        return False
    return True


def faults_of(document: Document, changes: dict[str, Any], rule: str = "") -> list[str]:
    """Return what a rule finds (any of them, without one), or why there is no such scenario."""
    try:
        scenario = scenario_of(document, changes)
    except InputError as error:
        return [str(error)]
    return [found.message for found in check_scenario(scenario).violations if rule in ("", found.rule)]


@st.composite
def mutated(draw: st.DrawFn) -> Document:
    """Draw a legal scenario, and change one to four of its fields."""
    document = draw(documents())
    for path in draw(st.lists(st.sampled_from(sorted(MUTATIONS)), min_size=1, max_size=4, unique=True)):
        part, key = path.split(".")
        document[part] = document[part] | {key: draw(st.sampled_from(MUTATIONS[path]))}
    assume(is_built(document))
    return document


@examples(10, sieved=True)
@given(mutated())
def test_the_fixed_scenario_is_legal_and_no_part_of_its_changes_is(document):
    broken = scenario_of(document)
    fix = fix_scenario(broken)
    before = check_scenario(broken)
    assert fix.changes is not None, fix.reason
    assert bool(fix.changes) == (before.verdict == "illegal")
    changes = {change.path: change.new for change in fix.changes}
    assert len(changes) == len(fix.changes)
    assert check_scenario(scenario_of(document, changes)).verdict == "legal"
    for size in range(1, len(changes)):
        for part in combinations(changes, size):
            assert faults_of(document, {path: changes[path] for path in part}), f"{part} are enough"


@examples(10, sieved=True)
@given(mutated())
def test_every_change_is_asked_for_by_a_rule_that_is_broken_without_it(document):
    fix = fix_scenario(scenario_of(document))
    changes = {change.path: change.new for change in fix.changes}
    for change in fix.changes:
        others = {path: value for path, value in changes.items() if path != change.path}
        assert any(change.message in fault for fault in faults_of(document, others, change.rule))


@examples(20, sieved=True)
@given(mutated())
def test_where_one_rule_is_broken_at_one_place_no_advice_is_nearer_than_what_is_done(document):
    scenario = scenario_of(document)
    violations = check_scenario(scenario).violations
    if len(violations) != 1:
        return
    (best,) = fix_scenario(scenario).alternatives
    deployment, told = deployment_of(scenario), violations[0].change
    used, left = min(deployment.plan.world, deployment.num_devices), changed(deployment, told).plan.world
    assert best.distance <= change_distance(deployment, told) + idle_distance(used, left) + 1e-3
    assert check_scenario(scenario_of(document, dict(told))).verdict == "legal"


def test_the_change_that_a_rule_names_is_the_one_that_the_documents_prefer():
    """Of 8 heads two TP ranks have 4 each, which 3 ranks can not share: a lower degree before another scheme."""
    plan = ("plan.tp=2", "plan.sp={degree: 3, scheme: all_to_all, partition: zigzag, decode: dp}", "plan.dp=1")
    heads = "model.config.num_attention_heads=8", "model.config.num_key_value_heads=8"
    scenario = load("quickstart", ("plan.pp=1", *plan, "expect={}", *heads))
    (found,) = [found for found in check_scenario(scenario).violations if found.rule.startswith("SP-")]
    assert found.change == (("plan.sp.degree", 2),)
    assert "ring" in found.fix


def changes_of(*overrides: str, name: str = "quickstart") -> list[tuple[str, Any, Any, str]]:
    """Return (path, old, new, rule) of the changes that mend a scenario that ships."""
    fix = fix_scenario(load(name, overrides))
    assert fix.changes is not None, fix.reason
    return [(change.path, change.old, change.new, change.rule) for change in fix.changes]


def test_a_degree_is_lowered_before_it_is_raised():
    assert changes_of("plan.tp=6", "plan.pp=1") == [("plan.tp.degree", 6, 4, "TP-1")]


def test_a_missing_declaration_is_added_before_a_degree_is_lowered():
    sp = "plan={tp: 8, sp: {degree: 2, scheme: ring, partition: zigzag}}"
    assert changes_of(sp) == [("plan.sp.decode", None, "idle", "SP-3")]


def test_a_boundary_is_moved_before_a_degree_is_lowered():
    assert changes_of("plan.stages={cuts: [80]}") == [("plan.stages", {"cuts": [80]}, "balanced", "PP-1")]


def test_another_scheme_comes_before_less_parallelism_only_where_no_degree_can_be_lowered():
    sp = "plan={tp: 1, sp: {degree: 3, scheme: all_to_all, partition: zigzag, decode: idle}}"
    (change,) = changes_of(sp, "model=llama-3.1-8b")
    assert change == ("plan.sp.degree", 3, 2, "SP-1")


def test_a_higher_degree_comes_before_a_smaller_batch():
    assert changes_of("plan={tp: 1}", "serving.max_batch_tokens=2000") == [("plan.tp.degree", 1, 2, "KV-6")]


def test_the_pool_shrinks_to_what_fits_and_no_further():
    ((path, _, blocks, rule),) = changes_of("serving.kv_blocks=100000000")
    assert (path, rule) == ("serving.kv_blocks", "KV-6")
    assert check_scenario(load("quickstart", [f"serving.kv_blocks={blocks}"])).verdict == "legal"
    assert check_scenario(load("quickstart", [f"serving.kv_blocks={blocks + 1}"])).verdict == "illegal"


def test_what_must_follow_a_change_is_explained_by_its_own_rule():
    found = changes_of("plan={tp: 3, ep: 3}", name="mixtral-ep")
    assert found == [("plan.ep.degree", 3, 2, "EP-1"), ("plan.tp.degree", 3, 2, "TP-1")]


@pytest.mark.parametrize(
    ("plan", "name", "expected"),
    [
        # a dense model has no experts: how they are visited goes with them
        ("{tp: 8, ep: {degree: 8, routing: {zipf: 1.0}, redundant: 16}}", "quickstart",
         {"plan.ep.degree": 1, "plan.ep.redundant": 0, "plan.ep.routing": "balanced"}),
        ("{tp: 8, ep: {degree: 8, routing: {zipf: 0}}}", "quickstart", {"plan.ep.degree": 1}),
        # 8 experts on 4 ranks: 3 further ones of each at most
        ("{tp: 8, ep: {degree: 6, redundant: 54}}", "mixtral-ep", {"plan.ep.degree": 4, "plan.ep.redundant": 24}),
        ("{tp: 8, ep: {degree: 4, redundant: 40}}", "mixtral-ep", {"plan.ep.redundant": 24}),
        ("{tp: 8, ep: {degree: 4, redundant: 7}}", "mixtral-ep", {"plan.ep.redundant": 8}),
    ],
)  # fmt: skip
def test_copies_and_visits_of_experts_follow_their_degree(plan, name, expected):
    found = changes_of(f"plan={plan}", name=name)
    assert {path: new for path, _, new, _ in found} == expected
    assert {rule for *_, rule in found} == {"EP-1"}


def test_the_shipped_illegal_scenario_takes_its_five_changes():
    assert [(path, rule) for path, _, _, rule in changes_of(name="illegal-five-ways")] == [
        ("plan.sp.decode", "SP-3"),
        ("plan.stages", "PP-1"),
        ("plan.ep.degree", "EP-1"),
        ("plan.tp.degree", "TP-1"),
        ("serving.kv_blocks", "KV-6"),
    ]


def test_a_legal_scenario_needs_nothing():
    assert changes_of() == []


def test_a_model_that_fits_nowhere_is_rejected_with_the_reason():
    fix = fix_scenario(load("quickstart", ["topology={name: rtx-4090-node, nodes: 1}", "model=deepseek-v3", "plan={}"]))
    assert fix.changes is None
    assert "[KV-6]" in fix.reason
    assert "GiB of weights" in fix.reason


def test_a_search_that_gives_up_says_so(monkeypatch):
    monkeypatch.setattr(nearest, "MOST_EXAMINED", 3)
    monkeypatch.setattr("clustersim.simulation.repair.fix.MOST_EXAMINED", 3)
    fix = fix_scenario(load("illegal-five-ways"))
    assert fix.changes is None
    assert "3 candidates" in fix.reason


def test_what_another_check_refuses_is_passed_over():
    deployment = deployment_of(load("quickstart", ["plan.tp=6", "plan.pp=1"]))
    states = (one.state for one in nearest.Search([nearest.Scope(deployment=deployment)]).legal())
    assert next(state for state in states if state != {"plan.tp.degree": 4}) == {"plan.tp.degree": 8}
