"""Plans that several unit tests use."""

from __future__ import annotations

import pytest

from clustersim.plan.parallel import ParallelPlan


@pytest.fixture
def two_replicas() -> ParallelPlan:
    """Two replicas of one device."""
    return ParallelPlan(dp=2)
