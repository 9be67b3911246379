"""Flows that meet on links of 1 GB/s (1 byte per ns): start and end, worked out by hand.

A send of 1,000 bytes is 1,000 ns of α and then 1,000 ns on its links.
"""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.clock import to_ns
from clustersim.cluster.fault import Fault
from clustersim.collective import plan_collective
from clustersim.replay.events.clock import Clock
from clustersim.replay.instant import COMPLETION, at
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.slowdown import WeakLinks
from tests.round_numbers import crossbar, two_leaves


class Sends:
    """A network of ``two_leaves(2)``: g0 and g1 on one switch, g2 and g3 on the other, one link between them."""

    def __init__(self) -> None:
        self.topology = two_leaves(2)
        self.env = Clock(initial_time=0)
        self.network = Network(self.env, self.topology.link_capacity)
        self.ends: dict[str, int] = {}

    def send(self, name, pair, size, start=0, **options):
        (plan,) = plan_collective(self.topology, "send", pair)
        duration = to_ns(float(plan.seconds(size)))
        self.ends[name] = -1

        def begin(_):
            self.network.begin(plan, size, duration, self._done, name, **options)

        at(self.env, start, COMPLETION, begin)

    def _done(self, name):
        self.ends[name] = self.env.now

    def run(self):
        self.env.run()
        return self.ends


@pytest.fixture
def sends() -> Sends:
    return Sends()


def test_a_flow_alone_takes_what_it_costs(sends):
    sends.send("a", (0, 2), 1000, start=5)
    assert sends.run() == {"a": 2005}


def test_flows_on_other_links_do_not_disturb(sends):
    sends.send("a", (0, 1), 1000)
    sends.send("b", (2, 3), 1000)
    sends.send("c", (1, 0), 1000)  # The other direction.
    assert sends.run() == {"a": 2000, "b": 2000, "c": 2000}


def test_two_flows_on_one_link_have_half_of_it_each(sends):
    sends.send("a", (0, 2), 1000)
    sends.send("b", (1, 3), 1000)
    assert sends.run() == {"a": 3000, "b": 3000}


def test_a_flow_that_joins_later_slows_the_other_from_then_on(sends):
    # a is on the link from 1,000, b from 1,500, when 500 bytes of a are left: at half the rate they take 1,000 ns.
    # b then has 500 of its 1,000 bytes left, and the link to itself.
    sends.send("a", (0, 2), 1000)
    sends.send("b", (1, 3), 1000, start=500)
    assert sends.run() == {"a": 2500, "b": 3000}


def test_a_small_flow_leaves_early_and_the_large_one_catches_up(sends):
    # Both from 1,000; the 100 bytes of b take 200 ns; a has 900 left at 1,200.
    sends.send("a", (0, 2), 1000)
    sends.send("b", (1, 3), 100)
    assert sends.run() == {"a": 2100, "b": 1200}


def test_the_start_up_of_a_flow_uses_no_link(sends):
    # The start-up of b (1,000 … 2,000) is while a moves its bytes.
    sends.send("a", (0, 2), 1000)
    sends.send("b", (1, 3), 1000, start=1000)
    assert sends.run() == {"a": 2000, "b": 3000}


def test_three_flows_share_by_bottleneck_and_what_one_leaves_goes_to_its_neighbours(sends):
    # a (g0 → g2) shares the link of g0 with c (g0 → g1) and the link between leaves with b (g1 → g3): half for all.
    # a ends at 1,000 + 2 · 500; b and c then have 500 of 1,000 bytes left, alone.
    sends.send("a", (0, 2), 500)
    sends.send("b", (1, 3), 1000)
    sends.send("c", (0, 1), 1000)
    assert sends.run() == {"a": 2000, "b": 2500, "c": 2500}


def test_flows_that_meet_again_share_what_a_link_carries_then(sends):
    # c and d are a and b once more, over half the capacity: each has a quarter of it.
    pairs = [(0, 2), (1, 3)]
    first, second = (set(plan_collective(sends.topology, "send", pair)[0].links.tolist()) for pair in pairs)
    fault = Fault(at_ns=10_000, links=tuple(first & second), share=0.5)
    capacity = sends.topology.link_capacity
    sends.network = Network(sends.env, capacity, WeakLinks([fault], capacity))
    for name, pair, start in zip("abcd", 2 * pairs, (0, 0, 10_000, 10_000), strict=True):
        sends.send(name, pair, 1000, start)
    assert sends.run() == {"a": 3000, "b": 3000, "c": 15_000, "d": 15_000}


