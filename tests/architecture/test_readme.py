"""The documents say what is true: commands run, tables have the keys and columns that there are.

The README's commands run in order in an empty folder beside the example files that it shows, as a newcomer
would run them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any, Final

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

import clustersim
from clustersim import catalog
from clustersim.cli import COMMANDS, main
from clustersim.scenario import load
from clustersim.scenario.schema import POOLS, ScenarioPart
from clustersim.timeline.spans import SPAN_COLUMNS
from tests.architecture.documents import ROOT, blocks, commands, rows, write_files
from tests.effort import is_long

DOCUMENTS: Final = ("README.md", "CONTRIBUTING.md")
STATUS: Final = {("check", "illegal-five-ways"): 1}
"""Commands that end with another status than 0."""
FEWER: Final = {
    "azure-hour-fleet": ("--set", "workload.requests=2000", "--set", "expect={legal: true}"),
    "tp-on-one-node": ("--set", "workload.trace.requests=2000"),
}
"""Scenarios that are shown with so many requests that all of them are only simulated at night."""
FEW: Final = ("--set", "workload.trace.requests=60")
"""So many of the quickstart are enough where a command expects nothing of it."""
QUICKSTART: Final = re.compile(r"^```\n(quickstart .*?)^```$", re.MULTILINE | re.DOTALL)


def fewer(words: list[str]) -> tuple[str, ...]:
    """Return what makes a command of the README shorter."""
    if is_long():
        return ()
    plain = words[:2] == ["run", "quickstart"] and "expect={}" in words and "runs/other" not in words
    return FEW if plain and "workload" not in " ".join(words) else FEWER.get("".join(words[1:2]), ())


@pytest.mark.parametrize("words", [words for name in DOCUMENTS for words in commands(name)], ids=" ".join)
def test_command_of_a_document_can_be_parsed(words: list[str]) -> None:
    if "--help" in words:
        return
    command = main.get_command(click.Context(main), words[0])
    assert command is not None
    command.make_context(words[0], list(words[1:]))


def test_commands_of_the_readme_run_in_their_order_and_give_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One test, as all need the folder that holds the README's example files and ``scenarios/``."""
    write_files("README.md", tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    monkeypatch.chdir(tmp_path)
    done = {tuple(words): CliRunner().invoke(main, [*words, *fewer(words)]) for words in commands("README.md")}
    assert {words: run.output for words, run in done.items() if run.exit_code != STATUS.get(words, 0)} == {}
    check_columns(tmp_path)
    check_quickstart(
        done["run", "scenarios/quickstart.yaml"].stdout, update=request.config.getoption("--update-golden")
    )


def check_quickstart(printed: str, *, update: bool) -> None:
    """Compare what the quickstart prints with what the README shows."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = QUICKSTART.search(text)
    assert shown is not None
    if _steady(printed) != _steady(shown[1]) and update:
        (ROOT / "README.md").write_text(text.replace(shown[1], printed), encoding="utf-8")
        pytest.fail("README.md: rewrote what the quickstart prints; look at what moved, and run again")
    assert _steady(printed) == _steady(shown[1]), "if the figures were meant to move: pytest --update-golden"


def _steady(text: str) -> list[str]:
    """Return the lines without wall time and digest."""
    return [re.sub(r"in \S+ \S+ of real time|-[0-9a-f]{12}", "", line).rstrip() for line in text.splitlines()]


def test_readme_code_runs(tmp_path: Path) -> None:
    (code,) = [block.text for block in blocks("README.md") if block.language == "python" and not block.file]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "schedule"


def test_tests_that_the_readme_shows_pass(tmp_path: Path) -> None:
    write_files("README.md", tmp_path)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "clustersim.pytest_plugin", "test_chat.py"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for update in (["--update-golden"], []):
        done = subprocess.run([*run, *update], capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_program_of_the_readme_mends_its_plan(tmp_path: Path) -> None:
    write_files("README.md", tmp_path)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "clustersim"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clustersim "$@"\n')
    command.chmod(0o755)
    env = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    run = [sys.executable, "-W", "error", "mend.py"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "plan.sp.decode=" in done.stdout


def test_readme_names_every_command() -> None:
    assert {words[0] for words in commands("README.md")} >= set(COMMANDS)


def test_tables_of_the_readme_have_every_key_of_a_scenario_and_its_default() -> None:
    written = {key.strip("`"): default for key, _, default in rows("README.md", "key")}
    keys = [key for key, _ in _leaves(ScenarioPart) if not key.startswith("workload.output_tokens")]
    assert sorted(written) == sorted(keys)
    for key, default in _leaves(ScenarioPart):
        if key in written and default is not None:
            assert written[key] == default, key


def _leaves(part: type[BaseModel], prefix: str = "") -> list[tuple[str, str | None]]:
    """Return the dotted keys of a part, each with its default as the tables write it (None: in words)."""
    found: list[tuple[str, str | None]] = []
    for name, field in part.model_fields.items():
        inner = _part(field.annotation)
        if inner is not None and name not in POOLS:  # a pool has the keys of the whole
            found += _leaves(inner, f"{prefix}{name}.")
        else:
            found.append((prefix + name, _written(field.is_required(), field.get_default(call_default_factory=True))))
    return found


def _part(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) not in (typing.Annotated, typing.Union, types.UnionType):
        return None
    return next((part for part in map(_part, typing.get_args(annotation)) if part is not None), None)


def _written(required: bool, default: Any) -> str | None:
    match default:
        case _ if required:
            return None
        case bool():
            return f"`{str(default).lower()}`"
        case str() | int() | float():
            return f"`{default}`"
        case {"name": name}:
            return f"`{name}`"
        case _:
            return None


def check_columns(folder: Path) -> None:
    """Compare what the README's tables list with the files of its runs."""
    run = next(path.parent for path in (folder / "runs").glob("quickstart-*/inputs"))  # the one with cost.table
    for file in ("requests.parquet", "steps.parquet", "timeline/moves.parquet"):
        assert _cells(f"column of `{file}`") == pq.read_schema(run / file).names
    assert sorted(_cells("column of unfolded spans")) == sorted(SPAN_COLUMNS)
    written = {name.rstrip("/") for name in _cells("file")}
    assert written == {path.name for path in run.iterdir()}
    prose = (ROOT / "README.md").read_text(encoding="utf-8")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert [key for key in summary if f"`{key}`" not in prose] == []


def _cells(head: str) -> list[str]:
    return [name for cells in rows("README.md", head) for name in re.findall(r"`([^`]+)`", cells[0])]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    assert [target for target in targets if target and not (ROOT / target).exists()] == []


@pytest.mark.parametrize("name", catalog.names("scenarios"))
def test_shipped_scenario_says_what_it_shows_and_expects(name: str) -> None:
    text = catalog.path_of("scenarios", name).read_text(encoding="utf-8")
    head = text[: text.index("name:")].splitlines()
    assert len(head) >= 2
    assert all(line.startswith("# ") for line in head)
    assert "# Look at:" in text
    scenario = load(name)
    assert scenario.name == name
    assert [expected for expected in scenario.expect if expected.key == "legal"]


def test_public_names_are_sorted_and_there() -> None:
    assert clustersim.__all__ == sorted(clustersim.__all__)
    assert [name for name in clustersim.__all__ if getattr(clustersim, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = clustersim.laod


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import clustersim; print(sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    assert not {"numpy", "yaml", "simpy"} & set(re.findall(r"\w+", done.stdout))
