"""Replicas in several processes: the tables of one, whatever the number, and whatever becomes of a process."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import Any

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.processes import local_pool
from clustersim.replay import shares
from clustersim.replay.input import ReplayInput, ReplayResult
from clustersim.replay.prepared import Prepared
from clustersim.replay.replay import replay
from clustersim.scenario.load import load
from clustersim.simulation.replay_input import replay_input
from clustersim.timeline.tables import TABLES, VECTORS
from tests.round_numbers import with_entry

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
    for count in (2,) if overrides else (2, 3):
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


class Instead(Executor):
    """Has a pool do something else in place of the last share."""

    def __init__(self, pool: Executor, does: Any, *args: Any) -> None:
        self.pool, self.does, self.args = pool, does, args

    def submit(self, call: Any, /, *args: Any, **named: Any) -> Future[Any]:
        return self.pool.submit(self.does, *self.args) if args[1].stop == 3 else self.pool.submit(call, *args)


@pytest.mark.parametrize(
    ("does", "argument", "left"),
    [(os._exit, 3, 1), (json.loads, "no JSON", 2), (json.loads, "[", 2)],
    ids=["dies", "raises", "raises otherwise"],
)
def test_what_a_process_does_not_bring_is_done_here(does, argument, left):
    with local_pool(1) as pool:
        result = replay(given(), processes=3, executor=Instead(pool, does, argument))
    assert tables(result) == tables(replay(given()))
    assert result.processes in ({2} if left == 2 else {1, 2})  # one that dies may take what was submitted with it
    assert result.undivided.endswith("could not do their part, which was done here")


def test_any_executor_brings_the_same():
    with ThreadPoolExecutor(1) as pool:
        result = replay(given(), processes=3, executor=pool)
    assert (result.processes, tables(result)) == (3, tables(replay(given())))


def test_without_an_interpreter_all_is_done_here(monkeypatch):
    resource_tracker.ensure_running()  # else it is what is missed first, and tests that follow warn of it
    monkeypatch.setattr("clustersim.processes.forks", lambda: False)
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: b"/none")
    result = replay(given(), processes=3)
    assert result.processes == 1
    assert tables(result) == tables(replay(given()))


def test_a_worker_of_a_pool_of_multiprocessing_does_all_itself(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert replay(given(), processes=3).processes == 1


@pytest.mark.skipif(sys.platform != "linux", reason="workers are interpreters of their own there")
@pytest.mark.parametrize(("given_by_machine", "processes"), [(0, 1), (1, 1), (2, 3)])
def test_what_gets_no_copy_of_this_process_is_done_here(given_by_machine, processes, monkeypatch):
    fork, left = os.fork, [None] * given_by_machine

    def scarce() -> int:
        if not left:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        left.pop()
        return fork()

    monkeypatch.setattr("clustersim.processes.forks", lambda: True)
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: b"/none")  # copies need none
    monkeypatch.setattr(os, "fork", scarce)
    result = replay(given(), processes=3)
    assert result.processes == processes
    assert tables(result) == tables(replay(given()))
    assert not multiprocessing.active_children()


def test_what_cannot_be_pickled_is_done_here():
    inputs = given()
    inputs.comm.candidates = lambda *asked: pytest.fail("nobody asks") if not asked else ()
    assert shares.job_of(inputs) is None


def test_an_error_is_the_same_from_any_process():
    # Only replica 2 has a request, the last one, so long that its attention takes more than a day.
    inputs = given(
        "workload={arrivals: {process: constant, rate: 1/s}, prompt_tokens: 100, output_tokens: 2, requests: 9}"
    )
    assert inputs.entry.plan.dp == 3
    prompts = np.array([100] * 8 + [2_000_000_000])
    serving = replace(inputs.entry.serving, max_batch_tokens=1 << 31, context_window=None)
    inputs = replace(inputs, requests=replace(inputs.requests, prompt_tokens=prompts))
    inputs = with_entry(inputs, kv_blocks=(1 << 31) - 1, serving=serving)
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
    assert shares.processes_for(Prepared(given(*overrides)), 1) == (1, why)


def test_a_closed_loop_is_not_divided():
    inputs = given()
    closed = replace(inputs, requests=replace(inputs.requests, concurrency=4))
    assert shares.processes_for(Prepared(closed), 3)[0] == 1


def test_as_many_as_are_worth_it(monkeypatch):
    prepared = Prepared(given())
    monkeypatch.setattr(shares, "usable_cores", lambda: 2)
    assert shares.processes_for(prepared, None) == (1, "there is too little to do")
    monkeypatch.setattr(shares, "WORTH_S", 1e-9)
    assert shares.processes_for(prepared, None) == (2, "there are no more cores to use")
    monkeypatch.setattr(shares, "usable_cores", lambda: 64)
    assert shares.processes_for(prepared, None) == (3, "there are no more replicas")
    assert shares.processes_for(prepared, 9) == (3, "there are no more replicas")
