"""A run as vLLM's serving benchmark writes it: every figure again from the lists, in plain Python."""

from __future__ import annotations

import json
import math
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.report.files.vllm_bench import write_vllm_bench
from clustersim.scenario.load import load
from tests.audit import simulated

BASE = ("plan={}", "model=llama-3.1-8b", "topology.nodes=1", "targets={}", "expect={}")
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")
"""What vLLM leaves out without --save-detailed."""

RUNS = {
    "poisson": ("workload={arrivals: {process: poisson, rate: 40/s}, prompt_tokens: 300, output_tokens: "
                "{uniform: {low: 1, high: 30}}, requests: 60}", "targets={ttft: 20 ms, tpot: 9 ms, e2e: 200 ms}"),
    "burst": ("workload={arrivals: {process: gamma, rate: 40/s, cv: 2}, prompt_tokens: 300, output_tokens: 9, "
              "requests: 30}", "plan={dp: 2, tp: 4}", "targets={ttft: 9 ms, itl: 1 ms}"),
    "closed": ("workload={arrivals: {process: closed_loop, concurrency: 7}, prompt_tokens: 100, output_tokens: 200, "
               "requests: 20}", "plan={pp: 2}"),
    "at once": ("workload={arrivals: all_at_once, prompt_tokens: 100, output_tokens: 1, requests: 5}",),
    "some rejected": ("workload={arrivals: {process: constant, rate: 9/s}, prompt_tokens: {empirical: {values: "
                      "[50, 900]}}, output_tokens: 40, requests: 20}", "serving.kv_blocks=50", "seed=5",
                      "targets={ttft: 9.2 ms}"),
    "some unfinished": ("workload={arrivals: {process: constant, rate: 9/s}, prompt_tokens: 900, output_tokens: 200, "
                        "requests: 20}", "run.horizon=2500 ms"),
    "none finished": ("workload={arrivals: all_at_once, prompt_tokens: 900, output_tokens: 9, requests: 2}",
                      "serving.kv_blocks=5"),
    "trace": ("workload={trace: {path: traces/azure-conv-sample.csv, requests: 40}}",),
}  # fmt: skip


