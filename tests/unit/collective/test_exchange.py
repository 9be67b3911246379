"""What DeepEP's exchanges put on links: against counting the copies of every token, and against the second opinion."""

import numpy as np
import pytest
from collective_topologies import pairs_on_rails
from hypothesis import given
from hypothesis import strategies as st

from clustersim.collective import plan_collective
from clustersim.collective.exchange import exchange_traffic
from clustersim.collective.group import group_of
from clustersim.legality.prices.experts import to_experts
from clustersim.legality.prices.links import Links
from clustersim.legality.prices.sent import members_of
from clustersim.plan.exchange import Exchange
from tests.effort import examples


def exchange(ranks, way="deepep_normal", towards="experts", **changes):
    shape = {"num_experts": 8, "top_k": 2, "groups": 1, "groups_per_token": 1, "placement": "contiguous"}
    return Exchange(way=way, towards=towards, ranks=ranks, **{**shape, **changes})


def sent(topology, of, group):
    found = {}
    for source, target, share in exchange_traffic(group_of(topology, group), of).sends:
        found[source, target] = found.get((source, target), 0.0) + share
    return found


def counted(topology, of, group):
    """Count the copies of each source's tokens, over all choices of two of eight experts, as DeepEP sends them."""
    node_of, found, choices = topology.node_of, {}, [(a, b) for b in range(8) for a in range(b)]
    nodes = {int(node_of[device]): [d for d in sorted(group) if node_of[d] == node_of[device]] for device in group}
    for source in group:
        place = nodes[int(node_of[source])].index(source)
        for pair in choices:
            targets = {group[expert * of.ranks // 8] for expert in pair}
            for node, members in nodes.items():
                here = [device for device in members if device in targets]
                relay = source if node == node_of[source] else members[place % len(members)]
                hops = [(source, relay)] if here and relay != source else []
                for hop in hops + [(relay, device) for device in here if device != relay]:
                    found[hop] = found.get(hop, 0.0) + 1 / len(choices)
    total = of.ranks * of.reached([0])
    return {hop: share / total for hop, share in found.items()}


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_token_goes_to_a_node_once_and_there_once_to_each_rank(nodes):
    topology, group = pairs_on_rails(nodes), tuple(range(2 * nodes))
    of = exchange(2 * nodes)
    assert sent(topology, of, group) == pytest.approx(counted(topology, of, group), rel=1e-12)


def test_results_come_back_the_same_way():
    topology, group = pairs_on_rails(2), (0, 1, 2, 3)
    back = {(b, a): share for (a, b), share in sent(topology, exchange(4, towards="tokens"), group).items()}
    assert back == pytest.approx(sent(topology, exchange(4), group))


def test_ranks_that_share_an_expert_each_get_a_copy_and_each_give_a_part():
    """Two EP ranks, one per node: a copy to both of its devices; of what they made half of the tokens from each."""
    topology, group, of = pairs_on_rails(2), (0, 1, 2, 3), exchange(2, top_k=1)
    # a token reaches one of two EP ranks, so the payload is two copies; a half of all tokens crosses, over one rail
    there = sent(topology, of, group)
    assert there[0, 2] == pytest.approx(0.25)
    assert there[2, 3] == pytest.approx(0.5)  # those of its own, and those that it relays from its rail
    back = sent(topology, exchange(2, top_k=1, towards="tokens"), group)
    assert back[2, 0] == pytest.approx(0.5)  # the payload is one copy in all


def test_low_latency_sends_to_all_at_once():
    found = sent(pairs_on_rails(2), exchange(4, way="deepep_low_latency"), (0, 1, 2, 3))
    assert found == {(a, b): 0.25 for a in range(4) for b in range(4) if a != b}


@st.composite
def groups(draw):
    nodes = draw(st.integers(1, 4))
    topology = pairs_on_rails(nodes)
    count = draw(st.sampled_from([n for n in (2, 4, 8) if n <= 2 * nodes]))
    group = tuple(draw(st.permutations(range(2 * nodes)))[:count])
    ranks = draw(st.sampled_from([n for n in (1, 2, 4, 8) if count % n == 0]))
    groups, visited = draw(st.sampled_from(((1, 1), (4, 2), (4, 1), (2, 1))))
    of = exchange(ranks, draw(st.sampled_from(("deepep_normal", "deepep_low_latency"))),
                  draw(st.sampled_from(("experts", "tokens"))), groups=groups, groups_per_token=visited,
                  placement=draw(st.sampled_from(("contiguous", "strided"))))  # fmt: skip
    return topology, of, group


@examples(150)
@given(groups(), st.floats(1.0, 1e9))
def test_both_opinions_of_an_exchange_agree(drawn, payload):
    topology, of, group = drawn
    mine, theirs = sent(topology, of, group), to_experts(members_of(topology, group), of).bytes
    assert {hop: share for hop, share in mine.items() if share} == pytest.approx(
        {hop: share for hop, share in theirs.items() if share}, rel=1e-9
    )
    (plan,), (rate,) = plan_collective(topology, of, group), Links(topology, {}).rates(of, group)
    assert float(plan.seconds(payload)) == pytest.approx(float(rate.seconds(np.array([payload]))[0]), rel=1e-9)


@pytest.mark.parametrize("way", ["deepep_normal", "deepep_low_latency"])
@pytest.mark.parametrize("towards", ["experts", "tokens"])
def test_constants_are_those_of_the_kernels(way, towards):
    of = exchange(2, way, towards)
    (plan,) = plan_collective(pairs_on_rails(1, **{of.family: {"base_s": 1.0}}), of, (0, 1))
    (other,) = plan_collective(pairs_on_rails(1, direct={"base_s": 1.0}), of, (0, 1))
    assert plan.algorithm == way
    assert (float(plan.seconds(0.0)), float(other.seconds(0.0))) == (1.0, 0.0)
