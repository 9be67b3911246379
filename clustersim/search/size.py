"""The fewest replicas whose requests meet their targets, for the workload as it is.

More replicas are taken to serve no request later. Devices are those that ranks are on, nodes as many as hold them; with
``survive``, targets are met as well while the first device, node or rack is down from the start: packed placement fills
it, so no other one holds more replicas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from clustersim.errors import InputError, Problem
from clustersim.report.metrics.latencies import targets_ns
from clustersim.search.point import Row
from clustersim.search.rate import SHARE, limiting, reason, refuse_impossible
from clustersim.search.runs import Runs
from clustersim.units import plural

BY: Final = ("devices", "nodes", "usd")
SURVIVES: Final = ("device", "node", "rack")
_BETWEEN: Final = 3
"""Sizes that are tried at a time, however many workers there are: the answer is the same for any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """So many replicas, what they take, and what came out: healthy, and with something lost.

    Parameters
    ----------
    replicas, devices, nodes : int
    usd_per_hour : float or None
        None where the device has no price.
    changes : tuple of str
    row : Row
    lost : Row or None
        With what is to be survived down; None where nothing is.
    """

    replicas: int
    devices: int
    nodes: int
    usd_per_hour: float | None
    changes: tuple[str, ...]
    row: Row
    lost: Row | None

    @property
    def share(self) -> float:
        """Share of all requests that meet every target, of the worse of both runs; 0 where one can't be simulated."""
        rows = [self.row] if self.lost is None else [self.row, self.lost]
        found = [0.0 if row["failed"] is not None else row["numbers"].get(SHARE) for row in rows]
        return min(0.0 if one is None else float(one) for one in found)

    def amount(self, by: str) -> float:
        """Return how much it takes of what is to be least."""
        return {"devices": self.devices, "nodes": self.nodes, "usd": self.usd_per_hour or 0.0}[by]


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
        if not targets_ns(scenario.targets):
            message = "says no target for a request; add --targets 'ttft=1 s, tpot=50 ms'"
            raise InputError(scenario.problem("targets", message))
        if scenario.hands_over:
            message = (
                "has two pools; size counts replicas of one: sweep over plan.prefill.dp and plan.decode.dp instead"
            )
            raise InputError(scenario.problem("plan", message))
        if scenario.plan.placement is not None:
            message = "names devices; expected packed, so that replicas can be added"
            raise InputError(scenario.problem("plan.placement", message))
        node_of = scenario.topology.node_of
        self.per_node = int((node_of == node_of[0]).sum())
        self.ranks = scenario.plan.world // scenario.plan.dp
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

    @property
    def most(self) -> int | None:
        """The most replicas that there is room for; None where nodes can be added."""
        return None if self.grows else self.has // self.ranks

    def try_all(self, counts: Sequence[int]) -> list[Size]:
        """Return what so many replicas each bring."""
        healthy = [self._changes(count) for count in counts]
        lost = [(*changes, self._faults(count)) for count, changes in zip(counts, healthy, strict=True)]
        rows = self.runs.rows([*healthy, *lost] if self.survive else healthy)
        price = self.scenario.topology.device.price_per_hour
        return [
            Size(
                replicas=count,
                devices=count * self.ranks,
                nodes=self._nodes(count),
                usd_per_hour=None if price is None else price * count * self.ranks,
                changes=healthy[place],
                row=rows[place],
                lost=rows[len(counts) + place] if self.survive else None,
            )
            for place, count in enumerate(counts)
        ]

    def _nodes(self, replicas: int) -> int:
        return -(-replicas * self.ranks // self.per_node)

    def _changes(self, replicas: int) -> tuple[str, ...]:
        nodes = (f"topology.nodes={self._nodes(replicas)}",) if self.grows else ()
        return (*self.plain, f"plan.dp={replicas}", *nodes)

    def none_left(self, replicas: int) -> str | None:
        """Say that each of so many replicas has a rank on what is lost; None where one has not."""
        nodes = min(self.rack, self._nodes(replicas))
        lost = 1 if self.survive == "device" else nodes * self.per_node
        if (replicas - 1) * self.ranks >= lost:
            return None
        first = self.scenario.topology.devices[0] if self.survive == "device" else "n0"
        return f"with {first} {f'to n{nodes - 1} ' if nodes > 1 else ''}lost no replica is left"

    def _faults(self, replicas: int) -> str:
        """Return the scenario's faults and what is to be survived: of a rack the nodes that there are."""
        if self.survive == "device":
            down: list[dict[str, Any]] = [{"device": 0, "at": "0 s"}]
        else:
            down = [{"node": node, "at": "0 s"} for node in range(min(self.rack, self._nodes(replicas)))]
        return "faults=" + json.dumps([*self.scenario.document.get("faults", []), *down])


def least_size(sizer: Sizer, *, share: float, most: int) -> Sized:
    """Return the fewest replicas with which a share of all requests meets every target.

    Parameters
    ----------
    sizer : Sizer
    share : float
    most : int
        Replicas to try at most.

    Raises
    ------
    InputError
        When even lone requests miss their targets, or so many replicas are not enough, with what they reach.
    """
    refuse_impossible(sizer.runs, sizer.scenario, share, sizer.try_all([1])[0].changes)
    room = most if sizer.most is None else min(most, sizer.most)
    if room < 1:
        has = f"{sizer.scenario.topology.name} {plural(sizer.has, 'device')}"
        message = f"a replica has {plural(sizer.ranks, 'rank')}, and {has}"
        raise InputError(sizer.scenario.problem("plan", message))
    tried: dict[int, Size] = {}

    def attempt(counts: Sequence[int]) -> None:
        new = [count for count in dict.fromkeys(counts) if count not in tried]
        tried.update(zip(new, sizer.try_all(new), strict=True))

    low, high = 0, 1
    attempt([high])
    while tried[high].share < share:
        if high == room:
            raise _not_enough(tried[high], share, sizer, most)
        low, high = high, min(2 * high, room)
        attempt([high])
    while high - low > 1:
        between = sorted({low + (high - low) * number // (_BETWEEN + 1) for number in range(1, _BETWEEN + 1)} - {low})
        attempt(between)
        high = next(count for count in (*between, high) if tried[count].share >= share)
        low = max(count for count in (low, *between) if count < high)
    attempt([count for count in (high + 1, high + 2) if count <= room])
    worse = tried.get(high - 1)
    row = None if worse is None else _worse_row(worse)
    limit = limiting(row["numbers"]) if row is not None and row["numbers"] else None
    why = None if limit is None or row is None else reason(limit, row["numbers"], sizer.scenario)
    if worse is not None and row is worse.lost:
        why = sizer.none_left(worse.replicas) or why
    return Sized(best=tried[high], tried=tuple(tried[count] for count in sorted(tried)), limited_by=limit, why=why)


def _worse_row(size: Size) -> Row:
    return size.row if size.lost is None or size.row["numbers"].get(SHARE, 0.0) < size.share else size.lost


def _not_enough(size: Size, share: float, sizer: Sizer, most: int) -> InputError:
    """Return the error for targets that as many replicas as may be don't meet."""
    failed = next((row["failed"] for row in (size.row, size.lost) if row is not None and row["failed"]), None)
    told = f"; {failed}" if failed else f": {size.share:.1%} of requests do, and {share:.0%} should"
    many = f"{plural(size.replicas, 'replica')} on {plural(size.devices, 'device')}"
    verb = "doesn't" if size.replicas == 1 else "don't"
    rest = (
        f"raise --most, now {most}" if size.replicas == most else f"{sizer.scenario.topology.name} has no room for more"
    )
    return InputError(Problem(message=f"{many} {verb} meet the targets{told}; {rest}, or use another plan"))


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
