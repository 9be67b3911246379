"""Blocks in use where replicas hand over and prefixes are cached: told wrong on either side, KV-7 notices.

Each changed record is beside the same one as it was, which is legal.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import ADMITTED, FINISHED, PREEMPTED, RECEIVED, History
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.test_decision_mutations import with_fact
from tests.legality.timeline.test_hand_over_mutations import DOCUMENT

SERVING: Final[dict[str, Any]] = DOCUMENT["serving"] | {"prefix_caching": True}
FAILING: Final[dict[str, Any]] = {
    "plan": {"prefill": {}, "decode": {}},
    "workload": DOCUMENT["workload"] | {"arrivals": {"process": "all_at_once"}},
}
POOLS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"serving": SERVING},
    "layerwise, several at one instant": {"serving": SERVING | {"transfer": "layerwise"}},
    "a prefill replica fails": FAILING
    | {"serving": SERVING, "faults": [{"device": 0, "at": "6 ms", "until": "12 ms", "lose": "recompute"}]},
    "a prefill replica fails that shares prefixes": FAILING
    | {
        "serving": SERVING,
        "workload": FAILING["workload"] | {"shared_prefixes": {"groups": 2, "tokens": 8}},
        "faults": [{"device": 0, "at": "6 ms", "until": "12 ms", "lose": "recompute"}],
    },
}


@cache
def of(name: str) -> History:
    history = history_of_run(simulate(scenario_of(DOCUMENT | POOLS[name])))
    assert check_history(history).violations == ()
    return history


def in_turn() -> History:
    """One request at a time, and blocks in use as narrow as a large record has them."""
    workload = {key: value for key, value in DOCUMENT["workload"].items() if key != "arrivals"}
    closed = {"arrivals": {"process": "closed_loop", "concurrency": 1}} | workload
    alone = {"plan": {"tp": 1}, "serving": {"engine": "vllm-0.19"}, "workload": closed}
    history = history_of_run(simulate(scenario_of(DOCUMENT | alone)))
    return replace(history, facts=history.facts | {"used": history.facts["used"].astype(np.int32)})


def rows_of(history: History, kind: int, *replicas: int) -> list[int]:
    facts = history.facts
    return np.flatnonzero((facts["kind"] == kind) & np.isin(facts["replica"], replicas)).tolist()


@pytest.mark.parametrize("name", [*POOLS][:2])
@pytest.mark.parametrize("kind", [ADMITTED, RECEIVED])
def test_blocks_of_a_decode_replica_are_told_right(name, kind):
    history = of(name)
    rows = rows_of(history, kind, 2)
    assert len(rows) == 8
    for row in rows[::4]:
        for by in (-1, 1, -int(history.facts["used"][row])):
            assert broken(with_fact(history, "used", row, by), ("KV-7",)) == {"KV-7"}, (row, by)


def test_blocks_between_reservations_of_one_instant_are_told_right():
    history = of("layerwise, several at one instant")
    rows = rows_of(history, ADMITTED, 2)
    times = history.facts["time_ns"][rows]
    between = [row for row, time, after in zip(rows, times, times[1:], strict=False) if time == after]
    assert between
    for row in between:
        for by in (-1, 1):
            assert broken(with_fact(history, "used", row, by), ("KV-7",)) == {"KV-7"}, (row, by)
    history = in_turn()  # each comes as the one before it ends
    kind = history.facts["kind"]
    rows = np.flatnonzero((kind[:-1] == FINISHED) & (kind[1:] == ADMITTED)).tolist()
    assert len(rows) > 2
    for row in rows:  # left beside an arrival, while the next one is admitted a nanosecond later
        left = with_fact(with_fact(history, "used", row, 1), "time_ns", row + 1, 1)
        told = [one.message for one in check_history(left).violations if one.rule == "KV-7"]
        assert any("when no sequence runs any longer" in message for message in told), row


def test_blocks_of_a_prefill_replica_that_fails_are_told_right():
    history = of("a prefill replica fails")
    rows = rows_of(history, PREEMPTED, 0)
    assert len(rows) > 2
    for row in rows:
        for by in {-1, 1, -int(history.facts["used"][row])} - {0}:
            assert broken(with_fact(history, "used", row, by), ("KV-7",)) == {"KV-7"}, (row, by)


def test_blocks_that_are_shared_when_a_replica_fails_are_told_right():
    history = of("a prefill replica fails that shares prefixes")
    rows = rows_of(history, PREEMPTED, 0)
    assert len(rows) > 2
    for row in rows[:-1]:
        assert broken(with_fact(history, "used", row, -int(history.facts["used"][row])), ("KV-7",)) == {"KV-7"}, row
