"""How many experts of a rank get a token."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Final

import pytest

from clustersim.graph.blueprint import Node
from clustersim.graph.prices.pricer import active_experts
from clustersim.model.architecture import Moe
from clustersim.model.work import expected_active_experts
from clustersim.scenario import load
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.effort import is_whole

ROOT: Final = Path(__file__).parents[3]
MIXTRAL = Node(name="expert_up", op="grouped_gemm", module="moe", experts=8, num_experts=8, top_k=2)


def test_one_token_visits_top_k_experts() -> None:
    assert active_experts(MIXTRAL, rows=2.0) == 2.0


def test_no_token_visits_none_and_many_visit_all() -> None:
    assert active_experts(MIXTRAL, rows=0.0) == 0.0
    assert active_experts(MIXTRAL, rows=2000.0) == 8.0


def test_a_rank_with_a_quarter_of_the_experts_has_a_quarter_of_the_visits() -> None:
    quarter = replace(MIXTRAL, experts=2)
    assert active_experts(quarter, rows=3 * 2 / 4) == pytest.approx(active_experts(MIXTRAL, rows=3 * 2) / 4)


@pytest.mark.parametrize("tokens", [1, 2, 7, 100])
def test_it_is_what_the_model_package_expects(tokens: int) -> None:
    moe = Moe(num_experts=8, top_k=2, expert_intermediate=1)
    assert active_experts(MIXTRAL, rows=2.0 * tokens) == pytest.approx(expected_active_experts(moe, tokens))


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_experts_that_are_visited_unevenly_are_counted_one_by_one(tokens: int) -> None:
    """By enumeration: each token visits an expert or not, apart from all others."""
    shares = (0.9, 0.6, 0.5, 0.0)
    node = replace(MIXTRAL, experts=4, visits=(shares,))
    expected = 0.0
    for share in shares:
        for visits in product((True, False), repeat=tokens):
            expected += any(visits) * prod(share if visit else 1.0 - share for visit in visits)
    assert active_experts(node, rows=tokens * sum(shares)) == pytest.approx(expected)
    assert active_experts(node, rows=0.0) == 0.0


def test_shares_that_are_alike_are_those_of_an_even_choice() -> None:
    alike = replace(MIXTRAL, visits=((2 / 8,) * 8,))
    for tokens in (1.0, 2.5, 7.0, 100.0):
        assert active_experts(alike, rows=2 * tokens) == pytest.approx(active_experts(MIXTRAL, rows=2 * tokens))


PLANS: Final = ["{}", "{tp: 2, ep: {degree: 2}}", "{dp: 2, ep: {degree: 2, scope: global}}"]


@pytest.mark.parametrize("plan", PLANS if is_whole() else PLANS[1:2])
def test_small_batches_read_fewer_experts_where_some_are_visited_more(plan: str) -> None:
    """And the audit, which works out for itself what every operator takes, agrees."""
    times = {}
    for zipf in (0.0, 1.0):
        changes = ("model=qwen3-30b-a3b", f"plan={plan}", f"plan.ep.routing.zipf={zipf}", "workload.requests=3")
        result = simulate(load(str(ROOT / "scenarios" / "mixtral-ep.yaml"), ("expect={}", *changes)))
        assert audit_run(result).violations == ()
        times[zipf] = result.replayed.timeline.end_ns
    assert times[1.0] < times[0.0]
