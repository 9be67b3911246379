"""What failures move, as decisions taken a second time know it: who comes when to which replica, with how many tokens.

Where the router sends what has lost its replica is judged elsewhere (``routed``, ``requests.routing``): here each is
taken to go where it was found next, or where its turn leads. From when on that is not known, nothing is judged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from math import ceil, prod
from operator import itemgetter

import numpy as np

from clustersim.graph.template import PassTemplate
from clustersim.legality.declared.faults import SlowRank
from clustersim.legality.history import PREEMPTED, Declared
from clustersim.legality.prices.absent_step import lasts
from clustersim.legality.prices.prices import Prices
from clustersim.legality.timeline_rules.requests.tally import UNKNOWN
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.tables import Tables


class Moved:
    """Who comes to the replicas of a pool since others have failed.

    Parameters
    ----------
    whole : Reading
        Of all pools.
    declared : Declared
        Of the pool.
    told : bool
        Whether decisions of the pool are told at all.

    Attributes
    ----------
    until : int or None
        From when on it is not known who goes where, ns.
    alone : bool
        Whether there is one replica, so that what it served waits for it.
    breaks_off : bool
        Whether what is on its way from pool to pool may be broken off.
    """

    def __init__(self, whole: Reading, declared: Declared, *, told: bool) -> None:
        self.alone = declared.dp == 1 and declared.role == "all"
        self.breaks_off = declared.role != "all" and bool(whole.declared.down)
        self.until: int | None = None
        self._whole, self._declared = whole, declared
        self._to: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        if not told or self.alone or declared.role == "decode" or not whole.declared.down:
            return
        assert whole.whereabouts is not None
        generated = _generated(whole)
        for time, request, place in whole.whereabouts.moved:
            if place.replica == UNKNOWN:
                self.until = time if self.until is None else min(self.until, time)
            else:
                lost = generated.get(request, [])
                before = bisect_right(lost, time, key=itemgetter(0))
                self._to[place.replica].append((time, request, lost[before - 1][1] if before else 0))

    def lasts(self, chunks: list[tuple[int, int]], decodes: list[tuple[int, int]]) -> int | None:
        """Return what a step lasts at most that was not recorded, ns; None where that is not known.

        Parameters
        ----------
        chunks, decodes : list of (int, int)
            See :func:`absent_step.lasts`.
        """
        declared, tables = self._declared, self._whole.history.folded
        if declared.deployment is None or tables is None:
            return None
        found = lasts(self._prices, self._templates(tables), chunks, decodes)
        tokens = sum(count for _, count in chunks) + len(decodes)
        sent = self._sent(tokens) if declared.pp > 1 else 0.0
        if found is None or sent is None:
            return None
        return ceil((found + sent) * self._others * self._longer)

    @cached_property
    def _others(self) -> int:
        """How many may be on a link at a time: what collectives, sends and moves of K/V of each rank begin and get."""
        carriage = self._declared.carriage
        ranks = sum(one.dp * one.pp * one.stage_ranks for one in self._whole.history.pools)
        return 1 if carriage is not None and not carriage.users.contended else 1 + 2 * ranks

    def _sent(self, tokens: int) -> float | None:
        """Return what stages take at most to send so many tokens on, with nothing else on their links, ns."""
        declared = self._declared
        if declared.carriage is None or declared.hidden_bytes is None:
            return None
        ways = declared.carriage.sends(declared.first_rank)
        pairs = np.arange(declared.pp * declared.stage_ranks)
        each = ways.ns(pairs, np.full(len(pairs), tokens * declared.hidden_bytes))
        return float(each.max() * declared.pp)

    @cached_property
    def _longer(self) -> float:
        """How many times longer a step takes at most where something is slow, or a link carries less."""
        return max((_slowest(self._declared.slow), *(_longest(one.costs) for one in self._declared.weak_groups)))

    def _templates(self, tables: Tables) -> list[PassTemplate]:
        """Return those of the pool: of two pools that are not alike, those that it used."""
        plans = {(one.tp, one.sp, one.pp, one.ep, one.sp_scheme, one.sp_decode) for one in self._whole.history.pools}
        if len(plans) == 1:
            return list(tables.templates)
        passes, first = tables.passes, self._declared.first_replica
        mine = (passes["replica"] >= first) & (passes["replica"] < first + self._declared.dp)
        return [tables.templates[one] for one in np.unique(passes["template"][mine]).tolist()]

    @cached_property
    def _prices(self) -> Prices:
        assert self._declared.deployment is not None
        return Prices(self._declared.deployment, self._declared.first_replica)

    def to(self, replica: int) -> list[tuple[int, int, int]]:
        """Return instant, request and tokens that it has got, of what comes to a replica."""
        return self._to[replica]


def _slowest(slow: Sequence[SlowRank]) -> float:
    """Return how many times as long kernels of a rank take at most: as all that slows it down at an instant together.

    The most is reached where one of them begins.
    """
    each = (
        prod(other.slowdown for other in slow if other.rank == one.rank and other.covers(one.since_ns)) for one in slow
    )
    return max(each, default=1.0)


def _longest(costs: tuple[tuple[float, float], ...]) -> float:
    """Return how many times longer a collective takes, of what growing payloads cost and how much longer they take.

    Between two payloads both grow in proportion, and beyond the last two as between these.
    """
    slopes = [(longer - less) / (cost - before) for (before, less), (cost, longer) in pairwise(costs) if cost > before]
    return 1.0 + max((*slopes[-1:], *(longer / cost for cost, longer in costs if cost > 0)), default=0.0)


def _generated(whole: Reading) -> dict[int, list[tuple[int, int]]]:
    """Return when each request lost its entries, and the tokens that it had got by then."""
    facts = whole.history.facts
    assert facts is not None
    aside = whole.hand_overs.reservations  # blocks set aside in vain are told with the tokens that would have come
    rows = whole.facts_of(PREEMPTED)
    rows = rows if aside is None else rows[~np.isin(rows, aside.vain)]
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    columns = (facts[name][rows].tolist() for name in ("request", "time_ns", "value"))
    for request, time, value in sorted(zip(*columns, strict=True)):
        found[request].append((time, value))
    return found
