"""Whatever a stranger writes: exit status 0 to 3, no traceback, soon and in little memory.

``CLUSTERSIM_FUZZ=2000 pytest tests/fuzz`` calls more commands, ``CLUSTERSIM_FUZZ_SEED=7`` others; a failure names its
seed and number.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Final

import pytest
import yaml
from click.testing import CliRunner

from clustersim.cli import main
from tests.fuzz.cases import SMALL, cases

COUNT: Final = int(os.environ.get("CLUSTERSIM_FUZZ", "150"))
SEED: Final = int(os.environ.get("CLUSTERSIM_FUZZ_SEED", "1"))
LONGEST_S: Final = 20
MOST_KIB: Final = 1024 * 1024


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

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for case in cases(SEED, COUNT, tmp_path, run):
            started, most = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            signal.alarm(6 * LONGEST_S)
            result = CliRunner().invoke(main, case.words)
            signal.alarm(0)
            took = time.process_time() - started
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
            what = f"seed {SEED}, case {case.number}: {case.words}"
            if result.exit_code not in (0, 1, 2, 3) or "Traceback" in result.output:
                found.append(f"{what}: status {result.exit_code}: {result.output[-400:]}")
            if took > LONGEST_S or grown > MOST_KIB:
                found.append(f"{what}: {took:.1f} s, {grown / 1024:.0f} MiB")
            if result.exit_code == 2 and not result.stderr.strip():
                found.append(f"{what}: status 2 without a word")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not found, "\n".join(found)
