"""Prefixes that a prefill pool keeps for prompts which go on elsewhere: legal as recorded, caught when changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import HANDED_OVER, REUSED, History
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.test_hand_over_mutations import DOCUMENT as ALONE
from tests.legality.timeline.test_hand_over_mutations import changed, of_facts

SHARED = {"shared_prefixes": {"groups": 2, "tokens": 16}}
DOCUMENT: dict[str, Any] = ALONE | {
    "serving": ALONE["serving"] | {"prefix_caching": True},
    "workload": ALONE["workload"] | SHARED | {"requests": 16},
}


@pytest.fixture(scope="module")
def result() -> RunResult:
    return simulate(scenario_of(DOCUMENT))


@pytest.fixture
def history(result: RunResult) -> History:
    return history_of_run(result)


@pytest.mark.parametrize("transfer", ["whole", "layerwise"])
def test_only_the_prefill_pool_keeps_prefixes(transfer):
    serving = DOCUMENT["serving"] | {
        "transfer": transfer,
        "router": "prefix_aware",
        "decode": {"router": "round_robin"},
    }
    folded, full = (simulate(scenario_of(DOCUMENT | {"serving": serving}, replay=one)) for one in ("folded", "full"))
    facts = folded.timeline.facts
    reused = facts["kind"] == REUSED
    assert reused.sum() > 4
    assert set(facts["replica"][reused].tolist()) <= {0, 1}
    assert folded.timeline.digest == full.timeline.digest
    assert check_history(history_of_run(folded)).violations == ()
    (kept,) = (rule for rule in check_history(history_of_run(folded)).rules if rule.id == "KV-7")
    assert kept.lacks == ()


def test_what_is_cached_leaves_the_prefill_pool_with_the_rest(result):
    moves, facts = result.timeline.moves, result.timeline.facts
    request = int(facts["request"][facts["kind"] == REUSED][0])
    prompt = int(result.input.requests.prompt_tokens[request])
    assert set(moves["tokens"][moves["request"] == request].tolist()) == {prompt}


def test_prompts_are_computed_sooner_than_without(result):
    without = simulate(scenario_of(DOCUMENT | {"serving": ALONE["serving"]}))
    tokens = [int(found.timeline.chunks["count"].sum()) for found in (result, without)]
    assert tokens[0] < tokens[1]
    assert result.prefix_cache is not None
    assert result.prefix_cache["cached_tokens"] >= 192


def other_replica(facts: Any, row: int) -> Any:
    replica = facts["replica"].copy()
    replica[row] = 2
    return {**facts, "replica": replica}


RECORDS: dict[str, tuple[Callable[[History], History], set[str]]] = {
    "it takes over on the decode replica": (of_facts(REUSED, other_replica), {"KV-5"}),
    "it takes over part of a block": (of_facts(REUSED, lambda facts, row: changed(facts, "value", row, 1)), {"KV-5"}),
    "it takes over a block less than it skips": (
        of_facts(REUSED, lambda facts, row: changed(facts, "value", row, -4)), {"KV-1"},
    ),
    "blocks that others hold come back with the hand-over": (
        of_facts(HANDED_OVER, lambda facts, row: changed(facts, "used", row, -4)), {"KV-7"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_audit_catches_a_changed_record(history, name):
    change, rules = RECORDS[name]
    assert rules <= broken(change(history), rules)


def test_blocks_in_use_follow_from_who_shares_what(history):
    steps = dict(history.steps)
    row = int(np.argmax(steps["kv_blocks_used"]))
    steps["kv_blocks_used"] = steps["kv_blocks_used"].copy()
    steps["kv_blocks_used"][row] += 1
    assert "KV-7" in broken(replace(history, steps=steps), ("KV-7",))
