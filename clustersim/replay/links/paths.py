"""Paths of transfers over the links of a topology, as :mod:`clustersim.core.flows` has them, made when they are needed.

A path carries one transfer at a time; where several are on their way over the same links, each has a path of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.collective.price import CommPlan
from clustersim.compiled import Objects, Storage, set_field
from clustersim.core.flows import NOBODY, WHOLE, Flows, Link, Path, Place, Traffic
from clustersim.errors import BrokenLawError

MOST_PLANS: Final = 10_000
"""Plans of which it is remembered which paths they take; that can be worked out again."""
Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Links, and what of each a transfer takes at full speed."""


def places_of(plans: Iterable[CommPlan], capacity: FloatArray) -> Places:
    """Return the links of communications that go together, and what of each they take at full speed.

    Raises
    ------
    BrokenLawError
        When one loads a link with nothing.
    """
    links: list[int] = []
    weights: list[int] = []
    for plan in plans:
        share = plan.load_per_byte / capacity[plan.links] / plan.seconds_per_byte
        if not share.min(initial=1.0) > 0.0:  # also when it is no number
            raise BrokenLawError(f"a communication takes {share.min()} of a link; it takes more than 0")
        links += plan.links.tolist()
        weights += np.clip(np.rint(share * WHOLE), 1, WHOLE).astype(np.int64).tolist()
    return tuple(links), tuple(weights)


def make_flows(storage: Storage, links: int, paths: Sequence[Places]) -> Flows:
    """Return links that carry all that they can, and paths that are free."""
    n = Flows(
        traffic=storage.records(Traffic, 1),
        paths=storage.records(Path, len(paths)),
        links=storage.records(Link, links),
        places=storage.records(Place, sum(len(of) for of, _ in paths)),
    )
    for link in range(links):
        set_field(n.links, link, "capacity", WHOLE)
        set_field(n.links, link, "first", NOBODY)
        set_field(n.links, link, "watcher", NOBODY)
    first = 0
    for f, places in enumerate(paths):
        first = _lay(n, f, first, places)
    return n


def place_on_links(places: Any, f: int, first: int, found: Places) -> int:
    """Say which links a path has, at places from one on; return the place behind them."""
    end = first + len(found[0])
    for place, link, weight in zip(range(first, end), *found, strict=True):
        for name, value in (("link", link), ("weight", weight), ("path", f)):
            set_field(places, place, name, value)
    return end


def _lay(n: Flows, f: int, first: int, places: Places) -> int:
    end = place_on_links(n.places, f, first, places)
    set_field(n.paths, f, "first", first)
    set_field(n.paths, f, "end", end)
    return end


class LinkPaths:
    """All paths that were needed so far.

    Parameters
    ----------
    capacity : float array of shape (links,)
        Bytes per second.

    Attributes
    ----------
    n : Flows
    """

    def __init__(self, capacity: FloatArray) -> None:
        self.capacity = capacity
        self.n = make_flows(Objects(), len(capacity), [])
        self._free: dict[Places, list[int]] = {}
        self._known: dict[tuple[CommPlan, ...], list[int]] = {}
        self._home: list[list[int]] = []

    def take(self, plans: tuple[CommPlan, ...]) -> int:
        """Return a free path of communications that go together."""
        free = self._known.get(plans)
        if free is None:
            if len(self._known) >= MOST_PLANS:
                self._known.clear()
            places = places_of(plans, self.capacity)
            free = self._known[plans] = self._free.setdefault(places, [])
            if not free:
                return self._made(places, free)
        return free.pop() if free else self._made(places_of(plans, self.capacity), free)

    def give_back(self, f: int) -> None:
        """Let a path be taken by another transfer."""
        self._home[f].append(f)

    def _made(self, places: Places, home: list[int]) -> int:
        n, f, first = self.n, len(self.n.paths), len(self.n.places)
        storage = Objects()
        n.paths.extend(storage.records(Path, 1))
        n.places.extend(storage.records(Place, len(places[0])))
        _lay(n, f, first, places)
        self._home.append(home)
        return f

    def links_of(self, f: int) -> list[int]:
        """Return the links of a path."""
        path = self.n.paths[f]
        return [place.link for place in self.n.places[path.first : path.end]]


def shares_of(capacity: FloatArray, left: FloatArray) -> Int64Array:
    """Return what weak links carry, of what they should."""
    found: Int64Array = np.rint(left / capacity * WHOLE).astype(np.int64)
    return found
