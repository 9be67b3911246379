"""The fewest replicas whose requests meet their targets, for the workload as it is; of two pools, of both together.

More replicas are taken to serve no request later. Devices are those that ranks are on, nodes as many as hold them; with
``survive``, targets are met as well while the first device, node or rack is down from the start: packed placement fills
it, so no other one holds more replicas. Of two pools the second one begins behind the first: the device, node or rack
where it begins is lost in another run, and the next one, which holds more of it, in a third. How two pools are searched
is in :mod:`clustersim.search.two_pools`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from clustersim.errors import InputError
from clustersim.search.load import check_targets, load_of
from clustersim.search.point import Row
from clustersim.search.queue import is_borne, is_growing, share_of, until_steady
from clustersim.search.rate import QUEUE, limiting, reason, refuse_impossible
from clustersim.search.runs import Runs
from clustersim.search.two_pools import TriedSizes, least_of_two
from clustersim.units import plural
from clustersim.values import dataclass

Counts = tuple[int, ...]
"""Replicas of each pool."""

BY: Final = ("devices", "nodes", "usd")
SURVIVES: Final = ("device", "node", "rack")
FOUND: Final = re.compile(r"(plan(\.prefill|\.decode)?\.dp|topology\.nodes)(\.|$)")
"""Keys that are found, so that they are not varied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """So many replicas, what they take, and what came out: healthy, and with something lost.

    Parameters
    ----------
    counts : tuple of int
        Replicas of each pool.
    devices, nodes : int
    usd_per_hour : float or None
        None where the device has no price.
    changes : tuple of str
    row : Row
    lost : tuple of Row
        With what is to be survived down, one after the other; none where nothing is.
    lost_changes : tuple of tuple of str
        The changes of each of them, which say the fault.
    """

    counts: Counts
    devices: int
    nodes: int
    usd_per_hour: float | None
    changes: tuple[str, ...]
    row: Row
    lost: tuple[Row, ...]
    lost_changes: tuple[tuple[str, ...], ...] = ()

    @property
    def replicas(self) -> int:
        """Replicas of all pools."""
        return sum(self.counts)

    @property
    def worst(self) -> Row:
        """The run that the fewest requests meet their targets in."""
        return self._worst[0]

    @property
    def worst_changes(self) -> tuple[str, ...]:
        """The changes of that run."""
        return self._worst[1]

    @property
    def _worst(self) -> tuple[Row, tuple[str, ...]]:
        """Of runs with alike shares that with something lost, and of these the one with the longest p99 of TTFT."""
        runs = [*zip(self.lost, self.lost_changes, strict=True), (self.row, self.changes)]
        return min(runs, key=lambda run: (share_of(run[0]), run[0] is self.row, -_p99(run[0])))

    @property
    def share(self) -> float:
        """Share of all requests that meet every target, of the worst run; 0 where one can't be simulated."""
        return share_of(self.worst)

    def does(self, share: float) -> bool:
        """Whether the rate is borne in each run: so many requests meet every target, and the queue does not grow."""
        return all(is_borne([row], share) for row in (self.row, *self.lost))

    @property
    def growing(self) -> Row:
        """The run whose queue grows; the worst one where none does."""
        return next((row for row in (self.row, *self.lost) if is_growing([row])), self.worst)

    def amount(self, by: str) -> float:
        """Return how much it takes of what is to be least."""
        return {"devices": self.devices, "nodes": self.nodes, "usd": self.usd_per_hour or 0.0}[by]


