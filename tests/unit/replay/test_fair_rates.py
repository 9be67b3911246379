"""Fair rates on networks so small that the shares can be worked out in the head."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from clustersim.errors import BrokenLawError
from clustersim.replay.links.fair_rates import fair_rates, solo_rate


def load(**bytes_by_link: float) -> tuple[np.ndarray, np.ndarray]:
    """``load(l0=5, l2=1)``: 5 bytes on link 0, 1 byte on link 2."""
    links = [int(name[1:]) for name in bytes_by_link]
    return np.array(links, np.int64), np.array(list(bytes_by_link.values()), np.float64)


def rates(capacity: list[float], *loads: tuple[np.ndarray, np.ndarray]) -> list[float]:
    return list(fair_rates(loads, np.array(capacity, np.float64)))


def test_fair_rates_gives_a_lone_activity_its_tightest_link():
    assert rates([10.0, 4.0], load(l0=10, l1=2)) == [1.0]
    assert solo_rate(load(l0=10, l1=2), np.array([10.0, 4.0])) == 1.0


def test_fair_rates_shares_one_link_equally_in_bytes():
    # 6 bytes/s for two: 3 bytes/s each, which is 3 of the small one's bytes but a third of the large one.
    assert rates([6.0], load(l0=1), load(l0=9)) == [3.0, pytest.approx(1 / 3)]


def test_fair_rates_leaves_to_others_what_a_flow_cannot_use():
    # Flow 0 is held to 10 by link 0, so flow 1 gets the remaining 20 of link 1's 30, not its half.
    assert rates([10.0, 30.0], load(l0=1, l1=1), load(l1=1)) == [10.0, 20.0]


def test_fair_rates_fills_a_chain_of_bottlenecks_in_turn():
    # Link 2 holds flows 0, 1, 2 to 3 each; link 1 leaves 9 to flow 3; link 0 then leaves 11 to flow 4.
    flows = [load(l2=1), load(l2=1), load(l2=1, l1=1), load(l1=1, l0=1), load(l0=1)]
    assert rates([20.0, 12.0, 9.0], *flows) == [3.0, 3.0, 3.0, 9.0, 11.0]


def test_fair_rates_of_a_collective_is_set_by_the_link_that_it_shares():
    # The collective puts 2 on the fast link and 1 on the slow one, where a transfer takes the other half.
    assert rates([100.0, 10.0], load(l0=2, l1=1), load(l1=1)) == [5.0, 5.0]


def test_fair_rates_settles_activities_that_prefer_each_others_link():
    # Each is heavy where the other is light: r + 10 r = 1 on both links.
    assert rates([1.0, 1.0], load(l0=1, l1=10), load(l0=10, l1=1)) == pytest.approx([1 / 11, 1 / 11])


def test_fair_rates_of_an_activity_without_load_is_infinite():
    assert rates([1.0], load(), load(l0=1)) == [np.inf, 1.0]


def test_fair_rates_do_not_depend_on_the_order_of_activities_to_the_bit():
    # What 0.1, 0.2 and 0.3 leave of 1 depends on the order of summation: 0.4 or 0.3999….
    flows = [load(l0=1, l1=1), load(l0=1, l2=1), load(l0=1, l3=1), load(l0=1)]
    expected = rates([1.0, 0.1, 0.2, 0.3], *flows)
    for order in itertools.permutations(range(4)):
        assert rates([1.0, 0.1, 0.2, 0.3], *(flows[a] for a in order)) == [expected[a] for a in order]


@pytest.mark.parametrize("wrong", [math.nan, 0.0, -1.0])
def test_fair_rates_refuses_a_load_that_is_not_positive(wrong):
    for company in ([], [load(l0=1)]):
        with pytest.raises(BrokenLawError, match="it takes more than 0"):
            rates([1.0], load(l0=wrong), *company)
