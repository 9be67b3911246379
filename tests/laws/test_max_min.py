"""Laws of fair sharing, over random transfers on random links."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.clock import Int64Array
from clustersim.compiled import Arrays, Objects, compiled
from clustersim.core.flows import WHOLE, enter, share
from clustersim.replay.links.paths import Places, make_flows, places_of
from tests.core_storage import core
from tests.effort import examples
from tests.round_numbers import plan_over

NUM_LINKS = 8
NS = 1 << 30
ROUNDED = 1e-6
capacities = st.lists(st.floats(1e8, 1e12), min_size=NUM_LINKS, max_size=NUM_LINKS).map(np.array)


@st.composite
def transfers(draw: st.DrawFn, *, plain: bool = False) -> list[Places]:
    """Return paths of one to eight transfers that take from one to four links; plain ones load all alike."""
    capacity, found = draw(capacities), []
    for _ in range(draw(st.integers(1, 8))):
        links = sorted(draw(st.sets(st.integers(0, NUM_LINKS - 1), min_size=1, max_size=4)))
        size = draw(st.lists(st.floats(1.0, 1e3), min_size=len(links), max_size=len(links)))
        plan = plan_over(dict(zip(links, [size[0]] * len(links) if plain else size, strict=True)), capacity.tolist())
        found.append(places_of([plan], capacity))
    return found


def rates_of(paths: list[Places]) -> list[int]:
    n = make_flows(Objects(), NUM_LINKS, paths)
    for f in range(len(paths)):
        enter(n, f, 0, NS)
    share(n, 0)
    return [path.rate for path in n.paths]


def use_of_links(paths: list[Places], rates: list[int]) -> Int64Array:
    used = np.zeros(NUM_LINKS)
    for (links, weights), rate in zip(paths, rates, strict=True):
        used[list(links)] += np.array(weights) * rate / WHOLE
    return used


@given(transfers())
def test_no_link_carries_more_than_it_can(paths):
    assert (use_of_links(paths, rates_of(paths)) <= WHOLE + len(paths)).all()


@given(transfers())
def test_every_transfer_is_alone_as_fast_or_crosses_a_full_link(paths):
    rates = rates_of(paths)
    full = use_of_links(paths, rates) >= WHOLE * (1 - ROUNDED)
    assert all(rate == WHOLE or full[list(links)].any() for rate, (links, _) in zip(rates, paths, strict=True))


@given(transfers(plain=True))
def test_transfers_that_load_links_alike_are_max_min_fair(paths):
    """Each has a full link on which none is faster (Bertsekas & Gallager 1992, § 6.5.2)."""
    rates = rates_of(paths)
    used = use_of_links(paths, rates)
    speeds = [np.array(weights) * rate / WHOLE for rate, (_, weights) in zip(rates, paths, strict=True)]
    fastest = np.zeros(NUM_LINKS)
    for (links, _), speed in zip(paths, speeds, strict=True):
        fastest[list(links)] = np.maximum(fastest[list(links)], speed)
    for (links, _), speed in zip(paths, speeds, strict=True):
        full = used[list(links)] >= WHOLE * (1 - ROUNDED)
        assert (full & (speed >= fastest[list(links)] * (1 - ROUNDED) - len(paths))).any()


@given(transfers(), st.randoms(use_true_random=False))
def test_a_permutation_permutes_the_rates(paths, random):
    order = list(range(len(paths)))
    random.shuffle(order)
    rates = rates_of(paths)
    assert rates_of([paths[at] for at in order]) == [rates[at] for at in order]


def components(paths: list[Places]) -> Int64Array:
    """Return, per transfer, the first one that it shares links with, directly or through others."""
    label = np.arange(len(paths))
    for a, b in combinations(range(len(paths)), 2):
        if not set(paths[a][0]).isdisjoint(paths[b][0]):
            label[label == label[b]] = label[a]
    return label


@given(transfers())
@examples(50)
def test_components_can_be_solved_apart(paths):
    together, label = rates_of(paths), components(paths)
    for first in np.unique(label):
        members = np.flatnonzero(label == first)
        assert rates_of([paths[at] for at in members]) == [together[at] for at in members]


@given(st.lists(transfers(), min_size=1, max_size=20))
@examples(20)
def test_compiled_code_shares_alike(cases):
    for paths in cases:
        n = make_flows(Arrays(), NUM_LINKS, paths)
        with core("compiled"):
            for f in range(len(paths)):
                compiled(enter)(n, f, 0, NS)
            compiled(share)(n, 0)
        assert n.paths["rate"].tolist() == rates_of(paths)
