"""Long timelines range by range of their replicas: the same files, figures and verdicts as all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from clustersim.copies import at_once
from clustersim.legality import audit
from clustersim.legality.audit import TIMELINE_RULES, check_history
from clustersim.legality.history import ADMITTED, ARRIVED, FINISHED, History
from clustersim.legality.timeline_rules.policy import loads
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.report.files.run_directory import write_run
from clustersim.report.files.summary import summary_of
from clustersim.report.layouts import overview
from clustersim.report.metrics import gauges
from clustersim.scenario.load import load
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.causes.causes import Causes, _OfRanges
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline import digest, parts
from clustersim.timeline.parts import ranges_of
from clustersim.timeline.tables import Tables

REPLICAS = 5


def fleet(*more: str) -> RunResult:
    """Return a run of a few replicas that go by loads."""
    trace = f"path: traces/azure-conv-sample.csv, requests: {50 * REPLICAS}, rate_scale: {2 * REPLICAS}"
    plan = (f"plan={{tp: 8, dp: {REPLICAS}}}", f"topology={{name: dgx-h100, nodes: {REPLICAS}}}", "expect={}")
    return simulate(load("azure-hour-fleet", (*plan, f"workload={{trace: {{{trace}}}}}", *more)))


@cache
def recorded() -> History:
    return history_of_run(fleet())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranges, what is routed together and stretches of time be short, and copies of this process work."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(parts, "MOST_ROWS", 400)
    monkeypatch.setattr(loads, "_ROUTED", 30)
    monkeypatch.setattr(gauges, "_AT_A_TIME", 100)
    monkeypatch.setattr(digest, "_AT_A_TIME", 50)


def files_of(result: RunResult, folder: Path) -> dict[str, bytes]:
    verdict = audit_run(result)
    assert verdict.verdict == "legal"
    write_run(folder, result, summary_of(result), lambda: verdict, overview())
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


STAGED = (
    "plan={tp: 4, pp: 2, dp: 5}",
    "workload={arrivals: {process: poisson, rate: 200/s}, prompt_tokens: {uniform: {low: 100, high: 3000}}, "
    "output_tokens: 1, requests: 300}",
)
"""Two stages, between which other replicas send when the last step of one waits for a stage."""


@pytest.mark.parametrize("more", [(), ("serving.router=fewest_waiting", "serving.kv_blocks=400"), STAGED])
def test_a_run_in_ranges_leaves_the_files_of_the_whole(
    tmp_path: Path, more: tuple[str, ...], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = files_of(fleet(*more), tmp_path / "whole")
    request.getfixturevalue("short")
    monkeypatch.setattr(parts, "_SPARSE", 0 if more else parts._SPARSE)  # as if there were many more requests
    with at_once(3):
        result = fleet(*more)
        found = files_of(result, tmp_path / "ranges")
    assert len(ranges_of(result.timeline)) >= 3
    passes, steps = result.timeline.passes, result.timeline.steps
    assert (passes["start_ns"] is steps["start_ns"]) == (more is not STAGED)
    assert found == whole


def test_most_rules_are_asked_range_by_range(short: None) -> None:
    history = recorded()
    whole = with_tables(history, history.folded)
    known = audit._in_ranges(whole, TIMELINE_RULES, Reading(whole))
    looked = {check.__name__ for check, finding in known.items() if finding.looked_at}
    assert {"as_priced", "none_lost", "time_is_spent", "as_decided", "within_pool", "works"} <= looked
    assert "as_routed" in looked  # of the whole, before the ranges; later, where something is wrong with these
    with patch.object(audit.followed, "as_routed", side_effect=IndexError):
        assert "as_routed" not in {check.__name__ for check in audit._in_ranges(whole, TIMELINE_RULES, Reading(whole))}


def with_tables(history: History, tables: Tables | None, **more: Any) -> History:
    """Return a history of other tables, which have found no ranges yet."""
    assert tables is not None
    found = replace(tables, **more)
    return replace(
        history, folded=found, steps=found.steps, chunks=found.chunks, decodes=found.decodes, facts=found.facts
    )


def changed(history: History, table: str, column: str, row: int, by: int) -> History:
    columns = dict(getattr(history.folded, table))
    columns[column] = columns[column].copy()
    columns[column][row] += by
    return with_tables(history, history.folded, **{table: columns})


def facts_of(history: History, kind: int) -> list[int]:
    assert history.facts is not None
    return np.flatnonzero(history.facts["kind"] == kind).tolist()  # type: ignore[no-any-return]


def spent(history: History) -> History:
    assert history.requests is not None
    columns = {name: np.array(history.requests[name]) for name in ("step_wait_ns", "compute_ns")}
    columns["step_wait_ns"][-1] += 10**9
    columns["compute_ns"][-1] -= 10**9
    return replace(with_tables(history, history.folded), requests={**history.requests, **columns})


def elsewhere(history: History) -> History:
    """Return a history in which a request comes to the other of two replicas that are equally free."""
    assert history.folded is not None
    moved = with_tables(history, history.folded)
    tables: dict[str, Any] = {}
    for name in ("passes", "steps", "chunks", "decodes", "facts"):
        table = getattr(history.folded, name)
        swap = {0: 1, 1: 0}
        replica = np.array([swap.get(one, one) for one in table["replica"].tolist()], table["replica"].dtype)
        order = np.argsort(replica, kind="stable")
        tables[name] = {column: values[order] for column, values in ({**table, "replica": replica}).items()}
    return with_tables(moved, moved.folded, **tables)


WRONG: dict[str, Callable[[History], History]] = {
    "a step is longer": lambda history: changed(history, "steps", "end_ns", -1, 1),
    "a prompt is cut": lambda history: changed(history, "chunks", "count", -1, -1),
    "a token too many": lambda history: changed(history, "decodes", "last_step", -3, 1),
    "a block too many": lambda history: changed(history, "facts", "used", facts_of(history, FINISHED)[-2], 1),
    "admitted later": lambda history: changed(history, "facts", "time_ns", facts_of(history, ADMITTED)[-2], 1),
    "arrives later": lambda history: changed(history, "facts", "time_ns", facts_of(history, ARRIVED)[3], 1),
    "a request twice": lambda history: changed(history, "facts", "request", facts_of(history, ARRIVED)[3], 1),
    "its time is spent on something else": spent,
    "routed to another one": elsewhere,
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_in_a_range_is_told_of_the_whole(what: str, request: pytest.FixtureRequest) -> None:
    whole = check_history(WRONG[what](recorded()))
    assert whole.violations
    request.getfixturevalue("short")
    with at_once(2):
        assert check_history(WRONG[what](recorded())) == whole


def test_requests_at_two_replicas_leave_one_range(short: None) -> None:
    tables = recorded().folded
    assert tables is not None
    assert len(ranges_of(replace(tables))) >= 3
    request = tables.facts["request"].copy()
    request[-1] = request[0]
    assert len(ranges_of(replace(tables, facts={**tables.facts, "request": request}))) == 1
    backwards = {name: values[::-1] for name, values in tables.chunks.items()}
    assert len(ranges_of(replace(tables, chunks=backwards))) == 1


def test_a_cause_that_only_some_ranges_have_is_none_of_the_others() -> None:
    one, other = ("one", "wait"), ("other", "wait")
    taken = _OfRanges(4)
    taken.take(np.array([2]), Causes(labels=(one,), to_first_ns=np.array([[5]]), after_ns=np.array([[1]])))
    both = Causes(labels=(one, other), to_first_ns=np.array([[3, 4], [0, 9]]), after_ns=np.zeros((2, 2), np.int64))
    taken.take(np.array([0, 3]), both)
    taken.take(np.array([1]), Causes(labels=(one,), to_first_ns=np.array([[7]]), after_ns=np.array([[2]])))
    found = taken.whole([other, ("none", "wait"), one])
    assert found.labels == (other, one)
    assert found.to_first_ns.tolist() == [[4, 3], [0, 7], [0, 5], [9, 0]]
    assert found.ns.tolist() == [[4, 3], [0, 9], [0, 6], [9, 0]]
