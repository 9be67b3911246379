"""Hand-overs with one mistake in them, in the record or in the code that made it, and the rule that notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import CANCELLED, FINISHED, HANDED_OVER, RECEIVED, History
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.random_scenarios import LLAMA, scenario_of
from tests.legality.timeline.asked import broken
from tests.oracle.pools.hand_overs import HandOvers
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence

DOCUMENT: dict[str, Any] = {
    "name": "handed-over",
    "seed": 3,
    "topology": {"name": "dgx-h100", "nodes": 1},
    "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 4}},
    "plan": {"prefill": {"dp": 2, "tp": 2}, "decode": {"pp": 2}},
    "serving": {
        "scheduler": "disaggregated", "max_batch_requests": 8, "max_batch_tokens": 32, "kv_block_tokens": 4,
        "kv_blocks": 40, "engine": "ideal",
    },
    "workload": {
        "arrivals": {"process": "constant", "rate": "2000/s"},
        "prompt_tokens": {"uniform": {"low": 20, "high": 60}},
        "output_tokens": {"uniform": {"low": 8, "high": 12}},
        "requests": 8,
    },
    "run": {"horizon": None},
}  # fmt: skip


@pytest.fixture(scope="module")
def result() -> RunResult:
    return simulate(scenario_of(DOCUMENT))


@pytest.fixture
def history(result: RunResult) -> History:
    return history_of_run(result)


def changed(table: Any, column: str, row: int, by: int) -> Any:
    values = table[column].copy()
    values[row] += by
    return {**table, column: values}


def without(table: Any, row: int) -> Any:
    return {name: np.delete(values, row) for name, values in table.items()}


def fact(history: History, kind: int) -> int:
    return int(np.flatnonzero(history.facts["kind"] == kind)[0])


def of_moves(change: Callable[[Any], Any]) -> Callable[[History], History]:
    return lambda history: replace(history, moves=change(history.moves))


def of_facts(kind: int, change: Callable[[Any, int], Any]) -> Callable[[History], History]:
    return lambda history: replace(history, facts=change(history.facts, fact(history, kind)))


LATER = 10**9
RECORDS: dict[str, tuple[Callable[[History], History], set[str]]] = {
    "half of the bytes move": (of_moves(lambda moves: changed(moves, "bytes", 0, -1_000)), {"DP-2"}),
    "more bytes move than both ranks have": (of_moves(lambda moves: changed(moves, "bytes", 0, 1_000)), {"DP-2"}),
    "a transfer is missing": (of_moves(lambda moves: without(moves, 1)), {"DP-2"}),
    "a transfer happens twice": (
        of_moves(lambda moves: {name: np.append(values, values[0]) for name, values in moves.items()}),
        {"DP-2", "RUN-3"},
    ),
    "layers go to the wrong stage": (of_moves(lambda moves: changed(moves, "to_rank", 0, 1)), {"DP-2"}),
    "heads come from the wrong rank": (of_moves(lambda moves: changed(moves, "from_rank", 0, 2)), {"DP-2"}),
    "a transfer leaves before the prompt is computed": (
        of_moves(lambda moves: changed(moves, "start_ns", 0, -1_000_000)), {"DP-2", "KV-7"},
    ),
    "decode reads before the last transfer has arrived": (
        of_moves(lambda moves: changed(moves, "end_ns", 0, LATER)), {"KV-2", "KV-7"},
    ),
    "nobody received": (of_facts(RECEIVED, without), {"DP-2"}),
    "nobody handed over": (of_facts(HANDED_OVER, without), {"DP-2", "RUN-4"}),
    "an entry is left behind": (of_facts(RECEIVED, lambda facts, row: changed(facts, "value", row, -1)), {"DP-2"}),
    "fewer entries leave than there are": (
        of_facts(HANDED_OVER, lambda facts, row: changed(facts, "value", row, -1)), {"DP-2"},
    ),
    "blocks are freed before the entries have left": (
        of_facts(HANDED_OVER, lambda facts, row: changed(facts, "time_ns", row, -1)), {"KV-7"},
    ),
    "it ends at another replica than it was handed to": (
        of_facts(FINISHED, lambda facts, row: changed(facts, "replica", row, -1)), {"DP-2"},
    ),
    "transfers on one stream overlap": (of_moves(lambda moves: changed(moves, "end_ns", 0, 100)), {"RUN-3"}),
}  # fmt: skip


def test_a_run_with_hand_overs_is_legal(history):
    verdict = check_history(history)
    assert verdict.violations == ()
    looked = {rule.id: rule.looked_at for rule in verdict.rules}
    rules = ("PH-1", "PH-4", "KV-1", "KV-2", "KV-3", "KV-5", "KV-6", "KV-7", "PP-2", "DP-2", "RUN-2", "RUN-3", "RUN-4")
    assert all(looked[rule] for rule in rules)


@pytest.mark.parametrize("name", RECORDS)
def test_audit_catches_a_changed_record(history, name):
    change, rules = RECORDS[name]
    assert rules <= broken(change(history), rules)


def keeps_blocks(patch: pytest.MonkeyPatch) -> None:
    """The prefill replica forgets a block of what it hands over."""

    def release(self: Scheduler, sequence: Sequence) -> None:
        self.pool.give(sequence.owner, sequence.blocks - sequence.hands_over)
        sequence.blocks = 0

    patch.setattr(Scheduler, "_release", release)


def takes_too_few(patch: pytest.MonkeyPatch) -> None:
    """The decode replica sets a block too few aside."""
    take = Scheduler._take

    def later(self: Scheduler, sequence: Sequence, tokens: int) -> bool:
        return take(self, sequence, tokens - 4 if sequence in self.arriving else tokens)

    patch.setattr(Scheduler, "_take", later)


def does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A sequence decodes while its K/V is on its way."""
    send, land = HandOvers._send, HandOvers._land

    def hasty(self: HandOvers, sequence: Sequence, target: int) -> None:
        send(self, sequence, target)
        self.replicas[target].receive(sequence)

    def landed(self: HandOvers, now: int, transfer: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self.replicas[transfer.target], "receive", lambda _: None)
            land(self, now, transfer)

    patch.setattr(HandOvers, "_send", hasty)
    patch.setattr(HandOvers, "_land", landed)


