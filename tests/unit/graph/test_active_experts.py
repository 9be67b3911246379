"""How many experts of a rank get a token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustersim.graph.blueprint import Node
from clustersim.graph.prices.pricer import active_experts
from clustersim.model.architecture import Moe
from clustersim.model.work import expected_active_experts

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
