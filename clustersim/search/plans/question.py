"""What is asked of a search: what plans may use, what is the best of them, and how long it may take to find it."""

from __future__ import annotations

import math
from typing import Final

from clustersim.search.plans.room import Room
from clustersim.values import dataclass

_FEW_PLANS: Final = 512
"""Plans of which all can be looked at in seconds, so that the front comes to its end …"""
_OF_FEW: Final = 0.5
"""… with so much of the effort for itself, at least …"""
_OF_MANY: Final = 0.25
"""… and of more."""
OBJECTIVES: Final = ("capacity_per_device", "capacity_per_usd", "capacity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked."""

    room: Room
    share: float
    lasting_s: float
    objective: str
    exhaustive: bool
    effort_s: float = math.inf
    """Seconds of CPU for all of it, as expected …"""
    rate_per_s: float | None = None
    """At which plans are compared by a number; None: the scenario's."""
    front: float | None = None
    """Of the area below the front: plans are simulated until none is expected to add more; None: none is for it."""
    front_s: float | None = None
    """… and for the front, beside these; None: it has a part of them, or what is left."""

    @property
    def is_fixed(self) -> bool:
        """Whether plans are compared by a number of the summary, at the rate that the scenario has."""
        return self.objective not in OBJECTIVES

    def answer_s(self, plans: int) -> float:
        """Return the seconds in which the best of so many plans is looked for: the rest is the front's."""
        if self.front is None or self.front_s is not None or self.exhaustive:
            return self.effort_s
        return self.effort_s * (1.0 - (_OF_FEW if plans <= _FEW_PLANS else _OF_MANY))
