"""To which replica of a pool something goes next, as far as what was declared determines it.

By ``round_robin`` to the next one of those that live, of which there are fewer while some have failed; by loads to
that which has least to do of them (``tally``); by any other policy to that which lives, where there is one. Where a
turn may have been taken of which there is no record, whoever is found somewhere next tells where the turns are
(:class:`Chain`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import Declared
from clustersim.legality.timeline_rules.requests.tally import UNKNOWN, Tally
from clustersim.values import dataclass


@dataclass(slots=True, eq=False)
class Chain:
    """Turns of which each follows from the one before: ``first`` is that of the first; ``size`` 0 is any number."""

    first: int | None = None
    size: int = 0
    count: int = 0


@dataclass(slots=True, eq=False)
class Place:
    """Where something went: ``told`` (``by_load``), or what follows from its turn among those that lived."""

    told: int = UNKNOWN
    by_load: bool = False
    turn: int = 0
    chain: Chain | None = None
    living: tuple[int, ...] = ()

    @property
    def replica(self) -> int:
        """The replica; ``UNKNOWN`` where nothing tells it."""
        if self.told != UNKNOWN or self.chain is None or self.chain.first is None:
            return self.told
        return self.living[(self.chain.first + self.turn) % len(self.living)]

    def found_at(self, replica: int) -> None:
        """Learn where it is."""
        if self.chain is not None and self.chain.first is None and replica in self.living:
            self.chain.first = self.living.index(replica) - self.turn
        self.told = replica


class Turns:
    """The turns of one pool.

    Parameters
    ----------
    pool : Declared
    unclear : set of int
        See :class:`Tally`.
    """

    def __init__(self, pool: Declared, unclear: set[int]) -> None:
        self.replicas = replicas = range(pool.first_replica, pool.first_replica + pool.dp)
        down = [one for one in pool.down if one.replica in replicas]
        self._changes: Int64Array = np.unique(np.array([instant for one in down for instant in one.instants], np.int64))
        instants = [-1, *self._changes.tolist()]
        self._living = [
            tuple(one for one in replicas if not any(r == one and since <= at < until for r, since, until in down))
            for at in instants
        ]
        self._by_turns = pool.router == "round_robin"
        self.chain = Chain(first=0)
        self.tally = Tally(pool, unclear)
        self.unsure = 0
        """How many steps may take turns now of which there is no record."""

    def living(self, time: int, *, after: bool) -> tuple[int, ...]:
        """Return who lives at an instant, before or after what fails or comes back then."""
        return self._living[int(np.searchsorted(self._changes, time, side="right" if after else "left"))]

    def doubt(self) -> None:
        """Forget whose turn it is."""
        self.chain = Chain()
        self.tally.doubt()

    def take(self, living: Sequence[int], time: int) -> Place | None:
        """Let something go to one of those that live; None where there is none."""
        if not living:
            return None
        chain, turn, size = self.chain, self.chain.count, len(living)
        chain.count += 1
        if size == 1:
            return Place(told=living[0])
        if self.unsure:
            return Place()
        if not self._by_turns:
            return Place(told=self.tally.chosen(living, time), by_load=True)
        if chain.size not in (0, size):
            self.chain = chain = Chain(count=1)
            turn = 0
        if chain.first is None or chain.size:
            chain.size = size
        return Place(turn=turn, chain=chain, living=tuple(living))
