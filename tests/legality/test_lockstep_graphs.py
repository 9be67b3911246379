"""Level G on the step graphs of all replicas that share experts together: what is legal, and what mutations break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from clustersim.graph.batch import Chunk
from clustersim.graph.blueprint import EDGE_KINDS
from clustersim.legality.check_graph import check_graph
from clustersim.legality.graph_rules.views.graph import BoolArray, GraphView
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from clustersim.plan.routing import Routing
from clustersim.simulation.graph_legality import StepContents, check_steps, graph_view, lockstep_story
from tests.legality.graph_cases_small import PRECISION, model
from tests.legality.plans import EXPERTS

MODEL = model(ffn=EXPERTS, layers=2)


def wide(dp: int, tp: int, ep: int, **experts: object) -> ParallelPlan:
    return ParallelPlan(dp=dp, tp=tp, ep=ExpertPlan(degree=ep, scope="global", **experts))  # type: ignore[arg-type]


@pytest.mark.parametrize(("dp", "tp", "ep"), [(2, 1, 2), (4, 1, 4), (3, 2, 6), (2, 2, 2), (4, 2, 4), (8, 1, 8)])
def test_replicas_that_share_experts_expand_to_legal_graphs(dp: int, tp: int, ep: int) -> None:
    experts = replace(EXPERTS, num_experts=24)
    verdict = check_steps(model(ffn=experts, layers=2), wide(dp, tp, ep), PRECISION)
    assert verdict.verdict == "legal", verdict.violations
    looked = {rule.id for rule in verdict.rules if rule.looked_at}
    assert {"EP-2", "EP-4", "EP-5", "EP-6", "EP-7", "DP-3", "PH-1", "PH-3", "KV-1", "TP-9", "RUN-1"} <= looked


@pytest.mark.parametrize("experts", [{"routing": Routing(zipf=1.0)}, {"routing": Routing(zipf=1.0), "redundant": 4}])
def test_uneven_visits_and_copies_are_legal(experts: dict[str, object]) -> None:
    assert check_steps(MODEL, wide(4, 2, 4, **experts), PRECISION).verdict == "legal"


def test_long_prompts_on_many_replicas_are_looked_at() -> None:
    together = wide(32, 1, 32).lockstep
    step = StepContents(chunks=tuple(Chunk(request=at, start=0, count=300, owner=at) for at in range(32)))
    experts = replace(EXPERTS, num_experts=32)
    verdict = check_graph(graph_view(model(ffn=experts, layers=1), together, PRECISION, steps=[step]))
    assert verdict.violations == ()
    assert next(rule for rule in verdict.rules if rule.id == "PH-5").looked_at


def test_stages_of_replicas_that_share_experts_are_not_checkable() -> None:
    assert check_steps(MODEL, replace(wide(2, 1, 2), pp=2), PRECISION).verdict == "not_checkable"


# --- mutations ------------------------------------------------------------------------------------------------------


def view_of(plan: ParallelPlan | None = None) -> GraphView:
    together = (plan or wide(4, 2, 4)).lockstep
    return graph_view(MODEL, together, PRECISION, steps=lockstep_story(together))


def nodes(view: GraphView, name: str, step: int = 2) -> np.ndarray:
    return np.flatnonzero(view.named(name) & (view.step == step) & (view.layer <= 0))


def without(view: GraphView, gone: BoolArray) -> GraphView:
    """Take members out of operators."""
    return replace(
        view,
        member_node=view.member_node[~gone],
        member_rank=view.member_rank[~gone],
        member_position=view.member_position[~gone],
    )


def forgets(name: str, *ranks: int) -> Callable[[GraphView], GraphView]:
    return lambda view: without(
        view, np.isin(view.member_node, nodes(view, name)) & np.isin(view.member_rank, list(ranks))
    )


def moved(source: int, target: int) -> Callable[[GraphView], GraphView]:
    """Bring a routed token of one rank to another one."""

    def mutate(view: GraphView) -> GraphView:
        amount, at = view.amount.copy(), nodes(view, "expert_up")
        amount[at[source]] -= 1
        amount[at[target]] += 1
        return replace(view, amount=amount)

    return mutate


def edge(source: str, source_rank: int, target: str, target_rank: int) -> Callable[[GraphView], GraphView]:
    def mutate(view: GraphView) -> GraphView:
        ends = [nodes(view, name)[rank] for name, rank in ((source, source_rank), (target, target_rank))]
        added = (*ends, EDGE_KINDS.index("data"))
        names = ("source", "target", "kind")
        return replace(
            view, **{name: np.append(getattr(view, name), one) for name, one in zip(names, added, strict=True)}
        )

    return mutate


def loses(view: GraphView) -> GraphView:
    amount = view.amount.copy()
    amount[nodes(view, "expert_down")[0]] -= 1
    return replace(view, amount=amount)


def rests(view: GraphView) -> GraphView:
    """Let a replica that has no request leave the step out."""
    return without(view, np.isin(view.member_rank, [2, 3]) & (view.step[view.member_node] == 2))


MUTATIONS = {
    "combine forgets a rank": ("EP-2", forgets("combine", 3)),
    "dispatch forgets a rank": ("EP-2", forgets("dispatch", 7)),
    "an idle replica misses the dispatch": ("EP-2", forgets("dispatch", 2, 3)),
    "an idle replica misses the step": ("TP-8", rests),
    "a token goes to the wrong rank": ("EP-2", moved(0, 5)),
    "an expert loses a token": ("EP-2", loses),
    "attention takes K/V of another replica": ("DP-3", edge("kv_read", 0, "attention_decode", 6)),
    "a product takes tokens of another replica": ("DP-3", edge("moe_norm", 1, "gate", 4)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_caught(name: str) -> None:
    rule, mutate = MUTATIONS[name]
    view = view_of()
    assert rule in {violation.rule for violation in check_graph(mutate(view)).violations}


@pytest.mark.parametrize("mutate", [loses, forgets("combine", 3), forgets("dispatch", 2, 3)])
def test_mutation_is_caught_where_visits_are_uneven(mutate: Callable[[GraphView], GraphView]) -> None:
    view = view_of(wide(4, 2, 4, routing=Routing(zipf=1.0)))
    assert check_graph(view).violations == ()
    assert "EP-2" in {violation.rule for violation in check_graph(mutate(view)).violations}
