"""What a command would take is estimated before the work: above a limit it says so, and what to change."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.errors import InputError
from clustersim.limits import Limits
from clustersim.scenario.load import load
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.estimate import (
    BYTES_AT_LEAST,
    BYTES_PER_PASS,
    BYTES_PER_REQUEST,
    BYTES_PER_SPAN,
    estimate,
    graph_nodes,
)
from clustersim.simulation.simulate import simulate
from clustersim.simulation.step import step_batch, step_graph
from clustersim.workload.requests import Requests
from tests.effort import is_whole, some

FREE = ("--set", "expect={}", "--quiet")
DRAWN = "workload={{arrivals: {{process: poisson, rate: 4/s}}, prompt_tokens: 1000, output_tokens: {}, requests: {}}}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


@pytest.mark.parametrize(
    "name",
    some([
        "mixtral-ep", "pp-on-one-node", "tp-on-one-node", "quickstart", "failing-node", "long-context-ring",
        "own-scheduler", "shared-prefixes", "distserve-tp2-pp2",
    ]),
)  # fmt: skip
def test_steps_and_operators_are_about_those_of_the_run(name: str):
    scenario = load(name, (), allow_code=True)
    requests = scenario.requests()
    found, run = estimate(scenario, requests, len(requests)), simulate(scenario, requests=requests).timeline
    assert abs(math.log(found.steps / run.num_steps)) < math.log(3.0)
    assert found.spans is None
    full = estimate(replace(scenario, run=replace(scenario.run, replay="full")), requests, len(requests))
    assert full.spans is not None
    assert abs(math.log(full.spans / run.num_spans)) < math.log(3.0)
    assert full.memory_bytes >= found.memory_bytes + BYTES_PER_SPAN * full.spans


def crowded(plan: str) -> tuple[Scenario, Requests]:
    workload = "{arrivals: {process: all_at_once}, prompt_tokens: 500, output_tokens: 500, requests: 8}"
    more = ("serving.kv_blocks=160", "serving.max_batch_tokens=64", "expect={}")
    scenario = load("quickstart", (f"plan={plan}", f"workload={workload}", *more))
    return scenario, scenario.requests()


def test_rows_are_about_those_of_the_run_where_blocks_are_too_few():
    scenario, requests = crowded("{tp: 8}")
    found, run = estimate(scenario, requests, len(requests)), simulate(scenario, requests=requests).timeline
    rows = (found.memory_bytes - BYTES_AT_LEAST - BYTES_PER_REQUEST * len(requests)) / BYTES_PER_PASS
    assert abs(math.log(rows / len(run.passes["start_ns"]))) < math.log(3.0)


def test_stages_take_longer_where_blocks_are_too_few_and_passes_that_are_laid_out_by_far():
    plans = "{tp: 8}", "{pp: 2, tp: 8}", "{tp: 4, sp: {degree: 2, scheme: ring, decode: dp}}"
    one, two, split = (found.seconds / found.steps for found in (estimate(*crowded(plan), 8) for plan in plans))
    assert two > 4 * one
    assert split > 20 * one


@pytest.mark.parametrize("name", ["quickstart", "mixtral-ep", "long-context-ring"])
def test_nodes_of_a_graph_are_about_those_that_are_drawn(name: str):
    scenario = load(name, ())
    step = step_batch(
        "prefill", scenario.model, scenario.plan.lockstep.sp, prompt_tokens=64, sequences=1, context_tokens=1
    )
    drawn = len(step_graph(scenario, step, stages=None, replica=0).graph)
    assert drawn <= graph_nodes(scenario, "prefill", None) <= 1.5 * drawn + 500


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ((DRAWN.format(128, 10**9),), "--max-memory"),
        ((DRAWN.format(128, 10**9),), "--max-time"),
        ((DRAWN.format(130_000, 30), "run.replay=full"), "--max-time"),
    ],
)
def test_a_run_that_would_never_end_says_so_at_once(folder: Path, more: tuple[str, ...], limit: str):
    found = told("run", "quickstart", *FREE, *(word for one in more for word in ("--set", one)))
    assert found.exit_code == 2
    assert "would take roughly" in found.stderr
    assert f"allow it with {limit}" in found.stderr or f" {limit} '" in found.stderr
    assert "simulate fewer requests or shorter ones" in found.stderr
    assert ("--replay folded" in found.stderr) == ("run.replay=full" in more)
    assert list(folder.iterdir()) == []


MANY = ("--set", "workload.trace.repeat=true", "--set", "workload.trace.requests=1000000000", "--set", "expect={}")
FIRST = "workload={arrivals: {process: poisson, rate: 4/s}, prompt_tokens: 9, output_tokens: 2, requests: 1000000000}"


@pytest.mark.parametrize(
    "words",
    [
        ("run", "quickstart", *MANY),
        ("sweep", "quickstart", *MANY, "--vary", "workload.trace.rate_scale=2"),
        ("search", "quickstart", "--devices", "8", "--set", FIRST, "--targets", "ttft=1 s"),
        ("search", "quickstart", "--devices", "8", "--lasting", "1e8 s"),
        ("rate", "quickstart", "--lasting", "1e8 s"),
        ("compare", "s.yaml", "s.yaml"),
    ],
    ids=["run", "sweep", "search", "lasting", "rate", "compare"],
)
def test_requests_that_are_too_many_are_neither_drawn_nor_repeated(folder: Path, words: tuple[str, ...]):
    (folder / "s.yaml").write_text("topology: dgx-h100\nmodel: llama-3.1-8b\nworkload: " + FIRST.partition("=")[2])
    found = told(*words, *(("--workers", "1") if words[0] in ("sweep", "search", "rate") else ()))
    assert found.exit_code == (1 if words[0] == "sweep" else 2)  # of several runs some may do
    assert "would take roughly" in found.output + found.stderr
    assert "allow it with --max-memory" in found.output + found.stderr


def test_recorded_runs_that_are_too_many_to_compare_are_refused_before_they_are_read(folder: Path):
    (folder / "r" / "timeline").mkdir(parents=True)
    (folder / "r" / "timeline" / "steps.parquet").write_bytes(bytes(1_000_000))
    found = told("compare", *["r"] * 40, "--max-time", "5 s")  # 40 MB at 0.27 µs a byte
    assert found.exit_code == 2
    assert "comparing 40 runs would take roughly 10.8 s of real time, above the limit of 5 s" in found.stderr


def test_runs_that_together_take_too_long_are_refused_and_those_that_are_finished_take_nothing(folder: Path):
    words = ("sweep", "quickstart", "--set", "workload.trace.requests=5", "--workers", "1", "--quiet", "--out", "s")
    found = told(*words, "--vary", "workload.trace.rate_scale=1..100:0.001", "--set", "run.replay=full")
    assert found.exit_code == 2
    assert "99,001 runs of about " in found.stderr
    assert "try fewer values or simulate fewer requests" in found.stderr
    assert list(folder.iterdir()) == []  # nothing was simulated: nothing is left
    assert "allow it with --max-total '" in found.stderr
    few = (*words, "--vary", "workload.trace.rate_scale=1,2")
    assert told(*few, "--max-total", "1 ms").exit_code == 2
    assert told(*few).exit_code == 0
    assert told(*few, "--max-total", "1 ms").exit_code == 0
    assert told(*few, "--max-total", "1 ms", "--vary", "plan.tp=4").exit_code == 2


TOGETHER = {
    "why": ("--set", "workload.trace.requests=5"),
    "rate": ("--set", "workload.trace.requests=5", "--targets", "ttft=1 s", "--lasting", "1 s"),
    "size": ("--set", "workload.trace.requests=5", "--targets", "ttft=1 s"),
    "search": ("--devices", "4", "--lasting", "1 s", "--targets", "ttft=1 s"),
}


@pytest.mark.parametrize("command", TOGETHER)
def test_runs_of_which_the_next_depends_on_the_last_are_refused_before_they_take_too_long(folder: Path, command: str):
    words = (command, "quickstart", *TOGETHER[command], "--workers", "1", "--quiet", "--out", "deep/s")
    found = told(*words, "--max-total", "1 ms")
    assert found.exit_code == 2
    assert "of real time, above the limit of 1 ms" in found.stderr
    assert "allow it with --max-total '" in found.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", ["rate", "search"] if is_whole() else ["rate"])
def test_what_was_finished_before_it_took_too_long_takes_nothing_when_it_is_started_again(folder: Path, command: str):
    words = (command, "quickstart", *TOGETHER[command], "--workers", "1", "--quiet", "--out", "s")
    found = told(*words, "--max-total", "500 ms")
    assert found.exit_code == 2
    assert "1 run of about " in found.stderr
    assert re.search(r" each after \d runs, 1 at a time, would take roughly ", found.stderr)
    finished = (folder / "s" / "finished.jsonl").read_text()
    assert finished
    assert told(*words, "--max-total", "500 ms").exit_code == 2
    more = (folder / "s" / "finished.jsonl").read_text()
    assert more.startswith(finished)
    assert len(more) > len(finished)


LEAST = [("1 min", "--max-total"), ("8 GB", "--max-memory")]


@pytest.mark.parametrize(("limit", "option"), LEAST if is_whole() else LEAST[:1])
def test_more_plans_than_time_and_memory_allow_are_refused_before_they_are_made(folder: Path, limit: str, option: str):
    found = told("search", "quickstart", "--devices", "256", "--targets", "ttft=1 s", option, limit, "--quiet")
    assert found.exit_code == 2
    assert re.search(r"about 1\d,\d\d\d,\d\d\d plans, before any is simulated, would take roughly", found.stderr)
    assert "search fewer devices" in found.stderr
    assert f"allow it with {option} '" in found.stderr
    assert list(folder.iterdir()) == []


def test_limits_that_were_lifted_before_it_took_too_long_are_told(folder: Path):
    words = ("why", "quickstart", "--set", "workload.trace.requests=5", "--set", "targets.ttft=1 ms", "--workers", "1")
    found = told(*words, "--only", "replicas,host", "--max-total", "350 ms", "--out", "s")
    assert found.exit_code == 2
    assert "as it is" in found.stdout
    assert re.search(r"after \d runs, 1 at a time, would take roughly", found.stderr)
    assert (folder / "s" / "why.html").exists()


def test_a_plan_is_not_passed_over_because_all_plans_together_take_too_long(folder: Path):
    words = ("size", "quickstart", *TOGETHER["size"], "--workers", "1", "--out", "s", "--vary", "plan.tp=2,4,8")
    found = told(*words, "--max-total", "650 ms")
    assert found.exit_code == 2
    assert "above the limit of 650 ms" in found.stderr
    assert found.stdout == ""


def test_check_reads_a_trace_that_is_repeated_once_only():
    assert told("check", "quickstart", *MANY).exit_code == 0


def test_a_run_directory_whose_scenario_asks_for_any_number_of_requests_is_refused(folder: Path):
    text = FIRST.replace("1000000000", "3")
    assert told("run", "quickstart", *FREE, "--set", text, "--out", "r").exit_code == 0
    scenario = folder / "r" / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("  requests: 3\n", "  requests: 100000000\n"))
    for words in (("audit", "r"), ("dashboard", "r"), ("compare", "r", "r")):
        found = told(*words)
        assert found.exit_code == 2
        assert "workload.requests: asks for 100,000,000 requests, and requests.parquet has 3" in found.stderr


def test_weak_links_and_slow_devices_make_the_estimate_longer():
    """Of chains a millisecond for each step; where ranks do different work what each operator takes as an event."""

    def seconds(*changes: str) -> float:
        scenario = load("quickstart", ("workload.trace.requests=40", "expect={}", *changes))
        found = estimate(scenario, scenario.requests(), 40)
        assert found.spans is None
        return found.seconds

    weak = "faults=[{link: [n0.g3, n0.nvswitch], at: 0 s, factor: 0.1}]"
    down = "faults=[{device: 3, at: 0 s, until: 1 s}]"
    assert 20 < seconds(weak) / seconds() < 200
    assert seconds(down) == seconds()
    part = weak.replace("at: 0 s", "at: 1 s, until: 2 s")
    assert seconds() < seconds(part) < seconds(weak) / 3
    at_once = f"faults=[{part[8:-1]}, {weak[8:-1].replace('at: 0 s', 'at: 1 s')}]"  # one of them for good
    assert seconds(part) < seconds(at_once) < seconds(weak)
    sp = ("plan={sp: 2, tp: 4}",)
    assert seconds(weak, *sp) > 3 * seconds(weak)


def test_each_step_of_a_small_model_takes_time_as_an_event_of_its_own():
    """Of 74 operators a step three quarters of the time are the step's own: 0.5 ms, not 0.13 ms."""
    small = (
        "model={name: llama-3.1-8b, config: {num_hidden_layers: 2}}",
        "plan={tp: 2}",
        "run.replay=full",
        "expect={}",
    )
    scenario = load("quickstart", (*small, DRAWN.format(2000, 10)))
    found = estimate(scenario, scenario.requests(), 10)
    assert found.spans is not None
    assert 0.4e-3 < found.seconds / found.steps < 0.7e-3


