"""Fixtures of all tests; the option that rewrites regression goldens is that of ``clustersim.pytest_plugin``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clustersim.replay.replay import ReplayInput, ReplayResult
from tests.audit import replayed


@pytest.fixture
def run() -> Callable[[ReplayInput], ReplayResult]:
    """Replay and audit: no request, token or K/V block may be lost in any simulated test."""
    return replayed
