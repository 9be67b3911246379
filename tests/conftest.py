"""Fixtures of all tests, and the option that rewrites regression goldens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clustersim.replay.replay import ReplayInput, ReplayResult
from tests.audit import replayed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite regression goldens with what comes out now; each test that rewrites one fails",
    )


@pytest.fixture
def run() -> Callable[[ReplayInput], ReplayResult]:
    """Replay and audit: no request, token or K/V block may be lost in any simulated test."""
    return replayed
