"""The source of the replay with one text changed, and the audit that notices; without it the scenario is legal.

Each change certainly does something: the record of its scenario has another digest.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest

from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline import late_replicas
from tests.legality.timeline.asked import is_illegal
from tests.legality.timeline.source_mutations import Change, changed
from tests.legality.timeline.test_failing_pools_mutations import POOLS
from tests.legality.timeline.test_replay_mutations import EXPERTS, document
from tests.legality.timeline.test_start_mutations import CROWDS, SWAPS

DEEP: Final = SWAPS["model"] | {"config": SWAPS["model"]["config"] | {"num_hidden_layers": 40}}
SCENARIOS: Final[dict[str, dict[str, Any]]] = {
    "by layer": CROWDS["by layer, from stages"],
    "many by layer": CROWDS["by layer, from stages"]
    | {
        "serving": CROWDS["by layer, from stages"]["serving"] | {"max_batch_tokens": 64},
        "workload": CROWDS["by layer, from stages"]["workload"]
        | {"arrivals": {"process": "all_at_once"}, "prompt_tokens": {"uniform": {"low": 4, "high": 20}}},
    },
    "prefixes": document(
        serving={"prefix_caching": True, "max_batch_tokens": 64, "kv_blocks": 40, "max_batch_requests": 3},
        workload={
            "requests": 60,
            "shared_prefixes": {"groups": 4, "tokens": 32},
            "prompt_tokens": {"uniform": {"low": 36, "high": 60}},
        },
    ),
    "cut off": document(
        plan={"tp": 1, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}},
        workload={"output_tokens": {"fixed": 400}},
        run={"horizon": "26 ms"},
    ),
    "decode fails": POOLS
    | {"faults": [{"device": 2, "at": "26 ms"}], "workload": POOLS["workload"] | {"output_tokens": {"fixed": 60}}},
    "four stages": document(
        plan={"tp": 1, "pp": 4},
        serving={"max_batch_requests": 16},
        workload={
            "requests": 24,
            "arrivals": {"process": "constant", "rate": "1000/s"},
            "output_tokens": {"uniform": {"low": 8, "high": 30}},
        },
    ),
    "small budget": document(
        plan={"tp": 1, "pp": 2},
        serving={"kv_blocks": 400, "max_batch_requests": 24, "max_batch_tokens": 16},
        workload={
            "requests": 40,
            "arrivals": {"process": "constant", "rate": "1500/s"},
            "output_tokens": {"uniform": {"low": 8, "high": 60}},
        },
    ),
    "recompute": document(
        plan={"tp": 1}, serving={"kv_blocks": 30}, workload={"output_tokens": {"uniform": {"low": 20, "high": 30}}}
    ),
    "swaps": SWAPS,
    "swaps, two stages": SWAPS | {"plan": {"pp": 2}},
    "swaps, many blocks": SWAPS
    | {
        "model": DEEP,
        "serving": SWAPS["serving"] | {"kv_blocks": 160, "max_batch_requests": 40},
        "workload": SWAPS["workload"] | {"requests": 50},
    },
    "given up": document(
        plan={"tp": 1, "pp": 2},
        serving={"max_batch_requests": 6, "kv_blocks": 60},
        workload={
            "requests": 40,
            "arrivals": {"process": "constant", "rate": "20000/s"},
            "prompt_tokens": {"uniform": {"low": 4, "high": 60}},
            "output_tokens": {"uniform": {"low": 2, "high": 20}},
            "cancel_after": {"share": 0.7, "uniform": {"low": "0 s", "high": "25 ms"}},
        },
        run={"replay": "full"},
    ),
    "weak link": document(
        workload={
            "requests": 4,
            "arrivals": {"process": "constant", "rate": "200000/s"},
            "output_tokens": {"fixed": 40},
        },
        faults=[{"link": ["n0.g1", "n0.nvswitch"], "at": "5 ms", "until": "11 ms", "factor": 0.02}],
    ),
    "two pools": CROWDS["whole, to two stages"],
    "swaps, two owners": SWAPS
    | {"plan": {"tp": 1, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}}},
    "the only one fails": document(
        plan={"tp": 1},
        serving={"kv_blocks": 30, "prefix_caching": True},
        workload={
            "requests": 24,
            "shared_prefixes": {"groups": 2, "tokens": 12},
            "output_tokens": {"uniform": {"low": 20, "high": 30}},
        },
        faults=[{"device": 0, "at": "3 ms", "until": "4 ms"}],
    ),
    "a group fails": document(
        model=EXPERTS,
        plan={"tp": 1, "dp": 2, "ep": {"degree": 2, "scope": "global"}},
        workload={"requests": 12, "output_tokens": {"fixed": 30}},
        faults=[{"device": 0, "at": "3 ms", "until": "5 ms"}],
    ),
    "static": document(
        plan={"tp": 1},
        serving={"scheduler": "static", "kv_blocks": 60, "max_batch_requests": 4},
        workload={"requests": 24, "output_tokens": {"uniform": {"low": 4, "high": 20}}},
    ),
    "static, two owners": document(
        plan={"tp": 1, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}},
        serving={"scheduler": "static", "kv_blocks": 60, "max_batch_requests": 4},
        workload={"requests": 24, "output_tokens": {"uniform": {"low": 4, "high": 20}}},
    ),
    "urgent ones": document(
        plan={"tp": 1},
        serving={"max_batch_requests": 4, "order": {"by": "priority", "patience": "2 ms"}},
        workload={
            "requests": 40,
            "arrivals": {"process": "constant", "rate": "2000/s"},
            "priority": {"values": [0, 1, 2], "weights": [1, 1, 1]},
        },
    ),
    "begun prompts lack blocks": document(
        plan={"tp": 1, "pp": 2},
        serving={"kv_blocks": 24, "max_batch_tokens": 16, "admission": "first_chunk"},
        workload={
            "requests": 40,
            "arrivals": {"process": "constant", "rate": "20000/s"},
            "prompt_tokens": {"uniform": {"low": 1, "high": 60}},
            "output_tokens": {"uniform": {"low": 2, "high": 20}},
        },
    ),
    "two of three fail": document(
        plan={"tp": 1, "dp": 3},
        serving={"kv_blocks": 30, "router": "least_outstanding"},
        workload={
            "requests": 48,
            "arrivals": {"process": "constant", "rate": "6000/s"},
            "output_tokens": {"uniform": {"low": 20, "high": 30}},
        },
        faults=[{"device": 0, "at": "3 ms", "until": "5 ms"}, {"device": 1, "at": "6 ms"}],
        run={"horizon": "9 ms"},
    ),
    "both pools fail": POOLS
    | {
        "serving": POOLS["serving"] | {"kv_blocks": 40},
        "workload": POOLS["workload"] | {"requests": 24},
        "faults": [{"device": 2, "at": "8 ms", "until": "9 ms"}, {"device": 0, "at": "12 ms", "until": "13 ms"}],
    },
    "both fail in turn": late_replicas.SCENARIOS["decode pool"],
    "fail while prompts lack blocks": document(
        plan={"tp": 1, "pp": 2, "dp": 2},
        serving={"kv_blocks": 24, "max_batch_tokens": 16, "router": "least_outstanding", "admission": "first_chunk"},
        workload={
            "requests": 40,
            "arrivals": {"process": "constant", "rate": "20000/s"},
            "prompt_tokens": {"uniform": {"low": 1, "high": 60}},
            "output_tokens": {"uniform": {"low": 2, "high": 20}},
        },
        faults=[{"device": 0, "at": "3 ms", "until": "4 ms"}],
    ),
    "cut off in the first run": document(
        plan={"tp": 1, "dp": 2},
        workload={"requests": 4, "output_tokens": {"fixed": 400}, "arrivals": {"process": "all_at_once"}},
        run={"horizon": "8 ms"},
    ),
    "fails in the first run": document(
        plan={"tp": 1, "dp": 2},
        workload={"requests": 4, "output_tokens": {"fixed": 400}, "arrivals": {"process": "all_at_once"}},
        faults=[{"device": 0, "at": "8 ms"}],
    ),
    "slow, cut off": document(
        plan={"tp": 2},
        workload={"requests": 4, "output_tokens": {"fixed": 400}, "arrivals": {"process": "all_at_once"}},
        faults=[
            {"device": 1, "at": "0 ms", "slowdown": 1.5},
            {"link": ["n0.g1", "n0.nvswitch"], "at": "1 ms", "until": "30 ms", "factor": 0.5},
        ],
        run={"horizon": "26 ms"},
    ),
    "moves, cut off": CROWDS["whole, to two stages"] | {"run": {"horizon": "12 ms"}},
    "swaps, two stages, cut off": SWAPS | {"plan": {"pp": 2}, "run": {"horizon": "200 ms"}},
    "experts, cut off": document(
        model=EXPERTS,
        plan={"tp": 1, "ep": 2, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}},
        workload={"requests": 4, "output_tokens": {"fixed": 400}, "arrivals": {"process": "all_at_once"}},
        run={"horizon": "26 ms"},
    ),
    "swaps, few places": SWAPS | {"serving": SWAPS["serving"] | {"kv_blocks": 120, "max_batch_requests": 8}},
}
SCENARIOS["prefixes in full"] = SCENARIOS["prefixes"] | {"run": {"replay": "full"}}
SCHEDULER: Final = "clustersim.core.scheduler"
STEPS: Final = "clustersim.core.steps"
PREFIXES: Final = "clustersim.core.prefix_cache"
SWAPPING: Final = "clustersim.core.swapping"
HAND_OVERS: Final = "clustersim.core.hand_overs"
OUTAGES: Final = "clustersim.core.outages"
QUEUE: Final = "clustersim.core.queue"
BACK: Final = "if rep.evicted > 0 or (rep.chunks > 0 and rep.chunked == 0):"
SPARE: Final = "rep.blocks // rep.owners // SPARE if"
AGAIN: Final = "push(s, r, one)\n                weigh(s, r, seq.prompt + seq.output)"
PRICED_NEAR: Final = "constants.step_s if nodes[source] == nodes[target]"
EARLIER: Final = "return mine.request < theirs.request"
LATER: Final = "return (mine.preemptions, mine.request) < (theirs.preemptions, theirs.request)"
OPENS: Final = "open_transfer(s, one, seq.computed)\n            flight"
TAKEN: Final = "at = extents[NOTHING].behind\n        extent"
MOST: Final = "most = (tokens - 1) // rep.block_tokens"
FULL: Final = "full = (seq.computed + seq.taken) // rep.block_tokens"
NEXT: Final = "one = order[at]\n        seq = sequences[one]\n        at += 1"
NEXT_FROM_BEHIND: Final = NEXT.replace("order[at]", "order[last - 1 - at]")
DECODING: Final = "rep.running - rep.prefilling + rep.stages - 1"
IDLE: Final = "[s.sequences[one].decodes > s.sequences[one].busy for one in s.order[r][: rep.running]]"
READY: Final = f"sum({IDLE}) + rep.stages - 1"
LAST_FIRST: Final = "found, place = -1, rep.running - 1"
UP_TO_ITSELF: Final = "order[place] != one)"
UP_TO_THE_NEXT: Final = "one not in (order[place], order[place - 1]))"
VICTIM: Final = "return other"
HELD: Final = "max(0, mine - s.prefix_runs[cache][s.prefix_of[at]].held)"
EVICTED: Final = "if rep.evicted == 0:\n                choose_prompts"
STOPPED: Final = "if ended > 0:\n            log_run(s, r, 0, ended, last)"
TOOK: Final = "[step_ns(p, s.flights[first][0], s.pending[first], one) for one in range(ended)]"
DISCARDED: Final = "rep.decodes, rep.chunks = (rep.decodes, rep.chunks) if rep.swapped else (0, 0)"
FAILED: Final = "ended = flight.steps - 1"


def stopped(ended: str) -> str:
    """Return what logs other steps of a run than those that have ended at the horizon."""
    return f"ended = {ended}\n        last = flight.start + sum({TOOK})\n        {STOPPED}"


CHANGES: Final = (
    Change(HAND_OVERS, OPENS, OPENS.replace("seq.computed", "0"), "by layer"),
    Change(HAND_OVERS, "h.layers[number])", "h.layers[way.passed - 1 - number])", "by layer"),
    Change(PREFIXES, TAKEN, TAKEN.replace("behind", "before"), "prefixes"),
    Change(
        PREFIXES,
        "run, blocks, last, NOTHING\n    extents[last].behind = extents[NOTHING].before = at",
        "run, blocks, NOTHING, extents[NOTHING].behind\n"
        "    extents[extents[NOTHING].behind].before = extents[NOTHING].behind = at",
        "prefixes",
    ),
    Change(PREFIXES, MOST, f"{MOST} - 1", "prefixes"),
    Change(PREFIXES, "].cached, s.prefix", "].cached * (runs[s.prefix_of[at]].held > 0), s.prefix", "prefixes"),
    Change(PREFIXES, FULL, f"{FULL} * (seq.computed + seq.taken >= seq.prompt)", "prefixes in full"),
    Change(STEPS, STOPPED, stopped("max(ended - 1, 0)"), "experts, cut off"),
    Change(STEPS, STOPPED, stopped("ended // 2"), "experts, cut off"),
    Change(OUTAGES, FAILED, "ended = (flight.steps - 1) // 2", "decode fails"),
    Change(SCHEDULER, NEXT, NEXT_FROM_BEHIND, "four stages"),
    Change(SCHEDULER, NEXT, NEXT_FROM_BEHIND, "small budget"),
    Change(SCHEDULER, NEXT, NEXT_FROM_BEHIND, "recompute"),
    Change(SCHEDULER, DECODING, READY, "small budget"),
    Change("clustersim.core.pools", "s.order[r][rep.running] = other", "s.order[r].insert(0, other)", "two pools"),
    Change(SCHEDULER, NEXT, NEXT_FROM_BEHIND, "two pools"),
    Change(SCHEDULER, NEXT, NEXT_FROM_BEHIND, "swaps, two stages"),
    Change(SCHEDULER, DECODING, READY, "two pools"),
    Change(SCHEDULER, DECODING, READY, "four stages"),
    Change(
        "clustersim.replay.slowdown",
        'place = int(np.searchsorted(self.changes, now, side="right"))',
        'place = int(np.searchsorted(self.changes, now, side="right")) + 1',
        "weak link",
    ),
    Change("clustersim.core.clock", "seq.leaving = 1\n", "seq.leaving = 1\n            seq.output += 1\n", "given up"),
    Change("clustersim.replay.core_move_events", "duration = to_ns(", "duration = 1 + to_ns(", "two pools"),
    Change(SWAPPING, BACK, "if rep.running > 0:", "swaps"),
    Change(SWAPPING, BACK, f"{BACK[:-1]} or rep.running >= 2:", "swaps"),
    Change(SWAPPING, BACK, f"{BACK[:-1]} or s.clock[0].now % 3 > 0:", "swaps"),
    Change(SWAPPING, SPARE, "rep.blocks // 10 if", "swaps"),
    Change(SWAPPING, SPARE, "0 if", "swaps, many blocks"),
    Change(SWAPPING, "seq.computed + 1) + spare >", "seq.computed + 9) + spare >", "swaps"),
    Change(SCHEDULER, " if rep.swapped == 0 else 0", "", "swaps"),
    Change(SCHEDULER, "rep.running < places", "rep.running + 1 < places", "swaps, few places"),
    Change(SWAPPING, "s.order[r][rep.running] = one", "s.order[r].insert(0, one)", "swaps"),
    Change(PREFIXES, HELD, "mine", "prefixes"),
    Change(SCHEDULER, NEXT, NEXT_FROM_BEHIND, "swaps, few places"),
    Change(SCHEDULER, DECODING, READY, "swaps, two stages"),
    Change(SCHEDULER, "members < rep.max_requests", "members < rep.max_requests - 1", "static"),
    Change(SCHEDULER, "if most_blocks(rep, seq) > s", "if most_blocks(rep, seq) + 20 > s", "static"),
    Change(SCHEDULER, " and rep.evicted == 0:\n        one", ":\n        one", "begun prompts lack blocks"),
    Change(SCHEDULER, VICTIM, "found = other", "four stages"),
    Change(HAND_OVERS, "leaving_one].request > seq.request", "leaving_one].request < seq.request", "two pools"),
    Change(OUTAGES, FAILED, "ended = flight.steps", "a group fails"),
    Change(SCHEDULER, VICTIM, "found = other", "the only one fails"),
    Change(QUEUE, EARLIER, LATER, "the only one fails"),
    Change(PREFIXES, HELD, "mine", "the only one fails"),
    Change(HAND_OVERS, "passed_one].request > seq.request", "passed_one].request < seq.request", "many by layer"),
    Change(HAND_OVERS, "landed_one].request > seq.request", "landed_one].request < seq.request", "many by layer"),
    Change(STEPS, STOPPED, stopped("min(ended, 1)"), "experts, cut off"),
    Change(OUTAGES, FAILED, "ended = 0", "decode fails"),
    Change(SCHEDULER, "short = True", "short = False", "begun prompts lack blocks"),
    Change(STEPS, "seq.arrived + s.thens[at]", "seq.arrived + 2 * s.thens[at]", "urgent ones"),
    Change(SCHEDULER, "if cached > 0:\n        note", "if False:\n        note", "prefixes in full"),
    Change(SCHEDULER, "if cached > 0:\n        note", "if cached > 5:\n        note", "prefixes in full"),
    Change(SCHEDULER, "owner].left > s.owners", "owner].left >= s.owners", "static, two owners"),
    Change("clustersim.core.progress", "owner].free > s", "owner].free >= s", "swaps, two owners"),
    Change(SCHEDULER, UP_TO_ITSELF, UP_TO_THE_NEXT, "two of three fail"),
    Change(SCHEDULER, LAST_FIRST, LAST_FIRST.replace("running - 1", "running - 2"), "two of three fail"),
    Change(QUEUE, EARLIER, LATER, "two of three fail"),
    Change(OUTAGES, AGAIN, f"r == 1 or {AGAIN}", "two of three fail"),
    Change(OUTAGES, AGAIN, f"seq.request % 7 and {AGAIN}", "two of three fail"),
    Change(SCHEDULER, UP_TO_ITSELF, UP_TO_THE_NEXT, "both pools fail"),
    Change(SCHEDULER, VICTIM, "found = other", "both pools fail"),
    Change(QUEUE, EARLIER, LATER, "both pools fail"),
    Change(SCHEDULER, EVICTED, EVICTED.replace("rep.evicted == 0", "True"), "fail while prompts lack blocks"),
    Change(STEPS, "if rep.decodes + rep.chunks == 0:", "if rep.decodes == 0:", "slow, cut off"),
    Change(HAND_OVERS, "seq.missing -= 1", "seq.missing -= 0", "moves, cut off"),
    Change("clustersim.core.flows", "path.left - path.rate * (", "path.left - path.rate // 2 * (", "two pools"),
    Change("clustersim.collective.price", PRICED_NEAR, PRICED_NEAR.replace("==", "!="), "both pools fail"),
    Change(
        SCHEDULER,
        "        swap_in(s, r)\n",
        f"        swap_in(s, r)\n        {DISCARDED}\n",
        "swaps, two stages, cut off",
    ),
    Change(STEPS, STOPPED, stopped("0"), "experts, cut off"),
)


@cache
def legal(name: str) -> RunResult:
    return simulate(scenario_of(SCENARIOS[name]))


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_unchanged_replay_is_legal(name: str) -> None:
    assert audit_run(legal(name)).violations == ()


def test_a_failure_that_outlasts_the_horizon_is_legal() -> None:
    fails = SCENARIOS["the only one fails"]
    cut = {"run": {"horizon": "5 ms"}, "faults": [{"device": 0, "at": "3 ms", "until": "8 ms"}]}
    assert audit_run(simulate(scenario_of(fails | cut))).violations == ()


@pytest.mark.parametrize(
    "change", CHANGES, ids=[f"{one.module.rpartition('.')[2]}: {one.new.strip()[:70]}" for one in CHANGES]
)
def test_a_change_of_the_source_is_found(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    before = legal(change.scenario).timeline.digest
    changed(monkeypatch, change)
    result = simulate(scenario_of(SCENARIOS[change.scenario]))
    assert result.timeline.digest != before
    assert is_illegal(result)
