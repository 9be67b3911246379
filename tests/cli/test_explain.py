"""``clustersim run --explain`` and ``--processes``: what was folded and why, in words and in JSON; Ctrl-C."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import clustersim
from clustersim.cli import main
from clustersim.cli.commands import run as run_command
from clustersim.cli.status import ILLEGAL
from clustersim.legality.rule import Verdict, Violation, together
from clustersim.simulation.simulate import RunResult

ROUND_ROBIN = ("--set", "serving.router=round_robin", "--set", "expect={legal: true}")
FOUND = {**os.environ, "PYTHONPATH": str(Path(clustersim.__file__).parents[1])}
LONG = ("--set", "workload.requests=1000000")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["run", *args, "--no-dashboard", "--explain"], catch_exceptions=False)


def test_a_run_is_explained_in_a_few_lines():
    told = run("azure-hour-fleet", "--set", "workload.requests=80", "--set", "expect={legal: true}", "--quiet")
    lines = told.stderr.splitlines()
    assert (
        lines[0] == "replayed by the core: nothing disturbs a replica, so steps are sums of prices and need no events"
    )
    assert lines[1].startswith("folded: ")
    assert lines[2].startswith("stretched: 0 of ")
    assert lines[3:] == ["processes: 1, since router least_outstanding compares the loads of all replicas"]


def test_what_can_meet_is_told_with_its_place():
    told = run("oversubscribed-fabric", "--set", "workload.requests=20", "--set", "expect={legal: true}", "--quiet")
    lines = told.stderr.splitlines()
    assert lines[0].startswith("replayed by the core: only its own sends and collectives, or K/V on its way, disturb")
    assert any(line.startswith("can be disturbed: ") for line in lines)
    assert any(" can meet on " in line for line in lines)
    assert lines[-1] == "processes: 1, since communications can meet on a link"
    static = ("quickstart", "--set", "serving.scheduler=static", "--set", "workload.trace.requests=20", "--quiet")
    assert "replayed by the core" in run(*static, "--set", "expect={legal: true}").stderr


def test_json_has_the_key_only_when_it_is_asked_for():
    short = ("azure-hour-fleet", "--set", "workload.requests=60", *ROUND_ROBIN, "--json", "--no-audit")
    told = json.loads(run(*short, "--processes", "3").stdout)["explain"]
    assert (told["by"], told["obstacle"], told["meetings"]) == ("core", "", [])
    assert (told["processes"], told["undivided"]) == (3, "no more were asked for")
    assert (told["stages"], told["boundaries"], told["stretched"]) == (8, 0, 0)
    assert told["steps"] == told["passes"] > told["runs"] > 0
    plain = CliRunner().invoke(main, ["run", *short, "--no-dashboard"], catch_exceptions=False)
    assert "explain" not in json.loads(plain.stdout)


def test_files_are_the_same_for_any_number_of_processes(folder: Path):
    for count in ("1", "2"):
        run("azure-hour-fleet", "--set", "workload.requests=80", *ROUND_ROBIN, "--processes", count, "--out", count)
    names = sorted(str(path.relative_to(folder / "1")) for path in (folder / "1").rglob("*") if path.is_file())
    assert "requests.parquet" in names
    for name in names:
        assert (folder / "2" / name).read_bytes() == (folder / "1" / name).read_bytes(), name


@pytest.mark.skipif(sys.platform != "linux", reason="no process is copied there")
def test_an_audit_beside_what_else_is_done_finds_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked = run_command.audit_run

    def audited(result: RunResult) -> Verdict:
        with (folder / "by").open("a") as file:
            print(os.getpid() == here, file=file)
        found = Violation(rule="RUN-5", level="T", where="request 1", message="odd", fix="mend it")
        return together((asked(result), Verdict(violations=(found,), rules=())))

    here = os.getpid()
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(run_command, "_MANY", 1)
    monkeypatch.setattr(run_command, "audit_run", audited)
    for count in ("1", "2"):
        command = ["run", "quickstart", "--set", "workload.trace.requests=30", "--set", "expect={}", "--json"]
        told = CliRunner().invoke(main, [*command, "--processes", count, "--out", count])
        assert (told.exit_code, told.stderr) == (ILLEGAL, "RUN-5: request 1: odd; mend it\n")
        assert json.loads(told.stdout)["legal"] is False
    assert (folder / "by").read_text() == "True\nFalse\n"
    assert '<span class="badge illegal">' in (folder / "2" / "dashboard.html").read_text()
    for name in ("verdict.json", "summary.json", "dashboard.html"):
        assert (folder / "2" / name).read_bytes() == (folder / "1" / name).read_bytes(), name


def test_no_processes_are_refused():
    told = CliRunner().invoke(main, ["run", "quickstart", "--processes", "0"])
    assert told.exit_code == 2
    assert "--processes" in told.stderr