@cache
def written(run: str, folder: Path, detailed: bool = True) -> dict[str, Any]:
    file = folder / f"{run}-{detailed}.json"
    write_vllm_bench(file, simulated(load("quickstart", (*BASE, *RUNS[run]))), detailed=detailed)
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") == 1
    found: dict[str, Any] = json.loads(text)
    assert text == json.dumps(found) + "\n"  # as json.dump writes it
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def percentile(values: list[float], percent: float) -> float:
    """Numpy's linear method, from its definition."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def statistics_of(name: str, values: list[float]) -> dict[str, float]:
    values = [value * 1000 for value in values] or [0.0]
    return {
        f"mean_{name}_ms": statistics.fmean(values),
        f"median_{name}_ms": statistics.median(values),
        f"std_{name}_ms": statistics.pstdev(values),
        **{f"p{percent}_{name}_ms": percentile(values, percent) for percent in (50, 90, 95, 99)},
    }


def expected(found: dict[str, Any], goodput: dict[str, float]) -> dict[str, Any]:
    """Compute what vLLM's calculate_metrics does from the lists by request."""
    keys = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors")
    rows = [dict(zip(keys, row, strict=True)) for row in zip(*(found[key] for key in keys), strict=True)]
    done = [row for row in rows if not row["errors"]]
    tpots = [
        (row["latencies"] - row["ttfts"]) / (row["output_lens"] - 1) if row["output_lens"] > 1 else 0.0 for row in done
    ]
    good = sum(
        row["ttfts"] <= goodput.get("ttft", math.inf)
        and tpot <= goodput.get("tpot", math.inf)
        and row["latencies"] <= goodput.get("e2el", math.inf)
        for row, tpot in zip(done, tpots, strict=True)
    )
    prompts, outputs = sum(row["input_lens"] for row in done), sum(row["output_lens"] for row in done)
    duration = found["duration"]
    seconds: dict[int, int] = {}
    events: list[tuple[int, int]] = []
    first = min((ns(row["start_times"]) for row in done), default=0)
    for row in done:
        instant = ns(row["start_times"]) + ns(row["ttfts"]) - first
        for gap in [0.0, *row["itls"]]:
            instant += ns(gap)
            seconds[instant // 10**9] = seconds.get(instant // 10**9, 0) + 1
        events += [(ns(row["start_times"]), 1), (ns(row["start_times"]) + ns(row["latencies"]), -1)]
    running, most = 0, 0
    for _, change in sorted(events):
        running += change
        most = max(most, running)
    return {
        "num_prompts": len(rows),
        "completed": len(done),
        "failed": len(rows) - len(done),
        "total_input_tokens": prompts,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        **({"request_goodput": good / duration} if goodput else {}),
        "output_throughput": outputs / duration,
        "total_token_throughput": (prompts + outputs) / duration,
        "max_output_tokens_per_s": max(seconds.values(), default=0),
        "max_concurrent_requests": most,
        **statistics_of("ttft", [row["ttfts"] for row in done]),
        **statistics_of("tpot", [tpot for row, tpot in zip(done, tpots, strict=True) if row["output_lens"] > 1]),
        **statistics_of("itl", [gap for row in done for gap in row["itls"]]),
        **statistics_of("e2el", [row["latencies"] for row in done]),
    }


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


GOODPUT = {
    "poisson": {"ttft": 0.020, "tpot": 0.009, "e2el": 0.200},
    "burst": {"ttft": 0.009},
    "some rejected": {"ttft": 0.0092},
}


@pytest.mark.parametrize("run", [run for run in RUNS if run != "none finished"])
def test_every_figure_follows_from_the_lists_as_vllm_defines_it(run: str, folder: Path) -> None:
    found = written(run, folder)
    wanted = expected(found, GOODPUT.get(run, {}))
    assert [key for key, value in wanted.items() if found[key] != pytest.approx(value, rel=1e-9)] == []
    if run in GOODPUT:  # some meet the targets and some do not, else they would not be tested
        assert 0 < found["request_goodput"] < found["request_throughput"]
    else:
        assert found["request_goodput"] is None


def test_nothing_finished_is_zeros(folder: Path) -> None:
    found = written("none finished", folder)
    assert (found["completed"], found["failed"], found["duration"]) == (0, 2, 0.0)
    assert (found["request_throughput"], found["p99_itl_ms"], found["max_concurrent_requests"]) == (0.0, 0.0, 0)
    assert found["ttfts"] == [0.0, 0.0]
    assert found["itls"] == [[], []]
    assert all(found["errors"])


@pytest.mark.parametrize(
    ("run", "traffic"),
    [
        ("poisson", (40.0, 1.0, None)),
        ("burst", (40.0, 0.25, None)),  # a gamma process of shape 1 / 2²
        ("closed", ("inf", 1.0, 7)),
        ("at once", ("inf", 1.0, None)),
        ("some rejected", (9.0, "inf", None)),  # constant gaps
    ],
)
def test_traffic_is_said_as_vllm_is_asked_for_it(run: str, traffic: tuple[Any, ...], folder: Path) -> None:
    found = written(run, folder)
    assert (found["request_rate"], found["burstiness"], found["max_concurrency"]) == traffic


def test_a_trace_has_its_mean_rate(folder: Path) -> None:
    found = written("trace", folder)
    assert found["request_rate"] == pytest.approx(40 / max(found["start_times"]))
    assert (found["burstiness"], found["max_concurrency"]) == (None, None)


def test_the_duration_is_from_the_start_of_the_clients_to_the_last_end(folder: Path) -> None:
    found = written("poisson", folder)
    ends = [start + latency for start, latency in zip(found["start_times"], found["latencies"], strict=True)]
    assert found["duration"] == pytest.approx(max(ends), rel=1e-12)
    assert found["start_times"][0] > 0  # the first request does not start the clock
    assert written("some unfinished", folder)["duration"] == 2.5


def test_clients_of_a_closed_loop_wait_from_the_start_until_they_may_send(folder: Path) -> None:
    found = written("closed", folder)
    assert found["queue_times"] == found["start_times"]
    assert found["queue_times"][6] == 0 < found["queue_times"][7]
    assert found["max_concurrent_requests"] == 7  # who ends makes room before the next one starts
    assert set(written("poisson", folder)["queue_times"]) == {0.0}


def test_failed_requests_have_an_error_and_no_output(folder: Path) -> None:
    for run in ("some rejected", "some unfinished"):
        found = written(run, folder)
        failed = [number for number, error in enumerate(found["errors"]) if error]
        assert 0 < len(failed) == found["failed"] < found["num_prompts"]
        assert {found["output_lens"][number] for number in failed} == {0}
        assert {found["latencies"][number] for number in failed} == {0.0}
    assert found["errors"][failed[0]] == "unfinished"


def test_lists_are_left_out_unless_asked_for(folder: Path) -> None:
    short, long = written("poisson", folder, False), written("poisson", folder)
    assert [key for key in long if key not in short] == sorted(LISTS, key=list(long).index)
    assert short == {key: value for key, value in long.items() if key not in LISTS}
    assert list(long)[:8] == [
        "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "scenario_digest",
    ]  # fmt: skip
    assert long["date"] == "19700101-000000"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(
        main, ["run", "quickstart", "--no-dashboard", *(f"--set={text}" for text in BASE), *arguments]
    )


def test_the_command_writes_the_file_and_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.json"):
        result = run("--set", RUNS["at once"][0], "--vllm-json", name, "--save-detailed", "--quiet")
        assert result.exit_code == 0, result.output
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert len(json.loads((tmp_path / "a.json").read_text())["itls"]) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vllm-json", "nowhere/r.json"), "there is no folder nowhere"),
        (("--save-detailed",), "add --vllm-json FILE"),
    ],
)
def test_a_place_where_nothing_can_be_written_is_refused_before_anything_runs(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert list(tmp_path.iterdir()) == []
