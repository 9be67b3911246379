"""The frame of the command line: lazy commands, exit statuses, and what is printed when something fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from clustersim.cli import COMMANDS, main
from clustersim.cli.status import problems_text
from clustersim.errors import BrokenLawError, IllegalPlanError, InputError, Problem
from clustersim.units import UnitError

HEAVY = ("numpy", "yaml", "pydantic", "networkx", "simpy", "plotly", "pyarrow", "rich")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException | None], Result]:
    """Run a command that raises what it is given."""

    def run(error: BaseException | None) -> Result:
        @click.command()
        def command() -> None:
            click.echo("partly done")
            if error is not None:
                raise error

        monkeypatch.setitem(COMMANDS, "probe", ("probe:command", "A test."))
        monkeypatch.setitem(sys.modules, "clustersim.cli.commands.probe", types.SimpleNamespace(command=command))
        return invoke("probe")

    return run


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom clustersim.cli import main\nmain(['--help'], standalone_mode=False)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "topology" in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: main {name} ") or result.output.startswith(f"Usage: clustersim {name} ")


def test_help_lists_every_command_once() -> None:
    listed = invoke("--help").output.split("Commands:")[1]
    assert [line.split()[0] for line in listed.splitlines() if line.startswith("  ")][: len(COMMANDS)] == list(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("modls",), "no command 'modls'; did you mean 'models'?"),
        (("topology", "--jsn"), "--json"),
        (("topology", "a", "b"), "unexpected extra argument"),
        (("topology", "--set", "nodes=2"), "--set needs the NAME of a topology"),
        (("models", "--set", "x=2"), "--set needs the NAME of a model"),
    ],
)
def test_wrong_usage_is_unusable_input(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (None, 0, ""),
        (InputError(Problem(message="bad", path="plan.tp")), 2, "plan.tp: bad"),
        (UnitError("'3' has no unit"), 2, "'3' has no unit"),
        (IllegalPlanError("TP-1: 3 does not divide 8"), 1, "TP-1: 3 does not divide 8"),
        (BrokenLawError("a block was freed twice"), 70, "a block was freed twice"),
        (ZeroDivisionError("division by zero"), 70, "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 141, ""),
        (PermissionError(13, "Permission denied", "runs/a"), 2, "runs/a: Permission denied"),
        (OSError(28, "No space left on device"), 2, "clustersim: No space left on device"),
        (MemoryError(), 2, "out of memory"),
        (click.exceptions.Exit(1), 1, ""),
    ],
)
def test_what_a_command_raises_becomes_an_exit_status(
    probe: Callable[[BaseException | None], Result], error: BaseException | None, status: int, message: str
) -> None:
    result = probe(error)
    assert result.exit_code == status
    assert message in result.stderr
    assert message != "" or result.stderr == ""
    assert "Traceback" not in result.stderr


def test_a_defect_asks_for_a_report_and_shows_its_story_on_demand(
    probe: Callable[[BaseException | None], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Please report it" in probe(KeyError("x")).stderr
    monkeypatch.setenv("CLUSTERSIM_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in probe(KeyError("x")).stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "clustersim", "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_a_reader_that_goes_away_from_a_table_is_no_error() -> None:
    code = (
        "import os, sys\nfrom clustersim.cli import main\n"
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)\nmain(['models'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_without_unicode_gets_escapes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clustersim", "rules", "PH"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "j \\u2264 i" in done.stdout


def test_no_stdout_at_all_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m clustersim models llama-3-8b >&-", shell=True, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_problems_are_shown_with_their_line_and_a_caret(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("plan:\n  tp: 0\n")
    problem = Problem(message="must be at least 1", file=str(file), line=2, column=7, path="plan.tp")
    assert problems_text([problem]).splitlines() == [
        f"{file}:2:7: plan.tp: must be at least 1",
        "   |   tp: 0",
        "   |       ^",
    ]


def test_a_long_line_is_cut_around_the_caret(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text("x" * 500 + "BAD" + "y" * 500)
    problem = Problem(message="bad", file=str(file), line=1, column=501)
    _, excerpt, caret = problems_text([problem]).splitlines()
    assert len(excerpt) < 120
    assert excerpt[caret.index("^") :].startswith("BADy")


def test_problems_without_a_readable_file_are_one_line_each() -> None:
    problems = [
        Problem(message="bad", file="--set #2", path="seed"),
        Problem(message="bad", file="nowhere.yaml", line=1, column=1),
        Problem(message="bad"),
    ]
    assert problems_text(problems) == "--set #2: seed: bad\nnowhere.yaml:1:1: bad\nbad"


def test_many_problems_are_counted() -> None:
    lines = problems_text([Problem(message=f"p{i}") for i in range(100)]).splitlines()
    assert (len(lines), lines[-1]) == (41, "… and 60 more")


def test_topology_lists_and_shows() -> None:
    assert "dgx-h100" in invoke("topology").output
    shown = json.loads(invoke("topology", "dgx-h100", "--set", "nodes=4", "--json").output)
    assert (shown["devices"], shown["nodes"]) == (32, 4)
    assert sum(group["count"] for group in shown["links"] if group["tier"] == "scaleup") == 64
    assert {entry["name"] for entry in json.loads(invoke("topology", "--json").output)} >= {
        "dgx-h100",
        "tpu-v5p",
    }
    assert "450 GB/s" in invoke("topology", "dgx-h100").output


def test_models_lists_and_shows() -> None:
    assert "llama-3.1-8b" in invoke("models").output
    shown = json.loads(invoke("models", "llama-3.1-8b", "--json").output)
    assert (shown["parameters"], shown["kv_bytes_per_token"]) == (8_030_261_248, 131_072)
    short = json.loads(invoke("models", "llama-3.1-8b", "--set", "config.num_hidden_layers=2", "--json").output)
    assert [run["count"] for run in short["layers"]] == [2]
    assert "gqa 32/8 × 128" in invoke("models", "llama-3.1-8b").output


def test_schema_prints_a_json_schema() -> None:
    assert "plan" in json.loads(invoke("schema").output)["properties"]


def test_a_run_without_dashboard_leaves_all_else(tmp_path: Path) -> None:
    words = ["run", "quickstart", "--set", "workload.trace.requests=3", "--set", "expect={}", "--no-dashboard"]
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "for the whole command" in done.stdout
    assert "\ndashboard" not in done.stdout
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"summary.json", "requests.parquet", "timeline"}
    assert not (tmp_path / "run" / "dashboard.html").exists()
