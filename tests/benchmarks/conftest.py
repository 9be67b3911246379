"""What a run of all benchmarks leaves out: those that take long and tell nothing of how fast replays are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

LONG: Final = ("test_audit_speed.py", "test_exhaustive.py", "test_page_speed.py")
"""Measured where their file is named, or with ``-k``."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave them out where nobody asks for them."""
    asked = config.option.keyword or any(collection_path.name in arg for arg in config.args)
    return True if collection_path.name in LONG and not asked else None
