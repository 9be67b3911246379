"""Links that carry more than they can: pieces of the replays that share links, each replaced, and RUN-3 notices.

Each scenario has links on which two communications meet: outputs of stages and collectives, hand-overs, copies to a
host, collectives of two replicas. Without the mistake it is legal in both replays.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from clustersim.core import clock, flows
from clustersim.legality.audit import check_history
from clustersim.legality.history import History
from clustersim.legality.timeline_rules.links.crowds import crowds_of
from clustersim.replay import prepared
from clustersim.replay.links.paths import LinkPaths
from clustersim.replay.links.sharing_by_events import Network
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import simulate
from tests.effort import some
from tests.laws.mutations import Mutation, mutated
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import broken, is_illegal
from tests.legality.timeline.test_replay_mutations import document

RACKS: Final = {
    "name": "fat-tree", "nodes": 4, "nodes_per_leaf": 2, "devices_per_node": 4, "spines": 1, "oversubscription": 16,
}  # fmt: skip
LONG: Final = {"prompt_tokens": {"uniform": {"low": 400, "high": 900}}, "arrivals": {"process": "all_at_once"}}
WIDE: Final = {"max_batch_tokens": 1024, "kv_blocks": 4000}
TWO_POOLS: Final = {
    "topology": RACKS,
    "plan": {"prefill": {"dp": 2, "tp": 4}, "decode": {"dp": 2, "tp": 2, "placement": [8, 9, 12, 13]}},
    "serving": WIDE | {"scheduler": "disaggregated"},
    "workload": LONG,
}
SHARED: Final[dict[str, dict[str, Any]]] = {
    "sends": document(
        topology={"name": "l40s-node"}, plan={"tp": 2, "pp": 2, "placement": [0, 2, 1, 3]}, serving=WIDE, workload=LONG
    ),
    "own sends": document(plan={"tp": 2, "pp": 2}, serving=WIDE, workload=LONG),
    "hand-overs": document(**TWO_POOLS),
    "layers": document(**TWO_POOLS | {"serving": WIDE | {"scheduler": "disaggregated", "transfer": "layerwise"}}),
    "swaps": document(
        topology={"name": "l40s-node"},
        plan={"tp": 2},
        serving=WIDE | {"kv_blocks": 400, "preemption": "swap", "host_kv": "8 GiB"},
        workload=LONG | {"prompt_tokens": {"uniform": {"low": 100, "high": 200}}, "output_tokens": {"fixed": 90}},
    ),
    "replicas": document(
        topology=RACKS, plan={"tp": 2, "dp": 2, "placement": [0, 8, 1, 9]}, serving=WIDE, workload=LONG
    ),
    "uneven groups": document(  # of each replica one group of SP ranks is in a node, the other one in two racks
        topology=RACKS,
        plan={
            "tp": 2,
            "dp": 2,
            "placement": [0, 4, 1, 8, 2, 5, 3, 9],
            "sp": {"degree": 2, "scheme": "all_gather", "partition": "contiguous", "decode": "idle"},
        },
        serving=WIDE,
        workload=LONG,
    ),
}
CAUGHT: Final[dict[str, tuple[Mutation, tuple[str, ...]]]] = {
    "a transfer never shares": (
        Mutation(flows, "share_component", "if count == 1:", "if True:"),
        ("sends", "own sends", "hand-overs", "layers", "swaps", "replicas", "uneven groups"),
    ),
    "collectives do not share": (
        Mutation(Network, "begin", "transfer_ns == 0:", "transfer_ns == 0 or not foreign:"),
        ("sends", "own sends", "replicas", "uneven groups"),
    ),
    "what moves does not share": (
        Mutation(Network, "begin", "transfer_ns == 0:", "transfer_ns == 0 or foreign:"),
        ("sends", "own sends", "hand-overs", "layers", "swaps"),
    ),
    "links of one direction are not shared": (
        Mutation(flows, "offer_shares", "max(link.open", "max(n.links[number].crossed % 2 == 1 and link.open"),
        ("swaps",),
    ),
    "links of the other direction are not shared": (
        Mutation(flows, "offer_shares", "max(link.open", "max(n.links[number].crossed % 2 == 0 and link.open"),
        ("swaps",),
    ),
    "a route lacks its first link": (
        Mutation(LinkPaths, "_made", "first, places)", "first, (places[0][1:], places[1][1:]))"),
        ("sends", "own sends"),
    ),
    "a route lacks its last link": (
        Mutation(LinkPaths, "_made", "first, places)", "first, (places[0][:-1], places[1][:-1]))"),
        ("swaps",),
    ),
    "shared links carry twice as much": (
        Mutation(flows, "offer_shares", "link.left // max(", "2 * link.left // max("),
        ("sends", "hand-overs", "layers", "swaps", "replicas", "uneven groups"),
    ),
    "shared links carry 5 % more": (
        Mutation(flows, "offer_shares", "link.left // max(", "link.left * 21 // 20 // max("),
        ("sends", "hand-overs", "layers", "swaps", "replicas", "uneven groups"),
    ),
    "who shares has half of it behind": (
        Mutation(flows, "set_rate", "max(0, path.left - ", "min(path.left // 2, path.left - "),
        ("sends", "hand-overs", "layers", "swaps", "replicas"),
    ),
}
"""A mistake of the network, and the scenarios in which it shows on a link."""
CAUGHT_IN_FOLDED: Final[dict[str, tuple[Mutation, tuple[str, ...]]]] = {
    "nobody is seen to meet": (
        Mutation(prepared, "find_contention", "len(here) < 2", "True"),
        ("sends", "own sends", "replicas"),
    ),
    "two are not seen to meet": (
        Mutation(prepared, "find_contention", "len(here) < 2", "len(here) < 3"),
        ("sends", "own sends", "replicas"),
    ),
    "what meets does not share": (
        Mutation(flows, "share_component", "if count == 1:", "if True:"),
        ("own sends", "sends"),
    ),
    "nobody hears of a send": (Mutation(clock, "go_on_transfer", "tell(s, p, n, f, 1)", "pass"), ("own sends",)),
}
"""Mistakes of the folded replay alone."""


def history(name: str, replay: str) -> History:
    return history_of_run(simulate(scenario_of(SHARED[name], replay=replay)))


@cache
def legal(name: str) -> History:
    return history(name, "folded")


@pytest.mark.parametrize("name", SHARED)
def test_links_that_are_shared_fairly_are_legal(name: str) -> None:
    for found in (legal(name), history(name, "full")):
        verdict = check_history(found)
        assert verdict.violations == ()
        assert next(rule for rule in verdict.rules if rule.id == "RUN-3").lacks == ()


@pytest.mark.parametrize(
    ("mistake", "name"), [(one, name) for one, (_, names) in CAUGHT.items() for name in some(names)]
)
def test_a_network_that_does_not_share_is_noticed(mistake: str, name: str) -> None:
    with mutated(CAUGHT[mistake][0]):
        found = history(name, "full")
    assert "RUN-3" in broken(found, ("RUN-3",))


@pytest.mark.parametrize(
    ("mistake", "name"), [(one, name) for one, (_, names) in CAUGHT_IN_FOLDED.items() for name in some(names)]
)
def test_a_folded_replay_that_does_not_share_is_noticed(mistake: str, name: str) -> None:
    with mutated(CAUGHT_IN_FOLDED[mistake][0]):
        found = history(name, "folded")
    assert "RUN-3" in broken(found, ("RUN-3",))


def crowd(*transfers: tuple[float, float, float]) -> float:
    """Return what lacks most, in ns, of transfers from one instant to another that need a link so long, as if alone."""
    enter, end, need = np.array(sorted(transfers), np.float64).T
    _, _, lacks = crowds_of(enter, end, need).lacks(need)
    return max(0.0, float(lacks.max()))


@pytest.mark.parametrize(
    ("flows", "lacks"),
    [
        ([(0, 10, 10), (10, 20, 10)], 0),  # they touch
        ([(0, 20, 10), (10, 30, 20)], 0),  # one waits for the other
        ([(0, 20, 10), (0, 20, 10)], 0),  # half of it each
        ([(0, 10, 10), (5, 15, 10)], 5),  # the whole link each
        ([(0, 100, 50), (40, 60, 20), (60, 100, 31)], 1),
        ([(0, 1000, 1000), *((at, at + 2, 2) for at in range(0, 1000, 10))], 200),  # more than are looked at near
        ([(at, at + 300, 2.01) for at in range(300)], 4),
    ],
)
def test_what_lacks_of_a_link(flows: list[tuple[float, float, float]], lacks: float) -> None:
    assert crowd(*flows) == pytest.approx(lacks, abs=1e-6)


def test_half_a_link_each_fits_and_more_does_not() -> None:
    """Two that are as fast as alone, and use a part of a link each: how much of it counts, not for how long."""
    enter, end, alone = np.array([0.0, 50.0]), np.array([100.0, 150.0]), np.array([100.0, 100.0])
    for share, lack in ((0.5, 0.0), (0.6, 10.0)):
        need = share * alone
        assert crowds_of(enter, end, alone).lacks(need)[2].max() == pytest.approx(lack, abs=1.5)


def test_a_weak_link_carries_less() -> None:
    """Hand-overs that have a link as it should be are too fast for one that a fault had made weak."""
    weak = SHARED["hand-overs"] | {"faults": [{"link": ["leaf0", "spine0"], "at": "0 s", "factor": 0.5}]}
    found = history_of_run(simulate(scenario_of(weak)))
    assert not is_illegal(found)
    strong = replace(legal("hand-overs"), pools=found.pools)
    assert "RUN-3" in broken(strong, ("RUN-3",))


def test_a_collective_that_shares_links_which_were_mended_is_legal() -> None:
    """Its pass began when the link was weak; as it shares it, what the link carries by then counts (RUN-2)."""
    fault = {"link": ["n0.nvswitch", "n0.g2"], "at": "1 ms", "until": "2 ms", "factor": 0.01}
    mended = SHARED["own sends"] | {"faults": [fault]}
    assert not is_illegal(history_of_run(simulate(scenario_of(mended))))
