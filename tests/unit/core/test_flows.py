"""Fair shares of links, on networks so small that they can be worked out in the head."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from clustersim.compiled import Objects
from clustersim.core.flows import WHOLE, Flows, enter, leave, share
from clustersim.core.state import NEVER
from clustersim.errors import BrokenLawError
from clustersim.replay.links.paths import make_flows, places_of
from tests.round_numbers import plan_over

NS = 1000


def network(capacity: list[float], *loads: dict[int, float], ns: int = NS) -> Flows:
    """Paths that put bytes on links; a transfer that takes so long begins on each of them."""
    found = [places_of([plan_over(load, capacity)], np.array(capacity)) for load in loads]
    n = make_flows(Objects(), len(capacity), found)
    for f in range(len(loads)):
        enter(n, f, 0, ns)
    share(n, 0)
    return n


def rates(capacity: list[float], *loads: dict[int, float]) -> list[float]:
    """Return by how much each is slower than alone."""
    return [path.rate / WHOLE for path in network(capacity, *loads).paths]


def about(*expected: float) -> object:
    return pytest.approx(expected, abs=4 / WHOLE)


def test_a_transfer_alone_has_its_full_speed():
    assert rates([10.0, 4.0], {0: 10, 1: 2}) == [1]


def test_one_link_is_shared_equally_in_bytes():
    # 6 bytes/s for two: 3 bytes/s each, half of the speed of either.
    assert rates([6.0], {0: 1}, {0: 9}) == [0.5, 0.5]


def test_what_one_cannot_use_is_left_to_others():
    # The first is held to 10 by link 0, so the second gets the remaining 20 of link 1's 30, not its half.
    assert rates([10.0, 30.0], {0: 1, 1: 1}, {1: 1}) == about(1, 2 / 3)


def test_a_chain_of_bottlenecks_is_filled_in_turn():
    # Link 2 holds three to 3 each; link 1 leaves 9 of 12 to the next one; link 0 then leaves 11 of 20 to the last one.
    loads = [{2: 1}, {2: 1}, {2: 1, 1: 1}, {1: 1, 0: 1}, {0: 1}]
    assert rates([20.0, 12.0, 9.0], *loads) == about(3 / 9, 3 / 9, 3 / 9, 9 / 12, 11 / 20)


def test_the_rate_of_a_collective_is_set_by_the_link_that_it_shares():
    # It puts 2 on the fast link and 1 on the slow one, where a transfer takes the other half.
    assert rates([100.0, 10.0], {0: 2, 1: 1}, {1: 1}) == [0.5, 0.5]


def test_two_that_prefer_each_others_link_take_as_much_as_fits():
    # Each is heavy where the other one is light: r + r / 10 = 1 on both links.
    assert rates([1.0, 1.0], {0: 1, 1: 10}, {0: 10, 1: 1}) == about(10 / 11, 10 / 11)


def test_rates_do_not_depend_on_the_order_of_transfers():
    loads = [{0: 1, 1: 1}, {0: 1, 2: 1}, {0: 1, 3: 1}, {0: 1}]
    capacity = [1.0, 0.1, 0.2, 0.3]
    expected = rates(capacity, *loads)
    for order in itertools.permutations(range(4)):
        assert rates(capacity, *(loads[a] for a in order)) == [expected[a] for a in order]


@pytest.mark.parametrize("wrong", [math.nan, 0.0, -1.0])
def test_a_load_that_is_not_positive_is_refused(wrong):
    with pytest.raises(BrokenLawError, match="it takes more than 0"):
        network([1.0, 1.0], {0: 1, 1: wrong})


def test_what_is_left_goes_on_at_full_speed_and_only_that_has_changed():
    # Three share a link from 0 on: 100 of 300 ns are done of each at 300, when the first one leaves.
    n = network([1.0, 1.0], {0: 1}, {0: 1}, {0: 1}, {1: 1}, ns=300)
    assert [path.due for path in n.paths] == [900, 900, 900, 300]
    leave(n, 0)
    share(n, 300)
    assert [path.due for path in n.paths[1:3]] == [700, 700]
    assert sorted(path.changed for path in n.paths[: n.traffic[0].changed]) == [1, 2]


def test_who_was_alone_since_an_earlier_instant_has_done_that_much():
    n = network([1.0], {0: 1}, {0: 1})
    for f in (0, 1):
        leave(n, f)
    enter(n, 1, 1000, 1000)
    enter(n, 0, 0, 4000)
    share(n, 1000)
    assert [path.due for path in n.paths] == [7000, 3000]


@pytest.mark.parametrize("ns", [1, (1 << 32) - 1, 1 << 32, (1 << 53) - 1, NEVER - 1])
def test_long_transfers_end_exactly_where_they_are_alone_or_have_half(ns):
    n = network([1.0, 1.0], {0: 1}, {0: 1}, {1: 1}, ns=ns)
    half = [path.rate for path in n.paths[:2]]
    assert n.paths[2].due == ns
    if ns < 1 << 53:
        assert [path.due for path in n.paths[:2]] == [2 * ns, 2 * ns]
    assert all(rate >= 1 for rate in half)
