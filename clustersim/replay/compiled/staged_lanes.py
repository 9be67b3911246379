"""What drives :mod:`clustersim.replay.compiled.stages`, lanes with pipeline stages: their state, prices and log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import links as ln
from clustersim.replay.compiled import stages as st
from clustersim.replay.compiled.lanes import TABLES, CompiledLanes, tournament
from clustersim.replay.compiled.stage_prices import StagePrices
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import Lane


class StagedLanes(CompiledLanes):
    """Lanes with stages, whose sends meet nothing."""

    scalars = len(k.SCALARS) + len(st.SCALARS)
    unlogged = 2
    prices: StagePrices

    def __init__(self, intake: Intake, lanes: Sequence[Lane], prices: StagePrices, first: int, stride: int) -> None:
        self.stages = stages = len(prices.of_stage)
        super().__init__(intake, lanes, prices, first, stride)
        count, groups, slots = len(lanes), stages + 1, self.lines.shape[2]
        self.groups = np.zeros((count, groups, len(st.GROUP_SCALARS)), np.int64)
        self.members = np.zeros((count, groups, 2, slots), np.uint32)
        self.phases = np.zeros((count, groups, int(self.limits[k.SIZE])), np.int64)
        self.ready = np.zeros((count, 2, groups), np.int64)
        self.ready[:, st.SPARE] = np.arange(groups)
        self.state[:, st.SPARE_GROUPS] = groups
        self.flight = np.zeros((count, stages, len(ln.FLIGHT)), np.int64)
        self.carried = np.zeros((count, stages, slots), np.uint32)
        shapes = ((len(k.ROW),), (stages, 2), (self._classes(),), (stages - 1, 2))
        self.in_flight = [np.zeros((count, stages, *shape), np.int64) for shape in shapes]
        """Of each micro-batch: row, passes, what varies, sends."""
        each = (len(prices.kinds), max(int(one.cores.max(initial=1)) for one in prices.kinds))
        self.answer, self.pending = np.zeros(each, np.int64), np.zeros(each, np.int64)
        rows = self.rooms["rows"]
        self.shared, self.told, self.classes = map(_nothing, ((3, 2, 3, 3, 2, 4, 5), (4, 4, 3, 2), (6, 4, 3)))
        """State of stages and boundaries that share links, what is told of these, and prices by class: here none do."""
        self.passes, self.sends = np.zeros((rows, stages, 2), np.int64), np.zeros((rows, stages - 1, 2), np.int64)

    def _classes(self) -> int:
        return int(self._widths().max(initial=1))

    def _widths(self) -> Int64Array:
        """Return how many values vary in a step of each table of prices, over all stages."""
        widths: Int64Array = np.array([one.cores for one in self.prices.kinds])[self.prices.of_stage].sum(axis=0)
        return widths

    def _advance(self, fixed: tuple[Any, ...]) -> int:
        everything: list[Any] = [*fixed, *self.prices.arrays, *self.logged, self.passes, self.sends]
        everything += self.shared, self.told, self.classes
        status: int = st.advance_stages(*everything)
        return status

    def _fixed(self) -> tuple[Any, ...]:
        count, stages, prices = len(self.lanes), self.stages, self.prices
        return (
            self.clock, self.state, self.slots, self.lines, self.finishes, self.groups, self.members, self.phases,
            self.ready, np.full((count, stages), -1, np.int64), self.flight, self.carried, *self.in_flight,
            np.zeros((count, stages), np.int64), np.zeros((count, stages), np.int64), self.answer,
            np.zeros((len(prices.kinds), 3), np.int64), self.pending, prices.of_stage,
            self.ends, tournament(count), *self._requests(),
        )  # fmt: skip

    def _sizes(self, rows: Sequence[Any]) -> Int64Array:
        sizes: Int64Array = self._widths()[TABLES[rows[k.ROW_KIND]]]
        return sizes

    def _besides(self, order: Int64Array | slice) -> tuple[Int64Array, ...]:
        return self.passes[order], np.repeat(self.sends[order], self.lanes[0].log.ranks, axis=2)

    def _answer(self, status: int) -> None:
        s = self.state[self.clock[k.LANE]]
        table, counts = self._counts(s)
        if status == k.ASK_DECODE:
            self.prices.learn_decode(counts[3])
        elif status == k.ASK_PART:
            self.prices.learn_parts(table, counts)
        else:
            for answer, prices in zip(self.answer, self.prices.kinds, strict=True):
                varying = self._price(prices, s)[2]
                answer[: len(varying)] = varying
            self.clock[k.ANSWERED] = 1

    def _stop_lane(self, number: int) -> None:
        slot, flights, steps = self.slots[number], self._flights(number), []
        for at in flights:
            flight = self.flight[number, at]
            if flight[ln.FLIGHT_GROUP] >= 0:
                steps += [(one, flight[ln.FLIGHT_PREVIOUS]) for one in self._members(number, flight[ln.FLIGHT_GROUP])]
        for group in self.ready[number, st.WAITS, : self.state[number, st.WAITING_GROUPS]].tolist():
            last = self.groups[number, group, k.LAST]
            members = self._members(number, group)
            steps += [(one, slot[one, k.LAST_STEP] if slot[one, k.IS_FRESH] else last) for one in members]
        steps += self._apart(number)
        for at in flights:
            chunks = self.carried[number, at, : self.flight[number, at, ln.FLIGHT_CHUNKS]].tolist()
            steps += [(one, slot[one, k.LAST_STEP]) for one in chunks]
        self._close(number, steps)

    def _flights(self, number: int) -> list[int]:
        """Return where the micro-batches in flight are, in the order of launches."""
        oldest, flying = self.state[number, [st.OLDEST, st.FLYING]].tolist()
        return [(oldest + place) % self.stages for place in range(flying)]

    def _members(self, number: int, group: int) -> list[int]:
        """Return who is in a group, by when each has its last token, then by admission."""
        found: list[int] = self.members[number, group, k.HEAP, : self.groups[number, group, k.COUNT]].tolist()
        return sorted(found, key=lambda one: (self.finishes[number, one], self.slots[number, one, k.PLACE]))


def _nothing(dims: Sequence[int]) -> tuple[Int64Array, ...]:
    """Return empty arrays of so many dimensions each."""
    return tuple(np.zeros((0,) * each, np.int64) for each in dims)
