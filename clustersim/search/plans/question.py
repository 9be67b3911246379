"""What is asked of a search: what plans may use, what is the best of them, and how long it may take to find it."""

from __future__ import annotations

import math
from typing import Final

from clustersim.search.plans.room import Room
from clustersim.values import dataclass

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
    """Seconds of CPU, as expected, after which no more plans are screened."""
    rate_per_s: float | None = None
    """At which plans are compared by a number; None: the scenario's."""
    front: float | None = None
    """Of the area below the front: plans are simulated until none is expected to add more; None: none is for it."""
    front_s: float | None = None
    """Seconds of CPU for that, as expected; None: a part of ``effort_s``, or what is left of that."""

    @property
    def is_fixed(self) -> bool:
        """Whether plans are compared by a number of the summary, at the rate that the scenario has."""
        return self.objective not in OBJECTIVES
