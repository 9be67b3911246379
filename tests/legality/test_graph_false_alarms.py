"""No false alarm at level G: what is legal as a plan expands to legal graphs.

``pytest tests/legality/test_graph_false_alarms.py --long`` hunts for longer.
"""

from __future__ import annotations

from typing import Any

import pytest
from graph_cases_small import PRECISION
from hypothesis import given
from hypothesis import strategies as st
from test_plan_corpus import CORPUS

from clustersim import catalog
from clustersim.legality.check_graph import GRAPH_CHECKS, check_graph
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.scenario.load import load
from clustersim.scenario.parts import load_model
from clustersim.simulation.graph_legality import check_steps, graph_view, story
from clustersim.simulation.legality import check_scenario
from tests.effort import crossed, examples, is_long, some
from tests.laws.graph_cases import model_of, plan_of
from tests.laws.random_scenarios import documents, scenario_of


@examples(50, sieved=True)
@given(documents())
def test_a_random_legal_scenario_expands_to_legal_graphs(document: dict[str, Any]) -> None:
    scenario = scenario_of(document)
    assert check_scenario(scenario).verdict == "legal"
    assert check_steps(scenario.model, scenario.plan, scenario.precision).violations == ()


@examples(20, sieved=True)
@given(st.randoms(use_true_random=True), st.sampled_from(("llama", "mha", "opt", "moe", "shared", "windows", "latent")))
def test_a_random_plan_has_one_verdict_on_its_template_and_in_full(random: Any, name: str) -> None:
    model = model_of(name)
    plan = plan_of(random, model, "tsepd")
    for in_full in (False, True):
        assert check_graph(graph_view(model, plan, PRECISION, in_full=in_full)).violations == ()


@pytest.mark.parametrize("name", [name for name in catalog.names("scenarios") if not name.startswith("illegal")])
def test_a_shipped_scenario_expands_to_legal_graphs(name: str) -> None:
    scenario = load(name)
    assert check_steps(scenario.model, scenario.plan, scenario.precision).violations == ()


@pytest.mark.parametrize(("name", "memory", "plan"), CORPUS)
def test_plans_that_people_run_expand_to_legal_graphs(name: str, memory: float, plan: ParallelPlan) -> None:
    del memory
    assert check_steps(load_model(name), plan, PRECISION).violations == ()


ROWS, VOCAB = ("rows", "columns"), ("vocab", "hidden")
SPLITS = [
    TensorSplit(attention_out=out, ffn_up=up, ffn_down=down, embedding=rest, lm_head=rest)
    for out, up, down, rest in crossed(ROWS, ROWS[::-1], ROWS, VOCAB)
]
"""Ways in which TP can split linear operators."""


@pytest.mark.parametrize("tp", [1, 2, 4, 8] if is_long() else [2, 8])
@pytest.mark.parametrize("name", ["llama", "latent", "shared"])
def test_tp_and_its_splits_are_legal_at_any_degree_and_batch(name: str, tp: int) -> None:
    """Rule TP-9, the property: TP changes neither steps nor cache, and composes with batching."""
    for split in SPLITS:
        assert check_steps(model_of(name), ParallelPlan(tp=tp, split=split), PRECISION).violations == ()
    steps = story(ParallelPlan())
    for batch in (steps[:1], steps[2:3]):
        view = graph_view(model_of(name), ParallelPlan(tp=tp), PRECISION, steps=batch)
        assert check_graph(view).violations == ()


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_ep_leaves_attention_as_it_was(ep: int) -> None:
    """Rule EP-7, the property: the attention of a graph is the same under any ep."""
    plain, spread = (attention_of(model_of("moe"), degree) for degree in (1, ep))
    assert plain == spread


def attention_of(model: ModelSpec, ep: int) -> list[tuple[Any, ...]]:
    """Return every operator of attention with its step, layer, ranks and amount."""
    view = graph_view(model, ParallelPlan(tp=8, ep=ExpertPlan(degree=ep)), PRECISION)
    offsets, ranks = view.members
    return [
        (view.symbols[view.symbol[node]], int(view.step[node]), int(view.layer[node]), str(view.amount[node]),
         tuple(ranks[offsets[node] : offsets[node + 1]].tolist()))
        for node in range(len(view))
        if view.symbols[view.symbol[node]].module == "attention"
    ]  # fmt: skip


def deepseek(tp: int, sp: int, pp: int, dp: int, ep: int) -> tuple[ModelSpec, ParallelPlan]:
    """Return DeepSeek-V3 under a plan."""
    model = load("quickstart", ["model=deepseek-v3", "plan={tp: 8}", "expect={}"]).model
    split = SequencePlan(degree=sp, scheme="all_gather", partition="zigzag", decode="dp") if sp > 1 else SequencePlan()
    return model, ParallelPlan(tp=tp, sp=split, pp=pp, dp=dp, ep=ExpertPlan(degree=ep))


@pytest.mark.parametrize(
    "degrees", some([(8, 8, 4, 1, 64), (8, 1, 4, 8, 8), (8, 1, 32, 1, 8), (16, 16, 1, 1, 256), (4, 8, 8, 1, 32)])
)
def test_deepseek_on_256_devices_is_legal_and_its_template_small(degrees: tuple[int, int, int, int, int]) -> None:
    model, plan = deepseek(*degrees)
    assert plan.world == 256
    assert isinstance(model.layers[-1].ffn, Moe)
    view = graph_view(model, plan, PRECISION)
    assert len(view) < 120_000
    assert check_graph(view).violations == ()


def test_experts_of_replicas_with_stages_are_not_checkable() -> None:
    plan = ParallelPlan(dp=2, pp=2, tp=4, ep=ExpertPlan(degree=8, scope="global"))
    verdict = check_steps(model_of("moe"), plan, PRECISION)
    assert verdict.verdict == "not_checkable"
    assert [entry.id for entry in verdict.rules] == list(GRAPH_CHECKS)
