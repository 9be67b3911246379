"""Fixtures of all tests, and in how many processes they run.

The option that rewrites regression goldens is that of ``clustersim.pytest_plugin``.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from clustersim.replay.replay import ReplayInput, ReplayResult
from tests.audit import replayed


@pytest.fixture
def run() -> Callable[[ReplayInput], ReplayResult]:
    """Replay and audit: no request, token or K/V block may be lost in any simulated test."""
    return replayed


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run all tests in a process per core; those that were named, are shown or are measured in this one."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    alone = named or config.option.capture == "no" or config.option.markexpr != "not benchmark"
    return 0 if alone else min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, 8)
