"""The layers of a prompt that the step of a lane passes, told one by one to who waits (``transfer: layerwise``).

When a layer is passed is what its pass adds up to until then (``replay.events.layer_marks``), as long as nothing meets
it; from there on :class:`~clustersim.replay.events.chain.ChainPass` tells of those that are left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from simpy import Environment

from clustersim.graph.blueprint import STEP_KINDS
from clustersim.replay.events.layer_marks import chain_marks
from clustersim.replay.events.wiring import OnLayer
from clustersim.replay.instant import COMPLETION, at
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.replay.lanes.log import STEP_ROW

KIND: Final = STEP_ROW.index("kind")

Mark = tuple[int, Callable[[], None]]
"""(instance of the chain, what is to be called when it has ended)"""


class Layers:
    """Those that the step under way has not passed.

    Parameters
    ----------
    env : simpy.Environment
    lane : DecodeJumpLane
    """

    def __init__(self, env: Environment, lane: DecodeJumpLane) -> None:
        self.env = env
        self.lane = lane
        self.marks: deque[Mark] = deque()
        self._version = 0

    def begin(self, on_layer: OnLayer | None) -> None:
        """Let ``on_layer`` be called for each layer of the step that begins now."""
        lane = self.lane
        kind = STEP_KINDS[lane.row[KIND]]
        programs, rows = lane.prices.stages[0].programs, lane.prices.stages[0].rows
        template = programs[kind].template
        self.marks = deque(chain_marks(template, on_layer))
        if not self.marks:
            return
        row, columns = rows[kind][lane.number]
        by_class = row.copy()
        by_class[list(columns)] = lane.ns
        ends = template.ends(by_class[template.instance_class])
        for instance, _ in self.marks:
            at(self.env, int(ends[instance]), COMPLETION, self._passed, self._version)

    def _passed(self, version: int) -> None:
        if version == self._version:
            self.marks.popleft()[1]()

    def take(self) -> list[Mark]:
        """Leave those that have not been passed to somebody else."""
        self._version += 1
        found, self.marks = list(self.marks), deque()
        return found
