"""The notebooks of ``examples/`` run, and show what they show today (``pytest --update-golden`` stores it anew)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.architecture.documents import ROOT
from tests.architecture.notebooks import examples, run_cells


@pytest.mark.parametrize("path", examples(ROOT), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_has_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    found = run_cells(stored)
    if found != stored and request.config.getoption("--update-golden"):
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        pytest.fail(f"{path.name} is stored anew; look at what changed")
    for number, (now, before) in enumerate(zip(found["cells"], stored["cells"], strict=True), 1):
        assert now.get("outputs") == before.get("outputs"), f"cell {number}; pytest --update-golden stores it anew"


def test_there_are_two_of_them() -> None:
    assert len(examples(ROOT)) == 2
