"""Hand-overs with one mistake in them, in the record or in the code that made it, and the rule that notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import FINISHED, HANDED_OVER, RECEIVED, History
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.random_scenarios import LLAMA, scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.source_mutations import Change
from tests.legality.timeline.source_mutations import changed as change_source

HAND_OVERS = "clustersim.core.hand_overs"
POOLS = "clustersim.core.pools"
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


LET_GO = "lend(s, r, one, -seq.blocks)"
ALL_HERE = "if seq.reserved and seq.sampled and seq.missing == 0:"
ASKED = "ask_move(s, h, one, shard, ALL_LAYERS, 0, way.start)"
FORGOTTEN = f"if shard == 0:\n            way.missing -= 1\n            continue\n        {ASKED}"
CODE: dict[str, tuple[Change, set[str]]] = {
    "a block stays behind": (Change(POOLS, LET_GO, LET_GO.replace("-", "1 - ")), {"KV-7"}),
    "a block too few is set aside": (
        Change(HAND_OVERS, "blocks_of(rep, seq.computed)", "blocks_of(rep, seq.computed - 4)"), {"KV-7"},
    ),
    "decode does not wait": (Change(HAND_OVERS, ALL_HERE, ALL_HERE.replace("0", "1")), {"KV-2"}),
    "a transfer is forgotten": (Change(HAND_OVERS, ASKED, FORGOTTEN), {"DP-2"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_audit_catches_mutated_code(name, monkeypatch):
    change, rules = CODE[name]
    change_source(monkeypatch, change)
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


LATE = "s.sequences[seq.partner].leaving = 1\n        return"
GIVEN_BACK = "give_back(s, seq.source, one, CANCELLED, seq.generated)"
USED = "s.replicas[seq.source].blocks - s.replicas[seq.source].free"
LEAVES = "take_out(s, r, other, taken_by_run(s, p, r))"
NOT_LET_GO = {
    "the blocks of a prompt that has not left": Change(
        POOLS, GIVEN_BACK, f"note(s, seq.source, CANCELLED, seq.request, seq.generated, {USED})"
    ),
    "blocks of both pools come back while transfers go on": Change(
        POOLS,
        LATE,
        LATE.replace("return", "seq.missing = 99 * seq.sampled\n        return seq.sampled and land(s, p, one)"),
    ),
    "who was given up on its way decodes on": Change(
        POOLS, LEAVES, "note(s, r, CANCELLED, seq.request, seq.generated, rep.blocks - rep.free)"
    ),
}


@pytest.mark.parametrize("name", NOT_LET_GO)
def test_audit_catches_clients_that_are_not_let_go(name, monkeypatch):
    assert audit_run(simulate(scenario_of(GIVEN_UP))).violations == ()
    change_source(monkeypatch, NOT_LET_GO[name])
    assert "KV-7" in broken(simulate(scenario_of(GIVEN_UP, horizon="60 ms")), {"KV-7"})
