"""Matrices of what is caught by which rule: regressions that ``--update-golden`` rewrites, and then fails."""

from __future__ import annotations

from pathlib import Path

import pytest


def compare(request: pytest.FixtureRequest, path: Path, text: str) -> None:
    """Compare with what is stored, or store it."""
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path.name} rewritten; look at what moved")
    assert text == path.read_text(encoding="utf-8")
