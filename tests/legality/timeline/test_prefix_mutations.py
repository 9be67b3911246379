"""Runs that share prefixes are legal; changed where they share, they break the rule that forbids it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import FINISHED, REUSED, History
from clustersim.scenario.load import load
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import simulate
from tests.legality.timeline.asked import broken
from tests.legality.timeline.notation import declaring

SMALL = ("workload.requests=24", "workload.output_tokens=6", "workload.shared_prefixes.groups=2", "expect={}")


@cache
def recorded() -> History:
    return history_of_run(simulate(load("shared-prefixes", SMALL)))


def facts_with(history: History, change: Callable[[dict[str, Any]], None]) -> History:
    facts = {name: np.array(values) for name, values in history.facts.items()}
    change(facts)
    return replace(history, facts=facts)


def first(facts: dict[str, Any], kind: int) -> int:
    return int(np.flatnonzero(facts["kind"] == kind)[0])


def other_start(history: History) -> History:
    """Its prompt begins otherwise than what it took over: it reads another sequence's entries."""
    request = int(history.facts["request"][first(history.facts, REUSED)])
    rows = tuple(np.array([99]) if at == request else row for at, row in enumerate(history.prefixes))
    return replace(history, prefixes=rows)


def part_of_a_block(history: History) -> History:
    """It goes on inside a block that others hold, and so writes into it."""
    return facts_with(history, lambda facts: facts["value"].__setitem__(first(facts, REUSED), 1020))


def a_block_less(history: History) -> History:
    return facts_with(history, lambda facts: facts["value"].__setitem__(first(facts, REUSED), 1008))


def freed_twice(history: History) -> History:
    def change(facts: dict[str, Any]) -> None:
        most = np.argmax(np.where(facts["kind"] == FINISHED, facts["used"], -1))
        facts["used"][most] -= 1

    return facts_with(history, change)


def not_declared(history: History) -> History:
    return declaring(history, prefix_caching=False)


def a_small_pool(history: History) -> History:
    return declaring(history, pool_blocks=100)


def test_a_run_that_shares_prefixes_is_legal() -> None:
    history = recorded()
    assert (history.facts["kind"] == REUSED).sum() > 10
    assert check_history(history).violations == ()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (other_start, "KV-5"),
        (part_of_a_block, "KV-5"),
        (a_block_less, "KV-1"),
        (freed_twice, "KV-7"),
        (not_declared, "KV-5"),
        (a_small_pool, "KV-5"),
    ],
)
def test_shared_entries_that_are_not_theirs_are_caught(change: Callable[[History], History], rule: str) -> None:
    assert rule in broken(change(recorded()), (rule,))
