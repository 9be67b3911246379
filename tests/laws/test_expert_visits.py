"""Where experts and their copies go is worked out twice, once to simulate and once to judge: both must agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.legality.prices import visits
from clustersim.model.architecture import Moe
from clustersim.plan import experts
from clustersim.plan.parallel import ExpertPlan
from clustersim.plan.routing import Routing

OFTEN = st.one_of(st.integers(0, 3).map(float), st.floats(0.0, 1e6, allow_subnormal=False), st.just(1e-9))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Moe, ExpertPlan, int]:
    """Draw experts, how often they are visited, where they are placed, and a layer."""
    degree = draw(st.sampled_from((2, 3, 4, 8, 16)))
    many = degree * draw(st.sampled_from((1, 2, 3, 8)))
    top_k = draw(st.integers(1, many))
    row = st.lists(OFTEN, min_size=many, max_size=many).filter(lambda one: sum(x > 0 for x in one) >= top_k).map(tuple)
    routing = draw(
        st.one_of(
            st.none(),
            st.sampled_from((0.0, 0.25, 1.0, 1.7, 4.0)).map(lambda zipf: Routing(zipf=zipf)),
            st.lists(row, min_size=1, max_size=1).map(lambda rows: Routing(frequencies=tuple(rows))),
            st.lists(row, min_size=3, max_size=3).map(lambda rows: Routing(frequencies=tuple(rows))),
        )
    )
    redundant = degree * draw(st.one_of(st.just(0), st.integers(1, many * (degree - 1) // degree)))
    explicit = st.permutations([expert % degree for expert in range(many)]).map(tuple)
    placement = draw(st.one_of(st.just("contiguous"), st.just("strided"), explicit)) if not redundant else "contiguous"
    ep = ExpertPlan(degree=degree, routing=routing, redundant=redundant, placement=placement)
    moe = Moe(num_experts=many, top_k=top_k, expert_intermediate=64)
    return moe, ep, draw(st.integers(0, 2))


@given(cases())
def test_both_place_and_load_alike(case: tuple[Moe, ExpertPlan, int]) -> None:
    moe, ep, layer = case
    often = experts.layer_visits(moe.num_experts, moe.top_k, ep, layer)
    hosts = experts.expert_hosts(moe.num_experts, moe.top_k, ep, layer)
    held = visits.experts_of_ranks(often, ep)
    assert [sorted(mine) for mine in held] == [
        [expert for expert, ranks in enumerate(hosts) if rank in ranks] for rank in range(ep.degree)
    ]
    loads = experts.rank_loads(moe.num_experts, moe.top_k, ep, layer) or (1.0,) * ep.degree
    assert visits.rank_loads(moe, ep, layer) == pytest.approx(loads, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("degree", [32, 128])
def test_both_agree_on_deepseek(degree: int) -> None:
    moe = Moe(num_experts=256, top_k=8, expert_intermediate=64)
    for redundant in (0, degree):
        ep = ExpertPlan(degree=degree, routing=Routing(zipf=1.0), redundant=redundant)
        for layer in (0, 57):
            loads = experts.rank_loads(256, 8, ep, layer)
            assert visits.rank_loads(moe, ep, layer) == pytest.approx(loads, rel=1e-12)
