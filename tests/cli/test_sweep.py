"""``clustersim sweep``: a row per run whoever simulates it, on again where it stopped, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import clustersim
from clustersim.cli import main
from clustersim.search import point, sweep
from clustersim.search.journal import NAME

FOUND = {**os.environ, "PYTHONPATH": str(Path(clustersim.__file__).parents[1])}
SCENARIO = """
name: small
topology: {name: dgx-h100, nodes: 1}
model: llama-3.1-8b
workload: {arrivals: {process: poisson, rate: 4/s}, prompt_tokens: 100, output_tokens: 8, requests: 6}
targets: {ttft: 1 s, tpot: 50 ms}
expect: {finished: 1}
"""
VARY = ("--vary", "plan.tp=1,2,3", "--vary", "workload.arrivals.rate=2..4/s:2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args, catch_exceptions=False)


def swept(*args: str, workers: int = 1) -> dict[str, Any]:
    told = run("sweep", "small.yaml", *args, "--json", "--workers", str(workers))
    assert told.exit_code == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def rows(out: str) -> list[dict[str, Any]]:
    return list(pq.read_table(Path(out) / "points.parquet").to_pylist())


def test_a_row_has_what_varied_every_number_and_why_it_failed():
    told = swept(*VARY)
    assert (told["points"], told["failed"]) == (6, 2)
    found = rows(told["out"])
    assert [(row["plan.tp"], row["workload.arrivals.rate"]) for row in found] == [
        (tp, rate) for tp in (1, 2, 3) for rate in ("2/s", "4/s")
    ]
    assert [row["failed"] is None for row in found] == [True] * 4 + [False] * 2
    assert "plan.tp: 3 does not divide 32 attention heads" in found[4]["failed"]
    assert found[4]["ttft_ms.p99"] is None
    assert [row["devices"] for row in found[:4]] == [1, 1, 2, 2]


def test_the_command_of_a_row_gives_its_numbers():
    row = rows(swept(*VARY)["out"])[1]
    told = json.loads(run(*shlex.split(row["command"])[1:], "--json").stdout)
    assert told["timeline_digest"] == row["timeline_digest"]
    numbers = point.numbers_of({**told, "devices": told["devices"]})
    assert all(row[key] == value for key, value in numbers.items() if not key.startswith(("wall_s", "legal")))


def test_the_same_bytes_come_from_any_number_of_workers():
    folders = [Path(swept(*VARY, "--out", f"o{workers}", workers=workers)["out"]) for workers in (1, 2)]
    for name in (sweep.POINTS, sweep.PAGE):
        assert folders[0].joinpath(name).read_bytes() == folders[1].joinpath(name).read_bytes()


def test_a_second_start_simulates_what_is_not_finished(monkeypatch):
    whole = rows(swept(*VARY, "--out", "whole")["out"])
    lines = Path("whole", NAME).read_bytes().splitlines(keepends=True)
    Path("half").mkdir()
    changed = lines[1].replace(b'"numbers": {', b'"numbers": {"steps": "?", ')
    Path("half", NAME).write_bytes(lines[0] + changed + b"\xff\n" + lines[3] + lines[2][:40])  # which a kill cut off
    seen = []
    real = point.run_point
    monkeypatch.setattr("clustersim.search.runs.run_point", lambda *args: seen.append(args) or real(*args))
    assert rows(swept(*VARY, "--out", "half")["out"]) == whole
    assert len(seen) == 6 - 2
    assert rows(swept("--vary", "plan.tp=2,1", "--set", "workload.arrivals.rate=4/s", "--out", "half")["out"])
    assert len(seen) == 4  # other varied, and the same runs
    again = run("sweep", "small.yaml", *VARY, "--out", "half", "--workers", "1")
    assert again.stdout.startswith("6 runs, 2 failed (6 were there before)\n"), again.stdout


def test_zip_and_a_file(folder):
    (folder / "s.yaml").write_text("scenario: small.yaml\nzip: true\nvary: {plan.tp: [1, 2], seed: 1..2}\n")
    told = json.loads(run("sweep", "s.yaml", "--json", "--workers", "1").stdout)
    assert [(row["plan.tp"], row["seed"]) for row in rows(told["out"])] == [(1, 1), (2, 2)]


def test_run_directories_are_written_where_they_are_asked_for_and_what_the_machine_fails_in_is_tried_again(monkeypatch):
    def raising(error: Exception) -> None:
        raise error

    full = ("write_run", OSError(28, "No space left on device")), ("simulate", MemoryError("out of memory"))
    for name, error in full:
        with monkeypatch.context() as broken:
            broken.setattr(point, name, lambda *_, error=error, **__: raising(error))
            failed = run("sweep", "small.yaml", "--vary", "seed=1,2", "--runs", "--workers", "1")
            assert failed.exit_code == 1
            assert str(error) in failed.stderr
    told = swept("--vary", "seed=1,2", "--runs")
    assert told["failed"] == 0
    assert len(list(Path(told["out"], "runs").glob("*/dashboard.html"))) == 2
    assert not list(Path(swept("--vary", "seed=1,2", "--out", "none")["out"]).glob("runs"))


def test_all_failed_is_status_1():
    told = run("sweep", "small.yaml", "--vary", "plan.tp=3,5", "--workers", "1")
    assert told.exit_code == 1
    assert "plan.tp: 3 does not divide 32 attention heads (llama-3.1-8b); use 1, 2, 4 or 8 [TP-1] (1 run" in told.stderr
    for option in ("--quiet", "--json"):
        less = run("sweep", "small.yaml", "--vary", "plan.tp=3,5", "--workers", "1", option)
        assert (less.exit_code, less.stderr, bool(less.stdout)) == (1, told.stderr, option == "--json")
    rejected = run("sweep", "small.yaml", "--vary", "seed=1,2", "--set", "serving.kv_blocks=1", "--workers", "1")
    assert rejected.exit_code == 0  # as of `run`
    assert rejected.stderr == ("note: every request was rejected; `clustersim run` says why (2 runs: seed 1; seed 2)\n")


def test_a_reason_is_told_once_with_the_runs_that_failed_for_it():
    told = run("sweep", "small.yaml", "--vary", "plan.tp=3,1", "--vary", "seed=1,2", "--workers", "1")
    (line,) = [line for line in told.stderr.splitlines() if line.startswith("failed: illegal: plan.tp")]
    assert line.endswith("(2 runs: tp 3, seed 1; tp 3, seed 2)")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--vary", "plan.tpp=1,2"], "--vary plan.tpp=1: plan.tpp: unknown key 'tpp'; did you mean 'tp'?"),
        (["--vary", "plan.tp=1..x"], "--vary: plan.tp: '1..x' is no range"),
        (["--vary", "plan.tp"], "expected KEY=VALUES"),
        ([], "nothing varies"),
        (["--vary", "plan.tp=x,y"], "expected a whole number such as 8, but found the text 'x' (and 1 other value)"),
        (["--vary", "seed=1,2", "--vary", "plan.tp=1,x"], "--vary plan.tp=x: plan.tp: expected a whole number such as"),
        (["--vary", "seed=1", "--executor", "ry"], "did you mean 'ray'"),
        (["--vary", "seed=1", "--layout", "swep"], "no dashboard 'swep'; did you mean 'sweep'?"),
        (
            ["--vary", "seed=1", "--layout", "./l.yaml"],
            "a summary has no number 'ttft.p99'; did you mean 'ttft_ms.p99'?",
        ),
        (["--vary", "seed=1", "--out", "small.yaml"], "small.yaml: cannot be written"),
    ],
)
def test_bad_input_is_told(args, told, folder):
    (folder / "l.yaml").write_text("figures: [{figure: curve, y: ttft.p99}]\n")
    found = run("sweep", "small.yaml", *args)
    assert found.exit_code == 2
    assert told in found.stderr
    assert not (folder / "sweeps").exists()  # before any run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_finished_is_kept_when_it_is_interrupted(number):
    args = ("sweep", "small.yaml", "--vary", "seed=1..2000", "--out", "o", "--workers", "2")
    with subprocess.Popen([sys.executable, "-m", "clustersim", *args], env=FOUND, stderr=subprocess.PIPE) as process:
        journal, end = Path("o", NAME), time.monotonic() + 60
        while not (journal.is_file() and journal.stat().st_size) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in said
    assert journal.read_bytes().endswith(b"\n")
    assert sorted(path.name for path in Path("o").iterdir()) == [NAME]
