"""Where the collectives of a pass are in time: the passes of one stage that sends may meet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.steps import StepPrices
from clustersim.graph.program import StageProgram
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedMicro
from clustersim.replay.links.sharing_by_lanes import Use
from clustersim.replay.links.uses import MOST_USES, Counts, Uses

MOST_ROWS: Final = 1000
"""Rows of durations whose collectives are remembered; they can be found again."""


class Collectives:
    """The collectives of passes of one kind with one row of durations.

    Parameters
    ----------
    kind : PassKind
    ends, lengths : list of int
        When each ends, in ns from the start of the pass and but for what varies; how long it takes.
    lead : int
        None starts before that.
    """

    __slots__ = ("ends", "kind", "lead", "lengths")

    def __init__(self, kind: PassKind, row: Int64Array) -> None:
        lengths = row[kind.classes]
        self.kind = kind
        self.ends: list[int] = (kind.before @ row + lengths).tolist()
        self.lengths: list[int] = lengths.tolist()
        self.lead = self.ends[0] - self.lengths[0] if self.ends else NEVER


class PassKind:
    """Where the collectives of one kind of pass are among its operators.

    Parameters
    ----------
    uses : Uses
        Of its program.
    columns : tuple of int
        The classes that vary with contexts.

    Attributes
    ----------
    instances, classes : list of int
        Of the collectives, in their order.
    before : int64 array of shape (collectives, classes)
        Instances of each class before each of them.
    """

    def __init__(self, uses: Uses, columns: tuple[int, ...] = ()) -> None:
        template, classes = uses.program.template, uses.program.classes
        order = template.instance_class
        self.uses = uses
        self.instances = [at for at, cls in enumerate(order.tolist()) if classes[cls].comm is not None]
        self.classes: list[int] = order[self.instances].tolist()
        happened = np.zeros((len(order) + 1, template.num_classes), np.int64)
        happened[np.arange(1, len(order) + 1), order] = 1
        self.before = np.cumsum(happened, axis=0)[self.instances]
        self.varying: list[list[int]] = [self.before[:, column].tolist() for column in columns]
        self.known: dict[int, Collectives] = {}


class SharedStage:
    """A stage whose collectives sends may meet.

    Parameters
    ----------
    prices : StepPrices
    programs : mapping
        Kind of step → program.
    comm : CommTable
    devices, after : tuple of int
        Of this stage and of the next one, which the last one has not.

    Attributes
    ----------
    sends : dict
        Counts of a step → what its sends put on links; None when nothing, or for no time.
    """

    def __init__(
        self,
        prices: StepPrices,
        programs: Mapping[str, StageProgram],
        comm: CommTable,
        devices: tuple[int, ...],
        after: tuple[int, ...],
    ) -> None:
        self.prices = prices
        self.uses = [Uses(programs[kind], prices.pricer, comm, devices, after) for kind in STEP_KINDS]
        self.kinds: dict[int, PassKind] = {}
        self.sends: dict[Counts, Use | None] = {}

    def send(self, micro: SharedMicro, duration_ns: int) -> Use | None:
        """Return what the sends after a pass put on links, and remember it."""
        uses = self.uses[micro.kind]
        if len(self.sends) >= MOST_USES:
            self.sends.clear()
        cls = uses.program.template.send_classes[0]
        found = self.sends[micro.counts] = uses.of(cls, micro.counts, duration_ns)
        return found

    def collectives(self, kind: int, number: int) -> Collectives:
        """Return the collectives of passes with this row of durations."""
        found = self.kinds.get(kind)
        if found is not None and number in found.known:
            return found.known[number]
        row, columns = self.prices.rows[STEP_KINDS[kind]][number]
        if found is None:
            found = self.kinds[kind] = PassKind(self.uses[kind], columns)
        if len(found.known) >= MOST_ROWS:
            found.known.clear()
        made = found.known[number] = Collectives(found, row)
        return made


class SharedPass:
    """A pass under way, and where its collectives are.

    Parameters
    ----------
    stage : SharedStage
    micro : SharedMicro
    number : int
        Row of durations.
    varying : tuple of int
        Nanoseconds of the columns that vary.
    start, length : int

    Attributes
    ----------
    at : int
        The collective that is under way or comes next.
    late : int
        What the pass has lost so far, in ns.
    stretches : list of int
        Instance and what it lost, in turns.
    """

    __slots__ = ("_found", "at", "late", "length", "micro", "number", "stage", "start", "stretches", "varying")

    def __init__(
        self,
        stage: SharedStage,
        micro: SharedMicro,
        number: int,
        varying: tuple[int, ...],
        start: int,
        length: int,
    ) -> None:
        self.stage = stage
        self.micro = micro
        self.number = number
        self.varying = varying
        self.start = start
        self.length = length
        self.at = 0
        self.late = 0
        self.stretches: list[int] = []
        self._found: Collectives | None = None

    @property
    def end(self) -> int:
        """When the pass ends, if nothing stretches it any more."""
        return self.start + self.length + self.late

    @property
    def found(self) -> Collectives:
        """Its collectives."""
        found = self._found
        if found is None:
            found = self._found = self.stage.collectives(self.micro.kind, self.number)
        return found

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.found.ends)

    def leaves(self, at: int) -> int:
        """Return when a collective ends, if nothing stretches the pass until then."""
        found = self.found
        ends = self.start + self.late + found.ends[at]
        for counts, ns in zip(found.kind.varying, self.varying, strict=True):
            ends += counts[at] * ns
        return ends

    def use(self, at: int) -> Use | None:
        """Return what a collective puts on links."""
        found = self.found
        return found.kind.uses.of(found.kind.classes[at], self.micro.counts, found.lengths[at])

    def after(self, instant: int, lost: int = 0) -> int:
        """Return the first collective, of those to come, that ends after an instant; ``lost`` is lost until then."""
        found = self.found
        ends, varying = found.ends, self.varying
        instant -= self.start + self.late + lost
        if len(varying) == 1:
            (counts,), ns = found.kind.varying, varying[0]
            return bisect_right(range(len(ends)), instant, self.at, key=lambda at: ends[at] + counts[at] * ns)
        before = self.start + self.late
        return bisect_right(range(len(ends)), instant, self.at, key=lambda at: self.leaves(at) - before)

    def meets(self, enters: int, leaves: int, lost: int = 0) -> int:
        """Return the instant from which something on the links in [enters, leaves) meets a collective, or ``leaves``.

        ``lost`` is what the pass loses before.
        """
        for at in range(self.after(enters, lost), self.count):
            ends = self.leaves(at) + lost
            if ends - self.found.lengths[at] >= leaves:
                break
            use = self.use(at)
            if use is not None:
                return min(leaves, max(enters, ends - use.transfer_ns))
        return leaves

    def lose(self, at: int, lost: int) -> None:
        """Account for what a collective that ended took longer."""
        if lost:
            self.late += lost
            self.stretches += (self.found.kind.instances[at], lost)