def test_ends_do_not_depend_on_who_begins_first_at_an_instant():
    forth, back = Sends(), Sends()
    flows = [("a", (0, 2), 700), ("b", (1, 3), 300), ("c", (0, 1), 900), ("d", (1, 2), 100)]
    for flow in flows:
        forth.send(*flow)
    for flow in reversed(flows):
        back.send(*flow)
    assert forth.run() == back.run()


def test_flows_that_join_at_one_instant_are_solved_once(sends):
    for number, pair in enumerate(((0, 2), (1, 3), (0, 3), (1, 2))):
        sends.send(str(number), pair, 1000)
    sends.env.run(until=4999)
    assert sends.network.solved == 1
    assert set(sends.run().values()) == {5000}


@pytest.mark.parametrize("size", [0, 1000])
def test_a_communication_without_a_plan_only_takes_its_time(sends, size):
    sends.network.begin(None, size, 123, sends._done, "a")
    assert sends.run() == {"a": 123}


def test_a_payload_of_nothing_takes_its_start_up(sends):
    sends.send("a", (0, 2), 0)
    assert sends.run() == {"a": 1000}


def test_a_flow_may_be_entered_late_when_it_was_alone_until_now(sends):
    # a has been under way since 0 and on its link since 1,000, when b enters at 1,500 and a is told to the network.
    sends.send("b", (1, 3), 1000, start=500)
    sends.send("a", (0, 2), 1000, start=1500, started=0)
    assert sends.run() == {"a": 2500, "b": 3000}


class Watcher:
    def __init__(self, env: Clock) -> None:
        self.env = env
        self.seen: list[tuple[str, int]] = []

    def disturb(self) -> None:
        self.seen.append(("enters", self.env.now))

    def calm(self) -> None:
        self.seen.append(("leaves", self.env.now))


def test_a_watcher_hears_of_foreign_flows_on_its_links_only(sends):
    (up,) = (link for link in sends.topology.route(0, 2) if sends.topology.link_ends[link][0] == "g0")
    watcher = Watcher(sends.env)
    assert sends.network.watch([up], watcher) == 0
    sends.send("own", (0, 1), 10)
    sends.send("elsewhere", (1, 3), 10, foreign=True)
    sends.send("here", (0, 2), 1000, start=5000, foreign=True)
    sends.run()
    assert watcher.seen == [("enters", 6000), ("leaves", 7000)]


def test_watch_says_how_many_foreign_flows_are_there_already_link_by_link(sends):
    up, across, down = sends.topology.route(0, 2)
    sends.send("a", (0, 2), 1000, foreign=True)
    sends.send("b", (1, 2), 1000, foreign=True)
    sends.env.run(until=1500)
    assert sends.network.watch([up], Watcher(sends.env)) == 1
    assert sends.network.watch([up, across, down], Watcher(sends.env)) == 5
    sends.env.run()
    assert sends.network.watch([up, across, down], Watcher(sends.env)) == 0


def test_a_collective_and_a_send_share_the_link_that_both_use():
    """All-gather of 2,000 bytes on two devices: 1 µs of α, then 1,000 bytes on each of four links."""
    topology, env = crossbar(3), Clock(initial_time=0)
    network, ends = Network(env, topology.link_capacity), {}
    (gather,) = plan_collective(topology, "all_gather", (0, 1), "ring")
    (send,) = plan_collective(topology, "send", (0, 2))
    network.begin(gather, 2000, 2000, lambda name: ends.update({name: env.now}), "gather")
    network.begin(send, 400, 1400, lambda name: ends.update({name: env.now}), "send")
    env.run()
    # From 1,000 both have half of the link of g0: the send ends at 1,800, the all-gather has 600 bytes left.
    assert ends == {"send": 1800, "gather": 2400}
    assert np.array_equal(gather.load_per_byte, [0.5, 0.5, 0.5, 0.5])