def test_a_limit_that_is_raised_lets_it_run():
    few = ("run", "quickstart", *FREE, "--set", "workload.trace.requests=10", "--no-dashboard", "--out", "run")
    assert told(*few, "--max-memory", "1 MB").exit_code == 2
    assert told(*few, "--max-time", "0.1 ms").exit_code == 2
    assert told(*few).exit_code == 0


def test_a_proof_in_a_hundred_orders_is_estimated():
    found = told("prove", "quickstart", "--orders", "100", "--max-time", "1 s")
    assert found.exit_code == 2
    assert "in 102 orders" in found.stderr
    assert "--orders" in found.stderr


def test_graphs_and_traces_that_would_be_too_large_are_refused(folder: Path):
    assert (
        told(
            "run", "quickstart", *FREE, "--no-dashboard", "--set", "workload.trace.requests=5", "--out", "run"
        ).exit_code
        == 0
    )
    found = told("trace", "run", "--max-size", "1 kB")
    assert found.exit_code == 2
    assert "--from, --to" in found.stderr
    assert not (folder / "run" / "trace.pftrace.gz").exists()
    found = told("graph", "quickstart", "-o", "step.json", "--max-size", "1 kB")
    assert found.exit_code == 2
    assert "8,960 nodes" in found.stderr or " nodes would take roughly" in found.stderr
    assert not (folder / "step.json").exists()


@pytest.mark.parametrize("text", ["2", "-2 GB", "0 s", "much", "nan GB"])
def test_a_limit_that_is_none_is_refused(text: str):
    found = told("run", "quickstart", *FREE, "--max-memory", text)
    assert found.exit_code == 2
    assert "--max-memory" in found.stderr


def test_limits_name_only_what_is_above_them():
    limits = Limits(seconds=10.0, memory_bytes=2e9)
    limits.refuse("this", "less", seconds=9.0, memory_bytes=1e9)
    with pytest.raises(InputError, match=r"^this would take roughly 20 s of real time, above the limit of 10 s; less,"):
        limits.refuse("this", "less", seconds=20.0, memory_bytes=1e9)
