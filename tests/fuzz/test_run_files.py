"""Every field of every file of a run directory, broken: ``audit``, ``compare``, ``dashboard`` and ``trace`` of it
end well.

``pytest tests/fuzz/test_run_files.py --long`` tries 20,000 breaches (``--long=1`` one of each column and 30 of each
JSON file, a plain pytest one of every third column and 2 of each JSON file); ``CLUSTERSIM_FUZZ_SEED=7`` draws other
rows and breaches.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from clustersim.cli import main
from tests.effort import is_long, is_whole, times
from tests.fuzz.bounds import faults_of
from tests.fuzz.run_files import Breach, breaches
from tests.fuzz.test_fuzz import SEED, run

COUNT: Final = times(1000) if is_long() else 0
COMMANDS: Final = ("audit", "compare", "dashboard", "trace")
__all__ = ["run"]


def chosen(every: list[Breach], draw: random.Random) -> list[tuple[str, Breach]]:
    """Return commands and breaches: one of each column and some of each JSON file, or as many as are asked for."""
    if COUNT:
        all_of_them = [(command, breach) for breach in every for command in COMMANDS]
        return draw.sample(all_of_them, min(COUNT, len(all_of_them)))
    by_place: dict[tuple[str, str], list[Breach]] = {}
    for breach in every:
        by_place.setdefault((breach.file, breach.place if breach.file.endswith(".parquet") else ""), []).append(breach)
    return [
        (draw.choice(COMMANDS), breach)
        for at, ((file, _), some) in enumerate(by_place.items())
        if is_whole() or at % 3 == 0 or file.endswith(".json")
        for breach in draw.sample(some, min(len(some), 1 if file.endswith(".parquet") else times(30)))
    ]


@pytest.mark.filterwarnings("error")
def test_every_command_ends_as_it_should_whatever_a_file_of_a_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "r")
    draw = random.Random(f"files {SEED}")
    every = list(breaches(run, draw))
    assert {breach.file for breach in every} == {
        str(path.relative_to(run)) for path in run.rglob("*") if path.suffix in (".parquet", ".json")
    }
    found: list[str] = []
    for command, breach in chosen(every, draw):
        breach.apply(tmp_path / "r" / breach.file)
        others = [str(run)] if command == "compare" else []
        found += faults_of([command, "r", *others], f"seed {SEED}: {command} of {breach}")
        shutil.copy(run / breach.file, tmp_path / "r" / breach.file)
    assert not found, "\n".join(found)


def test_dashboard_says_which_figure_can_not_be_drawn(tmp_path: Path, run: Path) -> None:
    shutil.copytree(run, tmp_path / "r")
    file = tmp_path / "r" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"e2e_ms": 7}))
    result = CliRunner().invoke(main, ["dashboard", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "summary.json: summary.json, e2e_ms: says 7, the timeline says" in result.stderr
