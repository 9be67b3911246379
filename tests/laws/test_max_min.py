"""Laws of fair sharing, over random activities on random links."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.replay.links.fair_rates import Load, fair_rates
from tests.effort import examples

NUM_LINKS = 8
capacities = st.lists(st.floats(1e8, 1e12), min_size=NUM_LINKS, max_size=NUM_LINKS).map(np.array)


@st.composite
def activities(draw: st.DrawFn, *, plain: bool = False) -> list[Load]:
    loads = []
    for _ in range(draw(st.integers(1, 8))):
        links = sorted(draw(st.sets(st.integers(0, NUM_LINKS - 1), min_size=1, max_size=4)))
        size = draw(st.lists(st.floats(1.0, 1e9), min_size=len(links), max_size=len(links)))
        size = [size[0]] * len(links) if plain else size
        loads.append((np.array(links, np.int64), np.array(size)))
    return loads


def use_of_links(loads: list[Load], rates: np.ndarray) -> np.ndarray:
    used = np.zeros(NUM_LINKS)
    for (links, size), rate in zip(loads, rates, strict=True):
        used[links] += size * rate
    return used


@given(activities(), capacities)
def test_no_link_carries_more_than_its_capacity(loads, capacity):
    assert (use_of_links(loads, fair_rates(loads, capacity)) <= capacity * (1 + 1e-9)).all()


@given(activities(), capacities)
def test_every_activity_crosses_a_full_link(loads, capacity):
    used = use_of_links(loads, fair_rates(loads, capacity))
    full = used >= capacity * (1 - 1e-9)
    assert all(full[links].any() for links, _ in loads)


@given(activities(plain=True), capacities)
def test_plain_flows_are_max_min_fair(loads, capacity):
    """Each flow has a full link on which no flow is faster (Bertsekas & Gallager 1992, § 6.5.2)."""
    rates = fair_rates(loads, capacity)
    used = use_of_links(loads, rates)
    speed = [rate * size[0] for rate, (_, size) in zip(rates, loads, strict=True)]
    fastest = np.zeros(NUM_LINKS)
    for (links, _), bytes_per_s in zip(loads, speed, strict=True):
        fastest[links] = np.maximum(fastest[links], bytes_per_s)
    for (links, _), bytes_per_s in zip(loads, speed, strict=True):
        full = used[links] >= capacity[links] * (1 - 1e-9)
        assert (full & (bytes_per_s >= fastest[links] * (1 - 1e-9))).any()


@given(activities(), capacities)
def test_alone_an_activity_gets_exactly_its_solo_rate(loads, capacity):
    for links, size in loads:
        assert fair_rates([(links, size)], capacity)[0] == 1 / (size / capacity[links]).max()


@given(activities(), capacities)
def test_company_never_makes_an_activity_faster(loads, capacity):
    solo = [fair_rates([load], capacity)[0] for load in loads]
    assert (fair_rates(loads, capacity) <= np.array(solo) * (1 + 1e-9)).all()


@given(activities(), capacities, st.randoms(use_true_random=False))
def test_a_permutation_permutes_the_rates_to_the_bit(loads, capacity, random):
    order = list(range(len(loads)))
    random.shuffle(order)
    shuffled = fair_rates([loads[a] for a in order], capacity)
    assert list(shuffled) == list(fair_rates(loads, capacity)[order])


def components(loads):
    """Return, per activity, the first activity that it shares links with, directly or through others."""
    label = np.arange(len(loads))
    for a, b in combinations(range(len(loads)), 2):
        if np.intersect1d(loads[a][0], loads[b][0]).size:
            label[label == label[b]] = label[a]
    return label


@given(activities(), capacities)
@examples(50)
def test_components_can_be_solved_apart_to_the_bit(loads, capacity):
    together = fair_rates(loads, capacity)
    label = components(loads)
    for first in np.unique(label):
        members = np.flatnonzero(label == first)
        assert list(fair_rates([loads[a] for a in members], capacity)) == list(together[members])
