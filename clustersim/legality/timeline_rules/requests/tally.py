"""What each replica of a pool has to do, as its router sees it: it follows from who went where.

::

    goes there ──► counts with all its tokens, and waits ──► is taken up, and runs ──► leaves, or its replica fails

So it is counted where replicas fail, and in a decode pool. Where it does not follow where something is, or at which
point of an instant it left, it does not follow either whom the router chooses. Which prompts are cached where
(``prefix_aware``) is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clustersim.legality.history import Declared
from clustersim.values import dataclass
from clustersim.workload.streams import named_stream

UNKNOWN: Final = -1
BY_LOAD: Final = ("least_outstanding", "fewest_waiting", "power_of_two")


@dataclass(slots=True)
class Held:
    """What counts: where, with how many tokens, and whether it runs."""

    replica: int
    tokens: int
    runs: bool = False


class Tally:
    """The loads of one pool.

    Parameters
    ----------
    pool : Declared
    unclear : set of int
        Instants at which something leaves, before or after others are sent somewhere.
    """

    def __init__(self, pool: Declared, unclear: set[int]) -> None:
        self.by_load = pool.dp > 1 and pool.router in BY_LOAD and pool.policy is not None
        self.by_load &= bool(pool.down) or pool.role == "decode"  # others are counted at once (``policy.loads``)
        self.unclear = unclear
        self.blind = False
        """Whether somebody went somewhere, and it did not follow where to."""
        self._router = pool.router
        self._held: dict[int, Held] = {}
        self._tokens: dict[int, int] = {}
        self._score: dict[int, int] = {}
        self._lost = 0
        self._draw = None
        if self.by_load and pool.router == "power_of_two":
            assert pool.policy is not None
            self._draw = named_stream(np.random.SeedSequence(pool.policy.seed), pool.policy.stream)

    def doubt(self) -> None:
        """Forget how often the router was asked."""
        self._draw = None

    def put(self, who: int, replica: int, tokens: int | None) -> None:
        """Let something go to a replica; ``UNKNOWN``, or without its tokens: nothing follows until it leaves."""
        if not self.by_load:
            return
        self.drop(who)
        self._held[who] = held = Held(UNKNOWN if tokens is None else replica, tokens or 0)
        self._count(held, 1)

    def find(self, who: int, replica: int) -> None:
        """Learn where something is."""
        held = self._held.get(who)
        if held is not None and held.replica != replica and held.tokens:
            self._count(held, -1)
            held.replica = replica
            self._count(held, 1)

    def run(self, who: int, *, runs: bool) -> None:
        """Let something be taken up, or wait again."""
        held = self._held.get(who)
        if held is not None:
            self._count(held, -1)
            held.runs = runs
            self._count(held, 1)

    def drop(self, who: int) -> None:
        """Let something leave."""
        held = self._held.pop(who, None)
        if held is not None:
            self._count(held, -1)

    def chosen(self, living: Sequence[int], time: int) -> int:
        """Return whom the router chooses among those that live; ``UNKNOWN`` where that does not follow."""
        if not self.by_load:
            return UNKNOWN
        among = living
        if self._router == "power_of_two":
            if self._draw is None:
                self.blind = True
                return UNKNOWN
            one, other = int(self._draw.integers(len(living))), int(self._draw.integers(max(1, len(living) - 1)))
            among = sorted({living[one], living[(other + (other >= one)) % len(living)]})
        if self._lost or time in self.unclear:
            self.blind = True
            return UNKNOWN
        load = self._score if self._router == "fewest_waiting" else self._tokens
        return min(among, key=lambda replica: (load.get(replica, 0), replica))

    def _count(self, held: Held, times: int) -> None:
        if held.replica == UNKNOWN:
            self._lost += times
            return
        for load, value in ((self._tokens, held.tokens), (self._score, 1 if held.runs else 4)):
            load[held.replica] = load.get(held.replica, 0) + times * value
