"""Links shared by lanes: the flows of one replica without a clock of their own.

How they share links is :mod:`clustersim.core.flows`' to work out. Flows are few (the sends in flight and a collective
per stage) and have numbers. All ranks of a send do the same, so they are one flow here, over the links of each.
"""

from __future__ import annotations

from clustersim.clock import FloatArray
from clustersim.collective.price import CommPlan
from clustersim.core.flows import enter, leave, share
from clustersim.replay.links.paths import LinkPaths
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Use:
    """What a communication puts on links.

    Parameters
    ----------
    transfer_ns : int
        How long it uses them when alone; above 0.
    links : frozenset of int
    plans : tuple of CommPlan
        One for a collective, one per rank for the sends of a stage.
    """

    transfer_ns: int
    links: frozenset[int]
    plans: tuple[CommPlan, ...]


class SharedFlows:
    """Flows on links.

    Parameters
    ----------
    capacity : float array of shape (links,)
        Bytes per second.
    """

    def __init__(self, capacity: FloatArray) -> None:
        self.paths = LinkPaths(capacity)
        self.path_of: dict[int, int] = {}
        self.number_of: dict[int, int] = {}

    @property
    def touched(self) -> bool:
        """Whether links are to be shared again."""
        return bool(self.paths.n.traffic[0].touched)

    def enter(self, number: int, use: Use, since: int) -> None:
        """Put a flow on its links, where it has been alone since an instant."""
        f = self.paths.take(use.plans)
        self.path_of[number], self.number_of[f] = f, number
        enter(self.paths.n, f, since, use.transfer_ns)

    def leave(self, number: int) -> None:
        """Take a flow off its links."""
        f = self.path_of.pop(number)
        leave(self.paths.n, f)
        self.paths.give_back(f)

    def solve(self, now: int) -> list[tuple[int, int]]:
        """Share out the links of what was touched; return the flows whose end is new, and when that is."""
        n = self.paths.n
        share(n, now)
        changed = [path.changed for path in n.paths[: n.traffic[0].changed]]
        return [(self.number_of[f], n.paths[f].due) for f in changed]