def _p99(row: Row) -> float:
    return float(row["numbers"].get("ttft_ms.p99") or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The least size, all that were tried for its plan, and what one replica less misses."""

    best: Size
    tried: tuple[Size, ...]
    limited_by: str | None
    why: str | None


class Sizer:
    """Tries sizes of one plan.

    Parameters
    ----------
    runs : Runs
    changes : sequence of str
        What the plan has in place of the scenario's values.
    survive : str or None
        ``device``, ``node`` or ``rack``.
    rack_nodes : int or None
        Nodes of a rack.

    Raises
    ------
    InputError
        When replicas of the plan can't be counted, or there are no targets.
    """

    def __init__(self, runs: Runs, changes: Sequence[str], survive: str | None, rack_nodes: int | None) -> None:
        self.runs, self.plain = runs, tuple(changes)
        self.scenario = scenario = runs.variants.scenario(changes)
        check_targets(scenario)
        self.pools = tuple(pool.name for pool in scenario.pools)
        self.plans = [f"plan.{name}" for name in self.pools] if scenario.hands_over else ["plan"]
        for pool, plan in zip(scenario.pools, self.plans, strict=True):
            if pool.is_placed:
                message = "names devices; expected packed, so that replicas can be added"
                raise InputError(scenario.problem(f"{plan}.placement", message))
        node_of = scenario.topology.node_of
        self.per_node = int((node_of == node_of[0]).sum())
        self.ranks = tuple(pool.plan.world // pool.plan.dp for pool in scenario.pools)
        self.grows = "nodes" in scenario.document["topology"]
        self.has = len(scenario.topology.devices)
        self.survive = survive
        self.rack = self._rack_nodes(rack_nodes) if survive == "rack" else 1

    def _rack_nodes(self, told: int | None) -> int:
        fabric = self.scenario.document["topology"].get("fabric", {})
        found = told or fabric.get("nodes_per_leaf")
        if found is None:
            message = "does not say how many nodes a rack has; add --rack-nodes"
            raise InputError(self.scenario.problem("topology", message))
        return int(found)

    def refuse_unpriced(self) -> None:
        """Refuse a device that has no price.

        Raises
        ------
        InputError
            With where one is written.
        """
        device = self.scenario.topology.device
        if device.price_per_hour is None:
            message = f"{device.name} has no price; add one with --set 'topology.price=2.5 USD/h'"
            raise InputError(self.scenario.problem("topology", message))

    def refuse_illegal(self) -> None:
        """Refuse a plan that is illegal with one replica, where there is room for any degree on as many nodes.

        Raises
        ------
        IllegalPlanError
        """
        least = tuple(1 for _ in self.ranks)
        nodes = (f"topology.nodes={self._nodes(least) * self.per_node}",) if self.grows else ()
        self.runs.variants.refuse_illegal((*self._changes(least), *nodes))

    def devices(self, counts: Counts) -> int:
        """Return how many devices so many replicas take."""
        return sum(count * ranks for count, ranks in zip(counts, self.ranks, strict=True))

    @property
    def room(self) -> float:
        """The most devices that there is room for; without end where nodes can be added."""
        return math.inf if self.grows else self.has

    def try_all(self, some: Sequence[Counts], share: float) -> list[Size]:
        """Return what so many replicas each bring; where enough requests meet their targets, of a steady queue."""
        each = [[(*self._changes(counts), *fault) for fault in self._faults(counts)] for counts in some]
        asked = list(chain.from_iterable(each))

        def run(which: Sequence[tuple[int, int]]) -> list[list[Row]]:
            return [[row] for row in self.runs.rows([self._longer(asked[at], times) for at, times in which])]

        found = zip(asked, until_steady(run, len(asked), share), strict=True)
        made = iter([(self._longer(changes, times), row) for changes, (times, (row,)) in found])
        price = self.scenario.topology.device.price_per_hour
        sizes = []
        for counts, own in zip(some, each, strict=True):
            (changes, row), *lost = itertools.islice(made, len(own))
            sizes.append(
                Size(
                    counts=counts,
                    devices=self.devices(counts),
                    nodes=self._nodes(counts),
                    usd_per_hour=None if price is None else price * self.devices(counts),
                    changes=changes,
                    row=row,
                    lost=tuple(row for _, row in lost),
                    lost_changes=tuple(changes for changes, _ in lost),
                )
            )
        return sizes

    def _longer(self, changes: tuple[str, ...], times: int) -> tuple[str, ...]:
        """Return what makes so many times as many requests come, at the rate that the scenario has."""
        if times == 1:
            return changes
        load = load_of(self.scenario, self.runs.variants.requests, 0.0)
        return (*changes, *load.longer(times).changes(load.first))

    def _nodes(self, counts: Counts) -> int:
        return -(-self.devices(counts) // self.per_node)

    def _changes(self, counts: Counts) -> tuple[str, ...]:
        nodes = (f"topology.nodes={self._nodes(counts)}",) if self.grows else ()
        replicas = (f"{plan}.dp={count}" for plan, count in zip(self.plans, counts, strict=True))
        return (*self.plain, *replicas, *nodes)

    def none_left(self, counts: Counts) -> str | None:
        """Say that each replica of a pool has a rank on what is lost; None where one has not."""
        nodes = min(self.rack, self._nodes(counts))
        lost = 1 if self.survive == "device" else nodes * self.per_node
        for name, count, ranks in zip(self.pools, counts, self.ranks, strict=True):
            if (count - 1) * ranks < lost:
                if len(counts) > 1:
                    return f"with a {self.survive} lost no {name} replica is left"
                first = self.scenario.topology.devices[0] if self.survive == "device" else "n0"
                return f"with {first} {f'to n{nodes - 1} ' if nodes > 1 else ''}lost no replica is left"
        return None

    def _faults(self, counts: Counts) -> list[tuple[str, ...]]:
        """Return what is down in each run, none in the first: what is to be survived beside the scenario's faults; of a
        rack the nodes that there are."""
        if self.survive is None:
            return [()]
        begins = [self.devices((*counts[:pool], *[0] * (len(counts) - pool))) for pool in range(len(counts))]
        if self.survive == "device":
            down: list[list[dict[str, Any]]] = [[{"device": begin, "at": "0 s"}] for begin in begins]
        else:
            nodes, rack = self._nodes(counts), self.rack
            firsts = [begin // self.per_node // rack * rack for begin in begins]
            firsts += [first + rack for first in firsts[1:] if first + rack < nodes]
            down = [
                [{"node": node, "at": "0 s"} for node in range(first, min(first + rack, nodes))]
                for first in dict.fromkeys(firsts)
            ]
        before = self.scenario.document.get("faults", [])
        return [(), *(("faults=" + json.dumps([*before, *one]),) for one in down)]


def least_size(sizer: Sizer, *, share: float, most: int) -> Sized:
    """Return the fewest replicas with which a share of all requests meets every target.

    Parameters
    ----------
    sizer : Sizer
    share : float
    most : int
        Replicas of a pool to try at most.

    Raises
    ------
    UnreachedError
        When even lone requests miss their targets, or so many replicas are not enough, with what they reach.
    InputError
        When there is no room for a replica.
    IllegalPlanError
    """
    least = tuple(1 for _ in sizer.ranks)
    if sizer.devices(least) > sizer.room:
        has = f"{sizer.scenario.topology.name} {plural(sizer.has, 'device')}"
        one = "a replica" if len(least) == 1 else "a replica of each pool"
        message = f"{one} has {plural(sizer.devices(least), 'rank')}, and {has}"
        raise InputError(sizer.scenario.problem("plan", message))
    sizes = TriedSizes(sizer, share, most)
    refuse_impossible(sizer.runs, sizer.scenario, share, sizes.of(least).changes)
    best = least_of_two(sizes) if len(least) > 1 else _least_of_one(sizes)
    worse = [sizes.tried[one] for one in sizes.less(best) if one in sizes.tried]
    told = [(one, *_lacks(sizer, one, share)) for one in worse]
    why = None
    if len(least) > 1:
        parts = [f"of {sizes.lacking(best, one)}, {text}" for one, _, text in told if text]
        why = "; ".join(parts) or None
    elif told:
        why = told[0][2]
    return Sized(
        best=sizes.tried[best],
        tried=tuple(sizes.tried[counts] for counts in sorted(sizes.tried, key=lambda one: (sizer.devices(one), one))),
        limited_by=max(told, key=lambda one: one[0].share)[1] if told else None,
        why=why,
    )


def _least_of_one(sizes: TriedSizes) -> Counts:
    """Return the fewest replicas of one pool that do, with those that one less and one or two more were tried."""
    room = sizes.room_beside(())
    low, high = 0, 1
    while not sizes.does((high,)):
        if high == room:
            raise sizes.not_enough((high,))
        low, high = high, min(2 * high, room)
    high = sizes.fewest((), low, high)
    sizes.attempt([(count,) for count in (high + 1, high + 2) if count <= room])
    return (high,)


def _lacks(sizer: Sizer, size: Size, share: float) -> tuple[str | None, str | None]:
    """Return which target most requests miss with a size, and why; none where no replica is left to meet it."""
    row = size.worst if size.share < share else size.growing
    lost = None if row is size.row else sizer.none_left(size.counts)
    if lost or not row["numbers"]:
        return None, lost
    limit = limiting(row["numbers"]) if size.share < share else QUEUE
    return limit, reason(limit, row["numbers"], sizer.scenario)


def nested(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers by dotted key as a summary has them."""
    found: dict[str, Any] = {}
    for key, value in numbers.items():
        *before, last = key.split(".")
        inside = found
        for part in before:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return found
