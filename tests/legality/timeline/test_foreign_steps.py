"""Step numbers that leave gaps, as engines that count more than steps have them."""

from __future__ import annotations

import numpy as np

from clustersim.legality.timeline_rules.views.runs import Runs


def test_runs_find_steps_whose_numbers_are_far_apart() -> None:
    numbers = np.array([5, 1_000_000, 2_000_000_000])
    same = np.zeros(3, np.int64)
    runs = Runs(
        {
            "replica": same, "step": numbers, "count": np.array([2, 1, 1]), "slot": same, "start_ns": numbers,
            "end_ns": numbers + 1,
        }
    )  # fmt: skip
    found = runs.at(np.zeros(7, np.int64), np.array([4, 5, 6, 7, 1_000_000, 2_000_000_000, 2_000_000_001]))
    assert found.tolist() == [-1, 0, 0, -1, 1, 2, -1]
