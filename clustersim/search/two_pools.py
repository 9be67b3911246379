"""Sizes that were tried, and the fewest replicas of two pools that do.

What so many replicas of both pools do, more of either do, too. So for each number of the first pool there is a fewest
of the second one, and no number of the first needs a look with which even all that may still be spent on the second
does not do: of a few runs for each number of the first pool the cheapest pair is found, whatever the ratio of both.

With something lost that is not always so: one more replica of the first pool moves the second one to other nodes, and
the loss of one may take more of it. Then the answer does, and a cheaper pair may have been left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from clustersim.errors import Problem, UnreachedError
from clustersim.search.queue import growth_words
from clustersim.units import format_asked, format_share, plural

if TYPE_CHECKING:
    from clustersim.search.size import Counts, Size, Sizer

_BETWEEN: Final = 3
"""Sizes that are tried at a time, however many workers there are: the answer is the same for any number."""


class TriedSizes:
    """Sizes of one plan that were tried.

    Parameters
    ----------
    sizer : Sizer
    share : float
        Of all requests, that should meet every target.
    most : int
        Replicas of a pool to try at most.
    """

    def __init__(self, sizer: Sizer, share: float, most: int) -> None:
        self.sizer, self.share, self.most = sizer, share, most
        self.tried: dict[Counts, Size] = {}

    def attempt(self, some: Sequence[Counts]) -> None:
        """Try sizes that were not, together."""
        new = [counts for counts in dict.fromkeys(some) if counts not in self.tried]
        self.tried.update(zip(new, self.sizer.try_all(new, self.share), strict=True))

    def of(self, counts: Counts) -> Size:
        """Return what so many replicas bring."""
        self.attempt([counts])
        return self.tried[counts]

    def does(self, counts: Counts) -> bool:
        """Tell whether so many replicas do; of what was tried more, or fewer, it may be known."""
        return self.of(counts).does(self.share)

    def is_hopeless(self, counts: Counts) -> bool:
        """Tell whether as many replicas of each pool, or more, did not do."""
        return any(
            not size.does(self.share) and all(a <= b for a, b in zip(counts, other, strict=True))
            for other, size in self.tried.items()
        )

    def room_beside(self, first: Counts, devices: float | None = None) -> int:
        """Return how many replicas of the last pool there is room for beside those of the first."""
        of_last = self.sizer.ranks[-1]
        left = (self.sizer.room if devices is None else devices) - self.sizer.devices((*first, 0))
        return int(min(self.most, left / of_last))

    def fewest(self, first: Counts, low: int, high: int) -> int:
        """Return the fewest replicas of the last pool that do, beside those of the first: more than low, up to high."""
        while high - low > 1:
            steps = {low + (high - low) * number // (_BETWEEN + 1) for number in range(1, _BETWEEN + 1)}
            between = sorted(steps - {low})
            self.attempt([(*first, count) for count in between])
            high = next(count for count in (*between, high) if self.does((*first, count)))
            low = max(count for count in (low, *between) if count < high)
        return high

    def less(self, counts: Counts) -> list[Counts]:
        """Return sizes with a replica less of one pool."""
        found = [(*counts[:pool], counts[pool] - 1, *counts[pool + 1 :]) for pool in range(len(counts))]
        return [one for one in found if min(one) > 0]

    def lacking(self, counts: Counts, size: Size) -> str:
        """Return the name of the pool of which a size has fewer replicas."""
        return next(name for name, a, b in zip(self.sizer.pools, counts, size.counts, strict=True) if b < a)

    def not_enough(self, counts: Counts) -> UnreachedError:
        """Return the error for targets that as many replicas as may be don't meet.

        Raises
        ------
        IllegalPlanError
        """
        size, sizer = self.of(counts), self.sizer
        if _is_illegal(size):
            legal = [one for one in self.tried.values() if not _is_illegal(one)]
            if not legal:
                sizer.refuse_illegal()
            size = max(legal, default=size, key=lambda one: one.devices)
        failed = next((row["failed"] for row in (size.row, *size.lost) if row["failed"]), None)
        grows = "" if size.share < self.share else ", and " + growth_words(size.growing["numbers"])
        told = (
            f"; {failed}"
            if failed
            else f": {format_share(size.share)} of requests do, and {format_asked(self.share)} should{grows}"
        )
        if not failed and size.worst is not size.row and (left := sizer.none_left(size.counts)) is not None:
            told += f" ({left})"
        many = f"{plural(size.replicas, 'replica')} on {plural(size.devices, 'device')}"
        verb = "doesn't" if size.replicas == 1 else "don't"
        rest = f"{sizer.scenario.topology.name} has no room for more"
        if size.counts != counts:
            rest = "more of them are illegal"
        elif max(counts) == self.most:
            rest = f"raise --most, now {self.most}"
        return UnreachedError(Problem(message=f"{many} {verb} meet the targets{told}; {rest}, or use another plan"))


def _is_illegal(size: Size) -> bool:
    return (size.row["failed"] or "").startswith("illegal")


def least_of_two(sizes: TriedSizes) -> Counts:
    """Return the replicas of two pools that do with the fewest devices, once those beside them were tried.

    Raises
    ------
    UnreachedError
        When as many as may be are not enough.
    """
    sizer, best = sizes.sizer, None
    equal = 1
    while best is None and sizer.devices((equal, equal)) <= sizer.room:
        if sizes.does((equal, equal)):
            best = equal, equal
        elif equal == sizes.most:
            raise sizes.not_enough((equal, equal))
        equal = min(2 * equal, sizes.most)
    spend = sizer.room if best is None else sizer.devices(best) - 1
    largest: Counts = (1, 1)
    first = 1
    while (most := sizes.room_beside((first,), spend)) >= 1 and first <= sizes.most:
        largest = max(largest, (first, most), key=min)
        if not sizes.is_hopeless((first, most)) and sizes.does((first, most)):
            known = max((b for a, b in sizes.tried if a >= first and not sizes.does((a, b)) and b < most), default=0)
            best = first, sizes.fewest((first,), known, most)
            spend = sizer.devices(best) - 1
        first += 1
    if best is None:
        raise sizes.not_enough(largest)
    more = [(best[0] + 1, best[1]), (best[0], best[1] + 1)]
    sizes.attempt(
        [*sizes.less(best), *(one for one in more if sizer.devices(one) <= sizer.room and max(one) <= sizes.most)]
    )
    return best
