"""Whatever a stranger writes: exit status 0 to 3, no traceback, soon and in little memory.

``pytest tests/fuzz --long`` calls more commands, ``CLUSTERSIM_FUZZ_SEED=7`` others; a failure names its
seed and number.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
import yaml
from click.testing import CliRunner

from clustersim.cli import main
from tests.effort import times
from tests.fuzz.bounds import faults_of
from tests.fuzz.cases import SMALL, cases

COUNT: Final = times(60)
SEED: Final = int(os.environ.get("CLUSTERSIM_FUZZ_SEED", "1"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory of the scenario that is broken everywhere."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "s.yaml").write_text(yaml.safe_dump(SMALL))
    result = CliRunner().invoke(main, ["run", str(folder / "s.yaml"), "--out", str(folder / "r"), "--quiet"])
    assert result.exit_code == 0, result.output
    return folder / "r"


@pytest.mark.filterwarnings("error")
def test_every_command_ends_as_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERSIM_ALLOW_CODE", raising=False)
    found: list[str] = []
    for case in cases(SEED, COUNT, tmp_path, run):
        found += faults_of(case.words, f"seed {SEED}, case {case.number}: {case.words}")
    assert not found, "\n".join(found)
