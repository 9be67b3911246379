"""Layers that a pass passes alike: from when one is passed, with nothing on links, until the next one is.

Then what happens depends on nothing but how long operators take, what the layer puts on links, and when: times are
whole nanoseconds, and shares of links depend on differences of times alone. So where the next layers have the same
operators, and as much leaves with them, the same happens with each, so much later.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.graph.blueprint import STEP_KINDS
from clustersim.replay.lanes.pipelines.link_stage import SharedPass
from clustersim.replay.pools.kv_moves import Move


class LayerEnds(NamedTuple):
    """The layers of passes of one kind with one row of durations.

    Parameters
    ----------
    instances, layers : list of int
        The last one of each layer that attends to prompts.
    ends : list of int
        When it ends, from the start of the pass and but for what varies.
    varying : list of list of int
        How often the pass has what varies until then.
    alike : list of int
        With how many layers behind it the pass goes on as it did up to it from the layer before.
    """

    instances: list[int]
    layers: list[int]
    ends: list[int]
    varying: list[list[int]]
    alike: list[int]

    def when(self, number: int, run: SharedPass) -> int:
        """Return when a pass passes a layer, if nothing makes it longer until then."""
        found = run.start + run.late + self.ends[number]
        for counts, ns in zip(self.varying, run.varying, strict=True):
            found += counts[number] * ns
        return found


class Round:
    """What happens from when a pass has passed a layer, with nothing on links, until it passes the next one.

    Attributes
    ----------
    stage, began, late, stretches : int
        Which pass; when it passed the layer; what it had lost until then, and how much it had told of that.
    before, asked : int
        How many moves had been asked for before the layer left, and when it had; −1 before it has.
    moves : list of (Move, int)
        Moves that ended, and when.
    """

    __slots__ = ("asked", "before", "began", "late", "moves", "stage", "stretches")

    def __init__(self, stage: int, run: SharedPass, now: int, before: int) -> None:
        self.stage, self.began, self.before, self.asked = stage, now, before, -1
        self.late, self.stretches = run.late, len(run.stretches)
        self.moves: list[tuple[Move, int]] = []

    @property
    def is_whole(self) -> bool:
        """Whether all that ended left with this layer, and nothing else left."""
        return len(self.moves) == self.asked - self.before and all(move.serial > self.before for move, _ in self.moves)


def passed_layers(run: SharedPass, goes_on_alike: Callable[[int, int], bool]) -> LayerEnds:
    """Return the layers of a pass; ``goes_on_alike`` tells whether what leaves with two of them is alike."""
    template = run.stage.uses[run.micro.kind].program.template
    row, columns = run.stage.prices.rows[STEP_KINDS[run.micro.kind]][run.number]
    order, (instances, layers) = template.instance_class, zip(*template.passes_layers, strict=True)
    ends = np.cumsum(row[order])[list(instances)].tolist()
    varying = [np.cumsum(order == column)[list(instances)].tolist() for column in columns]
    rounds = [order[one + 1 : other + 1].tolist() for one, other in pairwise((-1, *instances))]
    alike = [0] * len(layers)
    for one in reversed(range(1, len(layers) - 1)):
        if rounds[one] == rounds[one + 1] and goes_on_alike(layers[one - 1], layers[one]):
            alike[one] = alike[one + 1] + 1
    return LayerEnds(list(instances), list(layers), ends, varying, alike)
