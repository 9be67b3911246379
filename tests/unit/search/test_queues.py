"""When prompts are computed at the earliest, where replicas get requests in turn."""

from __future__ import annotations

import numpy as np

from clustersim.search.plans.bounds.prices import _queued


def test_a_prompt_waits_for_those_before_it_on_its_replica_and_for_nobody_else():
    prompts, arrived = np.array([3.0, 5.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.0, 2.0])
    assert _queued(prompts, arrived, 1).tolist() == [3.0, 8.0, 10.0, 14.0]
    assert _queued(prompts, arrived, 2).tolist() == [3.0, 6.0, 5.0, 10.0]


def test_a_replica_that_has_nothing_to_do_waits_for_the_next_prompt():
    assert _queued(np.array([3.0, 5.0]), np.array([0.0, 100.0]), 1).tolist() == [3.0, 105.0]
