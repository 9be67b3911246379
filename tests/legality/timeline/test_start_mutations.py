"""K/V that moves later, sooner or in another order than it was asked for, in the code or in the record: noticed.

Each mistake is beside the same scenario without it, which is legal.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import SWAPPED_IN, SWAPPED_OUT, History
from clustersim.legality.timeline_rules.views.asked import asked_in
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.replay.events.swaps import Swaps
from clustersim.replay.instant import at
from clustersim.scenario.scenario import RunConfig
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.tables import HOST
from tests.laws.random_scenarios import MIXTRAL, scenario_of
from tests.legality.timeline.asked import broken, is_illegal
from tests.legality.timeline.test_hand_over_mutations import DOCUMENT as WHOLE
from tests.legality.timeline.test_replay_mutations import document
from tests.oracle.pools.hand_overs import HandOvers
from tests.oracle.pools.kv_moves import KvMoves, Move
from tests.oracle.replay.instant import HAND_OVER

pytestmark = pytest.mark.usefixtures("oracle")

Patch = pytest.MonkeyPatch
FAST: Final = {"arrivals": {"process": "constant", "rate": "20000/s"}, "requests": 16}


def pools(prefill: dict[str, Any], decode: dict[str, Any], transfer: str = "whole", **more: Any) -> dict[str, Any]:
    serving = WHOLE["serving"] | {"transfer": transfer, "kv_blocks": 80}
    plan = {"prefill": prefill, "decode": decode}
    return WHOLE | {"plan": plan, "serving": serving, "workload": WHOLE["workload"] | FAST} | more


CROWDS: Final[dict[str, dict[str, Any]]] = {
    "whole, to two replicas": pools({"dp": 3}, {"dp": 2}),
    "whole, to two stages": pools({"dp": 2, "tp": 2}, {"pp": 2}),
    "by layer, from stages": pools({"dp": 2, "pp": 2}, {"tp": 2}, "layerwise"),
    "by layer, to two stages": pools({"dp": 2, "tp": 2}, {"pp": 2}, "layerwise"),
    "by layer, from replicas in lockstep": pools(
        {"dp": 2, "ep": {"degree": 2, "scope": "global"}}, {"pp": 2}, "layerwise",
        model={"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 4}},
    ),
}  # fmt: skip


def last_asked_first(patch: Patch) -> None:
    """Of several transfers to one rank the last one starts first."""

    def start(self: KvMoves) -> None:
        heads = [queue[0] for rank, queue in self.queues.items() if queue and rank not in self.sending]
        for move in sorted(heads, key=lambda move: -move.serial):
            if move.target[1] not in self.reached:
                self._begin(move)

    patch.setattr(KvMoves, "start", start)


def a_stack(patch: Patch) -> None:
    """What is asked for last leaves a rank first."""

    def ask(self: KvMoves, move: Move) -> None:
        self.asked += 1
        move.serial = self.asked
        queue = self.queues.setdefault(move.source[1], deque())
        if move.source[1] in self.sending:
            queue.insert(1, move)
            return
        for waiting in list(queue)[:1]:
            self.firsts[waiting.target[1]].remove((waiting.serial, waiting))
        queue.appendleft(move)
        self._is_first(move)

    patch.setattr(KvMoves, "ask", ask)


def one_at_a_time(patch: Patch) -> None:
    """No transfer starts while another one is under way."""
    real = KvMoves.start

    def start(self: KvMoves) -> None:
        if not self.sending:
            real(self)

    patch.setattr(KvMoves, "start", start)


def a_moment_later(patch: Patch) -> None:
    """Transfers start a nanosecond after they could."""
    real = HandOvers._settle

    def settle(self: HandOvers, value: None) -> None:
        start = self.moves.start
        self.moves.start = lambda: None  # type: ignore[method-assign]
        real(self, value)
        self.moves.start = start  # type: ignore[method-assign]
        at(self.env, 1, HAND_OVER, lambda _: start())

    patch.setattr(HandOvers, "_settle", settle)


def ranks_turned_round(patch: Patch) -> None:
    """What a request leaves is asked for from the last rank on."""
    real = HandOvers.__init__

    def init(self: HandOvers, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.parts.shards = self.parts.shards[::-1]

    patch.setattr(HandOvers, "__init__", init)


def frees_late(patch: Patch) -> None:
    """Ranks are free a microsecond after what kept them was cut off."""
    real = KvMoves.drop

    start = KvMoves.start

    def drop(self: KvMoves, request: int) -> None:
        sending = len(self.sending)
        real(self, request)
        if len(self.sending) == sending:
            return

        def free(_: object) -> None:
            self.start = lambda: start(self)  # type: ignore[method-assign]
            self.start()

        self.start = lambda: None  # type: ignore[method-assign]
        at(self.env, 1_000, HAND_OVER, free)

    patch.setattr(KvMoves, "drop", drop)


LATE: Final = {"RUN-5"}
"""What notices that something starts at another instant."""
MISTAKES: Final = (last_asked_first, a_stack, one_at_a_time, a_moment_later, ranks_turned_round)


@cache
def crowd_of(name: str) -> RunResult:
    return simulate(scenario_of(CROWDS[name]))


@pytest.mark.parametrize("name", CROWDS)
def test_transfers_that_wait_are_legal(name):
    history = history_of_run(crowd_of(name))
    assert check_history(history).violations == ()
    asked = asked_in(Reading(history))
    assert asked is not None
    assert (asked.start > asked.due).any()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_another_order_is_found(mistake, monkeypatch):
    crowds = [crowd_of(name) for name in CROWDS]
    mistake(monkeypatch)
    changed = [
        other for crowd in crowds if (other := simulate(crowd.scenario)).timeline.digest != crowd.timeline.digest
    ]
    assert changed
    assert all(broken(other, LATE) == LATE for other in changed)


LONG: Final = {
    "arrivals": {"process": "constant", "rate": "200000/s"},
    "prompt_tokens": {"uniform": {"low": 300, "high": 900}},
}
BIG: Final = {"max_batch_tokens": 512, "kv_block_tokens": 16, "kv_blocks": 800, "max_batch_requests": 16}


def failing(transfer: str, device: int, instant: int) -> dict[str, Any]:
    """Two pools of which something fails while a transfer is under way for which another one waits."""
    found = pools({"dp": 3}, {"dp": 2}, transfer)
    fault = {"device": device, "at": f"{instant} ns", "until": f"{instant + 3_000_000} ns"}
    return found | {
        "workload": found["workload"] | LONG, "serving": found["serving"] | BIG, "faults": [fault],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("transfer", "device", "instant"),
    [("whole", 0, 3_586_873), ("layerwise", 4, 1_882_191), ("layerwise", 3, 1_877_303)],
)
def test_what_waits_for_transfers_that_are_cut_off_starts_when_they_are(transfer, device, instant, monkeypatch):
    result = simulate(scenario_of(failing(transfer, device, instant)))
    asked = asked_in(Reading(history_of_run(result)))
    assert asked is not None
    assert (asked.row < 0).any()
    assert not is_illegal(result)
    frees_late(monkeypatch)
    assert broken(simulate(result.scenario), LATE) == LATE


def shifted(history: History, rows: Any, by: int) -> History:
    moves = {name: values.copy() for name, values in history.moves.items()}
    for name in ("start_ns", "end_ns"):
        moves[name][rows] += by
    return replace(history, moves=moves)


def of_facts(history: History, rows: Any, by: int) -> History:
    facts = {name: values.copy() for name, values in history.facts.items()}
    facts["time_ns"][rows] += by
    return replace(history, facts=facts)


def not_last(moves: Any) -> list[int]:
    """Return the transfers after which others of their request end: when the last one does is told elsewhere (KV-7)."""
    request, end = moves["request"], moves["end_ns"]
    return [row for row in range(len(end)) if end[row] < end[request == request[row]].max()]


def exchanged(history: History) -> History:
    """Let two transfers to one rank that follow each other change places."""
    moves, swapped = history.moves, {name: values.copy() for name, values in history.moves.items()}
    rows = sorted(not_last(moves), key=lambda row: (moves["to_rank"][row], moves["start_ns"][row]))
    for one, other in pairwise(rows):
        start, middle, until = moves["start_ns"][one], moves["end_ns"][one], moves["end_ns"][other]
        if moves["request"][one] != moves["request"][other] and moves["start_ns"][other] == middle:
            swapped["start_ns"][[other, one]] = start, start + until - middle
            swapped["end_ns"][[other, one]] = start + until - middle, until
            return replace(history, moves=swapped)
    raise AssertionError


def test_a_record_in_another_order_is_found():
    assert is_illegal(exchanged(history_of_run(crowd_of("whole, to two stages"))))


@pytest.mark.parametrize("name", list(CROWDS)[1:])
@pytest.mark.parametrize("by", [1, 10, -1])
def test_a_shifted_transfer_is_found(name, by):
    history = history_of_run(crowd_of(name))
    rows = not_last(history.moves)
    for row in rows[:: max(1, len(rows) // 6)]:
        assert is_illegal(shifted(history, [row], by)), row


SWAPS: Final = document(
    plan={"tp": 2},
    serving={
        "kv_blocks": 70, "preemption": "swap", "host_kv": "1 GiB", "max_batch_requests": 14, "max_batch_tokens": 64,
    },
    workload={
        "arrivals": {"process": "constant", "rate": "200000/s"}, "requests": 20,
        "prompt_tokens": {"uniform": {"low": 4, "high": 40}}, "output_tokens": {"uniform": {"low": 30, "high": 60}},
    },
)  # fmt: skip


@cache
def swapped() -> RunResult:
    return simulate(scenario_of(SWAPS))


def a_stack_of_copies(patch: Patch) -> None:
    """What is copied last begins first, once the copy that is under way has ended."""

    def begin(self: Swaps, swap: Any) -> None:
        first = swap.sequence.owner * self.tp
        ranks = range(first, first + self.tp)
        self.left[swap.sequence.request] = len(ranks) * len(self.first_rank)
        for stage in range(len(self.first_rank)):
            for rank in ranks:
                queue = self.queues[stage, rank, swap.out]
                queue.insert(1, swap)
                if len(queue) == 1:
                    self._copy(stage, rank, swap.out)

    patch.setattr(Swaps, "begin", begin)


def copied_later(patch: Patch) -> None:
    """A copy begins a nanosecond after it was decided."""
    real = Swaps._copy

    def copy(self: Swaps, stage: int, rank: int, out: bool) -> None:
        at(self.env, 1, HAND_OVER, lambda _: real(self, stage, rank, out))

    patch.setattr(Swaps, "_copy", copy)


def told_later(patch: Patch) -> None:
    """Blocks come back a nanosecond after they were copied."""
    real = Swaps._settle
    patch.setattr(Swaps, "_settle", lambda self, _: at(self.env, 1, HAND_OVER, lambda _: real(self, None)))


@pytest.mark.parametrize("mistake", [a_stack_of_copies, copied_later, told_later])
def test_copies_at_another_time_are_found(mistake, monkeypatch):
    legal = swapped()
    assert not is_illegal(legal)
    mistake(monkeypatch)
    for mode in ("full", "folded"):
        other = simulate(replace(legal.scenario, run=RunConfig(replay=mode)))
        assert other.timeline.digest != legal.timeline.digest, mode
        assert broken(other, LATE) == LATE, mode


def of_one_swap(history: History, way: str) -> list[int]:
    """Return the copies of the second swap out, or back."""
    moves = history.moves
    rows = np.flatnonzero(moves[way] == HOST)
    return rows[moves["request"][rows] == moves["request"][rows[-1]]].tolist()


@pytest.mark.parametrize("way", ["to_rank", "from_rank"])
@pytest.mark.parametrize("by", [1, 1_000])
def test_a_swap_that_is_shifted_with_all_its_facts_is_found(way, by):
    history = history_of_run(swapped())
    rows = of_one_swap(history, way)
    late = shifted(history, rows, by)
    facts = history.facts
    times = history.moves["end_ns" if way == "to_rank" else "start_ns"][rows]
    kind = SWAPPED_OUT if way == "to_rank" else SWAPPED_IN
    told = (facts["request"] == history.moves["request"][rows[0]]) & (facts["kind"] == kind)
    assert not is_illegal(history)
    assert is_illegal(of_facts(late, told & np.isin(facts["time_ns"], times), by))