def sends_half(patch: pytest.MonkeyPatch) -> None:
    """One of the transfers of every hand-over is forgotten."""
    init = HandOvers.__init__

    def forgetful(self: HandOvers, *more: Any, **named: Any) -> None:
        init(self, *more, **named)
        self.parts.shards = self.parts.shards[:-1]

    patch.setattr(HandOvers, "__init__", forgetful)


CODE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "a block stays behind": (keeps_blocks, {"KV-7"}),
    "a block too few is set aside": (takes_too_few, {"KV-7"}),
    "decode does not wait": (does_not_wait, {"KV-2"}),
    "a transfer is forgotten": (sends_half, {"DP-2"}),
}


@pytest.mark.parametrize("name", CODE)
@pytest.mark.usefixtures("oracle")
def test_audit_catches_mutated_code(name, monkeypatch):
    mutate, rules = CODE[name]
    mutate(monkeypatch)
    assert rules <= broken(simulate(scenario_of(DOCUMENT)), rules)


def test_a_hand_over_in_flight_at_the_horizon_is_legal(result):
    moves = result.timeline.moves
    middle = int(moves["start_ns"][0] + moves["end_ns"][0]) // 2
    cut = simulate(scenario_of(DOCUMENT, horizon=f"{middle} ns"))
    assert audit_run(cut).violations == ()
    assert cut.timeline.digest == simulate(scenario_of(DOCUMENT, horizon=f"{middle} ns", replay="full")).timeline.digest


GIVEN_UP = {
    **DOCUMENT,
    "seed": 8,
    "workload": DOCUMENT["workload"] | {"cancel_after": {"exponential": "1 ms"}},
    "serving": DOCUMENT["serving"] | {"decode": {"kv_blocks": 20}},
}
"""Three are given up while they wait for decode blocks, one while its K/V is on its way."""


def keeps_what_was_given_up(patch: pytest.MonkeyPatch) -> None:
    """The prefill replica keeps the blocks of a prompt whose client gave it up before it left."""

    def discard(self: Scheduler, now: int, sequence: Sequence) -> None:
        self._note(now, CANCELLED, sequence, sequence.generated)

    patch.setattr(Scheduler, "discard", discard)


def lets_go_of_transfers(patch: pytest.MonkeyPatch) -> None:
    """Blocks of both pools come back while transfers go on."""
    cancel = HandOvers.cancel

    def hasty(self: HandOvers, request: int) -> Any:
        transfer = self.transfers.get(request)
        if transfer is None or not transfer.reserved or not transfer.sampled:
            return cancel(self, request)
        transfer.sequence.leaving = True
        transfer.missing = -1
        self._land(self.env.now, transfer)
        self.transfers[request] = transfer
        return None

    patch.setattr(HandOvers, "cancel", hasty)


def decodes_on(patch: pytest.MonkeyPatch) -> None:
    """A request that was given up on its way stays in the batch of the decode replica."""

    real = Scheduler.cancel

    def cancel(self: Scheduler, now: int, sequence: Sequence) -> bool:
        if sequence.hands_over or not sequence.generated:
            return real(self, now, sequence)
        self._note(now, CANCELLED, sequence, sequence.generated)
        return True

    patch.setattr(Scheduler, "cancel", cancel)


@pytest.mark.parametrize(
    ("mutate", "rules"),
    [(keeps_what_was_given_up, {"KV-7"}), (lets_go_of_transfers, {"KV-7"}), (decodes_on, {"KV-7"})],
)
@pytest.mark.usefixtures("oracle")
def test_audit_catches_clients_that_are_not_let_go(mutate, rules, monkeypatch):
    assert audit_run(simulate(scenario_of(GIVEN_UP))).violations == ()
    mutate(monkeypatch)
    assert rules <= broken(simulate(scenario_of(GIVEN_UP, horizon="60 ms")), rules)
