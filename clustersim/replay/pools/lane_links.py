"""A lane as who has K/V on its links knows it, where K/V and collectives are on links without events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from clustersim.replay.events.wiring import OnLayer
from clustersim.replay.instant import now_ns

if TYPE_CHECKING:
    from clustersim.replay.pools.kv_traffic import KvTraffic


class LaneLinks:
    """What tells of a lane here, as :class:`~clustersim.replay.lanes.link_watch.LinkWatch` does where links are events.

    Parameters
    ----------
    traffic : KvTraffic
    stage : int
        Its number there.
    """

    def __init__(self, traffic: KvTraffic, stage: int) -> None:
        self.traffic = traffic
        self.stage = stage

    @property
    def foreign(self) -> int:
        """How many moves are on its links."""
        return self.traffic.foreign[self.stage]

    def listen(self, on_change: Callable[[], None]) -> None:
        """Let ``on_change`` be called when the end of the lane is another one."""
        self.traffic.on_change[self.stage] = on_change

    def meet(self) -> None:
        """Look at the step that is under way, where something is on the links."""
        if self.foreign:
            self.traffic.attend(self.stage, now_ns(self.traffic.env))
            self.traffic.wait()

    passes: Final = None
    """What it does not foresee: when layers are passed."""

    def begin(self, on_layer: OnLayer | None) -> None:
        """Let ``on_layer`` be called for each layer of the step that begins now."""
        if on_layer is not None:
            self.traffic.mark(self.stage, on_layer)
