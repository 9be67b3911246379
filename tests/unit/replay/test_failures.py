"""Replicas whose devices or links fail and come back: in both replays, on round numbers.

A prompt of 4 tokens takes 6,700 ns alone, a decode step 6,600 ns and 10 ns per token known (``tests.round_numbers``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.cluster.fault import Fault
from clustersim.collective.price import CommPlan
from clustersim.errors import InputError
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from clustersim.replay.events.pipeline import Pipeline
from clustersim.replay.outages import Outage, merged
from clustersim.replay.replay import replay
from clustersim.replay.slowdown import Slowdown
from clustersim.report.files.summary import summary_of
from clustersim.report.words.run import remarks
from clustersim.scenario.load import load
from clustersim.serving.decision import FACT_KINDS
from clustersim.simulation.audit import check_run
from clustersim.simulation.simulate import simulate
from clustersim.simulation.step_rows import StepRows
from clustersim.timeline.digest import digest_of
from tests.audit import audit, simulated
from tests.laws.accounts import audited_again
from tests.laws.agreement import states_agree
from tests.round_numbers import SPARSE, crossbar, deployment, lane, pools, step_ends

MODES = pytest.mark.parametrize("mode", ["full", "folded"])
TWO = ParallelPlan(dp=2)


def run(arrivals, faults, **more):
    """What comes of requests when something fails."""
    return replay(replace(deployment(arrivals, **more), faults=faults))


def told(result, *kinds):
    """(kind, request, instant, replica, K/V blocks in use) of the facts of some kinds, in order of time."""
    facts = result.timeline.facts
    columns = ("kind", "request", "time_ns", "replica", "used")
    rows = [(FACT_KINDS[row[0]], *row[1:]) for row in zip(*(facts[name].tolist() for name in columns), strict=True)]
    return sorted((row for row in rows if row[0] in kinds), key=lambda row: row[2])


@MODES
def test_a_sequence_goes_on_elsewhere_with_the_tokens_that_it_has(mode):
    # Prefill to 6,700 and a decode step to 13,350; the step that fails at 15,000 is lost with the entries.
    result = run([(0, 4, 4)], (Fault(at_ns=15_000, devices=(0,)),), mode=mode, plan=TWO)
    assert told(result, "admitted", "preempted", "finished") == [
        ("admitted", 0, 0, 0, 1), ("preempted", 0, 15_000, 0, 0), ("admitted", 0, 15_000, 1, 2),
        ("finished", 0, 28_480, 1, 0),
    ]  # fmt: skip  # the 6 tokens known: 21 pairs, 6,810 ns; the last decode with 7 tokens: 6,670 ns
    assert step_ends(result.timeline, 0) == [6_700, 13_350]
    assert step_ends(result.timeline, 1) == [21_810, 28_480]
    assert result.preemptions.tolist() == [1]


def test_who_is_moved_behind_others_waits_in_both_replays():
    # Request 0 decodes at replica 0 and 2 waits there; 3 comes from the other one, and waits from the next step on.
    arrivals = [(0, 4, 20), (0, 4, 1), (1, 4, 2), (2, 4, 20)]
    fails = (Fault(at_ns=30_000, devices=(1,)),)
    full, folded = (run(arrivals, fails, mode=mode, plan=TWO, max_batch_requests=1) for mode in ("full", "folded"))
    rows = StepRows(folded.timeline, 4).rows
    mine = (rows["replica"] == 0) & (rows["step"] < 20)
    waiting = np.repeat(rows["waiting"][mine], rows["count"][mine]).tolist()
    assert waiting == [0] + [1] * 4 + [2] * 15
    assert (rows["count"][mine] > 1).any()
    states_agree(full, [folded], 4)


@MODES
def test_who_is_moved_goes_before_members_of_a_static_batch_that_came_later(mode):
    # Requests 0 and 2 are a batch, of which 2 has to wait: 1 + 8 tokens exceed the budget. 1 comes before it, and is
    # no member, so nobody joins until 0 has finished: 1 token takes 6,610 ns, its decode step 6,620. Then 1 is first.
    given = {"mode": mode, "plan": TWO, "scheduler": "static", "max_batch_requests": 2, "max_batch_tokens": 8}
    result = run([(0, 1, 2), (0, 3, 1), (0, 8, 1)], (Fault(at_ns=3_000, devices=(1,)),), **given)
    assert sorted(row[1:4] for row in told(result, "admitted")) == [
        (0, 0, 0), (1, 0, 1), (1, 13_230, 0), (2, 19_890, 0),
    ]  # fmt: skip  # 3 tokens: 6 pairs, 6,660 ns


@MODES
def test_a_request_that_comes_while_no_replica_lives_takes_no_turn(mode):
    # Request 0 took the first turn; 1 comes while both are down. When they are back, 0 has the second turn.
    faults = tuple(Fault(at_ns=1_000, until_ns=50_000, devices=(one,)) for one in (0, 1))
    result = run([(0, 4, 2), (2_000, 4, 2)], faults, mode=mode, plan=TWO)
    assert result.replica.tolist() == [1, 0]


@MODES
def test_a_step_that_ends_as_something_fails_has_ended(mode):
    result = run([(0, 4, 4)], (Fault(at_ns=13_350, devices=(0,)),), mode=mode, plan=TWO)
    assert step_ends(result.timeline, 0) == [6_700, 13_350]
    assert told(result, "admitted")[1] == ("admitted", 0, 13_350, 1, 2)


@MODES
def test_a_lone_replica_begins_anew_when_it_is_back(mode):
    faults = (Fault(at_ns=10_000, until_ns=50_000, devices=(0,)),)
    result = run([(0, 4, 2), (20_000, 4, 1)], faults, mode=mode)
    assert told(result, "preempted", "admitted") == [
        ("admitted", 0, 0, 0, 1), ("preempted", 0, 10_000, 0, 0),
        ("admitted", 0, 50_000, 0, 2), ("admitted", 1, 50_000, 0, 3),
    ]  # fmt: skip
    assert len(told(result, "finished")) == 2


@MODES
def test_all_that_a_failed_replica_served_is_lost_where_the_fault_says_so(mode):
    faults = (Fault(at_ns=10_000, until_ns=50_000, devices=(0,), loses=True),)
    result = run([(0, 4, 2), (0, 4, 1), (0, 4, 9)], faults, mode=mode, max_batch_requests=1)
    assert told(result, "lost", "finished") == [("lost", request, 10_000, 0, 0) for request in range(3)]


@MODES
def test_without_a_replica_that_comes_back_requests_are_lost_or_rejected(mode):
    result = run([(0, 4, 9), (20_000, 4, 1)], (Fault(at_ns=10_000, devices=(0,)),), mode=mode)
    assert told(result, "lost", "rejected") == [("lost", 0, 10_000, 0, 0), ("rejected", 1, 20_000, 0, -1)]
    assert result.reasons == {
        0: "something, which replica 0 needs, failed at 1e-05 s, and nothing took it over",
        1: "every replica has failed, and none comes back",
    }


@MODES
def test_a_client_gives_up_a_request_that_waits_for_a_replica(mode):
    faults = (Fault(at_ns=10_000, until_ns=50_000, devices=(0,)),)
    given = replace(deployment([(0, 4, 9)], mode=mode), faults=faults)
    given = replace(given, requests=replace(given.requests, cancel_after_ns=np.array([30_000])))
    assert told(replay(given), "cancelled") == [("cancelled", 0, 30_000, 0, 0)]


@MODES
def test_a_request_that_is_given_up_in_a_step_that_fails_leaves_at_once(mode):
    faults = (Fault(at_ns=10_000, until_ns=50_000, devices=(0,)),)
    given = replace(deployment([(0, 4, 9)], mode=mode), faults=faults)
    given = replace(given, requests=replace(given.requests, cancel_after_ns=np.array([9_000])))
    assert told(replay(given), "cancelled", "preempted") == [("cancelled", 0, 10_000, 0, 0)]


@MODES
def test_a_request_that_waits_for_a_replica_too_long_is_rejected(mode):
    faults = (Fault(at_ns=10_000, until_ns=50_000, devices=(0,)),)
    result = run([(0, 4, 2), (15_000, 4, 1)], faults, mode=mode, queue_timeout_ns=20_000)
    assert told(result, "rejected") == [("rejected", 1, 35_000, 0, -1)]


@MODES
@pytest.mark.parametrize(("link", "down"), [(0, [0]), (1, [0]), (4, [1])])
def test_a_failed_link_takes_down_the_replicas_that_use_it(mode, link, down):
    plan, topology = ParallelPlan(dp=2, tp=2), crossbar(4)
    faults = (Fault(at_ns=5_000, until_ns=900_000, links=(link,)),)
    result = run([(0, 4, 3), (0, 4, 3)], faults, mode=mode, plan=plan, topology=topology)
    assert [row[3] for row in told(result, "preempted")] == down


def test_a_replica_with_one_stage_on_one_device_needs_no_link():
    faults = (Fault(at_ns=5_000, links=(0, 1)),)
    assert told(run([(0, 4, 3)], faults, mode="full"), "preempted") == []


def test_outages_that_overlap_or_touch_are_one():
    one = [(0, 10, 20, False), (0, 15, 30, True), (0, 30, 40, False), (0, 50, None, False), (1, 10, 20, True)]
    found = merged([Outage(replica=r, at_ns=a, until_ns=u, loses=lost) for r, a, u, lost in one])
    assert [(o.replica, o.at_ns, o.until_ns, o.loses) for o in found] == [
        (0, 10, 40, False), (0, 50, None, False), (1, 10, 20, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{at: 1 s}", "names nothing that fails; expected exactly one of device, node and link"),
        ("{device: n0.g0, node: 0, at: 1 s}", "names device and node that fails"),
        ("{device: n0.g9, at: 1 s}", "no device 'n0.g9'"),
        ("{device: 99, at: 1 s}", "has devices 0 to 15, not 99"),
        ("{node: n7, at: 1 s}", "no node 'n7'"),
        ("{link: [n0.g0, n0.g1], at: 1 s}", "no link between n0.g0 and n0.g1; n0.g0 has links to"),
        ("{device: 0, at: 2 s, until: 1 s}", "is not after at"),
        ("{device: 0}", "faults[0].at: is missing"),
        ("{device: 0, at: 1 s, for: 2 s}", "unknown key 'for'"),
    ],
)
def test_faults_that_cannot_be_are_refused(fault, message):
    with pytest.raises(InputError) as raised:
        load("quickstart", (f"faults=[{fault}]",))
    assert message in str(raised.value)


def test_every_fault_that_is_wrong_is_told_where_it_is(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(
        "topology: dgx-h100\nmodel: llama-3.1-8b\nworkload: {trace: t.csv}\nfaults:\n"
        "- {device: n0.g9, at: 1 s}\n"
        "- {node: n7, at: 1 s, until: 0.5 s}\n"
        "- {link: [n0.g0, n0.nvswitcg], at: 1 s}\n"
        "- {link: [n0.g, n0.swit], at: 1 s}\n"
        "- {link: [this, that], at: 1 s}\n"
        "- {device: n0.g1, at: 1 s, slowdwon: 2}\n"  # without which the others would be looked up in another place
        "- {device: 0, at: 1 s, slowdown: 2, lose: lose}\n"
    )
    with pytest.raises(InputError) as raised:
        load(path)
    assert [str(problem).removeprefix(f"{path}:") for problem in raised.value.problems] == [
        "5:12: faults[0].device: dgx-h100 has no device 'n0.g9'; did you mean 'n0.g7'?",
        "6:10: faults[1].node: dgx-h100 has no node 'n7'; did you mean 'n1'?",
        "6:30: faults[1].until: is not after at",
        "7:10: faults[2].link: dgx-h100 has no link between n0.g0 and n0.nvswitcg; did you mean 'n0.nvswitch'?",
        "8:10: faults[3].link: dgx-h100 has no link between n0.g and n0.swit; did you mean 'n0.g7' and 'n0.nvswitch'?",
        "9:10: faults[4].link: dgx-h100 has no link between this and that; there is nothing named 'this'",
        "10:28: faults[5].slowdwon: unknown key 'slowdwon'; did you mean 'slowdown'?",
        "11:43: faults[6].lose: what is slow but works loses nothing",
    ]


def test_faults_name_devices_nodes_and_links():
    given = "[{device: n0.g3, at: 1 s}, {node: n0, at: 0 s, until: 2 s}, {link: [n0.g1, n0.nvswitch], at: 1 s}]"
    scenario = load("quickstart", (f"faults={given}",))
    device, node, link = scenario.faults
    assert device == Fault(at_ns=10**9, devices=(3,))
    assert node == Fault(at_ns=0, until_ns=2 * 10**9, devices=tuple(range(8)))
    assert {scenario.topology.link_ends[one] for one in link.links} == {
        ("n0.g1", "n0.nvswitch"), ("n0.nvswitch", "n0.g1"),
    }  # fmt: skip


def kernels(result, rank):
    """Name and duration of what a rank runs on its compute stream in the first pass."""
    return {name: end - start for name, start, end in lane(result.timeline, rank, "compute")[:10]}


@MODES
def test_a_slow_device_takes_its_time_and_the_others_wait_for_it(mode):
    slow = (Fault(at_ns=0, until_ns=1_000, devices=(1,), slowdown=2.0),)
    healthy = run([(0, 4, 2)], (), mode=mode, plan=ParallelPlan(tp=2))
    result = run([(0, 4, 2)], slow, mode=mode, plan=ParallelPlan(tp=2))
    assert kernels(result, 0) == kernels(healthy, 0)
    assert kernels(result, 1) == {name: 2 * duration for name, duration in kernels(healthy, 1).items()}
    starts = [{name: start for name, start, _ in lane(result.timeline, rank, "comm")[:2]} for rank in (0, 1)]
    assert starts[0] == starts[1]
    # The step that starts at the end of the first one is as fast as ever.
    first, second = step_ends(result.timeline)
    as_ever = step_ends(healthy.timeline)
    assert (first - as_ever[0], second - first) == (5_900, as_ever[1] - as_ever[0])


@MODES
def test_only_passes_that_start_while_a_device_is_slow_are_slow(mode):
    # Steps of 6,600 ns and 10 per token; of the third, which starts at 13,350, all but 800 ns on the host take twice.
    slow = (Fault(at_ns=10_000, until_ns=25_000, devices=(0,), slowdown=2.0),)
    ends = step_ends(run([(0, 4, 4)], slow, mode=mode).timeline)
    assert ends == [6_700, 13_350, 13_350 + 800 + 2 * 5_860, 25_870 + 6_670]


@MODES
def test_a_weak_link_slows_down_what_uses_it(mode):
    # An all-reduce of n tokens moves 1,000 n bytes of 1 ns over each link in a ring of two; half the link takes twice.
    plan = ParallelPlan(tp=2)
    weak = (Fault(at_ns=0, links=(0,), share=0.5),)
    healthy, result = (run([(0, 4, 2)], faults, mode=mode, plan=plan) for faults in ((), weak))

    def first(found):
        return next(end - start for name, start, end in lane(found.timeline, 0) if name == "o_proj_all_reduce")

    assert first(healthy) == 2_000 + 4_000
    assert first(result) == 2_000 + 8_000
    away = (Fault(at_ns=0, links=(4,), share=0.5),)
    apart = run([(0, 4, 2)], away, mode=mode, plan=plan, topology=crossbar(4))
    assert step_ends(apart.timeline) == step_ends(healthy.timeline)


SLOWING = {
    "weak link": [Fault(at_ns=0, links=(0,), share=0.5)],
    "weak link for a while": [Fault(at_ns=1_000, until_ns=120_000, links=(0,), share=0.1)],
    "slow device": [Fault(at_ns=0, until_ns=30_000, devices=(1,), slowdown=3.0)],
    "two slow devices": [Fault(at_ns=0, devices=(at,), slowdown=1.5 + at) for at in (0, 1)],
    "both": [Fault(at_ns=0, links=(0,), share=0.5), Fault(at_ns=10_000, devices=(0,), slowdown=2.0)],
}


@pytest.mark.parametrize(
    ("plan", "faults"),
    [(ParallelPlan(tp=2), faults) for faults in SLOWING.values()]
    + [(ParallelPlan(pp=2, tp=2), SLOWING["weak link"]), (ParallelPlan(pp=2), SLOWING["slow device"])],
    ids=[*SLOWING, "weak link below two stages", "slow device of two stages"],
)
def test_a_chain_on_what_is_slow_needs_no_operators_as_events(plan, faults, monkeypatch):
    given = {"faults": tuple(faults), "plan": plan, "topology": crossbar(4), "layers": 2}
    requests = [(0, 4, 4), (7_000, 9, 3)]
    whole = run(requests, mode="full", **given)
    monkeypatch.setattr(Pipeline, "_start_by_operators", None)
    folded = run(requests, mode="folded", **given)
    assert digest_of(folded.timeline) == digest_of(whole.timeline)
    assert (folded.timeline.passes["irregular"] >= 0).any()


def test_a_slow_device_slows_both_halves_of_a_step() -> None:
    experts = ExpertPlan(degree=2, overlap="two_batch", overlap_decode_tokens=1, overlap_prefill_tokens=1)
    given = {"plan": ParallelPlan(tp=2, ep=experts), "layer": SPARSE, "layers": 2}
    slow, requests = (Fault(at_ns=0, devices=(1,), slowdown=2.0),), [(0, 9, 3), (0, 4, 4)]
    healthy, folded, whole = (
        run(requests, faults, mode=mode, **given) for faults, mode in (((), "folded"), (slow, "folded"), (slow, "full"))
    )
    assert digest_of(folded.timeline) == digest_of(whole.timeline)
    assert all(late > early for late, early in zip(*map(step_ends, (whole.timeline, healthy.timeline)), strict=True))


def lasting(result, replica):
    """When the first step of a replica began, and how long each of them took, one behind the other."""
    steps = result.timeline.steps
    begin = int(steps["start_ns"][steps["replica"] == replica].min())
    return begin, np.diff([begin, *step_ends(result.timeline, replica)]).tolist()


@pytest.mark.parametrize("transfer", ["whole", "layerwise"])
@MODES
def test_a_slow_device_of_the_decode_pool_takes_its_time(mode, transfer):
    # Of each step all but 800 ns on the host take twice; the fifth one starts when the device is as it should be.
    given = pools([(0, 4, 8)], mode=mode, transfer=transfer)
    begin, healthy = lasting(replay(given), 1)
    slow = [800 + 2 * (one - 800) for one in healthy]
    fault = Fault(at_ns=0, until_ns=begin + sum(slow[:4]), devices=(1,), slowdown=2.0)
    result = replay(replace(given, faults=(fault,)))
    assert len(healthy) == 7
    assert lasting(result, 1) == (begin, [*slow[:4], *healthy[4:]])
    if mode == "folded":  # the rest is one run
        counts = result.timeline.steps["count"][result.timeline.steps["replica"] == 1]
        assert counts.tolist() == [1, 1, 1, 1, 3]


def test_who_waits_is_told_before_a_replay_goes_by_events() -> None:
    weak = (Fault(at_ns=0, links=(0,), share=0.5),)
    told: list[str] = []
    for faults, mode in (((), "folded"), (weak, "full"), (weak, "folded")):
        given = deployment([(0, 4, 2)], plan=ParallelPlan(pp=2), layers=2, mode=mode)
        replay(replace(given, faults=faults), by_events=told.append)
    assert told == ["devices or links get slower, and stages, pools, replicas or halves of steps wait for each other"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{link: [n0.g1, n0.nvswitch], at: 1 s, slowdown: 2}", "a link has no kernels"),
        ("{device: 0, at: 1 s, factor: 0.5}", "goes with a link"),
        ("{device: 0, at: 1 s, slowdown: 2, lose: lose}", "what is slow but works loses nothing"),
        ("{device: 0, at: 1 s, slowdown: 1}", "must be more than 1"),
        ("{device: 0, at: 1 s, slowdown: 1.0e+300}", "faults[0].slowdown: must be at most 1,000,000,000"),
        (
            "{link: [n0.g1, n0.nvswitch], at: 1 s, factor: 1.0e-300}",
            "faults[0].factor: must be 0 (the link fails) or at least 1e-09",
        ),
        (
            "{device: 0, at: 1 s, slowdown: 1.0e+5}, {node: 0, at: 2 s, slowdown: 1.0e+5}",
            "faults[1].slowdown: with what slows node n0 down at the same time it is 1e+10 times as slow",
        ),
        (
            ", ".join(["{link: [n0.g1, n0.nvswitch], at: 1 s, factor: 1.0e-5}"] * 2),
            "factor: with what else link n0.g1 to n0.nvswitch suffers at the same time",
        ),
    ],
)
def test_slowness_that_cannot_be_is_refused(fault, message):
    with pytest.raises(InputError) as raised:
        load("quickstart", (f"faults=[{fault}]",))
    assert message in str(raised.value)


def test_what_is_slow_one_after_the_other_is_not_slow_together():
    after = "{device: 0, at: 1 s, until: 2 s, slowdown: 1.0e+5}, {node: 0, at: 2 s, slowdown: 1.0e+5}"
    thrice = ", ".join(["{link: [n0.g1, n0.nvswitch], at: 1 s, factor: 0.001}"] * 3)
    assert len(load("quickstart", (f"faults=[{after}, {thrice}]",)).faults) == 5


@pytest.mark.parametrize("mode", ["full", "folded"])
def test_a_time_that_64_bits_do_not_hold_is_an_error_of_the_input(mode):
    with pytest.raises(InputError, match="simulated time exceeds 292 years"):
        run([(0, 4, 2)], (Fault(at_ns=0, devices=(0,), slowdown=1e18),), mode=mode)
    with pytest.raises(InputError, match="simulated time exceeds 292 years"):  # each of its kernels ends in time
        run([(0, 4, 2)], (Fault(at_ns=0, devices=(0,), slowdown=8e15),), mode=mode)


MOVED = """
name: moved
topology: {name: dgx-h100, nodes: 1}
model: llama-3.1-8b
plan: {dp: 3, tp: 1}
serving: {max_batch_requests: 2}
workload:
  arrivals: {process: constant, rate: 1000/s}
  prompt_tokens: {fixed: 200}
  output_tokens: {fixed: 4}
  requests: 9
