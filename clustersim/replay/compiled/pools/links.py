"""What compiled lanes of two pools have of links: passes and moves on them, where collectives and layers are, flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import links as ln
from clustersim.replay.compiled.pools import flows as fl
from clustersim.replay.compiled.pools.prices import LinkPlans, PoolPrices
from clustersim.replay.lanes.pipelines.link_stage import SharedStage


class PoolLinks:
    """Of each lane and of each rank that K/V leaves a row.

    Parameters
    ----------
    stages : sequence of SharedStage
        Of each lane.
    prices : sequence of PoolPrices
        Of each lane.
    plans : LinkPlans
    senders : int
    room : int
        Runs of steps between two times that what was logged is handed on.

    Attributes
    ----------
    links, told : tuples of arrays
        ``links.LINKS`` up to the stage's kind, and where collectives are, with room for what passes lose.
    uses, plan_of : arrays
        Plan and payload of each class of operators in the step of each lane, and the numbers of its plans.
    flows : tuple
        ``flows.FLOW``, ``flows.SHARES``, work space, and ``flows.PLANS``.
    """

    def __init__(
        self, stages: Sequence[SharedStage], prices: Sequence[PoolPrices], plans: LinkPlans, senders: int, room: int
    ) -> None:
        self.lanes, rows = len(stages), max(len(stages), senders + 1)
        self.width = width = max(one.classes[1].shape[3] for one in prices)
        pipe = np.zeros((rows, len(ln.FIELDS)), np.int64)
        pipe[:, ln.STARTED] = pipe[:, ln.ENDED] = 1 + np.arange(rows)
        nothing = np.zeros((1, 1, 1), np.int64)
        self.links = (
            pipe, np.full(2 * rows, k.NEVER, np.int64), np.zeros((rows, rows), np.int64),
            np.zeros((8 * rows, len(ln.MOVE)), np.int64), np.zeros(1, np.int64), np.zeros((rows, 1, 3), np.int64),
            np.zeros((rows, 1, 2, width), np.int64), nothing, nothing, np.zeros((rows, len(ln.FLIGHT)), np.int64),
            np.zeros(1, np.int64), np.zeros(rows, np.int64),
        )  # fmt: skip
        where = self._collectives([one.told for one in prices], rows)
        stretches = np.zeros((room + 2 * where[0].shape[2] * self.lanes, len(ln.STRETCH)), np.int64)
        self.told = *where, stretches
        self.uses = np.zeros((self.lanes, 2, width))
        self.plan_of = plans.of_collectives(stages, width)
        self.flows = no_flows(plans.arrays, 2 * rows)

    def _collectives(self, told: Sequence[Any], rows: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return where the collectives of each lane are, as of stages (``compiled.link_prices``)."""
        most = max(one[0].shape[2] for one in told)
        before = np.zeros((self.lanes, 3, most, self.width), np.int64)
        collectives = np.zeros((self.lanes, 3, most, 2), np.int64)
        bounds = np.zeros((rows, 3, 2), np.int64)
        for lane, (mine, which, many) in enumerate(told):
            before[lane, :, : mine.shape[2], : mine.shape[3]] = mine[0]
            collectives[lane, :, : which.shape[2]], bounds[lane] = which[0], many[0]
        return before, collectives, bounds

    def layers(self, stages: Sequence[SharedStage]) -> tuple[Int64Array, Int64Array]:
        """Return when steps of some lanes pass layers: what is behind each, and how many there are, with their ends.

        Operators of each class, (lanes, 3, layers, classes), and the last operator, (lanes, 3, 1 + layers).
        """
        kinds = [(stage.uses[0].program.template, stage.uses[2].program.template) for stage in stages]
        most = max(len(one.passes_layers) for both in kinds for one in both)
        before = np.zeros((len(stages), 3, most, self.width), np.int64)
        ends = np.zeros((len(stages), 3, 1 + most), np.int64)
        for lane, both in enumerate(kinds):
            for table, template in enumerate(both):
                ends[lane, table, 0] = len(template.passes_layers)
                for number, (instance, _) in enumerate(template.passes_layers):
                    behind = template.instance_class[: instance + 1]
                    before[lane, table, number] = np.bincount(behind, minlength=self.width)
                    ends[lane, table, 1 + number] = instance
        return before, ends


def no_flows(plans: tuple[Any, ...], numbers: int) -> tuple[Any, ...]:
    """Return flows of which none is on its links, and work space."""
    entries, links = numbers * plans[fl.LINKS].shape[1], len(plans[fl.CAPACITY])
    lists = [np.zeros(size, np.int64) for size in (numbers + 1, numbers + 1, numbers + 2, entries)]
    return (
        np.zeros((numbers, len(fl.FLOW)), np.int64), np.zeros((numbers, len(fl.SHARES))),
        (*lists, np.full(links, -1, np.int64)), np.zeros((5, max(entries, links))), np.zeros((2, numbers + 1)), plans,
    )  # fmt: skip
