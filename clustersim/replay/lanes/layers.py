"""The layers of a prompt that the step of a lane passes, told one by one to who waits (``transfer: layerwise``).

When a layer is passed is what its pass adds up to until then (``replay.events.layer_marks``), as long as nothing meets
it; from there on :class:`~clustersim.replay.events.chain.ChainPass` tells of those that are left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.template import PassTemplate
from clustersim.replay.events.layer_marks import chain_marks
from clustersim.replay.events.wiring import OnLayer
from clustersim.replay.instant import COMPLETION, at
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.replay.lanes.log import STEP_ROW

if TYPE_CHECKING:
    from simpy import Environment

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
        self.marks = deque(chain_marks(self._template, on_layer))
        if not self.marks:
            return
        passes = self.passes()
        for _, layer in self._template.passes_layers:
            at(self.env, int(passes[layer]), COMPLETION, self._passed, self._version)

    @property
    def _template(self) -> PassTemplate:
        lane = self.lane
        return lane.prices.stages[0].programs[STEP_KINDS[lane.row[KIND]]].template

    def passes(self) -> Int64Array:
        """Return how long after its start the step that begins passes each layer, by layer; 0 of those it has not."""
        lane, template = self.lane, self._template
        row, columns = lane.prices.stages[0].rows[STEP_KINDS[lane.row[KIND]]][lane.number]
        by_class = row.copy()
        by_class[list(columns)] = lane.ns
        instances, layers = (list(column) for column in zip(*template.passes_layers, strict=True))
        found = np.zeros(max(layers) + 1, np.int64)
        found[layers] = template.ends(by_class[template.instance_class])[instances]
        return found

    def _passed(self, version: int) -> None:
        if version == self._version:
            self.marks.popleft()[1]()

    def take(self) -> list[Mark]:
        """Leave those that have not been passed to somebody else."""
        self._version += 1
        found, self.marks = list(self.marks), deque()
        return found
