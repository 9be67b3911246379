"""Replicas in several processes: the tables of one, whatever the number, and whatever becomes of a worker."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.replay.input import ReplayInput, ReplayResult
from clustersim.replay.prepared import Prepared
from clustersim.replay.processes import worker, workers
from clustersim.replay.replay import replay
from clustersim.run.simulate import replay_input
from clustersim.scenario.load import load
from clustersim.timeline.tables import TABLES, VECTORS

THREE = ("plan={dp: 3, tp: 8}", "topology.nodes=3", "workload.trace.requests=90", "serving.router=round_robin")


def given(*overrides: str) -> ReplayInput:
    scenario = load("quickstart", (*THREE, *overrides))
    return replay_input(scenario, scenario.requests())


def tables(result: ReplayResult) -> dict[str, Any]:
    """All that a replay brought, in order."""
    timeline = result.timeline
    found = {f"{name}.{column}": values for name in TABLES for column, values in getattr(timeline, name).items()}
    found |= {name: getattr(timeline, name) for name in VECTORS}
    found |= {name: getattr(result, name) for name in ("replica", "arrived_ns", "preemptions")}
    return {name: (values.dtype, values.tobytes()) for name, values in found.items()} | {
        "digest": timeline.digest,
        "column_sets": timeline.column_sets,
        "reasons": list(result.reasons.items()),
    }


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("run.horizon=9 s",),
        ("plan={dp: 3, tp: 8, pp: 2}", "topology.nodes=6"),
        ("serving.kv_blocks=150",),
        ("run.horizon=1 ns",),
    ],
    ids=["as it is", "horizon", "stages", "small pool", "no step ends"],
)
def test_tables_are_the_same_for_any_number_of_processes(overrides):
    one = replay(given(*overrides))
    assert one.processes == 1
    for count in (3,) if overrides else (2, 3):
        several = replay(given(*overrides), processes=count)
        assert several.processes == count
        assert tables(several) == tables(one)


def test_the_small_pool_preempts_and_rejects():
    result = replay(given("serving.kv_blocks=150"))
    assert result.preemptions.sum() > 0
    assert result.reasons


def test_rows_of_durations_are_numbered_by_first_use_in_order_of_replicas():
    passes = replay(given(), processes=3).timeline.passes
    assert np.all(np.diff(passes["replica"]) >= 0)
    first = [passes["row"].tolist().index(row) for row in range(passes["row"].max() + 1)]
    assert len(set(first)) == len(first)


@pytest.mark.parametrize(
    "does",
    ["import os; os._exit(3)", "raise RuntimeError('broken')", "import sys; sys.stdout.write('not a pickle')"],
    ids=["dies", "raises", "talks"],
)
def test_what_a_worker_does_not_bring_is_done_here(monkeypatch, does):
    monkeypatch.setattr(worker, "_SERVE", does)
    result = replay(given(), processes=2)
    assert tables(result) == tables(replay(given()))
    assert (result.processes, result.undivided) == (1, "1 more could not do their part, which was done here")


def test_without_an_interpreter_all_is_done_here(monkeypatch):
    monkeypatch.setattr(sys, "executable", None)
    result = replay(given(), processes=3)
    assert result.processes == 1
    assert tables(result) == tables(replay(given()))


def test_what_cannot_be_pickled_is_done_here():
    inputs = given()
    inputs.comm.candidates = lambda *asked: pytest.fail("nobody asks") if not asked else ()
    assert worker.job_of(inputs) is None


def test_an_error_is_the_same_from_any_process():
    # Only replica 2 has a request, the last one, so long that its attention takes more than a day.
    inputs = given(
        "workload={arrivals: {process: constant, rate: 1/s}, prompt_tokens: 100, output_tokens: 2, requests: 9}"
    )
    assert inputs.plan.dp == 3
    prompts = np.array([100] * 8 + [2_000_000_000])
    inputs = replace(
        inputs,
        requests=replace(inputs.requests, prompt_tokens=prompts),
        kv_blocks=(1 << 31) - 1,
        serving=replace(inputs.serving, max_batch_tokens=1 << 31),
    )
    told = []
    for count in (1, 3):
        with pytest.raises(InputError, match="expected less than a day") as raised:
            replay(inputs, processes=count)
        told.append(str(raised.value))
    assert told[0] == told[1]


def test_progress_adds_up_to_all_requests():
    seen: list[tuple[int, int, int]] = []
    replay(given(), lambda *told: seen.append(told), processes=3)
    ended = [told[1] for told in seen]
    assert ended == sorted(ended)
    assert seen[-1][1:] == (90, 90)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("plan={tp: 8}", "topology.nodes=1"), "there is one replica"),
        (("serving.router=least_outstanding",), "router least_outstanding compares the loads of all replicas"),
        (("plan={dp: 3, tp: 2, pp: 2}",), "communications can meet on a link"),
        ((), "no more were asked for"),
    ],
)
def test_why_there_are_not_more_processes(overrides, why):
    assert workers.processes_for(Prepared(given(*overrides)), 1) == (1, why)


def test_a_closed_loop_is_not_divided():
    inputs = given()
    closed = replace(inputs, requests=replace(inputs.requests, concurrency=4))
    assert workers.processes_for(Prepared(closed), 3)[0] == 1


def test_as_many_as_are_worth_it(monkeypatch):
    prepared = Prepared(given())
    monkeypatch.setattr(workers, "_usable_cores", lambda: 2)
    assert workers.processes_for(prepared, None) == (1, "there is too little to do")
    monkeypatch.setattr(workers, "WORTH_S", 1e-9)
    assert workers.processes_for(prepared, None) == (2, "there are no more cores to use")
    monkeypatch.setattr(workers, "_usable_cores", lambda: 64)
    assert workers.processes_for(prepared, None) == (3, "there are no more replicas")
    assert workers.processes_for(prepared, 9) == (3, "there are no more replicas")


def test_a_worker_ends_when_its_input_does():
    job = worker.job_of(given("workload.trace.repeat=true", "workload.trace.requests=300000"))
    assert job is not None
    code = f"import sys; sys.path[:] = {sys.path!r}; from clustersim.replay.processes.worker import serve; serve()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(job + pickle.dumps(range(3)))
        process.stdin.flush()
        now, ended = pickle.load(process.stdout)
        assert 0 < ended < 300_000
        assert now > 0
        process.stdin.close()
        process.stdout.close()
        assert process.wait(timeout=20) != 0
