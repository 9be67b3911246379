"""What the time of requests is said to have been spent on, changed: RUN-4 notices what the record does not support."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import History
from clustersim.legality.timeline_rules.requests.spent import SPENT
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.test_replay_mutations import PIPE, document

ALONE: dict[str, Any] = {"arrivals": {"process": "constant", "rate": "1/s"}, "prompt_tokens": 64, "output_tokens": 4}
CROWD: dict[str, Any] = {"arrivals": {"process": "all_at_once"}, "prompt_tokens": 64, "output_tokens": 4}
NEVER_WAITED = [
    "batch_wait_ns", "blocks_wait_ns", "budget_wait_ns", "choice_wait_ns", "stage_wait_ns", "replica_wait_ns",
    "hand_over_ns", "transfer_ns", "preempted_ns", "interference_ns",
]  # fmt: skip
"""What requests that never meet don't wait for; of a step under way nothing tells that it was not so."""


@cache
def recorded(crowd: bool, stages: bool = False) -> History:
    """Return what a run recorded: of requests that never meet, or of some that come at once to two places."""
    found = document(**({"plan": PIPE} if stages else {}))
    found["workload"] = (CROWD if crowd else ALONE) | {"requests": 6}
    found["serving"] = {"kv_block_tokens": 4, "max_batch_requests": 2, "max_batch_tokens": 256}
    return history_of_run(simulate(scenario_of(found)))


@cache
def short_of_blocks() -> History:
    """Return what a run of long prompts recorded, whose K/V has room for that of one and a half."""
    serving = {"kv_block_tokens": 4, "kv_blocks": 50, "max_batch_requests": 2, "max_batch_tokens": 32}
    workload = {"arrivals": {"process": "all_at_once"}, "prompt_tokens": 125, "output_tokens": 5, "requests": 3}
    return history_of_run(simulate(scenario_of(document(serving=serving, workload=workload))))


def moved(history: History, request: int, from_name: str, to_name: str, ns: int) -> History:
    """Count some of a request's time as something else; as nothing, where that is no name."""
    assert history.requests is not None
    found = {name: values.copy() for name, values in history.requests.items()}
    found[from_name][request] -= ns
    if to_name:
        found[to_name][request] += ns
    return replace(history, requests=found)


def told(history: History) -> list[str]:
    return [one.message for one in check_history(history).violations if one.rule == "RUN-4"]


@pytest.mark.parametrize("crowd", [False, True])
def test_causes_of_a_run_are_legal(crowd: bool) -> None:
    history = recorded(crowd)
    assert history.requests is not None
    assert all((history.requests[name] >= 0).all() for name in SPENT)
    assert told(history) == []


def test_time_that_was_not_counted_is_noticed() -> None:
    (message,) = told(moved(recorded(False), 3, "compute_ns", "", 1))
    assert "these were spent on comes to" in message


def test_a_negative_time_is_noticed() -> None:
    history = recorded(False)
    assert history.requests is not None
    more = int(history.requests["host_ns"][3]) + 1
    (message,) = told(moved(history, 3, "host_ns", "compute_ns", more))
    assert "each from 0" in message


@pytest.mark.parametrize("name", NEVER_WAITED)
def test_a_wait_that_the_record_does_not_have_is_noticed(name: str) -> None:
    """Nothing is waited for by requests that never meet; that some of the time was communication instead may be."""
    history = recorded(False)
    (message,) = told(moved(history, 3, "compute_ns", name, 1_000))
    assert name.removesuffix("_ns") in message
    assert told(moved(history, 3, "compute_ns", "communication_ns", 1_000)) == []


def test_a_wait_for_blocks_where_the_batch_is_full_is_noticed() -> None:
    history = recorded(True)
    assert history.requests is not None
    waited = int(history.requests["batch_wait_ns"][5])
    assert waited > 0
    assert told(moved(history, 5, "batch_wait_ns", "blocks_wait_ns", waited))
    assert told(moved(history, 5, "batch_wait_ns", "step_wait_ns", 1_000)) == []


def test_a_prompt_that_was_begun_may_lack_blocks_between_its_steps() -> None:
    """Its second chunk finds no block until the first request ends: not before it was begun, and not in its steps."""
    history = short_of_blocks()
    assert history.requests is not None
    lacked = int(history.requests["blocks_wait_ns"][1])
    assert lacked > 0
    assert told(history) == []
    for name in ("budget_wait_ns", "compute_ns"):
        (message,) = told(moved(history, 1, name, "blocks_wait_ns", 1_000))
        assert f"blocks_wait, which the record has for {lacked:,} ns at most" in message


def test_time_in_the_queue_that_is_said_to_be_work_is_noticed() -> None:
    history = recorded(True)
    assert history.requests is not None
    waited = int(history.requests["batch_wait_ns"][5])
    messages = told(moved(history, 5, "batch_wait_ns", "compute_ns", waited))
    assert any("is in its queue" in message for message in messages)
    assert any("of which" in message for message in messages)


def test_a_wait_for_a_stage_needs_several() -> None:
    for stages, count in ((False, 1), (True, 0)):
        assert len(told(moved(recorded(False, stages), 3, "compute_ns", "stage_wait_ns", 1_000))) == count


def test_the_mistakes_of_a_decision_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that takes a full batch for a lack of blocks makes causes that add up, and that the record does not have."""
    from clustersim.simulation.causes import decisions
    from clustersim.simulation.causes.labels import BATCH, BLOCKS

    swapped = tuple({BATCH: BLOCKS, BLOCKS: BATCH}.get(label, label) for label in decisions.REASONS)
    with monkeypatch.context() as patch:
        patch.setattr("clustersim.simulation.causes.causes.REASONS", swapped)
        assert told(recorded.__wrapped__(True))
    assert told(recorded.__wrapped__(True)) == []
