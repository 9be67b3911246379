"""A micro-batch on its way through stages that share links, and what is recorded of it."""

from __future__ import annotations

from clustersim.replay.lanes.log import STEP_ROW
from clustersim.replay.links.sharing_by_lanes import Use

KIND = STEP_ROW.index("kind")


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
