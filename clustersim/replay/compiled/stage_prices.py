"""The prices of several kinds of stages, in arrays with a row for each; stages of a kind cost the same.

Each kind fills in its own prices (:class:`~clustersim.replay.compiled.prices.KernelPrices`), which are views of the
arrays here. What sends take is that of one rank: where ranks of a stage differ, or where a row of prices can't be added
up from parts, the kernel does not price these steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.compiled.prices import MIXED, PREFILL, UNKNOWN, KernelPrices

STACKED: Final = (
    "weights", "keys", "values", "parts", "part_ns", "part_sends", "made", "decode_rows", "cores", "kinds", "terms",
)  # fmt: skip
"""What the kernel reads, in the order in which it takes it."""


class StagePrices:
    """Those of one replica with stages, for replicas with the same limits.

    Parameters
    ----------
    stages : sequence of StepPrices
        One per stage.
    most : sequence of int
        The most that each count of a step can be, in the order of ``graph.prices.parts.ALIASES``.

    Attributes
    ----------
    kinds : list of KernelPrices
    of_stage : int64 array of shape (stages,)
        Which of them are those of each stage.
    arrays : list of array
        ``STACKED``, each with the kinds first.
    obstacle : str
        Why the kernel cannot price these steps; empty if it can.
    plain : bool
        Whether the kernel prices attention itself, and need not ask at each step.
    """

    def __init__(self, stages: Sequence[StepPrices], most: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(stages))
        self.kinds = [KernelPrices(one, most) for one in distinct]
        self.of_stage = np.array([distinct.index(one) for one in stages], np.int64)
        self.seconds = self.kinds[0].seconds
        self.plain = all(one.plain for one in self.kinds)
        self.obstacle = next(filter(None, [one.obstacle for one in self.kinds]), "") or self._obstacle()
        self.arrays: list[Int64Array] = []
        if not self.obstacle:
            self._stack()

    def _obstacle(self) -> str:
        for one in self.kinds:
            if any(len(set(program.template.send_classes)) > 1 for program in one.prices.programs.values()):
                return "ranks of a stage take differently long to send"
            if not one.parts[:, 0].all():
                return "prices depend on counts that are large, or on several of them"
        return ""

    def _stack(self) -> None:
        """Put the prices of all kinds into arrays, and let each kind fill in its own there."""
        self.arrays = []
        for name in STACKED:
            each = [getattr(one, name) for one in self.kinds]
            fill = UNKNOWN if name in ("keys", "part_ns") else 0
            shape = np.max([one.shape for one in each], axis=0)
            stacked = np.full((len(each), *shape), fill, each[0].dtype)
            for mine, theirs, one in zip(stacked, each, self.kinds, strict=True):
                mine[tuple(map(slice, theirs.shape))] = theirs
                setattr(one, name, mine)
            self.arrays.append(stacked)

    def settle(self) -> None:
        """Tell the prices of rows that the kernel has made since."""
        for one in self.kinds:
            one.settle()

    def widen(self) -> None:
        """Make room for more rows."""
        for one in self.kinds:
            one.widen()
        self._stack()

    def learn_decode(self, count: int) -> None:
        """Fill in what steps of so many decodes cost."""
        for one in self.kinds:
            one.learn_decode(count)

    def learn_parts(self, table: int, counts: Sequence[int]) -> None:
        """Fill in what the parts of a step that are not known cost."""
        for one in self.kinds:
            one.learn_parts(table, counts)


__all__ = ["MIXED", "PREFILL", "StagePrices"]
