"""Matrices of what is caught by which rule: regressions that ``--update-golden`` rewrites, and then fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

K = TypeVar("K")


def compare(request: pytest.FixtureRequest, path: Path, text: str) -> None:
    """Compare with what is stored, or store it."""
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path.name} rewritten; look at what moved")
    assert text == path.read_text(encoding="utf-8")


def holds(request: pytest.FixtureRequest, path: Path, line: str) -> None:
    """Hold one mutation to its line, in whichever process it runs."""
    if not request.config.getoption("--update-golden"):
        assert line in path.read_text(encoding="utf-8").splitlines()


def compare_lines(
    request: pytest.FixtureRequest, path: Path, names: Mapping[str, K], line_of: Callable[[K], str]
) -> None:
    """Compare which lines are stored, by what they begin with, as each was held to its own; or store them."""
    if request.config.getoption("--update-golden"):
        compare(request, path, "".join(f"{line_of(one)}\n" for one in names.values()))
    stored = path.read_text(encoding="utf-8").splitlines()
    assert [line.split("  ")[0] for line in stored] == list(names)
