"""Laws of flows on shared links, over random sends between four devices on two switches (1 byte per ns per link)."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from clustersim.collective import plan_collective
from clustersim.replay.events.clock import Clock
from clustersim.replay.instant import COMPLETION, at
from clustersim.replay.links.sharing_by_events import Network
from tests.effort import examples
from tests.round_numbers import two_leaves

TOPOLOGY = two_leaves(2)
PAIRS = [(a, b) for a, b in product(range(4), repeat=2) if a != b]
ALPHA_NS = 1_000
Send = tuple[int, tuple[int, int], int]
"""(start in ns, pair, bytes)"""
SENDS = st.lists(
    st.tuples(st.integers(0, 5_000), st.sampled_from(PAIRS), st.integers(1, 4_000)), min_size=1, max_size=12
)


def ends(sends: list[Send], order: list[int]) -> list[int]:
    """Let sends begin, those of one instant in the given order; return when each ends."""
    env = Clock(initial_time=0)
    network = Network(env, TOPOLOGY.link_capacity)
    found = [0] * len(sends)

    def ended(number: int) -> None:
        found[number] = env.now

    for number in order:
        start, pair, size = sends[number]
        (plan,) = plan_collective(TOPOLOGY, "send", pair)
        begin = plan, size, ALPHA_NS + size, ended, number
        at(env, start, COMPLETION, lambda begin: network.begin(*begin), begin)
    env.run()
    return found


@examples(200)
@given(SENDS)
def test_no_flow_is_faster_than_alone_nor_slower_than_one_after_the_other(sends: list[Send]) -> None:
    last = max(start for start, _, _ in sends) + ALPHA_NS + sum(size for _, _, size in sends)
    for (start, _, size), end in zip(sends, ends(sends, list(range(len(sends)))), strict=True):
        assert start + ALPHA_NS + size <= end <= last + len(sends)


@examples(200)
@given(SENDS)
def test_no_link_carries_more_than_its_capacity_in_any_window(sends: list[Send]) -> None:
    """Rule RUN-3: the bytes of the flows that enter a link and leave it within a window fit into the window."""
    carried = list(zip(sends, ends(sends, list(range(len(sends)))), strict=True))
    for link in range(len(TOPOLOGY.link_ends)):
        here = [(s + ALPHA_NS, e, size) for (s, pair, size), e in carried if link in TOPOLOGY.route(*pair)]
        for (begin, _, _), (_, end, _) in product(here, here):
            inside = [size for entered, left, size in here if begin <= entered and left <= end]
            assert sum(inside) <= max(0, end - begin) + len(inside), "1 ns of rounding for each"


@examples(200)
@given(SENDS, st.randoms(use_true_random=False))
def test_ends_do_not_depend_on_the_order_of_events_of_one_instant(sends: list[Send], shuffle: object) -> None:
    crowded = [(start // 1_000 * 1_000, pair, size // 500 * 500 + 500) for start, pair, size in sends]
    order = list(range(len(crowded)))
    shuffle.shuffle(order)  # type: ignore[attr-defined]
    assert ends(crowded, order) == ends(crowded, sorted(order))


@examples(100)
@given(st.lists(st.integers(1, 4_000), min_size=1, max_size=8))
def test_a_link_that_all_flows_need_is_busy_until_the_last_byte(sizes: list[int]) -> None:
    """Work conservation: sharing delays flows, not the sum of their bytes."""
    sends = [(0, (0, 2), size) for size in sizes]
    assert abs(max(ends(sends, list(range(len(sends))))) - ALPHA_NS - sum(sizes)) <= len(sizes)
