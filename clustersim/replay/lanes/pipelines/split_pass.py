"""A pass whose prompts are split over SP ranks, on links that their sends may be on, and where its collectives are.

Ranks wait for one another at collectives of all of them, one after the other on one stream. While none of these is
longer than it costs, the pass takes what the prices say. Where one was, it is walked anew with the time that it took:
only what follows, where that is behind all layers.
"""

from __future__ import annotations

from bisect import bisect_right

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.steps import SplitPrice
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.split_micro_batch import SplitMicro
from clustersim.replay.lanes.pipelines.split_stage import SplitStage
from clustersim.replay.lanes.stretched_pass import StretchedPass
from clustersim.replay.links.sharing_by_lanes import Use


class SplitPass:
    """A pass under way.

    Parameters
    ----------
    stage : SplitStage
    micro : SplitMicro
    price : SplitPrice
        Of the pass.
    start : int

    Attributes
    ----------
    end : int
        When it ends, as things are.
    outputs : list of int
        When each rank's output leaves, as things are.
    left : set of int
        The ranks whose output has.
    at : int
        The collective that is under way or comes next.
    """

    __slots__ = (
        "_ends", "_lost", "_uses", "at", "end", "kind", "left", "micro", "outputs", "price", "stage", "start",
    )  # fmt: skip

    def __init__(self, stage: SplitStage, micro: SplitMicro, price: SplitPrice, start: int) -> None:
        self.stage, self.micro, self.price, self.start, self.kind = stage, micro, price, start, micro.kind
        self.end = start + price[0]
        self.outputs = [start + leaves for leaves in price[4]]
        self.left: set[int] = set()
        self.at = 0
        self._lost: dict[int, int] = {}
        """Place among the collectives → nanoseconds by which it took longer than it costs."""
        self._ends: list[int] | None = None
        self._uses: dict[int, Use | None] = {}

    @property
    def instances(self) -> list[int]:
        """Its collectives among the instances."""
        return self.stage.collectives[self.kind]

    @property
    def ends(self) -> list[int]:
        """When each collective ends, as things are."""
        if self._ends is None:
            ends = self.stage.undisturbed(self.kind, self.price[1], self.price[2])
            self._ends = [self.start + end for end in ends]
        return self._ends

    def next_output(self) -> int:
        """Return when the next rank's output leaves."""
        return min([at for rank, at in enumerate(self.outputs) if rank not in self.left], default=NEVER)

    @property
    def count(self) -> int:
        """How many collectives there are."""
        return len(self.instances)

    def leaves(self, at: int) -> int:
        """Return when a collective ends, as things are."""
        return self.ends[at]

    def use(self, at: int) -> Use | None:
        """Return what a collective puts on links."""
        cls = self.stage.classes[self.kind][at]
        if cls not in self._uses:
            length = int(self.stage.prices.rows[STEP_KINDS[self.kind]][self.price[1]][0][cls])
            self._uses[cls] = self.stage.use(self.micro, cls, length)
        return self._uses[cls]

    def after(self, instant: int) -> int:
        """Return the first collective, of those to come, that ends after an instant."""
        return bisect_right(self.ends, instant, self.at)

    def meets(self, links: frozenset[int], enters: int, leaves: int) -> int:
        """Return the instant from which something on links in [enters, leaves) meets a collective, or ``leaves``."""
        if leaves <= self.start + self.stage.lead(self.kind, self.price[1]):
            return leaves
        for at in range(self.after(enters), len(self.instances)):
            use, ends = self.use(at), self.ends[at]
            if ends - (0 if use is None else use.transfer_ns) >= leaves:
                break
            if use is not None and not use.links.isdisjoint(links):
                return max(enters, ends - use.transfer_ns)
        return leaves

    def prolong(self, end: int) -> None:
        """Let the collective that is under way end at another instant."""
        later = end - self.ends[self.at]
        if not later:
            return
        self._lost[self.at] = self._lost.get(self.at, 0) + later
        total, leaves, ends = self.stage.stretched(self.kind, self.by_class, self._lost, len(self.outputs))
        self.end, self._ends = self.start + total, [self.start + one for one in ends]
        self.outputs = [self.start + one for one in leaves]

    @property
    def by_class(self) -> Int64Array:
        """What each class costs, ns."""
        return self.stage.by_class(self.kind, self.price[1], self.price[2])

    def late(self) -> StretchedPass | None:
        """Return where it took longer than it costs, if it did."""
        lost = [(self.instances[at], ns) for at, ns in self._lost.items() if ns]
        return StretchedPass(self.stage.templates[self.kind], self.by_class, lost) if lost else None
