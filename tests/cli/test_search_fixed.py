"""``clustersim search --objective NUMBER``: the best plan at one rate, by any number of the summary."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.scenario.scenario import Scenario
from tests.unit.search.searching import SMALL

UNLIKE = """
name: unlike
topology: {name: dgx-h100, nodes: 1}
model: llama-2-7b
plan: {tp: 1}
serving: {max_batch_tokens: 2048}
workload: {trace: {path: t.csv, columns: {arrival: when, prompt_tokens: p, output_tokens: o, unit: s}}}
targets: {ttft: 70 ms}
"""
"""Its first replica of three gets all that miss the target, which are less than a tenth."""
BEHIND = """
name: behind
seed: 10
topology: {name: dgx-h100, nodes: 1}
model: llama-2-7b
plan: {tp: 1}
serving: {max_batch_tokens: 2048, max_batch_requests: 32}
workload: {arrivals: {process: poisson, rate: 24/s}, prompt_tokens: 1500, output_tokens: 2, requests: 12}
targets: {ttft: 200 ms, tpot: 1 s}
"""
"""Requests that come faster than their rate says."""
KNOBS = ("--knobs", "serving.max_batch_requests=8,32")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL)
    rows = [f"{number / 20},{1600 if number in (0, 12, 24) else 60},4" for number in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["when,p,o", *rows]) + "\n")
    return tmp_path


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, args, catch_exceptions=False)


def found(*args: str, scenario: tuple[str, ...] = ("small.yaml", "--devices", "2")) -> dict:
    told = invoke("search", *scenario, *args, "--json")
    assert told.exit_code == 0, told.stderr
    return json.loads(told.stdout)


def rows(name: str) -> dict[str, dict]:
    return {row["words"]: row for row in pq.read_table(Path(name, "points.parquet")).to_pylist()}


@pytest.mark.usefixtures("checked_figures")
def test_the_best_plan_by_a_number_is_that_of_all_and_its_command_gives_that_number(folder: Path):
    args = ("--objective", "tpot_ms.p50", "--rate", "20/s", "--targets", "ttft=300 ms, tpot=6 ms")
    quick = found(*args, "--workers", "1", "--out", "quick")
    whole = found(*args, "--workers", "2", "--exhaustive", "--out", "whole")
    assert [quick["best"][key] for key in ("plan", "value")] == [whole["best"][key] for key in ("plan", "value")]
    assert quick["certificate"]["settled"]
    assert quick["certificate"]["too_few_in_time"] > 0
    assert quick["simulated"] == quick["certificate"]["simulated"]
    some, every = rows("quick"), rows("whole")
    pruned = [words for words, row in some.items() if row["fate"] == "pruned"]
    assert pruned
    assert all(every[words]["goodput.share"] < 0.9 for words in pruned)
    counting = {words: row for words, row in every.items() if row["reached"] is not None}
    assert min(counting, key=lambda words: counting[words]["reached"]) == whole["best"]["plan"]
    assert all(row["goodput.share"] >= 0.9 for row in counting.values())
    assert invoke(*shlex.split(quick["best"]["command"])[1:], "--out", "again").exit_code == 0
    assert json.loads(Path("again/summary.json").read_text())["tpot_ms"]["p50"] == quick["best"]["value"]
    page = Path("quick/search.html").read_text()
    assert "Bounds against what was reached" not in page
    assert "What a plan takes, and what it reaches" in page
    told = invoke("search", "small.yaml", "--devices", "2", *args, "--out", "quick").stdout
    best = quick["best"]
    assert (
        f"{best['plan']} on {best['devices']} devices: tpot_ms.p50 {best['value']:.6g} (less is better)"
        in told.splitlines()[0]
    )
    more = found("--objective", "goodput.requests_per_s", "--out", "more")
    assert more["best"]["value"] > 0.0
    for text, asked in ((UNLIKE, ("--devices", "3", "--exactly")), (BEHIND, ("--devices", "1"))):
        Path("odd.yaml").write_text(text)  # of what is left out none may be the best
        args = ("--objective", "tpot_ms.p50", "--workers", "1")
        some, every = (found(*args, *more, scenario=("odd.yaml", *asked)) for more in ((), ("--exhaustive",)))
        assert [some["best"][key] for key in ("plan", "value")] == [every["best"][key] for key in ("plan", "value")]
    wide = ("--set", "plan.dp=16", "--set", "topology.nodes=2")  # a plan that none of those that are searched has
    (folder / "rows.csv").write_text("arrived_s,prompt_tokens,output_tokens\n0,9,9\n1,9,9\n2,9,9\n")
    wide += ("--set", "workload={trace: rows.csv}")
    assert found("--objective", "goodput.requests_per_s", "--rate", "20/s", *wide)["legal"] == 23
    fewer = found("--objective", "energy.joules_per_output_token", "--out", "fewer", *KNOBS)
    reached = [row["reached"] for row in rows("fewer").values() if row["reached"] is not None]
    assert fewer["best"]["value"] == min(reached)
    assert {row["devices"] for row in rows("fewer").values()} == {1, 2}  # less may be better


def test_plans_that_are_not_started_where_their_ranks_are_are_counted_apart(monkeypatch: pytest.MonkeyPatch):
    def refusal(scenario: Scenario, target: str, *, beside: bool = False) -> str | None:
        return "vLLM does not start it: so there" if scenario.plan.dp == 2 else None

    monkeypatch.setattr("clustersim.cli.commands.search.refusal_of", refusal)
    args = ("--devices", "2", "--objective", "tpot_ms.p50", "--rate", "20/s", "--for", "vllm", "--out", "apart")
    told = "legal plans of servers that launch for vllm (1 of them do not where their ranks are)"
    assert f"{told}; pruned: " in invoke("search", "small.yaml", *args).stdout
    assert told in Path("apart/search.html").read_text()


def test_a_number_that_is_none_and_targets_that_no_plan_meets_are_told():
    number = ("--objective", "tpot_ms.p50")
    none = ("--set", "serving.kv_blocks=1", "--set", "targets={}")
    for args, told in (
        (
            ("--objective", "capacty", "--targets", "tpot=1 ms"),
            "--objective: 'capacty' is no number of the summary; did you mean 'capacity'?",
        ),
        (("--objective", "p50"), "did you mean one of ttft_ms.p50, tpot_ms.p50, itl_ms.p50, e2e_ms.p50,"),
        (
            ("--objective", "wibble"),
            "expected capacity_per_device, capacity_per_usd, capacity, or one such as ttft_ms.p99",
        ),
        (
            (*number, "--targets", "itl=9 ms", "--exhaustive"),
            "--targets: targets.itl: no request has an ITL of its own",
        ),
        (("--objective", "goodput.share", "--targets", "itl=9 ms"), "--targets: targets.itl: no request has an ITL of"),
        ((*number, *none), "serving: no plan finishes any of "),
        (("--objective", "requests.finished", *none), "serving: no plan finishes any of "),
        (("--objective", "tpot_ms.p98"), "'tpot_ms.p98' is no number of the summary; did you mean 'tpot_ms.p99'?"),
        (("--rate", "20/s"), "--rate: is for an --objective that is a number of the summary; capacity_per_device"),
        ((*number, "--rate", "20"), "'20' has no unit; expected a rate such as '4/s'"),
        ((*number, "--targets", "ttft=25 ms", "--exhaustive"), "targets at 20 requests/s; the nearest, tp 1 × dp 1"),
        ((*number, "--targets", "tpot=1 ms"), "at 20 requests/s (1 plan: least TPOT); no plan has a TPOT below"),
    ):
        run = invoke("search", "small.yaml", "--devices", "1", "--workers", "1", *args)
        assert run.exit_code == (1 if " 20 requests/s" in told else 2), run.stdout
        assert told in run.stderr, run.stderr
        if run.exit_code == 1:
            assert run.stdout.startswith(
                "no plan reaches the share asked for; of those that come nearest:\ntp 1 × dp 1 on"
            )
