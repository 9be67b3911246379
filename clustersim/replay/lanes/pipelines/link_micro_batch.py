"""A micro-batch on its way through stages that share links, and what is recorded of it."""

from __future__ import annotations

from clustersim.graph.prices.steps import StepPrice
from clustersim.replay.lanes.log import STEP_ROW
from clustersim.replay.links.sharing_by_lanes import Use
from clustersim.replay.links.uses import Counts
from clustersim.serving.grouped.batch import Batch

KIND = STEP_ROW.index("kind")


class SharedMicro:
    """One step, from its launch until it has left the last stage.

    Parameters
    ----------
    batch : Batch
    row : tuple of int
        ``lane_log.STEP_ROW``.
    counts : Counts
        What payloads depend on.
    priced : list of StepPrice
        Stage by stage.

    Attributes
    ----------
    kind : int
        Position in ``STEP_KINDS``.
    passes, sent : list of int
        Starts and rows of passes, and starts and ends of sends by rank, as :meth:`LaneLog.step` has them.
    sends : list of SharedSend or None
        Per boundary what is forecast.
    stretched : list of (stage, list of int)
        Which passes lost time: instance and ns, in turns.
    """

    __slots__ = ("batch", "counts", "kind", "passes", "priced", "row", "sends", "sent", "stretched")

    def __init__(self, batch: Batch, row: tuple[int, ...], counts: Counts, priced: list[StepPrice]) -> None:
        self.batch = batch
        self.row = row
        self.kind = row[KIND]
        self.counts = counts
        self.priced = priced
        self.passes: list[int] = []
        self.sent: list[int] = []
        self.sends: list[SharedSend | None] = [None] * (len(priced) - 1)
        self.stretched: list[tuple[int, list[int]]] = []


class SharedSend:
    """The sends of all ranks over one boundary, under way.

    Attributes
    ----------
    enters, end : int
        When they get on their links and when they end, if they are alone.
    use : Use or None
        What they put on links; None when nothing, or for no time.
    """

    __slots__ = ("end", "enters", "use")

    def __init__(self, enters: int, end: int, use: Use | None) -> None:
        self.enters = enters
        self.end = end
        self.use = use
