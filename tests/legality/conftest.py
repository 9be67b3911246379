"""Keeps what rules say is wrong in the file that ``CLUSTERSIM_VIOLATIONS`` names (``tests.legality.violations``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clustersim.legality import finding, rule
from clustersim.legality.repair import candidates


def _kept(kind: type[Any], file: Path, seen: set[str]) -> None:
    own = kind.__init__

    def init(self: Any, *values: Any, **named: Any) -> None:
        own(self, *values, **named)
        new = {named[key] for key in ("message", "fix", "advice") if isinstance(named.get(key), str)} - seen
        if new:
            seen.update(new)
            with file.open("a", encoding="utf-8") as out:
                out.writelines(f"{' '.join(text.splitlines())}\n" for text in new)

    kind.__init__ = init  # type: ignore[misc]


def pytest_configure(config: pytest.Config) -> None:
    """Let what says what is wrong write it down, where somebody asks for that."""
    del config
    if name := os.environ.get("CLUSTERSIM_VIOLATIONS"):
        seen: set[str] = set()
        for kind in (finding.Fault, rule.Violation, candidates.Fault):
            _kept(kind, Path(name), seen)
