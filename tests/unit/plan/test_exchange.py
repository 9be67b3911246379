"""How many ranks and nodes the tokens of a dispatch reach: the closed form against enumeration and draws."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.legality.prices.exchange import share_reached
from clustersim.plan.exchange import Exchange, visited_as_often
from tests.effort import examples


def exchange(**changes):
    shape = {"num_experts": 256, "top_k": 8, "groups": 8, "groups_per_token": 4, "ranks": 32, "placement": "contiguous"}
    return Exchange(**{"way": "deepep_normal", "towards": "experts", **shape, **changes})


def owners(of: Exchange) -> list[int]:
    if of.placement == "contiguous":
        return [expert * of.ranks // of.num_experts for expert in range(of.num_experts)]
    return [expert % of.ranks for expert in range(of.num_experts)] if of.placement == "strided" else list(of.placement)


def enumerated(of: Exchange, ranks: list[int]) -> float:
    """Count the choices of groups, and of experts in them, that reach one of some ranks."""
    size = of.num_experts // of.groups
    there = {expert for expert, rank in enumerate(owners(of)) if rank in ranks}
    found = [
        not there.isdisjoint(chosen)
        for groups in combinations(range(of.groups), of.groups_per_token)
        for chosen in combinations([group * size + at for group in groups for at in range(size)], of.top_k)
    ]
    return sum(found) / len(found)


@st.composite
def small(draw):
    groups, size = draw(st.sampled_from(((1, 8), (2, 4), (4, 2), (4, 3), (3, 4))))
    visited = draw(st.integers(1, groups))
    top_k = draw(st.integers(1, min(4, visited * size)))
    ranks = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6, 8) if groups * size % n == 0]))
    even = [expert % ranks for expert in range(groups * size)]
    placement = draw(st.sampled_from(("contiguous", "strided")) | st.permutations(even).map(tuple))
    made = exchange(num_experts=groups * size, top_k=top_k, groups=groups, groups_per_token=visited, ranks=ranks,
                    placement=placement)  # fmt: skip
    return made, draw(st.sets(st.integers(0, ranks - 1), min_size=1))


@examples(150)
@given(small())
def test_share_of_tokens_that_reach_some_ranks_is_that_of_all_choices(drawn):
    of, ranks = drawn
    assert of.reached(sorted(ranks)) == pytest.approx(enumerated(of, sorted(ranks)), rel=1e-12)
    assert share_reached(of, ranks) == pytest.approx(of.reached(ranks), rel=1e-12)


@pytest.mark.parametrize("changes", [{}, {"groups": 1, "groups_per_token": 1}, {"placement": "strided"}, {"ranks": 64}])
def test_ranks_and_nodes_that_drawn_tokens_of_deepseek_v3_reach(changes):
    of, draw = exchange(**changes), np.random.default_rng(1)
    size, tokens = 256 // of.groups, 20_000
    groups = np.argsort(draw.random((tokens, of.groups)), axis=1)[:, : of.groups_per_token]
    closed = ~(groups[:, :, None] == np.arange(of.groups)).any(axis=1)
    experts = np.argsort(draw.random((tokens, 256)) + np.repeat(closed, size, axis=1), axis=1)[:, :8]
    rank = np.array(owners(of))[experts]
    for per_node in (1, 8):
        reached = np.array([len(set(row)) for row in (rank // per_node).tolist()])
        nodes = of.ranks // per_node
        due = sum(of.reached(range(node * per_node, node * per_node + per_node)) for node in range(nodes))
        assert reached.mean() == pytest.approx(due, abs=4 * reached.std() / np.sqrt(tokens) + 1e-9)


def test_groups_bound_the_nodes_that_a_token_reaches():
    """A group on each of 8 nodes: at most 4 of them; of a group that may be visited C(96, 8) / C(128, 8) are missed."""
    of, free = exchange(ranks=64), exchange(ranks=64, groups=1, groups_per_token=1)
    nodes = [range(first, first + 8) for first in range(0, 64, 8)]
    missed = np.prod([(96 - i) / (128 - i) for i in range(8)])
    assert sum(map(of.reached, nodes)) == pytest.approx(4 * (1 - missed), rel=1e-12)
    assert sum(map(of.reached, nodes)) < 4 < sum(map(free.reached, nodes))


def test_all_ranks_together_are_always_reached():
    assert exchange().reached(range(32)) == 1.0
    assert exchange(ranks=1).reached([0]) == 1.0


def test_two_experts_of_a_rank_take_one_copy():
    """Two of four experts, two on each rank: a sixth of the choices are both of one rank, a sixth of the other."""
    of = exchange(num_experts=4, top_k=2, groups=1, groups_per_token=1, ranks=2)
    assert of.reached([0]) == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("times", "share"), [(0.0, 0.0), (0.5, 0.2), (1.0, 0.4), (2.0, 0.64), (2.5, 0.712), (1e4, 1.0)]
)
def test_a_place_that_is_visited_more_often_is_reached_more_often_and_never_more_than_once(times, share):
    assert visited_as_often(0.4, times) == pytest.approx(share)
