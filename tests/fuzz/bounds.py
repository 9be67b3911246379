"""What every command is held to, whatever it is given: exit status 0 to 3, no traceback, soon and in little memory."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Final

from click.testing import CliRunner

from clustersim.cli import main

LONGEST_S: Final = 20
MOST_KIB: Final = 1024 * 1024


def faults_of(words: Sequence[str], what: str) -> Iterator[str]:
    """Call a command here, and yield what is wrong with how it ended; ``what`` says which case it was."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        started, most = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(6 * LONGEST_S)
        result = CliRunner().invoke(main, list(words))
        signal.alarm(0)
    finally:
        signal.signal(signal.SIGALRM, before)
    took = time.process_time() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
    if result.exit_code not in (0, 1, 2, 3) or "Traceback" in result.output:
        yield f"{what}: status {result.exit_code}: {result.output[-400:]}"
    if took > LONGEST_S or grown > MOST_KIB:
        yield f"{what}: {took:.1f} s, {grown / 1024:.0f} MiB"
    if result.exit_code == 2 and not result.stderr.strip():
        yield f"{what}: status 2 without a word"
