"""``clustersim calibrate engine``: constants from logs of servers, here of servers that were simulated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.scenario.load import load
from clustersim.simulation.calibration.log import read_log
from clustersim.simulation.simulate import simulate

TRUTH = """source: an example
schedule: 900 us
schedule_per_request: 25 us
sample: 25 us
sample_per_request: 0.4 us
launch: 2 us
graph_launch: 0 us
graph_max_tokens: 512
collective_launch: 1 us
kernel_time: 1.2
"""
SCENARIO = """name: mine
topology: {name: dgx-h100, nodes: 1}
model: llama-3.1-8b
serving: {engine: vllm-0.19}
workload:
  arrivals: {process: closed_loop, concurrency: 8}
  prompt_tokens: {uniform: {low: 400, high: 600}}
  output_tokens: 32
  requests: 60
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a scenario, and what ``vllm bench serve`` would say of an engine of known constants."""
    folder = tmp_path_factory.mktemp("calibrate")
    (folder / "truth.yaml").write_text(TRUTH)
    (folder / "s.yaml").write_text(SCENARIO)
    for clients in (1, 8, 32, 64):
        bench(folder, f"bench{clients}.json", f"workload.arrivals.concurrency={clients}")
    bench(folder, "lists.json", "workload.arrivals={process: poisson, rate: 60/s}", "--save-detailed")
    return folder


def bench(folder: Path, name: str, change: str, *more: str) -> None:
    run = [
        "run",
        str(folder / "s.yaml"),
        "--no-audit",
        "--no-dashboard",
        "--quiet",
        "--out",
        str(folder / f"out-{name}"),
        *more,
    ]
    sets = ["--set", "serving.engine=./truth.yaml", "--set", change]
    done = CliRunner().invoke(main, [*run, *sets, "--vllm-json", str(folder / name)])
    assert done.exit_code == 0, done.output


def calibrate(folder: Path, *logs: str, output: str = "mine.yaml", more: tuple[str, ...] = ()):
    paths = [str(folder / log) for log in logs]
    command = ["calibrate", "engine", *paths, "--scenario", str(folder / "s.yaml"), "-o", str(folder / output)]
    return CliRunner().invoke(main, [*command, "--workers", "1", *more])


def test_constants_of_the_server_come_back_from_its_benchmarks(folder):
    done = calibrate(folder, "bench1.json", "bench8.json", "bench32.json", "bench64.json", more=("--json",))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["constants"].pop("kernel_time")["after"] == pytest.approx(1.2, rel=0.01)
    values = {key: one["after_s"] * 1e6 for key, one in found["constants"].items()}
    assert values.pop("launch", 2.0) == pytest.approx(2.0, abs=0.5)
    assert (
        values.pop("front_end") < 500
    )  # clients of a simulation are at the replicas; the engine that is left has 6 ms
    assert values == pytest.approx({"schedule": 900, "schedule_per_request": 25}, rel=0.05)
    assert "500 us more move no figure by more than 0.0%" in found["refused"]["stage"]
    assert found["errors"]["held_out"]["after"] < 0.01 < found["errors"]["held_out"]["before"]


def test_the_file_is_an_engine_that_a_scenario_can_name(folder):
    calibrate(folder, "lists.json", output="named.yaml")
    engine = yaml.safe_load((folder / "named.yaml").read_text())
    assert "error on the part held out" in engine["source"]
    assert load(str(folder / "s.yaml"), ["serving.engine=./named.yaml"]).engine.name == "named"
    page = (folder / "named.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "TTFT held out, ms" in page


def test_what_a_log_cannot_tell_is_refused_and_left_as_it_was(folder):
    """One client: time per request is as little as one request has, whatever the time per step is."""
    done = calibrate(folder, "bench1.json", "bench1.json", "bench1.json", output="one.yaml", more=("--json",))
    found = json.loads(done.stdout)
    assert "20 us more move no figure by more than" in found["refused"]["schedule_per_request"]
    assert "schedule" in found["constants"]
    assert yaml.safe_load((folder / "one.yaml").read_text())["schedule_per_request"] == "16 us"
    assert "requests did not wait" in found["refused"]["kv_blocks"]


def test_the_same_bytes_come_from_any_number_of_processes(folder):
    for workers in ("1", "2"):
        calibrate(folder, "lists.json", output=f"w{workers}.yaml", more=("--workers", workers))
    assert (folder / "w1.yaml").read_bytes() == (folder / "w2.yaml").read_bytes()


def test_a_pool_that_requests_waited_for_is_read_off_the_log(folder):
    scenario = load(str(folder / "s.yaml"), [
        "serving.kv_blocks=400", "workload.arrivals=all_at_once", "workload.requests=80", "workload.output_tokens=128",
    ])  # fmt: skip
    columns = simulate(scenario).requests
    lines = []
    for prompt, output, admitted, first, last in zip(
        *(np.ma.getdata(columns[name]) for name in
          ("prompt_tokens", "output_tokens", "admitted_ns", "first_token_ns", "finished_ns")), strict=True
    ):  # fmt: skip
        stamps = {
            "queued_ts": 0.0,
            "scheduled_ts": admitted / 1e9,
            "first_token_ts": first / 1e9,
            "last_token_ts": last / 1e9,
        }
        lines.append(json.dumps({"input_toks": int(prompt), "output_toks": int(output), "arrival_time": 0.0} | stamps))
    (folder / "log.jsonl").write_text("\n".join(lines))
    found = json.loads(calibrate(folder, "log.jsonl", output="pool.yaml", more=("--json",)).stdout)
    assert found["kv_blocks"] == pytest.approx(400, rel=0.1)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", '{"completed": 5}', "total_input_tokens: is missing"),
        ("x.json", '{"completed": 5}', "max_concurrency: is missing; expected a whole number of clients, or null"),
        ("x.json", '{"a": 1}', "is no log that is known; expected JSON lines"),
        (
            "x.jsonl",
            '{"input_toks": 1, "output_toks": 2, "arrival_time": 0, "queued": 1}\n' * 2,
            "queued_ts: is missing; did you mean 'queued'?",
        ),
        ("x.jsonl", '{"input_toks": 1}\n{"', "x.jsonl:2: not JSON"),
        ("x.csv", "arrival_s,prompt_tokens,output_tokens,ttft\n", "x.csv:1: no column 'ttft_ms'; did you mean 'ttft'?"),
        ("x.csv", "arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms\n0,1,2,x,4\n", "x.csv:2: ttft_ms: found None"),
        ("x.json", "", "is empty; expected"),
        (
            "x.csv",
            "arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms\n" + "0,100,10,0,0\n" * 60,
            "x.csv: found no latency above 0 in the part that is fitted",
        ),
    ],
)  # fmt: skip
def test_a_log_without_what_is_needed_says_which(folder, name, text, said):
    (folder / name).write_text(text)
    done = calibrate(folder, name)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_log_of_which_nothing_can_be_held_out_is_refused(folder):
    done = calibrate(folder, "bench1.json", "bench8.json")
    assert done.exit_code == 2
    assert "2 logs without lists by request; expected 3 or more" in done.stderr


def test_a_result_without_lists_has_mean_lengths_where_the_scenario_draws_none(folder):
    log = read_log(folder / "bench8.json", load("quickstart"))
    result = json.loads((folder / "bench8.json").read_text())
    assert log.requests.prompt_tokens.tolist() == [round(result["total_input_tokens"] / 60)] * 60
    assert log.requests.concurrency == 8


def test_the_output_is_a_yaml_file(folder):
    done = calibrate(folder, "lists.json", output="mine.txt")
    assert (done.exit_code, "expected a name that ends in .yaml" in done.stderr) == (2, True)


def test_a_fit_that_is_worse_on_what_was_held_out_says_so(folder):
    """The constants come from one log, and the part that is held out from a server of another kind."""
    lists = json.loads((folder / "lists.json").read_text())
    held = len(lists["ttfts"]) * 7 // 10
    for number in range(held):  # slow where it is fitted
        lists["itls"][number] = [3 * gap for gap in lists["itls"][number]]
    (folder / "two-kinds.json").write_text(json.dumps(lists))
    done = calibrate(folder, "two-kinds.json", output="two-kinds.yaml")
    assert done.exit_code == 0, done.output
    assert "do not use the fit" in done.output
    assert "do not use the fit" not in calibrate(folder, "lists.json", output="one-kind.yaml").output
