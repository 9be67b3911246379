"""What was on which link when, of links on which two may be at a time: sends, moves of K/V and collectives.

Of each communication: when its bytes can be on its links at the earliest and at the latest, and how many it brings to
each. It begins after its start-up (launch, latencies, what filling a pipeline takes) and ends when it ends. Collectives
are looked at in passes during which something else is on a link of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from clustersim.clock import LATEST_NS, NS_PER_S, FloatArray, Int64Array
from clustersim.legality.declared.transfers import BoolArray, Carriage
from clustersim.legality.declared.users import COLLECTIVES, Place
from clustersim.legality.history import Declared
from clustersim.legality.prices.contents import Contents
from clustersim.legality.prices.links import Loads, by_algorithm
from clustersim.legality.prices.prices import Priced, Prices
from clustersim.legality.timeline_rules.links.crowds import crowds_of
from clustersim.legality.timeline_rules.links.joining import Joining
from clustersim.legality.timeline_rules.transfers.carried import Transfers
from clustersim.plan.exchange import Exchange
from clustersim.timeline.passes import Block, Passes
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

Times = tuple[Int64Array, Int64Array]
"""Starts and ends of intervals that lie apart, in order."""
ALIKE: Final = 1e-9
"""Of two algorithms that take as long as each other to this share, either may have been chosen."""
LOST_NS: Final = 2.0
"""What a communication may lose to whole nanoseconds."""
AT_A_TIME: Final = 1 << 22
"""Operators of passes that are unfolded together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """Communications; a position in each array per communication.

    Parameters
    ----------
    way : int64 array
        Position in ``Traffic.ways``.
    carried : float array
        Payload in bytes.
    settled, enter, end, alone : float arrays
        When it was settled how links are, between which instants the bytes are on these, and for how long when nothing
        else is, ns.
    lost : float array
        How much longer each took than it costs, ns.
    """

    way: Int64Array
    carried: FloatArray
    settled: FloatArray
    enter: FloatArray
    end: FloatArray
    alone: FloatArray
    lost: FloatArray


class Traffic:
    """Collects what was on links on which two may be at a time.

    Parameters
    ----------
    carriage : Carriage

    Attributes
    ----------
    ways : list of Loads
        Bytes that a byte of a payload takes of the capacity of such links; ways that use none are not among them.
    untold : set of str
        Names of collectives of which the record does not tell what they carry.
    astray : list of (float, float, float)
        Of what took longer and is on no such link: when it was on its links, and what it lost.
    """

    def __init__(self, carriage: Carriage) -> None:
        self.contended = carriage.users.contended
        self.users = carriage.users
        self.ways: list[Loads] = []
        self.parts: list[Flows] = []
        self.untold: set[str] = set()
        self.astray: list[tuple[float, float, float]] = []

    def add(self, way: Int64Array, carried: FloatArray | Int64Array, *times: FloatArray | Int64Array) -> None:
        """Add communications; those of a way below 0 are on no such link."""
        *_, enter, end, _, lost = times
        for at in np.flatnonzero((way < 0) & (lost > LOST_NS)).tolist():
            self.astray.append((float(enter[at]), float(end[at]), float(lost[at])))
        some = np.flatnonzero(way >= 0)
        if len(some):
            settled, enter, end, alone, lost = (values[some].astype(np.float64) for values in times)
            self.parts.append(
                Flows(
                    way=way[some], carried=carried[some].astype(np.float64), settled=settled, enter=enter, end=end,
                    alone=alone, lost=lost,
                )
            )  # fmt: skip

    def way(self, loads: Loads) -> int:
        """Return the number of a way; −1 where it has none of these links."""
        mine = {link: load for link, load in loads.items() if link in self.contended}
        if not mine:
            return -1
        self.ways.append(mine)
        return len(self.ways) - 1

    def add_transfers(self, some: Transfers) -> None:
        """Add transfers from rank to rank."""
        distinct, of = np.unique(some.pair, return_inverse=True)
        numbers = np.array([self.way(some.ways.loads(pair)) for pair in distinct.tolist()], np.int64)
        taken = some.carried * some.ways.byte_s[some.pair]
        enter, alone = some.start + some.ways.silent_ns(some.pair, taken), taken * NS_PER_S
        self.add(numbers[of.reshape(-1)], some.carried, some.settled, enter, some.end, alone, some.end - enter - alone)

    def flows(self) -> Flows:
        """Return everything, in order of when it enters."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in self.parts] or [np.empty(0)])
            for name in ("way", "carried", "settled", "enter", "end", "alone", "lost")
        }
        order = np.argsort(columns["enter"], kind="stable")
        return Flows(**{name: values[order] for name, values in columns.items()})

    def met(self, place: Place) -> Times | None:
        """Return when something else is on a link of a stage's collectives, from when till when; None: always."""
        links = {link for link, users in self.contended.items() if (COLLECTIVES, *place) in users}
        others = {who[0] for link in links for who in self.contended[link] if who != (COLLECTIVES, *place)}
        if COLLECTIVES in others or place in self.users.own:
            return None
        uses = np.array([not links.isdisjoint(way) for way in self.ways], bool)
        chosen = [(part, np.flatnonzero(uses[part.way])) for part in self.parts]
        enter = np.concatenate([part.enter[some] for part, some in chosen] or [np.empty(0)])
        end = np.concatenate([part.end[some] for part, some in chosen] or [np.empty(0)])
        order = np.argsort(enter)
        crowds = crowds_of(enter[order], end[order], np.zeros(len(order)))
        ends = np.maximum.reduceat(crowds.end, crowds.first) if len(order) else end
        return np.floor(crowds.enter[crowds.first]).astype(np.int64), np.ceil(ends).astype(np.int64)


