"""Turns of sessions that wait: both replays agree, each arrives when it is due, and an audit sees one that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.clock import Int64Array
from clustersim.errors import InputError
from clustersim.legality.history import CANCELLED, FINISHED, LOST, REJECTED
from clustersim.replay.replay import ReplayInput
from clustersim.search.load import load_of
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.effort import examples
from tests.laws.agreement import agree
from tests.laws.cases import Case, case_input, cases, clocked
from tests.laws.hunt import MOST, WINDOWS
from tests.laws.random_scenarios import documents, scenario_of, troubled
from tests.legality.timeline.source_mutations import Change, changed

NEVER = np.iinfo(np.int64).max
ENDS = (FINISHED, CANCELLED, REJECTED, LOST)


def in_sessions(inputs: ReplayInput, seed: int) -> ReplayInput:
    """Let the requests of a replay be turns of a few sessions; a closed loop has none."""
    random, requests = Random(seed), inputs.requests
    if requests.concurrency is not None:
        return inputs
    sessions = np.array([random.randint(-1, 3) for _ in range(len(requests))], np.int64)
    return replace(inputs, requests=replace(requests, sessions=sessions))


@examples(30, sieved=True)
@given(cases(), st.integers(0, 99), WINDOWS, MOST)
def test_replays_agree_on_turns_of_sessions(case: Case, seed: int, window: tuple[float, float], most: int) -> None:
    agree(in_sessions(case_input(case), seed), window, most)


@examples(20, sieved=True)
@given(clocked(), st.integers(0, 99), WINDOWS, MOST)
def test_replays_agree_on_turns_where_limits_and_failures_decide(
    case: Case, seed: int, window: tuple[float, float], most: int
) -> None:
    agree(in_sessions(case_input(case), seed), window, most)


def traced(document: dict[str, Any], file: Path, seed: int) -> dict[str, Any]:
    """Give a document a trace of a few sessions in place of its workload."""
    random, count = Random(seed), 2 + seed % 11
    urgent = document["serving"].get("order", {}).get("by") == "priority"
    lines = ["arrival_ms,prompt_tokens,output_tokens,session_id,cancel_after_ms" + ",priority" * urgent]
    for _ in range(count):
        patience = random.choice(("", "", "", "0", "2", "9"))
        cells = [random.choice((0, 0, 1, 2, 5, 5, 9)), random.randint(1, 40), random.randint(1, 9)]
        lines.append(",".join(map(str, [*cells, random.choice(("", "a", "b", "c")), patience, *[seed % 2] * urgent])))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    serving = document["serving"] | {"prefix_caching": False}
    serving = {key: value for key, value in serving.items() if key != "router_options"}
    if serving.get("router") == "prefix_aware":
        serving["router"] = "least_outstanding"
    return document | {"serving": serving, "workload": {"trace": {"path": str(file), "turns": "wait"}}}


def due_and_came(result: RunResult) -> tuple[Int64Array, Int64Array]:
    """Return when each request of a run without a horizon was to arrive, and when it did."""
    requests = result.scenario.requests()
    follows, columns = requests.follows, result.requests
    assert follows is not None
    facts = result.timeline.facts
    ends = np.full(len(requests), NEVER)
    last = np.isin(facts["kind"], ENDS)
    np.minimum.at(ends, facts["request"][last], facts["time_ns"][last])
    before = np.where(follows < 0, 0, ends[np.maximum(follows, 0)])
    return np.maximum(requests.arrived_at_ns, before), columns["arrived_ns"]


@examples(15, sieved=True)
@given(st.one_of(documents(), troubled()), st.integers(0, 999))
def test_turns_arrive_when_they_are_due_and_runs_are_legal(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], seed: int
) -> None:
    found = traced(document, tmp_path_factory.mktemp("turns") / "trace.csv", seed)
    folded, full = (simulate(scenario_of(found, replay=replay)) for replay in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert audit_run(folded).violations == ()
    assert audit_run(full).violations == ()
    if found["run"].get("horizon") is None:
        due, came = due_and_came(full)
        assert due.tolist() == came.tolist()


WAITS = "if len(s.follows) > 0 and s.follows[request] >= 0 and"
FOLLOWS = "else requests.follows[mine]"
SOMEBODY_ELSE = "(requests.follows >= 0) & (requests.follows < np.arange(total) - 1)"
MISTAKES: Final = {
    "no turn waits": Change("clustersim.core.clock", WAITS, f"if False and {WAITS[3:]}"),
    "turns wait for somebody else": Change(
        "clustersim.replay.core_replicas", FOLLOWS, f"else (requests.follows + ({SOMEBODY_ELSE}))[mine]"
    ),
}
TURNS = "arrival_ms,prompt_tokens,output_tokens,session_id\n0,30,8,a\n0,20,4,b\n1,30,2,a\n1,9,3,\n2,12,3,a\n900,5,2,b\n"


def small(folder: Path, turns: str = "wait") -> dict[str, Any]:
    (folder / "turns.csv").write_text(TURNS, encoding="utf-8")
    return {
        "name": "turns", "topology": {"name": "dgx-h100", "nodes": 1}, "model": "llama-3.1-8b", "plan": {"tp": 1},
        "serving": {"scheduler": "chunked_prefill", "max_batch_requests": 4, "max_batch_tokens": 64},
        "workload": {"trace": {"path": str(folder / "turns.csv"), "turns": turns}}, "run": {},
    }  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_turns_that_arrive_otherwise_are_noticed(tmp_path: Path, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        changed(patch, MISTAKES[name])
        found = audit_run(simulate(scenario_of(small(tmp_path), replay="full")))
    assert {violation.rule for violation in found.violations} == {"RUN-5"}
    assert "the turn before it, request" in found.violations[0].message


def test_a_turn_is_sent_when_it_was_where_the_one_before_has_long_ended(tmp_path: Path) -> None:
    waiting, recorded = (simulate(scenario_of(small(tmp_path, turns))) for turns in ("wait", "as_recorded"))
    assert audit_run(waiting).violations == audit_run(recorded).violations == ()
    due, came = due_and_came(waiting)
    assert due.tolist() == came.tolist()
    assert (came > recorded.requests["arrived_ns"]).tolist() == [False, False, True, False, True, False]


def test_a_trace_without_sessions_has_no_turns_that_could_wait(tmp_path: Path) -> None:
    document = small(tmp_path)
    (tmp_path / "turns.csv").write_text("arrival_ms,prompt_tokens,output_tokens\n0,1,1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"workload\.trace\.turns: .*names no sessions whose turns could wait"):
        scenario_of(document).requests()


def test_repeated_sessions_are_sessions_of_their_own(tmp_path: Path) -> None:
    document = small(tmp_path)
    document["workload"]["trace"] |= {"requests": 12, "repeat": True}
    requests = scenario_of(document).requests()
    assert requests.follows is not None
    assert requests.follows.tolist() == [-1, -1, 0, -1, 2, 1, -1, -1, 6, -1, 8, 7]
    assert requests.take(3).follows is not None


def test_turns_that_wait_have_no_rate_to_vary(tmp_path: Path) -> None:
    document = small(tmp_path) | {"targets": {"ttft": "1 s"}}
    scenario = scenario_of(document)
    with pytest.raises(InputError, match="have no rate to vary; say as_recorded"):
        load_of(scenario, lambda one: one.requests(), 10.0)
