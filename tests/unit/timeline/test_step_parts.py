"""What lies on the critical path of a pass."""

from __future__ import annotations

from random import Random

import numpy as np

from clustersim.timeline.step_parts import _critical


def test_the_critical_path_is_that_of_each_pass_by_itself() -> None:
    draw = Random(3)
    for _ in range(30):
        instances, passes = draw.randint(1, 12), 7
        waits = [tuple(draw.sample(range(at), draw.randint(0, min(at, 3)))) for at in range(instances)]
        durations = np.array([[draw.randint(0, 3) for _ in range(passes)] for _ in range(instances)])
        labels = np.array([draw.randint(0, 4) for _ in range(instances)])
        ends, alone = np.zeros_like(durations), np.zeros((int(labels.max()) + 1, passes), np.int64)
        for one in range(passes):
            for at, before in enumerate(waits):
                ends[at, one] = max((ends[other, one] for other in before), default=0) + durations[at, one]
            at = int(ends[:, one].argmax())
            while True:
                alone[labels[at], one] += durations[at, one]
                if ends[at, one] == durations[at, one]:
                    break
                at = max(waits[at], key=lambda other: int(ends[other, one]))
        assert np.array_equal(_critical(ends, durations, waits, labels), alone)
