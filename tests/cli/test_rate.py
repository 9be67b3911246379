"""``clustersim rate``: the highest rate that does, for any number of workers, and what has none."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.search.rate import limiting

SCENARIO = """
name: small
topology: {name: dgx-h100, nodes: 1}
model: llama-3.1-70b
plan: {tp: 8}
workload: {arrivals: {process: constant, rate: 4/s}, prompt_tokens: 1000, output_tokens: 20, requests: 20}
targets: {ttft: 300 ms, tpot: 50 ms}
"""
FAST = ("--lasting", "4 s", "--tolerance", "0.05", "--workers", "1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    (tmp_path / "t.csv").write_text("arrived_s,prompt_tokens,output_tokens\n0,9,9\n1,9,9\n2,9,9\n")
    return tmp_path


def rate(*args: str) -> Result:
    return CliRunner().invoke(main, ["rate", "small.yaml", *args], catch_exceptions=False)


def test_the_best_rate_does_and_the_next_does_not():
    told = rate(*FAST, "--json")
    assert told.exit_code == 0, told.stderr
    found = json.loads(told.stdout)
    shares = {one["rate_per_s"]: one["share"] for one in found["tried"]}
    assert shares[found["rate_per_s"]] == found["share"] >= 0.9 > shares[found["fails_at_per_s"]]
    assert found["rate_per_s"] < found["fails_at_per_s"] <= found["rate_per_s"] * 1.05
    assert found["limited_by"] in ("ttft", "tpot")
    assert found["why"].startswith(found["limited_by"].upper())
    args = (*FAST, "--json", "--set", "workload.arrivals.rate=200000/s")  # at a 4,096th of which requests meet, too
    assert json.loads(rate(*args).stdout)["rate_per_s"] == pytest.approx(found["rate_per_s"], rel=0.06)


def test_requests_of_a_log_that_failed_are_told(folder: Path):
    (folder / "f.csv").write_text("arrived_s,prompt_tokens,output_tokens\n0,9,9\n1,9,0\n2,9,9\n3,9,9\n")
    told = rate(*FAST, "--set", "workload={trace: {path: f.csv, repeat: true, requests: 400}}").stdout
    (count, arrived) = re.search(r"^rejected: ([0-9,]+) of the ([0-9,]+) that arrive; ", told, re.M).groups()
    assert 4 * int(count.replace(",", "")) == pytest.approx(int(arrived.replace(",", "")), abs=4)


@pytest.mark.parametrize(("met_of", "limit"), [(75, "tpot"), (100, "rejected")])
def test_what_failed_in_a_log_is_no_request_that_does_not_fit(met_of: int, limit: str):
    """Of 100, 25 are rejected, and 76 % of those that count meet their target: not all of the 25 count."""
    numbers = {"met.tpot": 0.76, "met_of": met_of, "requests.arrived": 100, "requests.rejected": 25}
    assert limiting(numbers) == limit


def test_the_last_lines_name_the_folder_and_the_command_and_before_it_is_told_how_far_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("clustersim.report.words.progress._SECONDS_BETWEEN_LINES", 0.0)
    told = rate(*FAST)
    kept, command = told.stdout.splitlines()[-2:]
    best, worse = re.findall(r"([0-9.]+)(?: requests)?/s(?: arriving:)? [0-9.]+% ", told.stdout)
    assert re.search(
        r"^few: \d+ of \d+ requests may miss a target, .*; ask with a longer --lasting$", told.stdout, re.M
    )
    assert "few: " not in rate(*FAST, "--share", "0.01").stdout
    first, *_, last = told.stderr.splitlines()
    assert re.fullmatch(r"0 of \d+ rates", first)
    low, high = re.fullmatch(r"(\d+) of \1 rates \(([0-9.]+)/s does, ([0-9.]+)/s does not\)", last).groups()[1:]
    assert float(low) <= float(best) < float(worse) <= float(high)  # before the last ones were tried
    assert re.search(r" of \d+ rates \(.*\), (about|under) .* left", told.stderr)
    assert (folder / kept.split()[1] / "finished.jsonl").is_file()
    assert command.startswith("command  clustersim run small.yaml --set workload.arrivals.rate=")


def test_the_command_says_each_value_once(folder: Path):
    command = rate(*FAST, "--set", "workload.requests=40", "--set", "workload.arrivals.rate=3/s").stdout.splitlines()[
        -1
    ]
    paths = re.findall(r"--set '?([^=]+)=", command)
    assert sorted(paths) == ["expect", "workload.arrivals.rate", "workload.requests"]
    assert "arrivals.rate=3/s" not in command


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ("tpt=2 ms", "--targets: tpt: unknown key 'tpt'; did you mean 'tpot'?"),
        ("tpot=2", "--targets: tpot: expected a time with its unit"),
    ],
)
def test_what_is_wrong_with_targets_is_told_of_their_option(targets, told):
    done = rate(*FAST, "--set", "seed=2", "--targets", targets)
    assert done.exit_code == 2
    assert told in done.stderr


def test_the_first_rate_may_be_too_high_or_too_low_and_the_answer_is_the_same():
    found = [json.loads(rate(*FAST, "--json", "--set", f"workload.arrivals.rate={one}/s").stdout) for one in (1, 300)]
    assert found[0]["rate_per_s"] == pytest.approx(found[1]["rate_per_s"], rel=0.06)


def test_a_looser_target_bears_no_lower_rate_and_breaks_elsewhere():
    tight, loose = (
        json.loads(rate(*FAST, "--json", "--targets", f"ttft={ttft}, tpot=20 ms").stdout) for ttft in ("66 ms", "20 s")
    )
    assert loose["rate_per_s"] > tight["rate_per_s"]
    assert (tight["limited_by"], loose["limited_by"]) == ("ttft", "tpot")


def test_any_number_of_workers_finds_the_same():
    one, two = (
        rate("--lasting", "2 s", "--tolerance", "0.2", "--json", "--workers", n, "--out", n) for n in ("1", "2")
    )
    assert {**json.loads(one.stdout), "out": ""} == {**json.loads(two.stdout), "out": ""}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--targets", "ttf=1 s"], "unknown key 'ttf'; did you mean 'ttft'?"),
        (["--targets", "ttft"], "expected NAME=TIME"),
        (["--set", "targets={}"], "says no target"),
        (["--targets", "ttft=1 s, itl=50 ms"], "--targets: targets.itl: no request has an ITL of its own"),
        (["--set", "workload.arrivals=all_at_once"], "has no rate to vary"),
        (["--set", "serving.kv_blocks=1"], "serving: rejects all of "),
        (["--share", "0"], "--share"),
        (["--lasting", "1e30 s"], "'--lasting': found '1e30 s'; expected at most 8,589,934,592 s"),
        (["--lasting", "0 s"], "found '0 s'; expected more than nothing"),
        (["--set", "seed=1", "--set", "run.horizon=1 ms"], "--set #2: run.horizon: ends the run before enough"),
        (
            ["--set", "workload={trace: {path: t.csv, requests: 9}}", "--set", "workload.trace.repeat=4"],
            "--set #2: workload.trace.repeat: as",
        ),
        (["--share", "nan"], "expected a number above 0 and up to 1, but found 'nan'"),
        (["--tolerance", "nan"], "expected a number from 0.001 to 0.5, but found 'nan'\n"),
        (["--tolerance", "5 %"], "expected a number from 0.001 to 0.5, but found '5 %'; did you mean 0.05?"),
        (["--share", "99"], "expected a number above 0 and up to 1, but found '99'; did you mean 0.99?"),
    ],
)
def test_what_has_no_rate_is_told(args, told):
    found = rate("--lasting", "1 s", "--workers", "1", *args)
    assert found.exit_code == 2
    assert told in found.stderr


def test_the_rule_that_a_plan_breaks_is_told_before_any_rate_is_tried():
    found = rate("--set", "plan.tp=3")
    place = "illegal: --set #1: plan.tp: 3 does not divide 64 attention heads (llama-3.1-70b); use 2, 4 or 8 [TP-1]"
    assert (found.exit_code, found.stderr.strip()) == (1, place)


MIXED = ("--set", "workload.prompt_tokens={empirical: {values: [500, 30000], weights: [95, 5]}}", "--set", "seed=2")


@pytest.mark.parametrize(
    ("args", "best", "told"),
    [
        (("--targets", "ttft=1 ms"), None, "targets.ttft: 1 ms is met by 0.0% of requests even when they come one by"),
        (("--share", "0.99", *MIXED), 0.95, "targets.ttft: 300 ms is met by 9"),
    ],
)
def test_where_no_rate_reaches_the_share_the_best_is_told_with_its_rate(args, best, told):
    done = rate(*FAST, *args, "--set", "workload.requests=200", "--json")
    assert done.exit_code == 1
    assert told in done.stderr
    found = json.loads(done.stdout)
    assert found["limited_by"] == "ttft"
    assert (found["rate_per_s"] is None) == (best is None)
    assert found["share"] == pytest.approx(best or 0.0, abs=0.03)
    if best is not None:  # 1 request in 20 takes about a second of prefill, the others 20 ms
        assert 0.5 < found["rate_per_s"] < found["fails_at_per_s"] < 15.0


def test_where_targets_allow_any_queue_the_rate_is_what_is_served():
    """The queue of a rate that is not served grows, whatever the share of requests that meet a loose target."""
    loose = json.loads(rate(*FAST, "--targets", "ttft=1000 s", "--json").stdout)
    assert loose["limited_by"] == "queue"
    assert "the queue still grows at the end: by " in loose["why"]
    command = shlex.split(loose["command"])[1:]
    more = [one.replace(f"rate={loose['rate_per_s']}", f"rate={2 * loose['rate_per_s']}") for one in command]
    done = CliRunner().invoke(main, [*more, "--out", "twice", "--json"])
    served = json.loads(done.stdout)["throughput"]["requests_per_s"]
    assert served == pytest.approx(loose["rate_per_s"], rel=0.06)


def test_a_short_run_tells_what_a_long_one_does():
    """Arrivals of 2 s end before the queue has grown: at the rate that they let through few are served in time."""
    short, long = (
        json.loads(rate("--lasting", lasting, "--tolerance", "0.05", "--workers", "1", "--json").stdout)
        for lasting in ("1 s", "60 s")
    )
    assert short["rate_per_s"] == pytest.approx(long["rate_per_s"], rel=0.06)
