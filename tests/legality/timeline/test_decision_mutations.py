"""Decisions that are told at another instant, or with other blocks in use, than they were taken: noticed.

Each changed record is beside the same one as it was, which is legal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from clustersim.legality.history import ADMITTED, ARRIVED, PREEMPTED, SWAPPED_IN, History
from clustersim.serving.decision import FACT_KINDS
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import simulate
from tests.effort import is_whole
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.adversary import run_of
from tests.legality.timeline.asked import broken, is_illegal
from tests.legality.timeline.source_mutations import Change, changed
from tests.legality.timeline.test_replay_mutations import document
from tests.legality.timeline.test_start_mutations import crowd_of, swapped

RUNS: Final = ("dense TP", "MoE EP", "faults", "faults of a decode pool", "cancellation", "prefix caching")


def with_fact(history: History, column: str, row: int, by: int) -> History:
    facts = {name: values.copy() for name, values in history.facts.items()}
    facts[column][row] += by
    return replace(history, facts=facts)


def rows_of(history: History, *kinds: int) -> list[int]:
    rows = np.flatnonzero(np.isin(history.facts["kind"], kinds))
    return rows[:: max(1, len(rows) // (4 if is_whole() else 2))].tolist()


@pytest.mark.parametrize("name", RUNS)
def test_an_admission_at_another_instant_is_found(name):
    history = history_of_run(run_of(name))
    assert not is_illegal(history)
    for row in rows_of(history, ADMITTED):
        assert is_illegal(with_fact(history, "time_ns", row, 1)), row
        assert is_illegal(with_fact(history, "time_ns", row, -1)), row


FEW_BLOCKS: Final = document(
    plan={"tp": 1},
    serving={"kv_blocks": 30, "max_batch_requests": 8},
    workload={"output_tokens": {"uniform": {"low": 20, "high": 30}}},
)


def test_a_preemption_while_a_step_is_under_way_is_found():
    history = history_of_run(simulate(scenario_of(FEW_BLOCKS)))
    assert not is_illegal(history)
    rows = rows_of(history, PREEMPTED)
    assert rows
    for row in rows:
        assert is_illegal(with_fact(history, "time_ns", row, -1)), row
        assert is_illegal(with_fact(history, "time_ns", row, 1)), row
        assert is_illegal(with_fact(history, "used", row, 1)), row
        assert is_illegal(with_fact(history, "used", row, -1)), row


def test_a_swap_that_is_told_while_a_step_is_under_way_is_found():
    history = history_of_run(swapped())
    rows = rows_of(history, SWAPPED_IN)
    assert rows
    for row in rows:
        assert is_illegal(with_fact(history, "time_ns", row, 1)), row
        assert is_illegal(with_fact(history, "used", row, 1)), row


@pytest.mark.parametrize("by", [1, -1])
def test_blocks_between_two_decisions_of_one_instant_are_found(by):
    for history in (history_of_run(crowd_of("whole, to two replicas")), history_of_run(swapped())):
        kind, replica, time = (history.facts[name] for name in ("kind", "replica", "time_ns"))
        same = (kind[1:] == kind[:-1]) & (replica[1:] == replica[:-1]) & (time[1:] == time[:-1])
        rows = np.flatnonzero(same & np.isin(kind[1:], (ADMITTED, SWAPPED_IN)))
        assert len(rows)
        for row in rows[:4].tolist():
            assert is_illegal(with_fact(history, "used", row, by)), row


@pytest.mark.parametrize("by", [1, -1, 4, -4])
def test_blocks_between_admissions_that_share_prefixes_are_found(by):
    shares = document(
        serving={"prefix_caching": True, "max_batch_tokens": 256},
        workload={"arrivals": {"process": "all_at_once"}, "shared_prefixes": {"groups": 3, "tokens": 12}},
    )
    history = history_of_run(simulate(scenario_of(shares)))
    assert not is_illegal(history)
    kind, time = (history.facts[name] for name in ("kind", "time_ns"))
    rows = 1 + np.flatnonzero((kind[1:] == ADMITTED) & (kind[:-1] == ADMITTED) & (time[1:] == time[:-1]))
    assert len(rows) > 2
    for row in rows[:-1].tolist():
        assert is_illegal(with_fact(history, "used", row, by)), row


def test_arrivals_of_one_instant_in_another_order_are_found():
    at_once = document(workload={"arrivals": {"process": "all_at_once"}})
    history = history_of_run(simulate(scenario_of(at_once)))
    assert not is_illegal(history)
    rows = np.flatnonzero(history.facts["kind"] == ARRIVED)[:2]
    facts = {name: values.copy() for name, values in history.facts.items()}
    for values in facts.values():
        values[rows] = values[rows[::-1]]
    assert broken(replace(history, facts=facts), ("RUN-5",)) == {"RUN-5"}


def test_notes_that_come_late_are_found(monkeypatch):
    legal = simulate(scenario_of(FEW_BLOCKS))
    late = f"clock.now + (kind in {(FACT_KINDS.index('admitted'), FACT_KINDS.index('preempted'))})"
    changed(monkeypatch, Change("clustersim.core.record", "facts[at + 1] = clock.now", f"facts[at + 1] = {late}"))
    other = simulate(legal.scenario)
    assert other.timeline.digest != legal.timeline.digest
    assert is_illegal(other)