run: {horizon: HORIZON}
faults: FAULTS
"""


@pytest.mark.parametrize(
    ("faults", "horizon"),
    [
        ("[{device: 2, at: 5 ms}]", "100 s"),
        ("[{device: 1, at: 5 ms, until: 60 ms}, {device: 0, at: 20 ms}]", "100 s"),
        ("[{device: 0, at: 5 ms}, {device: 1, at: 6 ms}, {device: 2, at: 7 ms, until: 9 ms}]", "100 s"),
        ("[{device: 1, at: 9 ms}, {device: 2, at: 9 ms}]", "12 ms"),  # some still wait where they were moved
        ("[{device: 1, at: 9 ms, until: 10 ms}, {device: 1, at: 12 ms, lose: lose}]", "100 s"),  # and are not lost
    ],
)
def test_what_a_run_wrote_of_requests_that_were_moved_is_audited_as_legal(tmp_path, faults, horizon):
    file = tmp_path / "moved.yaml"
    file.write_text(MOVED.replace("FAULTS", faults).replace("HORIZON", horizon))
    result = simulate(load(file))
    moved = np.ma.getdata(result.requests["replica"]) != [0, 1, 2] * 3
    assert moved.any()
    assert audited_again(result, check_run(result)) == []


def test_who_ends_without_all_its_tokens_has_a_reason_that_is_counted(tmp_path):
    file = tmp_path / "moved.yaml"
    faults = "[{device: 1, at: 5 ms, lose: lose}, {node: 0, at: 9 ms}]"
    text = MOVED.replace("FAULTS", faults).replace("HORIZON", "100 s")
    file.write_text(text.replace("requests: 9", "requests: 12\n  cancel_after: 7.5 ms"))
    result = simulate(load(file))
    summary = summary_of(result)
    assert summary["reasons"] == {
        "rejected": {"every replica has failed, and none comes back": 2},
        "cancelled": {"its client gave it up before its first token": 1},
        "lost": {
            "device n0.g1, which replica 1 needs, failed at 0.005 s, and what it served was lost": 2,
            "node n0, which replica 0 needs, failed at 0.009 s, and nothing took it over": 3,
            "node n0, which replica 2 needs, failed at 0.009 s, and nothing took it over": 4,
        },
    }
    why = dict(zip(result.requests["request"].tolist(), result.requests["reason"].tolist(), strict=True))
    assert why[1] == "device n0.g1, which replica 1 needs, failed at 0.005 s, and what it served was lost"
    words = "9 of 12 requests were lost when what served them failed and have no latency (4 × node n0, which replica 2"
    assert [one[: len(words)] for one in remarks(summary) if "were lost" in one] == [words]
    assert audited_again(result, check_run(result)) == []


def test_a_weak_link_adds_what_its_bytes_take_longer_to_what_the_engine_takes():
    plan = CommPlan(
        kind="send", algorithm="direct", group=(0, 1), alpha_s=5e-6, own_seconds_per_byte=0.0, ramp_s=0.0,
        ramp_half_s=1.0, links=np.array([7]), load_per_byte=np.array([1.0]), seconds_per_byte=1e-9,
    )  # fmt: skip
    slowdown = Slowdown(slow={}, shares={7: 0.25}, capacity=np.full(8, 1e9))
    weak, took = slowdown.communication(plan, 1000.0, 5_000 + 1_000 + 300)  # 300 ns are the engine's
    assert (weak.seconds_per_byte, took) == (4e-9, 5_000 + 4_000 + 300)


def test_the_audit_of_tests_follows_who_is_moved_and_still_finds_who_jumps_the_queue():
    scenario = load("failing-node", overrides=["workload.requests=200"])
    result = simulated(scenario)
    given, facts = result.input, result.timeline.facts
    mine = np.flatnonzero((facts["kind"] == FACT_KINDS.index("admitted")) & (facts["time_ns"] > 10_000_000_000))
    waits = mine[np.diff(facts["time_ns"][mine], prepend=0) == 0]  # let in with the one before, which was first
    later = waits[-1]
    requests = facts["request"].copy()
    requests[[later - 1, later]] = requests[[later, later - 1]]
    timeline = replace(result.timeline, facts={**facts, "request": requests})
    with pytest.raises(AssertionError, match="admits"):
        audit(given, replace(result.replayed, timeline=timeline))
