"""What tests take of the processor, file by file, said at the end so that growth is seen; no test fails by it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Mapping
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

    def pytest_collection_finish(self) -> None:
        self._before = spent_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        before, self._before = self._before, spent_s()
        report.spent_s = self._before - before
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        spent: Counter[str] = Counter()
        for reports in terminalreporter.stats.values():
            for report in reports:
                if hasattr(report, "spent_s"):
                    spent[report.nodeid.split("::")[0]] += report.spent_s
        if spent.total() >= WORTH_TELLING_S:
            terminalreporter.write_line(told(spent))


def told(spent: Mapping[str, float]) -> str:
    """Return in a line what files took together, and those that took most."""
    most = Counter(spent).most_common(MOST)
    files = ", ".join(f"{file.removeprefix('tests/')} {taken:.0f}" for file, taken in most)
    return f"tests took {sum(spent.values()):.0f} s of CPU: {files} …"
