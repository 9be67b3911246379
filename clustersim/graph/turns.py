"""Whose turn it is where two halves of a step share a rank's streams: the order of their operators.

Each half's operators are cut behind every dispatch and every combine, the two places at which vLLM's dual-batch overlap
hands over (vllm/v1/worker/ubatching.py, ``dbo_yield``, 2025), and the halves take turns, piece by piece::

    compute   attention gate 1 | attention gate 2 | experts 1  | experts 2 | attention gate 1 …
    comm                       | dispatch 1       | dispatch 2 | combine 1 | combine 2        …

so that either half communicates while the other one computes (DeepSeek-AI, "DeepSeek-V3 Technical Report",
arXiv:2412.19437, section 3.4). What the whole step does as one comes before all turns, or after them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import Body

YIELDS: Final = ("dispatch", "combine")
"""Operators behind which it is the other half's turn."""
HALF: Final = "~"
"""Before the number of the half in the name of a feature: ``tokens~2``."""
LAST: Final = 1 << 40
"""The turn of what comes after both halves."""


def half_feature(name: str, half: int) -> str:
    """Return the name that a feature of a batch has as that of one half."""
    return f"{name}{HALF}{half}"


def plain_feature(name: str) -> str:
    """Return the name of a feature, whichever half it is of."""
    return name.partition(HALF)[0]


class Turns:
    """Gives the operators of a step's units, told in order, their turns."""

    def __init__(self) -> None:
        self.passed = {1: 0, 2: 0}
        self.begun = False
        self.yields: dict[int, list[int]] = {}

    def of(self, body: Body, half: int) -> list[int]:
        """Return the turn of each node of the next unit.

        Parameters
        ----------
        body : Body
        half : int
            0: of the whole step.
        """
        if not half:
            return [LAST if self.begun else 0] * len(body.nodes)
        self.begun = True
        before = self.yields.get(id(body))
        if before is None:
            hands_over = [node.name in YIELDS for node in body.nodes]
            before = self.yields[id(body)] = np.cumsum([0, *hands_over]).tolist()
        found = [1 + 2 * (self.passed[half] + count) + half - 1 for count in before[:-1]]
        self.passed[half] += before[-1]
        return found


def in_turn(turns: Int64Array) -> Int64Array:
    """Return the positions of operators in the order of their turns, those of one turn as they were."""
    return np.argsort(turns, kind="stable")
