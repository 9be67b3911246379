"""``clustersim calibrate engine``: constants from logs of servers, here of servers that were simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.cli.commands.calibrate_engine import _doubts
from clustersim.errors import InputError
from clustersim.scenario.load import load
from clustersim.simulation.calibration.figures import Figure
from clustersim.simulation.calibration.fit import EngineFit
from clustersim.simulation.calibration.log.read import read_log
from clustersim.simulation.simulate import simulate
from tests.effort import is_whole

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
    for number in (18, 22):
        bench(folder, f"one{number}.json", "workload.arrivals.concurrency=1", "--set", f"workload.requests={number}")
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
    assert "front_end" in found["refused"]  # clients of a simulation are at the replicas
    assert values == pytest.approx({"schedule": 900, "schedule_per_request": 25}, rel=0.05)
    assert "500 us more move no figure by more than 0.0%" in found["refused"]["stage"]
    assert found["errors"]["held_out"]["after"] < 0.01 < found["errors"]["held_out"]["before"]


@pytest.fixture(scope="module")
def once(folder: Path) -> Result:
    """Return what was said as an engine was fitted to the log with lists."""
    return calibrate(folder, "lists.json", output="once.yaml")


@pytest.mark.usefixtures("once")
def test_the_file_is_an_engine_that_a_scenario_can_name(folder):
    engine = yaml.safe_load((folder / "once.yaml").read_text())
    assert engine["kernels"] == "vllm-0.19"
    assert "on the part held out: error median" in engine["source"]
    assert load(str(folder / "s.yaml"), ["serving.engine=./once.yaml"]).engine.name == "once"
    page = (folder / "once.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "TTFT held out, ms" in page


def test_what_a_log_cannot_tell_is_refused_and_left_as_it_was(folder):
    """One client: time per request is as little as one request has, whatever the time per step is."""
    done = calibrate(folder, "bench1.json", "one18.json", "one22.json", output="one.yaml", more=("--json",))
    found = json.loads(done.stdout)
    assert "20 us more move no figure by more than" in found["refused"]["schedule_per_request"]
    assert "schedule" in found["constants"]
    assert yaml.safe_load((folder / "one.yaml").read_text())["schedule_per_request"] == "16 us"
    assert "requests did not wait" in found["refused"]["kv_blocks"]


@pytest.mark.skipif(not is_whole(), reason="with --long=1: accuracy and search, which run candidates alike, show it")
@pytest.mark.usefixtures("once")
def test_the_same_bytes_come_from_any_number_of_processes(folder):
    calibrate(folder, "lists.json", output="both.yaml", more=("--workers", "2"))
    assert (folder / "once.yaml").read_bytes() == (folder / "both.yaml").read_bytes()


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
            "queued_ts: is missing; rename 'queued' if that is it",
        ),
        ("x.jsonl", '{"input_toks": 1}\n{"', "x.jsonl:2: not JSON"),
        ("x.csv", "arrival_s,prompt_tokens,output_tokens,ttft\n", "1: no column 'ttft_ms'; rename 'ttft' if that is"),
        ("x.csv", "arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms\n0,1,2,x,4\n", "x.csv:2: ttft_ms: found 'x'"),
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


def test_a_result_has_the_lengths_that_the_scenario_draws_unless_the_log_says_others(folder):
    drawn = ("workload={arrivals: all_at_once, prompt_tokens: 100, output_tokens: 10, requests: 1}", "expect={}")
    log, result = (
        read_log(folder / "bench8.json", load("quickstart", drawn)),
        json.loads((folder / "bench8.json").read_text()),
    )
    assert log.requests.prompt_tokens.tolist() == [round(result["total_input_tokens"] / 60)] * 60
    assert "bench8.json: prompt_tokens: 100 in the mean as the scenario draws them, " in log.notes[0]


def test_times_in_another_unit_are_told_before_anything_is_fitted(folder):
    result = json.loads((folder / "lists.json").read_text())
    name = lists(folder, "ms.json", itls=[[gap * 1e3 for gap in gaps] for gaps in result["itls"]])
    done = calibrate(folder, name)
    assert done.exit_code == 2
    assert "ms.json: times per output token are some 1,000 times longer than the scenario's" in done.stderr


@pytest.mark.parametrize("between", [";", "\t"])
def test_cells_are_parted_as_those_of_traces_and_one_token_has_no_time_per_token(folder, between):
    rows = [f"{at},100,10,30,9" for at in range(40)] + ["40,100,1,30,"]
    text = "\n".join(["arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms", *rows])
    (folder / "parted.csv").write_text(text.replace(",", between))
    log = read_log(folder / "parted.csv", load("quickstart"))
    assert log.tpot_ms is not None
    assert np.isnan(log.tpot_ms).tolist() == [False] * 40 + [True]
    (folder / "parted.csv").write_text(text.replace("39,100", "39,١٠٠"))
    with pytest.raises(InputError, match="prompt_tokens: found '١٠٠'"):
        read_log(folder / "parted.csv", load("quickstart"))


def test_a_request_that_stands_twice_under_two_names_is_refused(folder):
    row = {"input_toks": 100, "output_toks": 10}
    stamps = [(at, {"queued_ts": at, "first_token_ts": at + 0.1, "last_token_ts": at + 0.3}) for at in range(40)]
    lines = [json.dumps(row | {"request_id": f"{copy}{at}", "arrival_time": at} | stamp)
             for copy in "ab" for at, stamp in stamps]  # fmt: skip
    (folder / "twice.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"twice.jsonl:42: arrival_time: the request of line 2 stands here again \(39"):
        read_log(folder / "twice.jsonl", load("quickstart"))


def test_the_output_is_a_yaml_file(folder):
    done = calibrate(folder, "lists.json", output="mine.txt")
    assert (done.exit_code, "expected a name that ends in .yaml" in done.stderr) == (2, True)


def lists(folder: Path, name: str, **changes: object) -> str:
    """Write the result with lists as a server of its own with some keys changed, and return its name."""
    result = json.loads((folder / "lists.json").read_text()) | {"backend": "vllm"}
    (folder / name).write_text(json.dumps(result | changes))
    return name


def test_a_fit_that_is_worse_on_what_was_held_out_is_not_written(folder):
    """The constants come from one log, and the part that is held out from a server of another kind."""
    gaps = json.loads((folder / "lists.json").read_text())["itls"]
    slow = len(gaps) * 7 // 10
    lists(
        folder, "two.json", itls=[[3 * gap for gap in one] for one in gaps[:slow]] + gaps[slow:]
    )  # where it is fitted
    done = calibrate(folder, "two.json", output="two.yaml")
    assert done.exit_code == 2
    assert "two.yaml: is not written: on what was held out the engine as it was is nearer (error median" in done.stderr
    assert not (folder / "two.yaml").exists()


def test_a_fit_that_stays_far_off_is_not_written_and_its_constants_at_limits_are_named(folder):
    gaps = json.loads((folder / "lists.json").read_text())["itls"]
    name = lists(folder, "fast.json", itls=[[gap / 50 for gap in one] for one in gaps])
    done = calibrate(folder, name, output="fast.yaml")
    assert done.exit_code == 2
    assert "fast.yaml: is not written: on what was held out an error above 50% remains" in done.stderr
    assert "schedule ended at 0 us, the least that it may be" in done.stderr
    assert not (folder / "fast.yaml").exists()


def test_a_constant_at_its_limit_is_warned_of(folder):
    gaps = json.loads((folder / "lists.json").read_text())["itls"]
    name = lists(folder, "near.json", itls=[[gap * 0.6 for gap in one] for one in gaps])
    done = calibrate(folder, name, output="near.yaml")
    assert done.exit_code == 2
    assert "seem to be of another device or model than the scenario: 3 constants end at their limits" in done.stderr
    done = calibrate(folder, name, output="near.yaml", more=("--json", "--far"))
    assert done.exit_code == 0, done.output
    limits = json.loads(done.stdout)["at_limit"]
    assert limits
    assert all(f"warning: {told}" in done.stderr for told in limits)


OTHERS = [
    ("topology.name=rtx-pro-6000-node", "the engine as it was errs by more than 35%"),
    ("topology.name=dgx-b200", "kernel_time would be "),
    ("model=llama-3.1-70b", "the engine as it was errs by more than 35%"),
]


@pytest.mark.parametrize(("change", "said"), OTHERS if is_whole() else OTHERS[1:2])
def test_logs_of_another_device_or_model_are_not_fitted_unless_they_are_asked_for(folder, change, said):
    """Host times and the time of kernels together describe nearly any server: here one of an H100."""
    logs = ("bench1.json", "bench8.json", "bench32.json", "bench64.json")
    more = ("--set", change, *(("--set", "plan.tp=4") if "70b" in change else ()))
    done = calibrate(folder, *logs, output="other.yaml", more=more)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "--far" in done.stderr
    assert not (folder / "other.yaml").exists()


def test_host_time_of_a_step_that_no_engine_has_is_doubted():
    """As 4.6 ms are, which the log of an RTX 4090 leaves where four H100 are said to serve a 70B model."""
    figure = Figure(log=0, metric="tpot", statistic="mean", requests=None, measured_ms=10.0, is_held_out=True)
    near = np.array([10.0])
    for step_s, doubted in ((2.9e-3, False), (4.6e-3, True)):
        fit = EngineFit(
            constants={"schedule": step_s}, refused={}, kv_blocks=None, figures=(figure,),
            before_ms=near, pooled_ms=near, after_ms=near,
        )  # fmt: skip
        assert any("schedule would be 4.60 ms" in told for told in _doubts(fit)) == doubted


def test_a_fit_that_gains_nothing_is_noted(folder, once):
    done = calibrate(folder, "lists.json", output="again.yaml", more=("--set", "serving.engine=./once.yaml"))
    assert done.exit_code == 0, done.output
    assert "note: on what was held out the engine as it was is as near (error median" in done.stderr
    assert "is as near" not in once.stderr


HEAD = "arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms\n"
STAMPS = {"input_toks": 9, "output_toks": 9, "arrival_time": 0.0, "queued_ts": 0.0, "first_token_ts": 1.0,
          "last_token_ts": 2.0}  # fmt: skip


def stamps(*changes: dict[str, object]) -> str:
    """Return a log with a line per change."""
    return "".join(json.dumps(STAMPS | {"arrival_time": float(place), "queued_ts": float(place)} |
                              {"first_token_ts": place + 1.0, "last_token_ts": place + 2.0} | change) + "\n"
                   for place, change in enumerate(changes))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", HEAD + "0,100,2.5,9,9\n", "a.csv:2: output_tokens: found 2.5; expected a whole number"),
        ("a.csv", HEAD + "0,10000000,2,9,9\n", "a.csv:2: prompt_tokens: 10,000,000 prompt and 2 output tokens"),
        ("a.csv", HEAD + "0,100,9,9,9\n1,100,9,9,9\n2,90,9,9,9\n1,100,9,9,9\n2,90,9,9,9\n",
         "a.csv:5: arrival_s: the request of line 3 stands here again (2 lines are such); expected each request once"),
        ("a.csv", HEAD + "0,100,1,9,0\n" * 30, "a.csv:2: no request has more than one output token"),
        ("a.csv", "arrival_s,prompt_tokens,output_tokens,ttft_ms,latency_ms\n",
         "a.csv:1: no column 'tpot_ms'; besides known ones it has 'latency_ms'"),
        ("a.jsonl", stamps({}, {"output_toks": 2.5}), "a.jsonl:2: output_toks: found 2.5; expected a whole number"),
        ("a.jsonl", stamps({}, {"input_toks": 10**7}), "a.jsonl:2: input_toks: 10,000,000 prompt and 9 output tokens"),
        ("a.jsonl", stamps(*[{"output_toks": 1}] * 30), "a.jsonl:1: no request has more than one output token"),
        ("a.jsonl", stamps({"request_id": "r0"}, {"request_id": "r1"}, {"request_id": "r0"}),
         "a.jsonl:3: request_id: 'r0' stands in line 1, too"),
        ("a.jsonl", stamps(*[{}] * 29, {"arrival_time": 1e12}), "a.jsonl:30: requests arrive over 1e+12 s"),
        ("a.jsonl", stamps(*[{}] * 29, {"queued_ts": 1.0}),
         "a.jsonl:30: queued_ts: goes back by 27 s where arrival_time goes on"),
    ],
)  # fmt: skip
def test_a_log_that_says_what_cannot_be_is_refused_by_its_line(folder, name, text, said):
    (folder / name).write_text(text)
    done = calibrate(folder, name)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"completed": 0}, "none.json: completed: found 0; expected a whole number of requests above 0"),
        ({"ttfts": ["x"] * 60}, "none.json: ttfts[0]: found 'x'; expected a number"),
        ({"itls": [3] * 60}, "none.json: itls[0]: expected a list of seconds"),
        ({"output_lens": [2.5] * 60}, "none.json: output_lens[0]: found 2.5; expected a whole number"),
        ({"total_output_tokens": 60}, "none.json: no request has more than one output token"),
    ],
)
def test_a_result_that_says_what_cannot_be_is_refused_by_its_key(folder, changes, said):
    done = calibrate(folder, lists(folder, "none.json", **changes))
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_log_that_is_given_twice_is_refused(folder):
    (folder / "copy.json").write_bytes((folder / "bench8.json").read_bytes())
    done = calibrate(folder, "bench1.json", "bench8.json", "copy.json")
    assert (done.exit_code, "copy.json: is the same as bench8.json" in done.stderr) == (2, True), done.stderr


def test_a_clock_that_goes_back_and_requests_that_are_too_many_are_said(folder):
    lines = [f"{place},100,9,9,9\n" for place in range(10_020)]
    lines[7] = "3.5,100,9,9,9\n"
    (folder / "long.csv").write_text(HEAD + "".join(lines))
    log = read_log(folder / "long.csv", load(str(folder / "s.yaml")))
    assert len(log.requests) == 10_000
    cut, back = log.notes
    assert cut.endswith("long.csv: of its 10,020 requests the first 10,000 in order of arrival are taken")
    assert back.endswith("long.csv:9: arrival_s goes back by 2.5 s; taken in order of arrival")


HUGE: Final = int("9" * 400)
PLAIN_RESULT: Final = {
    "completed": 30, "total_input_tokens": 3000, "total_output_tokens": 300, "request_rate": 4.0,
    "max_concurrency": None, "mean_ttft_ms": 50.0, "mean_tpot_ms": 9,
}  # fmt: skip
LISTS: Final = {"input_lens": [100] * 30, "ttfts": [0.05] * 30, "itls": [[0.009] * 9] * 30}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"mean_ttft_ms": HUGE}, "mean_ttft_ms: found 9999"),
        ({"completed": HUGE}, "completed: found 9999"),
        ({"request_rate": True}, "request_rate: found True"),
        ({"max_concurrency": True}, "max_concurrency: found True"),
        (LISTS | {"output_lens": [10] * 30, "start_times": [0] * 29 + [1e11]}, "more than a year"),
    ],
)
def test_no_number_of_a_result_is_beyond_those_of_servers(folder, change, told):
    path = folder / "huge.json"
    path.write_text(json.dumps(PLAIN_RESULT | change))
    with pytest.raises(InputError, match=told):
        read_log(path, load(str(folder / "s.yaml")))


@pytest.mark.parametrize("change", [LISTS, LISTS | {"output_lens": [10] * 29}, {"median_tpot_ms": True}])
def test_lists_that_lack_are_not_read(folder, change):
    path = folder / "few.json"
    path.write_text(json.dumps(PLAIN_RESULT | change))
    log = read_log(path, load(str(folder / "s.yaml")))
    assert log.ttft_ms is None
    assert set(log.figures) == {"ttft mean", "tpot mean"}


def test_a_cell_that_is_too_long_is_told_with_its_line(folder):
    path = folder / "long.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms\n0,{'1' * 140_000},2,3,4\n")
    with pytest.raises(InputError, match=r"long\.csv:2: not CSV"):
        read_log(path, load(str(folder / "s.yaml")))