class Collectives:
    """Adds the collectives of one pool to the traffic.

    Parameters
    ----------
    traffic : Traffic
    tables : Tables
    passes : Passes
    contents : Contents
    declared : Declared
    """

    def __init__(
        self, traffic: Traffic, tables: Tables, passes: Passes, contents: Contents, declared: Declared
    ) -> None:
        assert declared.deployment is not None
        self.traffic, self.tables, self.passes, self.contents = traffic, tables, passes, contents
        self.prices = Prices(declared.deployment, declared.first_replica)
        self._known: dict[int, Joining] = {}
        self._ways: dict[tuple[object, ...], int] = {}

    def add(self, place: Place, times: Times | None) -> None:
        """Add those of a stage of a replica that overlap with some times, or took longer than they cost; None: all."""
        table = self.tables.passes
        rows = np.flatnonzero((table["replica"] == place[0]) & (table["stage"] == place[1]))
        if times is not None:
            starts, ends = self.passes.bounds
            rows = rows[_overlap(starts[rows], ends[rows], times) | (table["irregular"][rows] >= 0)]
        for number in np.unique(table["template"][rows]).tolist():
            if number not in self._known:
                template = self.tables.templates[number]
                known, unknown = self.prices.collectives(template)
                self._known[number] = Joining(self.tables, template, known)
                self.traffic.untold |= unknown
            joining = self._known[number]
            for block in self.passes.blocks(rows[table["template"][rows] == number]) if joining.columns else ():
                starts = self.passes.starts(block)
                many = max(1, AT_A_TIME // max(1, len(joining.template.instance_class)))
                for at in range(0, len(starts), many):
                    some = slice(at, at + many)
                    part = Block(runs=block.runs, of=block.of[some], index=block.index[some])
                    self._add_block(place, joining, part, starts[some], self.passes.durations(part, number), times)

    def _add_block(
        self, place: Place, joining: Joining, block: Block, begin: Int64Array, durations: Int64Array,
        times: Times | None,
    ) -> None:  # fmt: skip
        here, table = block.runs[block.of], self.tables.passes
        starts, ends = joining.times(durations, table["irregular"][here])
        starts, ends = starts + begin[:, None], ends + begin[:, None]
        longer = (table["irregular"][here] >= 0)[:, None] * (ends - starts - durations[:, joining.cls])
        meets = np.ones(starts.shape, bool) if times is None else _overlap_in_rows(starts, ends, times) | (longer > 0)
        rows = np.flatnonzero(meets.any(axis=1))
        step = table["first_step"][here[rows]].astype(np.int64) + block.index[rows]
        features = self.contents.at(np.full(len(step), place[0], np.int64), step)
        recorded = features.recorded
        for priced, columns in joining.columns:
            payload = np.where(recorded, self.prices.amount(priced.work, features, priced.s), np.nan)
            known = np.isfinite(payload)
            of, at = np.nonzero(meets[rows][:, columns] & known[:, None])
            if meets[rows[~known]][:, columns].any():
                self.traffic.untold.add(priced.name)
            some, of = np.unique(of, return_inverse=True)
            of = of.reshape(-1)
            way, busy_ns = self._ways_of(priced, place, payload[some])
            took = durations[rows[some], joining.cls[columns[0]]]
            alone = np.minimum(busy_ns, took)
            brought = payload[some] * (alone / np.maximum(busy_ns, 1.0))  # one that is too short is left to RUN-2
            row, at = rows[some][of], columns[at]
            self.traffic.add(
                way[of], brought[of], begin[row], starts[row, at] + (took - alone)[of], ends[row, at], alone[of],
                longer[row, at],
            )  # fmt: skip

    def _ways_of(self, priced: Priced, place: Place, payload: FloatArray) -> tuple[Int64Array, FloatArray]:
        """Return the way of each payload, and for how long it has its links when it is alone, ns."""
        kind, devices = priced.work.joins_by, self.prices.devices(*place, priced.groups[0])
        rates = self.prices.links.rates(kind, devices)
        seconds = by_algorithm(rates, payload)
        chosen = seconds <= seconds.min(axis=0) * (1 + ALIKE)
        busy = np.where(chosen, np.array([rate.link_s * payload for rate in rates]), 0.0).max(axis=0)
        distinct, of = np.unique(chosen, axis=1, return_inverse=True)
        ways = np.array([self._way(kind, devices, tuple(np.flatnonzero(one).tolist())) for one in distinct.T], np.int64)
        return ways[of.reshape(-1)], busy * NS_PER_S

    def _way(self, kind: str | Exchange, devices: tuple[int, ...], algorithms: Sequence[int]) -> int:
        """Return the way of the one of some algorithms that brings least to each link."""
        key = kind, devices, tuple(algorithms)
        if key not in self._ways:
            loads = self.prices.links.loads(kind, devices)
            some = [loads[number] for number in algorithms]
            least = {link: min(one[link] for one in some) for link in some[0] if all(link in one for one in some)}
            self._ways[key] = self.traffic.way(least)
        return self._ways[key]


def collective_places(traffic: Traffic, declared: Declared) -> Iterator[Place]:
    """Yield the stages of a pool whose collectives may meet something on a link."""
    for place in traffic.users.groups:
        if declared.first_replica <= place[0] < declared.first_replica + declared.dp and any(
            (COLLECTIVES, *place) in users for users in traffic.contended.values()
        ):
            yield place


def _overlap(start: Int64Array, end: Int64Array, times: Times) -> BoolArray:
    """Return which of some intervals overlap with one of others that lie apart, in order."""
    since, until = times
    found: BoolArray = np.append(since, LATEST_NS)[np.searchsorted(until, start, side="right")] < end
    return found


def _overlap_in_rows(start: Int64Array, end: Int64Array, times: Times) -> BoolArray:
    """Return the same of rows of intervals, each of which few of the others overlap."""
    since, until = times
    found = np.zeros(start.shape, bool)
    low = np.searchsorted(until, start.min(axis=1), side="right")
    high = np.searchsorted(since, end.max(axis=1), side="left")
    for turn in range(int((high - low).max(initial=0))):
        rows = np.flatnonzero(low + turn < high)
        at = (low[rows] + turn)[:, None]
        found[rows] |= (since[at] < end[rows]) & (until[at] > start[rows])
    return found
