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

pytestmark = pytest.mark.usefixtures("oracle")

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
JUMPS: Final = "tests.oracle.events.decode_jumps"
SCHEDULER: Final = "tests.oracle.serving.scheduler"
PREFIXES: Final = "tests.oracle.serving.prefix_cache"
SWAPPING: Final = "tests.oracle.serving.swapping"
BLOCKS: Final = "tests.oracle.serving.blocks"
MEMBERS: Final = "tests.oracle.serving.members"
PREEMPTION: Final = "tests.oracle.serving.preemption"
QUEUES: Final = "tests.oracle.serving.queues"
BACK: Final = "if not decision.evicted and not prefill_first:"
HAND_OVERS: Final = "tests.oracle.pools.hand_overs"
STATIC: Final = "tests.oracle.serving.static"
RUN: Final = "tests.oracle.events.run"
AGAIN: Final = "self.replicas[self._route(sequence)].add_again(sequence)"
PRICED_NEAR: Final = "constants.step_s if nodes[source] == nodes[target]"
IN_ORDER: Final = "if not self or self[-1].request < sequence.request:"
EVICTED: Final = "prefills = [] if self.evicted else self._prefills"
UNHELD: Final = "unheld = self.caches[sequence.owner].unheld(sequence.keys, cached)"
IDLE: Final = "[s for s in decoding if not s.in_flight]"
SHARE: Final = "share = -(-len(decoding) // self.stages)"
LAST_FIRST: Final = "self.running[: self.running.index(sequence) : -1]"
FIRST_FIRST: Final = "self.running[self.running.index(sequence) + 1 :]"
CHANGES: Final = (
    Change(
        HAND_OVERS, "self._open(replica, sequence, sequence.computed)", "self._open(replica, sequence, 0)", "by layer"
    ),
    Change(HAND_OVERS, "for layer in transfer.passed:", "for layer in reversed(transfer.passed):", "by layer"),
    Change(PREFIXES, "next(iter(free.items()))", "next(reversed(free.items()))", "prefixes"),
    Change(PREFIXES, "found))\n", "found))\n            self.free.move_to_end(self._places, last=False)\n", "prefixes"),
    Change(
        PREFIXES,
        "(sequence.known - 1) // self.block_tokens",
        "(sequence.known - 1) // self.block_tokens - 1",
        "prefixes",
    ),
    Change(
        PREFIXES,
        "if run is None:\n                break",
        "if run is None or not run.held:\n                break",
        "prefixes",
    ),
    Change(
        SCHEDULER,
        "if self.caching is not None:\n                self",
        "if self.caching is not None and not sequence.to_compute:\n                self",
        "prefixes in full",
    ),
    Change(JUMPS, "ended = run.ended(now)", "ended = max(run.ended(now) - 1, 0)", "experts, cut off"),
    Change(JUMPS, "ended = run.ended(now)", "ended = run.ended(now) // 2", "experts, cut off"),
    Change(JUMPS, "ended = run.ended(now)", "ended = run.ended(now) // 2", "decode fails"),
    Change(SCHEDULER, "s in decoding if not s.in_flight]", "s in decoding if not s.in_flight][::-1]", "four stages"),
    Change(SCHEDULER, "s in decoding if not s.in_flight]", "s in decoding if not s.in_flight][::-1]", "small budget"),
    Change(SCHEDULER, "for sequence in ready[:limit] if", "for sequence in ready[::-1][:limit] if", "recompute"),
    Change(
        SCHEDULER, "share = -(-len(decoding) // self.stages)", "share = -(-len(ready) // self.stages)", "small budget"
    ),
    Change(
        "tests.oracle.serving.disaggregated",
        "self.running.append(sequence)\n",
        "self.running.insert(0, sequence)\n",
        "two pools",
    ),
    Change(SCHEDULER, "s in decoding if not s.in_flight]", "s in decoding if not s.in_flight][::-1]", "two pools"),
    Change(
        SCHEDULER, "s in decoding if not s.in_flight]", "s in decoding if not s.in_flight][::-1]", "swaps, two stages"
    ),
    Change(SCHEDULER, "share = -(-len(decoding) // self.stages)", "share = -(-len(ready) // self.stages)", "two pools"),
    Change(
        SCHEDULER, "share = -(-len(decoding) // self.stages)", "share = -(-len(ready) // self.stages)", "four stages"
    ),
    Change(
        "clustersim.replay.slowdown",
        'place = int(np.searchsorted(self.changes, now, side="right"))',
        'place = int(np.searchsorted(self.changes, now, side="right")) + 1',
        "weak link",
    ),
    Change(
        MEMBERS,
        "self.leaving += 1\n            return False",
        "self.leaving += 1\n            sequence.output_tokens += 1\n            return False",
        "given up",
    ),
    Change("tests.oracle.pools.kv_moves", "duration = to_ns(", "duration = 1 + to_ns(", "two pools"),
    Change(SWAPPING, BACK, "if not self.running:", "swaps"),
    Change(SWAPPING, BACK, "if not decision.evicted and not prefill_first and len(self.running) < 2:", "swaps"),
    Change(SWAPPING, BACK, "if not decision.evicted and not prefill_first and now % 3 == 0:", "swaps"),
    Change(SWAPPING, "spare = self.pool.blocks // SPARE if", "spare = self.pool.blocks // 10 if", "swaps"),
    Change(SWAPPING, "spare = self.pool.blocks // SPARE if", "spare = 0 if", "swaps, many blocks"),
    Change(SWAPPING, "sequence.computed + 1) + spare >", "sequence.computed + 9) + spare >", "swaps"),
    Change(SWAPPING, "return not self.swapped and", "return", "swaps"),
    Change(SWAPPING, "taken < self.config", "taken + 1 < self.config", "swaps, few places"),
    Change(SWAPPING, "self.running.append(sequence)", "self.running.insert(0, sequence)", "swaps"),
    Change(PREFIXES, UNHELD, "unheld = cached", "prefixes"),
    Change(SCHEDULER, f"decoding if self.stages == 1 else {IDLE}", "decoding[::-1]", "swaps, few places"),
    Change(SCHEDULER, SHARE, SHARE.replace("decoding", "ready"), "swaps, two stages"),
    Change(STATIC, "== self.config.max_batch_requests", "== self.config.max_batch_requests - 1", "static"),
    Change(STATIC, "needed > left[owner]", "needed + 20 > left[owner]", "static"),
    Change(SCHEDULER, "if self.evicted or (whole", "if (whole", "begun prompts lack blocks"),
    Change(PREEMPTION, LAST_FIRST, FIRST_FIRST, "four stages"),
    Change(HAND_OVERS, "= sorted(self.leaving), {}", "= sorted(self.leaving, reverse=True), {}", "two pools"),
    Change("tests.oracle.events.lockstep", "self.steps -= 1", "pass", "a group fails"),
    Change(PREEMPTION, LAST_FIRST, FIRST_FIRST, "the only one fails"),
    Change(
        QUEUES,
        "if not self or self[-1].request < sequence.request:",
        "if True:",
        "the only one fails",
    ),
    Change(PREFIXES, UNHELD, "unheld = cached", "the only one fails"),
    Change(HAND_OVERS, "for request, layer in passed:", "for request, layer in reversed(passed):", "many by layer"),
    Change(HAND_OVERS, "for request in landed:", "for request in reversed(landed):", "many by layer"),
    Change(JUMPS, "ended = run.ended(now)", "ended = min(run.ended(now), 1)", "experts, cut off"),
    Change(JUMPS, "ended = run.ended(now)", "ended = 0", "decode fails"),
    Change(
        SCHEDULER,
        "if not fits or sequence.owner in exhausted or not self._take_up",
        "if not fits or not self._take_up",
        "begun prompts lack blocks",
    ),
    Change(QUEUES, "order.patience_ns * number", "2 * order.patience_ns * number", "urgent ones"),
    Change(MEMBERS, "if sequence.shared:", "if False:", "prefixes in full"),
    Change(MEMBERS, "if sequence.shared:", "if sequence.shared > 5:", "prefixes in full"),
    Change(STATIC, "(left[one], -one)", "(left[one], one)", "static, two owners"),
    Change(
        BLOCKS,
        "self.free.index(",
        "len(self.free) - 1 - self.free[::-1].index(",
        "swaps, two owners",
    ),
    Change(
        PREEMPTION,
        LAST_FIRST,
        LAST_FIRST.replace("sequence) :", "sequence) + 1 :"),
        "two of three fail",
    ),
    Change(PREEMPTION, LAST_FIRST, LAST_FIRST.replace("[:", "[-2 :"), "two of three fail"),
    Change(QUEUES, IN_ORDER, "if True:", "two of three fail"),
    Change(RUN, AGAIN, f"self._route(sequence) == 1 or {AGAIN}", "two of three fail"),
    Change(RUN, AGAIN, f"sequence.request % 7 and {AGAIN}", "two of three fail"),
    Change(
        PREEMPTION,
        LAST_FIRST,
        LAST_FIRST.replace("sequence) :", "sequence) + 1 :"),
        "both pools fail",
    ),
    Change(PREEMPTION, LAST_FIRST, FIRST_FIRST, "both pools fail"),
    Change(QUEUES, IN_ORDER, "if True:", "both pools fail"),
    Change(SCHEDULER, EVICTED, "prefills = self._prefills", "fail while prompts lack blocks"),
    Change(
        "tests.oracle.serving.decision", "not self.decodes and not self.prefills", "not self.decodes", "slow, cut off"
    ),
    Change(HAND_OVERS, "transfer.missing -= 1", "transfer.missing -= 0", "moves, cut off"),
    Change("clustersim.core.flows", "path.left - path.rate * (", "path.left - path.rate // 2 * (", "two pools"),
    Change("clustersim.collective.price", PRICED_NEAR, PRICED_NEAR.replace("==", "!="), "both pools fail"),
    Change(SWAPPING, "decision is None and len", "decision is None or len", "swaps, two stages, cut off"),
    Change(JUMPS, "ended = run.ended(now)", "ended = 0", "experts, cut off"),
    Change(JUMPS, "ended = run.ended(now)", "ended = run.ended(now) - 1", "experts, cut off"),
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
