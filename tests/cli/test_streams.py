"""Standard streams that are closed or full change neither the exit status nor what else there is to see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import dealt

STREAMS = ("2>/dev/full", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")
STATUS = {"rules TP-1": 0, "rules nowhere": 2, "rules --nothing": 2}
"""The command that starts soonest: printed, not usable, not to be parsed."""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(("streams", "command"), dealt(STREAMS, list(STATUS)))
def test_the_status_is_right_where_nobody_can_be_told(streams: str, command: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m clustersim {command} {streams}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (STATUS[command], "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", ["models llama-3.1-8b", "--help", "--version", "check --help"])
def test_what_could_not_be_printed_is_status_2(command: str) -> None:
    line = f"{sys.executable} -m clustersim {command} >/dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "clustersim: No space left on device\n")
