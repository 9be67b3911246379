"""The steps of a run as rows of a trace: one below each replica, and more where several are in its pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from clustersim.graph.blueprint import STEP_KINDS
from clustersim.report.traces.arrows import Arrows
from clustersim.report.traces.slices import NOWHERE, Row, Slices, no_arrows
from clustersim.report.traces.spans import lanes
from clustersim.simulation.step_rows import StepRows

NAMES: Final = tuple(f"{kind} step" for kind in STEP_KINDS)
CATEGORY: Final = "step"
ARGUMENTS: Final = (
    "step", "batch_requests", "prefill_tokens", "decode_tokens", "running", "waiting", "kv_blocks_used",
)  # fmt: skip
_MOST_LANES: Final = 1 << 12
"""Of one replica, as far as their numbers go."""


class StepSlices:
    """A slice for each step, a bounded number at a time.

    Parameters
    ----------
    step_rows : StepRows
    window : (start_ns, end_ns)
        Steps that touch it.
    arrows : Arrows
    first_row, name, category : int
        Numbers of the first row, of the first of ``NAMES`` and of ``CATEGORY``.
    """

    def __init__(
        self, step_rows: StepRows, window: tuple[int, int], arrows: Arrows, *, first_row: int, name: int, category: int
    ) -> None:
        self._step_rows, self._window, self._arrows = step_rows, window, arrows
        self._first_row, self._name, self._category = first_row, name, category

    def __iter__(self) -> Iterator[Slices]:
        """Yield them in order of (replica, step)."""
        begin, end = self._window
        known: dict[tuple[int, int], int] = {}
        before: dict[int, list[int]] = {}
        for steps in self._step_rows.single_steps():
            inside = (steps["end_ns"] > begin) & (steps["start_ns"] < end)
            some = {name: values[inside] for name, values in steps.items()}
            if inside.any():
                yield self._slices(some, known, before)

    def _slices(self, steps: dict[str, Any], known: dict[tuple[int, int], int], before: dict[int, list[int]]) -> Slices:
        start, end = (steps[name].astype(np.int64) for name in ("start_ns", "end_ns"))
        count = len(start)
        lane = lanes(start, end, steps["replica"], before)
        both = steps["replica"].astype(np.int64) * _MOST_LANES + lane
        distinct, of = np.unique(both, return_inverse=True)
        new, numbers = [], []
        for replica, at in (divmod(one, _MOST_LANES) for one in distinct.tolist()):
            if (replica, at) not in known:
                known[replica, at] = self._first_row + len(known)
                name = f"steps {at + 1}" if at else "steps"
                new.append((known[replica, at], Row(group=replica, name=name, order=at)))
            numbers.append(known[replica, at])
        none = np.zeros(count, np.int64)
        into = self._arrows.of_steps(steps["replica"], steps["step"]) if len(self._arrows) else no_arrows(count)
        return Slices(
            rows=new, row=np.array(numbers, np.int64)[of.reshape(-1)], depth=none, start_ns=start, end_ns=end,
            name=self._name + steps["kind"].astype(np.int64), category=none + self._category, number=none + NOWHERE,
            arguments={name: steps[name].astype(np.int64) for name in ARGUMENTS}, out=no_arrows(count), into=into,
        )  # fmt: skip
