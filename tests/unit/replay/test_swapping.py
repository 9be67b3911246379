"""Preemption by swap, on round numbers: who leaves when, what it costs, who comes back, and what is refused.

A device's link to its host carries 1 GB/s, so that a byte takes 1 ns, and a copy starts after 1 µs. A block of 4 tokens
has 1,000 bytes per token and layer: 4,000 bytes, 4 µs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.cluster.fault import Fault
from clustersim.errors import InputError
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.input import HostPool, ReplayInput, ReplayResult
from clustersim.replay.links.host_copies import copies_ns, host_plan
from clustersim.replay.prepared import Prepared
from clustersim.replay.replay import replay
from clustersim.scenario.load import load
from clustersim.serving.decision import CANCELLED, FACT_KINDS, FINISHED, PREEMPTED, SWAPPED_IN, SWAPPED_OUT
from tests.audit import replayed
from tests.effort import crossed
from tests.laws.agreement import agree
from tests.oracle.events.run import EventReplay
from tests.round_numbers import deployment, hosted, with_entry

BLOCK_BYTES = 4_000


def swapping(*arrivals: tuple[int, int, int], blocks: int, host: int = 100, shared: bool = False, **more: Any) -> Any:
    """A deployment with pools of so many blocks on the devices and on the host."""
    plan = more.pop("plan", None) or ParallelPlan()
    given = deployment(
        arrivals,
        plan=plan,
        topology=hosted(plan.world, shared=shared),
        kv_blocks=blocks,
        preemption="swap",
        host_kv_bytes=1.0,
        **more,
    )
    return with_entry(given, host=HostPool(blocks=host, block_bytes=(BLOCK_BYTES // plan.tp,) * plan.pp))


def told(result: ReplayResult, *kinds: int) -> list[tuple[str, int, int, int]]:
    """Return (kind, request, value, blocks in use) of the facts of some kinds."""
    facts = result.timeline.facts
    rows = np.flatnonzero(np.isin(facts["kind"], kinds))
    columns = (facts[name][rows].tolist() for name in ("kind", "request", "value", "used"))
    return [(FACT_KINDS[kind], *rest) for kind, *rest in zip(*columns, strict=True)]


def moves(result: ReplayResult) -> list[tuple[int, ...]]:
    """Return (request, from, to, tokens, bytes, start, end) of the moves, in order of start."""
    names = ("request", "from_rank", "to_rank", "tokens", "bytes", "start_ns", "end_ns")
    rows = zip(*(result.timeline.moves[name].tolist() for name in names), strict=True)
    return sorted(rows, key=lambda row: (row[5], row[0], row[1]))


TWO = ((0, 4, 8), (0, 4, 8))
"""Prompts of one block each; both then need a second block for their second token, and a third one later."""


def test_a_victim_is_copied_out_and_back_and_computes_nothing_anew():
    result = replayed(swapping(*TWO, blocks=4))
    # Both hold 2 blocks when request 0 needs a third for its entry 8: request 1 leaves with 8 entries, or 2 blocks.
    assert told(result, PREEMPTED, SWAPPED_OUT, SWAPPED_IN) == [("swapped_out", 1, 8, 2), ("swapped_in", 1, 8, 2)]
    out, back = moves(result)
    assert (out[:5], back[:5]) == ((1, 0, -1, 8, 8_000), (1, -1, 0, 8, 8_000))
    assert [end - start for *_, start, end in (out, back)] == [9_000, 9_000]  # 1 µs and 8,000 bytes at 1 GB/s
    assert result.preemptions.tolist() == [0, 1]
    assert int(result.timeline.chunks["count"].sum()) == 8, "no token of a prompt is computed twice"


def test_others_go_on_while_a_victim_is_copied_and_who_needs_its_blocks_waits():
    result = replayed(swapping((0, 4, 8), (0, 1, 8), (0, 4, 8), blocks=5))
    (_, _, _, _, _, start, end), *_ = moves(result)
    inside = [
        (int(result.timeline.steps["decode_tokens"][row]))
        for row in range(len(result.timeline.steps["start_ns"]))
        if start <= result.timeline.steps["start_ns"][row] < end
    ]
    assert inside
    assert all(0 < count < 3 for count in inside)


def test_who_finds_no_room_on_the_host_is_computed_anew():
    result = replayed(swapping(*TWO, blocks=4, host=1))
    assert [kind for kind, *_ in told(result, PREEMPTED, SWAPPED_OUT)] == ["preempted"]
    assert moves(result) == []


def test_nobody_is_admitted_while_one_is_in_host_memory():
    result = replayed(swapping((0, 4, 8), (0, 4, 8), (30_000, 4, 2), blocks=4))
    facts = result.timeline.facts
    (back,) = facts["time_ns"][facts["kind"] == SWAPPED_IN].tolist()
    third = int(facts["time_ns"][(facts["kind"] == FACT_KINDS.index("admitted")) & (facts["request"] == 2)][0])
    assert third >= back


def test_every_rank_of_every_stage_copies_its_own_share():
    plan = ParallelPlan(tp=2, pp=2)
    result = replayed(swapping(*TWO, blocks=4, plan=plan, layers=2))
    out = [row for row in moves(result) if row[2] == -1]
    assert sorted({row[1] for row in out}) == [0, 1, 2, 3]
    assert {row[4] for row in out} == {2 * BLOCK_BYTES // 2}


def test_ranks_behind_one_link_share_it():
    alone, shared = (
        [
            end - start
            for *_, start, end in moves(replayed(swapping(*TWO, blocks=4, plan=ParallelPlan(tp=2), shared=one)))
        ]
        for one in (False, True)
    )
    assert set(alone) == {5_000}  # 1 µs and 4,000 bytes
    assert set(shared) == {9_000}  # twice the bytes on the link above both


def test_what_copies_take_is_known_beforehand_where_all_ranks_copy_alike():
    topology, payloads = hosted(2, apart=True), np.arange(3) * BLOCK_BYTES
    found = copies_ns(topology, (0, 1), payloads)
    assert found is not None
    assert found.tolist() == [[1_000, 5_000, 9_000]] * 2
    assert topology.hosts is not None
    slower = topology.link_capacity.copy()
    slower[list(topology.hosts.host_path(1, out=True))] /= 2
    for capacity in (slower, topology.link_capacity * 1e-18):  # copies that int64 can't tell
        assert copies_ns(replace(topology, link_capacity=capacity), (0, 1), payloads) is None


@pytest.mark.parametrize(
    ("scheduler", "blocks", "host", "shared", "degrees"),
    crossed(["chunked_prefill", "continuous"], [4, 5], [2, 100], [False, True], [{}, {"tp": 2}, {"pp": 2}, {"dp": 2}]),
)
def test_replays_agree_and_all_blocks_come_back(scheduler, blocks, host, shared, degrees):
    arrivals = [(at, 1 + at % 7, 3 + at % 13) for at in (0, 0, 5_000, 11_000, 12_000, 40_000)]
    given = swapping(
        *arrivals, blocks=blocks, host=host, shared=shared, plan=ParallelPlan(**degrees), layers=2, scheduler=scheduler
    )
    agree(given)


def pools_after(given: ReplayInput) -> list[tuple[int, int]]:
    """Return the blocks in use on devices and hosts of each replica after a run."""
    found = EventReplay(Prepared(given), None, "a test")
    found.run()
    return [(scheduler.pool.used, scheduler.host.used) for scheduler in found.fleet.schedulers]


def test_no_block_is_left_on_devices_or_hosts():
    assert pools_after(swapping(*TWO, (0, 4, 8), blocks=5, plan=ParallelPlan(dp=2))) == [(0, 0)] * 2


def test_a_copy_costs_its_route_and_the_constants_of_sends():
    plan = host_plan(hosted(1), 0, out=True)
    assert float(plan.seconds(8_000)) == pytest.approx(9e-6)


@pytest.mark.parametrize(
    ("gives_up", "expected"),
    [
        ("leaving", ["swapped_out", "cancelled"]),
        ("at rest", ["swapped_out", "cancelled"]),
        ("coming back", ["swapped_out", "swapped_in", "cancelled"]),
        ("back", ["swapped_out", "swapped_in", "cancelled"]),
    ],
)
def test_who_is_given_up_while_it_is_away_gives_all_blocks_back(gives_up, expected):
    given = swapping(*TWO, blocks=4)
    out, back = (row[5:] for row in moves(replay(given)))
    instant, gone = {
        "leaving": (out[0] + 1, out[1]),  # with the end of the copy
        "at rest": (out[1] + 1, out[1] + 1),
        "coming back": (back[0] + 1, back[1]),
        "back": (back[1], back[1]),  # before its next step
    }[gives_up]
    given = replace(given, requests=replace(given.requests, cancel_after_ns=np.array([-1, instant])))
    for mode in ("full", "folded"):
        result = replay(replace(given, mode=mode))
        facts = result.timeline.facts
        mine = (facts["request"] == 1) & np.isin(facts["kind"], (SWAPPED_OUT, SWAPPED_IN, CANCELLED))
        assert [FACT_KINDS[kind] for kind in facts["kind"][mine]] == expected
        assert facts["time_ns"][mine][-1] == gone
    assert pools_after(given) == [(0, 0)]


@pytest.mark.parametrize(
    ("fails", "expected", "preemptions"),
    [
        ("leaving", ["preempted"], 1),
        ("at rest", ["swapped_out", "preempted"], 2),
        ("coming back", ["swapped_out", "swapped_in", "preempted"], 2),
        ("back", ["swapped_out", "swapped_in", "preempted"], 2),
    ],
)
def test_a_replica_that_fails_loses_what_is_in_host_memory_and_on_its_way(fails, expected, preemptions):
    given = swapping(*TWO, blocks=4)
    out, back = (row[5:] for row in moves(replay(given)))
    instant = {
        "leaving": (out[0] + out[1]) // 2,
        "at rest": out[1] + 1,
        "coming back": (back[0] + back[1]) // 2,
        "back": back[1] + 1,
    }[fails]
    given = replace(given, faults=(Fault(at_ns=instant, until_ns=instant + 5_000, devices=(0,)),))
    results = [replay(replace(given, mode=mode)) for mode in ("full", "folded")]
    for result in results:
        facts = result.timeline.facts
        mine = (facts["request"] == 1) & np.isin(facts["kind"], (PREEMPTED, SWAPPED_OUT, SWAPPED_IN))
        mine &= facts["time_ns"] <= instant
        assert [FACT_KINDS[kind] for kind in facts["kind"][mine]] == expected
        assert facts["used"][facts["time_ns"] == instant][-1] == 0
        assert result.preemptions[1] >= preemptions
        assert Counter(facts["kind"])[FINISHED] == 2  # both are computed anew
        cut = [row for row in moves(result) if row[5] < instant < row[6]]
        assert cut == []
    assert results[0].timeline.digest == results[1].timeline.digest


def test_a_copy_over_a_weak_link_takes_as_it_is_when_it_begins():
    given = swapping(*TWO, blocks=4)
    (*_, began, ended), (*_, back, over) = moves(replay(given))
    link = next(i for i, ends in enumerate(given.topology.link_ends) if ends == ("g0", "host"))
    weak = Fault(at_ns=began, until_ns=began + 1, links=(link,), share=0.25)
    for mode in ("full", "folded"):
        (*_, start, end), (*_, again, last) = moves(replay(replace(given, faults=(weak,), mode=mode)))
        assert start == began
        assert end - start - 1_000 == 4 * (ended - began - 1_000)  # all but the α of 1 µs
        assert last - again == over - back  # the way back is as it should be


def test_a_replica_is_down_while_its_way_to_the_host_is():
    given = swapping(*TWO, blocks=4, plan=ParallelPlan(dp=2))
    link = next(i for i, ends in enumerate(given.topology.link_ends) if ends == ("host", "g1"))
    given = replace(given, faults=(Fault(at_ns=5, links=(link,)),))
    assert [(one.replica, one.at_ns) for one in Prepared(given).outages] == [(1, 5)]
    assert Prepared(with_entry(given, host=None)).outages == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("serving.scheduler=static",), "the scheduler static can't swap yet; use continuous or chunked_prefill"),
        (("serving.prefix_caching=true",), "shared prefixes can't be swapped yet"),
        (("topology=fat-tree",), "has no links between devices and hosts"),
        (("serving.preemption=recompute", "serving.host_kv=1 GiB"), "goes with preemption: swap"),
    ],
)
def test_swaps_that_cannot_be_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        load("quickstart", ("serving.preemption=swap", *changes))
