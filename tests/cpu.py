"""What tests take of the processor, how often they replay and start a process: told at the end so that growth is seen.

``tests/architecture/test_suite_size.py`` holds what can be counted before they run.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Generator, Mapping
from functools import wraps
from typing import Any, Final

import pytest

WORTH_TELLING_S: Final = 60
"""A run of a file or two says nothing."""
MOST: Final = 8
"""Files that are named."""


def spent_s() -> float:
    """Return the seconds that this process and those that it waited for have taken of any core."""
    return sum(os.times()[:4])


class SpentTime:
    """Writes into each report what its phase took, which comes back from the processes of xdist; adds it up."""

    def __init__(self) -> None:
        self._before = spent_s()
        self._done: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        from clustersim.replay.prepared import Prepared

        self._counts(Prepared, "replays")
        self._counts(subprocess.Popen, "processes")
        self._before = spent_s()

    def _counts(self, kind: type[Any], what: str) -> None:
        """Count what is made of a kind, in this process."""
        own = kind.__init__

        @wraps(own)
        def init(made: Any, *args: Any, **more: Any) -> None:
            self._done[what] += 1
            own(made, *args, **more)

        kind.__init__ = init  # type: ignore[misc]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        before, self._before = self._before, spent_s()
        report.spent_s = self._before - before
        report.done, self._done = dict(self._done), Counter()
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        spent: Counter[str] = Counter()
        done: Counter[str] = Counter()
        for reports in terminalreporter.stats.values():
            for report in reports:
                if hasattr(report, "spent_s"):
                    spent[report.nodeid.split("::")[0]] += report.spent_s
                    done.update(report.done)
        if spent.total() >= WORTH_TELLING_S:
            terminalreporter.write_line(told(spent, done))


def told(spent: Mapping[str, float], done: Mapping[str, int]) -> str:
    """Return in a line what files took together, how often they did what takes long, and those that took most."""
    most = Counter(spent).most_common(MOST)
    files = ", ".join(f"{file.removeprefix('tests/')} {taken:.0f}" for file, taken in most)
    often = ", ".join(f"{count} {what}" for what, count in sorted(done.items(), reverse=True))
    return f"tests took {sum(spent.values()):.0f} s of CPU, {often}: {files} …"
