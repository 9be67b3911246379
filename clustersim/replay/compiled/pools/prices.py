"""What compiled lanes of two pools are told of prices, and of what their collectives put on links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.collective.price import CommPlan
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.compiled.link_prices import KINDS, LinkPrices
from clustersim.replay.compiled.prices import KernelPrices
from clustersim.replay.lanes.pipelines.link_stage import SharedStage
from clustersim.replay.links.uses import Counts, Uses, payload_features

KERNEL: Final = ("weights", "keys", "values", "parts", "part_ns", "made", "decode_rows", "cores", "kinds", "terms")
"""What the kernel reads of prices, in its order."""


class PoolPrices(LinkPrices):
    """Prices of the replicas of a pool, each of one stage.

    Parameters
    ----------
    prices : StepPrices
    most : sequence of int
        As those of :class:`StagePrices`.
    shared : SharedStage
        Of one of the replicas.

    Attributes
    ----------
    uses : tuple of float64 arrays
        Which of its plans a collective takes, and its payload in bytes, by class, of each part of a step and of decode
        steps: (2, parts, count, 2, classes) and (count, 2, classes).
    """

    def __init__(self, prices: StepPrices, most: Sequence[int], shared: SharedStage) -> None:
        super().__init__([prices], most, [shared])
        if not self.obstacle:
            parts, decodes, _ = self.classes
            self.uses: tuple[FloatArray, FloatArray] = np.zeros(parts.shape[1:]), np.zeros(decodes.shape[1:])

    @property
    def kernel(self) -> KernelPrices:
        """Those of the only stage."""
        return self.kinds[0]

    def told_of(self, limits: Int64Array, prompts: Int64Array, outputs: Int64Array) -> tuple[Any, ...]:
        """Return ``pools.POOL``."""
        each = [getattr(self.kernel, name) for name in KERNEL]
        return (limits, self.seconds, *each, prompts, outputs, *self.classes, *self.uses)

    def _fill(self, which: int, at: tuple[int, ...], table: int, counts: Counts, row: Int64Array) -> None:
        super()._fill(which, at, table, counts, row)
        uses = self.shared[0].uses[STEP_KINDS.index(KINDS[table])]
        into, features = self.uses[which][at[1:]], payload_features(uses.pricer, counts)
        for cls in np.flatnonzero(row).tolist():
            if uses.program.classes[cls].comm is not None:
                into[1, cls] = payload = payload_bytes(uses.program, features, cls)
                chosen = uses.comm.chosen(uses.program.classes[cls].node.communication, uses.devices, payload)
                into[0, cls] = [plan is chosen for plan in plans_of(uses, cls)].index(True) if chosen else 0


class PoolsPrices:
    """The prices of two pools."""

    def __init__(self, each: Sequence[PoolPrices]) -> None:
        self.each = each
        self.seconds = each[0].seconds

    def by_lane(self, lanes: int, entry: int) -> list[PoolPrices]:
        """Return those of each lane, of which the first ones are of the first pool."""
        return [self.each[lane >= entry] for lane in range(lanes)]

    def settle(self) -> None:
        """Tell the prices of rows that the kernel has made since."""
        for one in self.each:
            one.settle()

    def widen(self) -> None:
        """Make room for more rows."""
        for one in self.each:
            one.widen()


def plans_of(uses: Uses, cls: int) -> tuple[CommPlan, ...]:
    """Return the plans of a class of communication among the ranks of a replica."""
    return uses.comm.plans(uses.program.classes[cls].node.communication, uses.devices)


class LinkPlans:
    """The plans of all that may share links: which links each uses, and how much of them.

    Parameters
    ----------
    capacity : float array of shape (links,)
    """

    def __init__(self, capacity: FloatArray) -> None:
        self.capacity = np.ascontiguousarray(capacity, np.float64)
        self.known: dict[tuple[bytes, bytes], int] = {}
        self.plans: list[CommPlan] = []

    def number(self, plan: CommPlan) -> int:
        """Return the number of a plan, one for those that load the same links alike."""
        found = self.known.setdefault((plan.links.tobytes(), plan.load_per_byte.tobytes()), len(self.plans))
        if found == len(self.plans):
            self.plans.append(plan)
        return found

    @property
    def arrays(self) -> tuple[Any, ...]:
        """``flows.PLANS``."""
        plans, count = self.plans, max(len(self.plans), 1)
        lengths = np.array([len(plan.links) for plan in plans] or [0], np.int64)
        links, loads = np.zeros((count, max(lengths.max(), 1)), np.int64), np.zeros((count, max(lengths.max(), 1)))
        order, uses = np.zeros(count, np.int64), np.zeros((count, len(self.capacity)), np.int32)
        order[sorted(range(len(plans)), key=lambda one: plans[one].links.tobytes())] = np.arange(len(plans))
        for at, plan in enumerate(plans):
            links[at, : lengths[at]], loads[at, : lengths[at]] = plan.links, plan.load_per_byte
            uses[at, plan.links] = 1
        return lengths, links, loads, order, uses @ uses.T > 0, self.capacity

    def of_collectives(self, stages: Sequence[SharedStage], classes: int) -> Int64Array:
        """Return the numbers of plans by lane, table of prices, class and place among the plans of that."""
        found = np.zeros((len(stages), len(KINDS), classes, 1), np.int64)
        for lane, stage in enumerate(stages):
            for table, kind in KINDS.items():
                uses = stage.uses[STEP_KINDS.index(kind)]
                for cls, one in enumerate(uses.program.classes):
                    numbers = [] if one.comm is None else [self.number(plan) for plan in plans_of(uses, cls)]
                    if len(numbers) > found.shape[3]:
                        found = np.pad(found, ((0, 0), (0, 0), (0, 0), (0, len(numbers) - found.shape[3])))
                    found[lane, table, cls, : len(numbers)] = numbers
        return found
