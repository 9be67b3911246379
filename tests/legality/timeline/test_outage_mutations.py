"""Replay code that takes other faults as given than were declared, and the rule that notices.

Who is down when, who is slow and which links are weak is derived anew by the audit (``legality.declared``). Each of
these mistakes changes what happens; without it the same run is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest

import clustersim.simulation.simulate as made
from clustersim.cluster.fault import Fault
from clustersim.collective.communications import CommTable
from clustersim.replay.input import ReplayInput
from clustersim.replay.outages import Outage
from clustersim.replay.prepared import Prepared
from clustersim.replay.slowdown import Slowdown, Slowdowns, WeakLinks
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.effort import some
from tests.laws.random_scenarios import MIXTRAL, scenario_of
from tests.legality.timeline.asked import broken, replay_by_events
from tests.legality.timeline.source_mutations import Change, changed
from tests.legality.timeline.test_failing_pools_mutations import POOLS
from tests.legality.timeline.test_replay_mutations import document

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]
MS = 1_000_000


def outages(change: Callable[[tuple[Outage, ...]], Sequence[Outage]]) -> Mistake:
    """Let other outages happen."""
    own = Prepared.outages.func  # type: ignore[attr-defined]

    def mistake(patch: Patch) -> None:
        wrong = cached_property(lambda self: tuple(change(own(self))))
        wrong.__set_name__(Prepared, "outages")
        patch.setattr(Prepared, "outages", wrong)

    return mistake


def each(change: Callable[[Any], Any]) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda found: [change(one) for one in found]


def faults(change: Callable[[tuple[Fault, ...]], Sequence[Fault]]) -> Mistake:
    """Give the replay other faults than the scenario has."""
    own = made.replay_input

    def wrong(*arguments: Any) -> ReplayInput:
        found = own(*arguments)
        return replace(found, faults=tuple(change(found.faults)))

    return lambda patch: patch.setattr(made, "replay_input", wrong)


def slowdown(change: Callable[[Slowdown], Slowdown]) -> Mistake:
    """Let passes suffer something else."""
    own = Slowdowns.of

    def wrong(self: Slowdowns, stage: int, now: int) -> Slowdown | None:
        found = own(self, stage, now)
        return None if found is None else change(found)

    return lambda patch: patch.setattr(Slowdowns, "of", wrong)


def later(**by: int) -> Callable[[Any], Any]:
    return lambda one: replace(one, **{name: getattr(one, name) + ns for name, ns in by.items()})


def shares(value: float) -> Callable[[Slowdown], Slowdown]:
    return lambda found: replace(found, shares=dict.fromkeys(found.shares, value))


def weak_links(share: float) -> Mistake:
    """Let what moves between replicas, or to a host, find another share of links."""
    own = WeakLinks.__init__

    def wrong(self: WeakLinks, found: Sequence[Fault], *more: Any) -> None:
        own(self, [replace(fault, share=share) for fault in found], *more)

    return lambda patch: patch.setattr(WeakLinks, "__init__", wrong)


def core(module: str, old: str, new: str) -> Mistake:
    """Let a text of a module of the core be another one."""
    return lambda patch: changed(patch, Change(f"clustersim.core.{module}", old, new))


def by_oracle(mistake: Mistake) -> Mistake:
    """Let the oracle make a mistake, since the core takes it for granted that all of a group fail together."""

    def mutate(patch: Patch) -> None:
        mistake(patch)
        replay_by_events(patch)

    return mutate


def device(**more: Any) -> dict[str, Any]:
    return {"device": 0, "at": "1.2 ms", "until": "2.5 ms", **more}


LINK = {"link": ["n0.g0", "n0.nvswitch"], "at": "1 ms", "until": "3 ms"}
TWO = {"tp": 2, "dp": 2}
DOWN = document(plan=TWO, faults=[device()])
STEP_ENDS = "2224042 ns"  # of the other replica, so that what lost its own is admitted there at once
AT_THE_END = document(plan=TWO, faults=[{"device": 0, "at": STEP_ENDS}], run={"horizon": STEP_ENDS})
ALONE = document(faults=[device()])
LOST = document(plan=TWO, faults=[device(lose="lose")])
CUT = document(plan=TWO, faults=[LINK])
SLOW = document(plan={"tp": 2}, faults=[device(device=1, slowdown=3.0)])
A_LITTLE = document(plan={"tp": 2}, faults=[device(device=1, slowdown=1.2)])
WEAK = document(plan={"tp": 2}, faults=[LINK | {"factor": 0.1}])
STAGES = document(plan={"tp": 1, "pp": 2}, faults=[LINK | {"factor": 0.1}])
STAGE_CUT = document(plan={"tp": 1, "pp": 2, "dp": 2}, faults=[LINK])
HOSTS = document(
    topology={"name": "l40s-node"},
    plan={"tp": 1},
    serving={"kv_blocks": 24, "preemption": "swap", "host_kv": "1 GiB"},
    workload={"output_tokens": {"uniform": {"low": 20, "high": 40}}},
    faults=[{"link": ["n0.g0", "n0.pcie0"], "at": "0 s", "factor": 0.1}],
)
HANDED = POOLS | {"faults": [{"link": ["n0.g2", "n0.pcie1"], "at": "0 s", "factor": 0.1}]}
DECODE_DOWN = POOLS | {"faults": [{"device": 2, "at": "8 ms", "until": "9 ms"}]}
PREFILL_LOST = POOLS | {"faults": [{"device": 0, "at": "8 ms", "until": "9 ms", "lose": "lose"}]}
DECODE_LOST = POOLS | {"faults": [{"device": 2, "at": "8 ms", "until": "9 ms", "lose": "lose"}]}
PAIR = POOLS | {"plan": {"prefill": {"dp": 1}, "decode": {"dp": 1}}}
PREFILL_DOWN = PAIR | {"faults": [{"device": 0, "at": "8 ms", "until": "9 ms"}]}
DECODE_ALONE = PAIR | {"faults": [{"device": 1, "at": "8 ms", "until": "10 ms"}]}
NO_DECODE = POOLS | {"faults": [{"device": at, "at": f"{10 - at} ms", "until": "9.5 ms"} for at in (2, 3)]}
BY_LAYER = DECODE_DOWN | {"serving": POOLS["serving"] | {"transfer": "layerwise"}}
STAGED = DECODE_DOWN | {"plan": {"prefill": {"dp": 2}, "decode": {"dp": 2, "pp": 2}}}
WAY_CUT = POOLS | {"faults": [{"link": ["n0.g2", "n0.pcie1"], "at": "8 ms", "until": "9 ms"}]}
POOL_SLOW = POOLS | {"faults": [{"device": 2, "at": "0 s", "slowdown": 3.0}]}
TOGETHER = document(
    plan={"dp": 2, "ep": {"degree": 2, "scope": "global"}},
    model={"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}},
    faults=[device()],
)
SWAPPED = document(
    serving={"kv_blocks": 24, "preemption": "swap", "host_kv": "1 GiB"},
    workload={"output_tokens": {"uniform": {"low": 20, "high": 40}}},
    faults=[device()],
)
CLEAN, CLEAN_TWO = document(), document(plan=TWO)

UNDECLARED = Outage(replica=0, at_ns=2 * MS, until_ns=3 * MS, loses=False)
MISTAKES: list[tuple[str, Mistake, dict[str, Any], str]] = [
    ("another replica fails", outages(each(lambda one: replace(one, replica=1 - one.replica))), DOWN, "RUN-3"),
    ("none fails", outages(lambda found: ()), DOWN, "RUN-3"),
    ("none fails at the horizon", outages(lambda found: ()), AT_THE_END, "RUN-3"),
    ("the only one does not fail", outages(lambda found: ()), ALONE, "RUN-3"),
    ("it is back too early", outages(each(later(until_ns=-MS))), DOWN, "RUN-3"),
    ("it is back too late", outages(each(later(until_ns=MS))), DOWN, "RUN-3"),
    ("the only one is back too late", outages(each(later(until_ns=MS))), ALONE, "RUN-3"),
    ("it never comes back", outages(each(lambda one: replace(one, until_ns=None))), DOWN, "RUN-3"),
    ("the only one never comes back", outages(each(lambda one: replace(one, until_ns=None))), ALONE, "RUN-4"),
    ("it fails too late", outages(each(later(at_ns=MS // 2))), DOWN, "RUN-3"),
    ("it fails too early", outages(each(later(at_ns=-MS // 2))), DOWN, "RUN-3"),
    ("the only one fails too early", outages(each(later(at_ns=-MS // 2))), ALONE, "RUN-3"),
    ("it loses what is to be kept", outages(each(lambda one: replace(one, loses=True))), DOWN, "RUN-4"),
    ("it keeps what is to be lost", outages(each(lambda one: replace(one, loses=False))), LOST, "RUN-4"),
    ("one fails that nobody declared", outages(lambda found: (UNDECLARED,)), CLEAN_TWO, "RUN-3"),
    ("the only one fails, undeclared", outages(lambda found: (UNDECLARED,)), CLEAN, "RUN-3"),
    (
        "one fails and loses all, undeclared",
        outages(lambda found: (replace(UNDECLARED, loses=True),)),
        CLEAN_TWO,
        "RUN-4",
    ),
    ("no link is needed", lambda patch: patch.setattr(CommTable, "links", lambda *_: frozenset()), CUT, "RUN-3"),
    (
        "no link of a send is needed",
        lambda p: p.setattr(CommTable, "links", lambda *_: frozenset()),
        STAGE_CUT,
        "RUN-3",
    ),
    ("the replay is told of no fault", faults(lambda found: ()), DOWN, "RUN-3"),
    ("the replay is told of no link that fails", faults(lambda found: ()), CUT, "RUN-3"),
    ("a decode replica does not fail", outages(lambda found: ()), DECODE_DOWN, "RUN-3"),
    ("a decode replica fails too late", outages(each(later(at_ns=MS // 4))), DECODE_DOWN, "RUN-3"),
    ("it loses what decodes elsewhere keep", outages(each(lambda o: replace(o, loses=True))), DECODE_DOWN, "RUN-4"),
    ("it keeps prompts that are to be lost", outages(each(lambda o: replace(o, loses=False))), PREFILL_LOST, "RUN-4"),
    ("it keeps decodes that are to be lost", outages(each(lambda o: replace(o, loses=False))), DECODE_LOST, "RUN-4"),
    ("a prefill replica is back too late", outages(each(later(until_ns=2 * MS))), PREFILL_DOWN, "RUN-3"),
    ("a decode replica is back too late", outages(each(later(until_ns=MS))), DECODE_DOWN, "RUN-3"),
    ("a decode replica is back a little too late", outages(each(later(until_ns=MS // 3))), DECODE_DOWN, "RUN-3"),
    ("the decode pool is back too early", outages(each(later(until_ns=-MS // 4))), NO_DECODE, "RUN-3"),
    ("a decode replica never comes back", outages(each(lambda o: replace(o, until_ns=None))), DECODE_DOWN, "RUN-3"),
    ("the only decode replica is back too late", outages(each(later(until_ns=MS))), DECODE_ALONE, "RUN-3"),
    ("the only decode replica is back too early", outages(each(later(until_ns=-MS // 2))), DECODE_ALONE, "RUN-3"),
    ("the decode pool is back too late", outages(each(later(until_ns=MS))), NO_DECODE, "RUN-3"),
    ("layer by layer it is back too late", outages(each(later(until_ns=5 * MS))), BY_LAYER, "RUN-3"),
    ("with stages it is back too late", outages(each(later(until_ns=MS))), STAGED, "RUN-3"),
    ("no way of a hand-over is needed", outages(lambda found: ()), WAY_CUT, "RUN-3"),
    (
        "one fails in a pool, undeclared",
        outages(lambda found: (replace(UNDECLARED, at_ns=8 * MS, until_ns=9 * MS),)),
        PAIR,
        "RUN-3",
    ),
    ("of all that share experts one fails", by_oracle(outages(lambda found: found[:1])), TOGETHER, "RUN-3"),
    ("all that share experts are back late", outages(each(later(until_ns=MS))), TOGETHER, "RUN-3"),
    ("with swaps it is back too late", outages(each(later(until_ns=MS))), SWAPPED, "RUN-3"),
    ("with swaps it fails too early", outages(each(later(at_ns=-MS // 2))), SWAPPED, "RUN-3"),
    ("another decode replica is slow", faults(each(lambda one: replace(one, devices=(3,)))), POOL_SLOW, "RUN-2"),
    ("failing takes no effect", core("outages", "if rep.is_down:", "if False:"), DOWN, "RUN-3"),
    (
        "nobody waits for a replica",
        core("outages", "or pool.gone == pool.size:", "or pool.living == 0:"),
        ALONE,
        "RUN-4",
    ),
    ("requests go to the dead", core("outages", "if s.replicas[other].is_down == 0:", "if True:"), DOWN, "RUN-3"),
    ("the router forgets who is back", core("routing", "turn % pool.living", "pool.living - 1"), DOWN, "RUN-3"),
    ("what failed goes where it was", core("outages", "r = route(s", "r = 0 * route(s"), DOWN, "RUN-3"),
    ("another rank is slow", slowdown(lambda s: replace(s, slow={1 - k: v for k, v in s.slow.items()})), SLOW, "RUN-2"),
    ("it is not slow enough", slowdown(lambda s: replace(s, slow=dict.fromkeys(s.slow, 2.0))), SLOW, "RUN-2"),
    ("it is too slow", slowdown(lambda s: replace(s, slow=dict.fromkeys(s.slow, 4.0))), SLOW, "RUN-2"),
    ("it is slow too late", faults(each(later(at_ns=MS))), SLOW, "RUN-2"),
    ("it is slow too early", faults(each(later(at_ns=-MS))), SLOW, "RUN-2"),
    ("it is slow for too short", faults(each(later(until_ns=-MS))), SLOW, "RUN-2"),
    ("it is not a little slow", faults(lambda found: ()), A_LITTLE, "RUN-2"),
    ("more is left of a link", slowdown(shares(0.5)), WEAK, "RUN-2"),
    ("less is left of a link", slowdown(shares(0.02)), WEAK, "RUN-2"),
    ("another link is weak", faults(each(lambda one: replace(one, links=(8, 9)))), WEAK, "RUN-2"),
    ("a link is weak for too short", faults(each(later(until_ns=-MS))), WEAK, "RUN-2"),
    ("a link is weak for too long", faults(each(later(until_ns=MS))), WEAK, "RUN-2"),
    ("sends find more of a link", slowdown(shares(0.5)), STAGES, "RUN-2"),
    ("sends find less of a link", slowdown(shares(0.02)), STAGES, "RUN-2"),
    ("sends find another link weak", faults(each(lambda one: replace(one, links=(8, 9)))), STAGES, "RUN-2"),
    ("sends find a link weak too long", faults(each(later(until_ns=MS))), STAGES, "RUN-2"),
    ("hand-overs find more of a link", weak_links(0.5), HANDED, "RUN-2"),
    ("hand-overs find less of a link", weak_links(0.02), HANDED, "RUN-2"),
    ("swaps find more of a link", weak_links(0.5), HOSTS, "RUN-2"),
    ("swaps find less of a link", weak_links(0.02), HOSTS, "RUN-2"),
]


@pytest.mark.parametrize(("mistake", "given", "rule"), [one[1:] for one in MISTAKES], ids=[one[0] for one in MISTAKES])
def test_other_faults_than_were_declared_are_noticed(mistake: Mistake, given: dict[str, Any], rule: str) -> None:
    scenario = scenario_of(given, replay="folded" if "faults" in given else "full")  # which knows of outages
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        result = simulate(scenario)
    assert rule in broken(result, (rule,))


LEGAL = (DOWN, ALONE, LOST, CUT, SLOW, A_LITTLE, WEAK, STAGES, STAGE_CUT, HOSTS, HANDED, DECODE_DOWN, CLEAN, CLEAN_TWO)
LEGAL += (DECODE_ALONE, NO_DECODE, BY_LAYER, STAGED)
LEGAL += (PREFILL_LOST, DECODE_LOST, PAIR, PREFILL_DOWN, WAY_CUT, POOL_SLOW, TOGETHER, SWAPPED, AT_THE_END)


@pytest.mark.parametrize(("given", "replay"), [(one, replay) for one in some(LEGAL) for replay in ("folded", "full")])
def test_what_was_declared_is_legal(given: dict[str, Any], replay: str) -> None:
    assert audit_run(simulate(scenario_of(given, replay=replay))).violations == ()
