"""What drives lanes of one stage, and those of :mod:`clustersim.replay.compiled.kernel`: state, prices and log."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled.lanes import TABLES, TOGETHER, CompiledLanes, Prices, by_lane, tournament
from clustersim.replay.compiled.prices import DECODE, KernelPrices
from clustersim.replay.events import decode_run
from clustersim.replay.lanes.host_copies import CopyLog
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import Lane
from clustersim.replay.lanes.log import STEP_ROW
from clustersim.replay.lanes.swapping_lane import SwappingLane


class StageLanes(CompiledLanes):
    """Lanes of one stage, those of one pool or of two."""

    scalars = len(k.SCALARS)
    unlogged = 1

    def __init__(self, intake: Intake, lanes: Sequence[Lane], prices: Prices, first: int, stride: int) -> None:
        super().__init__(intake, lanes, prices, first, stride)
        count = len(lanes)
        self.phases = np.zeros((count, int(self.limits[k.SIZE])), np.int64)
        self.heads = np.zeros((count, len(k.ROW)), np.int64)
        self.pending = np.zeros((count, decode_run.MAX_RUN * self._classes() + TOGETHER), np.int64)
        self.answer = np.zeros(self._classes(), np.int64)
        swapping = [lane for lane in lanes if isinstance(lane, SwappingLane)]  # all of them, or none
        self.copies_ns = np.zeros((2, 0), np.int64)
        self.copied = np.zeros((int(self.limits[k.ROOM_ROWS]) + 2 if swapping else 0, 7), np.int64)
        for number, lane in enumerate(swapping):
            self.copies_ns = lane.copies.took_ns
            self.state[number, k.HOST] = lane.host.free[0]

    def _hand_on(self, now: int, *, stops: bool = False) -> int:
        """Hand on what was logged since the last time, copies too; see :meth:`CompiledLanes._hand_on`."""
        table = self.copied[: self.clock[k.COPY_AT]]
        self.clock[k.COPY_AT] = 0
        order, cuts = by_lane(table[:, -1], len(self.lanes))
        for lane, mine in zip(self.lanes, np.split(table[order, :-1], cuts[1:-1]), strict=True):
            if isinstance(lane.log, CopyLog):
                lane.log.hand_copies(mine)
        return super()._hand_on(now, stops=stops)

    @abstractmethod
    def _prices(self) -> KernelPrices:
        """Return the prices of the lane that asks."""

    def _answer(self, status: int) -> None:
        prices, s = self._prices(), self.state[self.clock[k.LANE]]
        table, counts = self._counts(s)
        if status == k.ASK_DECODE:
            prices.learn_decode(counts[3])
        elif status == k.ASK_PART:
            prices.learn_parts(table, counts)
        else:
            base, number, varying = self._price(prices, s)
            if status == k.ASK_STEP:
                self.answer[: len(varying)] = varying
                self.clock[k.ANSWERED] = 1
                return
            at, key = k.find_row(s, prices.weights[table], prices.keys[table])
            prices.learn_row(table, int(at), int(key), base, number)

    def _stop_lane(self, number: int) -> None:
        s, slot, line, log = self.state[number], self.slots[number], self.lines[number], self.lanes[number].log
        prices, flies, decodes = self._prices(), s[k.STEPS] > 0, int(s[k.DECODES])
        previous = int(s[k.BEFORE])
        ended = int(s[k.STEPS]) - 1
        if flies and not s[k.CHUNKS] and ended:  # all but the last step, which ends later
            width = int(prices.cores[DECODE])
            varying = self.pending[number, : ended * width].tolist()
            last = self.pending[number, ended * width : (ended + 1) * width]
            took = int(prices.decode_rows[decodes, 0] + prices.kinds[DECODE, :width, 1] @ last)
            head = self.heads[number].tolist()
            row = tuple(head[k.ROW.index(name)] for name in STEP_ROW)
            log.run(row, head[k.ROW_NUMBER], ended, int(self.ends[number]) - took, varying)
            previous = int(s[k.STEP]) + ended - 1
        carried = flies and decodes
        open_ = []
        group = line[k.HEAP, : s[k.COUNT]].tolist()
        for one in sorted(group, key=lambda one: (self.finishes[number, one], slot[one, k.PLACE])):
            fresh = not carried and slot[one, k.IS_FRESH]
            open_.append((one, slot[one, k.LAST_STEP] if fresh else previous if carried else s[k.LAST]))
        open_ += self._apart(number)
        open_ += [(one, slot[one, k.LAST_STEP]) for one in line[k.CARRIED, : s[k.CHUNKS]].tolist()]
        self._close(number, open_)


class SingleLanes(StageLanes):
    """Lanes of one stage (:mod:`clustersim.replay.compiled.kernel`)."""

    prices: KernelPrices

    @property
    def overlaps(self) -> bool:
        """Whether all that is handed on is logged in :attr:`logged`; copies of what is swapped out are not."""
        return not len(self.copied)

    def _classes(self) -> int:
        return int(self.prices.cores.max(initial=1))

    def _advance(self, fixed: tuple[Any, ...]) -> int:
        prices = self.prices
        everything: list[Any] = [
            *fixed, prices.weights, prices.keys, prices.values, prices.parts, prices.part_ns,
            prices.made, prices.decode_rows, prices.cores, prices.kinds, prices.terms, self.copies_ns, self.copied,
            *self.logged,
        ]  # fmt: skip
        return self._go_on(everything)

    def _go_on(self, everything: Sequence[Any]) -> int:
        """Let the kernel go on, told everything, and return why it stopped."""
        status: int = k.advance(*everything)
        return status

    def _fixed(self) -> tuple[Any, ...]:
        return (
            self.clock, self.state, self.slots, self.lines, self.finishes, self.phases, self.heads, self.pending,
            self.answer, self.ends, tournament(len(self.lanes)), *self._requests(),
        )  # fmt: skip

    def _sizes(self, rows: Sequence[Any]) -> Int64Array:
        sizes: Int64Array = self.prices.cores[TABLES[rows[k.ROW_KIND]]] * rows[k.ROW_COUNT]
        return sizes

    def _prices(self) -> KernelPrices:
        return self.prices
