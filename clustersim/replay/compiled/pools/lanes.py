"""What drives :mod:`~clustersim.replay.compiled.pools.kernel`, lanes of two pools: state, prices, moves and log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled.lanes import TABLES, WIDTHS, only_read, tournament
from clustersim.replay.compiled.pools import kernel as pl
from clustersim.replay.compiled.pools import transfers as tr
from clustersim.replay.compiled.pools.links import PoolLinks
from clustersim.replay.compiled.pools.moves import PoolMoves
from clustersim.replay.compiled.pools.prices import LinkPlans, PoolsPrices
from clustersim.replay.compiled.prices import KernelPrices
from clustersim.replay.compiled.single_lanes import StageLanes
from clustersim.replay.lanes.build import LaneBuilder
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import Lane

MOVE_ROOM: Final = 1 << 10
"""Moves that there is room for at first."""


class PoolLanes(StageLanes):
    """Lanes of two pools, and what is on its way between them.

    Parameters
    ----------
    builder : LaneBuilder
    intake : Intake
    lanes : sequence of Lane
        Of both pools, by their numbers.
    prices : PoolsPrices
    """

    prices: PoolsPrices

    def __init__(self, builder: LaneBuilder, intake: Intake, lanes: Sequence[Lane], prices: PoolsPrices) -> None:
        self.entry, prepared = intake.of, builder.prepared
        super().__init__(intake, lanes, prices, 0, 1)
        room = {name: int(self.limits[k.LIMITS.index(name)]) for name in (*WIDTHS, "stretches")}
        self.each_limits = self.limits, self._limits(lanes[-1].scheduler.scheduler, room)
        self.limits[k.BALANCED] = intake.balanced
        self.phases = np.zeros((len(lanes), max(int(one[k.SIZE]) for one in self.each_limits)), np.int64)
        self._make_spare_room()
        requests, entry, decode = intake.requests, prepared.input.entry, prepared.input.pools[-1]
        outputs = only_read(requests.output_tokens)
        self.prompts = only_read(requests.prompt_tokens)
        self.outputs = only_read(np.minimum(outputs, 1)), outputs
        self.transfers = np.zeros((len(requests), len(tr.TRANSFER)), np.int64)
        stages = [builder.watched_stage(number) for number in range(len(lanes))]
        watched = {number: frozenset(builder.watched(number)) for number in range(len(lanes))}
        plans = LinkPlans(prepared.input.topology.link_capacity)
        self.moves = PoolMoves(prepared, watched, plans, stages[0])
        self.links = PoolLinks(stages, prices.by_lane(len(lanes), self.entry), plans, self.moves.senders, room["rows"])
        self.layers = self.links.layers(stages[: self.entry])
        self.marks = np.full(self.entry, k.NEVER, np.int64)
        self.hands = self.moves.hands(
            self.entry, entry.serving.transfer == "layerwise", str(decode.serving.router) == "least_outstanding"
        )
        self._begin_moves(room["rows"])

    def _make_spare_room(self) -> None:
        """Make room for what is logged behind the place where the kernel looks whether there is any left."""
        each = self.lines.shape[0] * self.lines.shape[2]
        more = {"rows": 4, "varying": 0, "chunks": 0, "decodes": each, "facts": 4 * each}
        self.rooms = {name: rows + more[name] for name, rows in self.rooms.items()}
        self.logged = self._room()

    def _begin_moves(self, room: int) -> None:
        """Let nothing be on its way."""
        count, slots, moves = len(self.lanes), self.lines.shape[2], self.moves
        self.arriving = np.zeros((count, len(tr.ARRIVING)), np.int64)
        self.arriving[:, tr.APART] = -1
        self.queues = np.full((moves.senders, len(tr.SENDER)), -1, np.int64)
        self.lists = np.zeros((4, max(count * slots, moves.receivers) + 1), np.int64)
        self.reached = np.zeros(moves.receivers, np.int64)
        self.moved = np.zeros((2 + 4 * room + moves.senders, len(tr.MOVED)), np.int64)
        self.under_way = np.zeros((0, len(tr.MOVE)), np.int64)
        self._make_move_room()

    def _make_move_room(self) -> None:
        """Make room for twice as many moves as there was for, and for those of two requests."""
        old = len(self.under_way)
        more = max(old, MOVE_ROOM, 2 * len(self.moves.parts))
        added = np.zeros((more, len(tr.MOVE)), np.int64)
        added[:, tr.MOVE_BEHIND] = np.arange(old + 1, old + more + 1)
        added[-1, tr.MOVE_BEHIND] = self.hands[tr.SPARE_MOVES]
        self.under_way = np.concatenate([self.under_way, added])
        self.hands[tr.SPARE_MOVES] = old
        self.hands[tr.MOVE_ROOM] += more

    def _classes(self) -> int:
        return max(int(one.kernel.cores.max(initial=1)) for one in self.prices.each)

    @property
    def _asking(self) -> int:
        """The pool of the lane that asks."""
        return int(self.clock[k.LANE] >= self.entry)

    def _prices(self) -> KernelPrices:
        return self.prices.each[self._asking].kernel

    def _fixed(self) -> tuple[Any, ...]:
        intake, count = self.intake, len(self.lanes)
        loads = np.zeros(count, np.int64)
        return (
            self.clock, self.hands, self.state, self.arriving, self.slots, self.lines, self.finishes, self.phases,
            self.heads, self.pending, self.answer, self.ends, tournament(count), loads, loads[: self.entry],
            tournament(self.entry), np.zeros(count, np.int64),
            only_read(intake.requests.arrived_at_ns), intake.refused,
            np.zeros(len(intake.requests), np.int64), np.full(count, -1, np.int64), intake.arrived, intake.replica_of,
        )  # fmt: skip

    def _advance(self, fixed: tuple[Any, ...]) -> int:
        each = zip(self.prices.each, self.each_limits, self.outputs, strict=True)
        pools = tuple(one.told_of(limits, self.prompts, outputs) for one, limits, outputs in each)
        links, moves = self.links, self.moves
        status: int = pl.advance_pools(
            *fixed, pools, links.links, links.told, links.uses, links.plan_of, links.flows, self.transfers,
            self.under_way, self.queues, self.reached, self.lists, *moves.arrays, *self.layers, self.marks,
            *self.logged, self.moved,
        )  # fmt: skip
        return status

    def _answer(self, status: int) -> None:
        if status == pl.FULL_OF_MOVES:
            self._make_move_room()
            return
        prices, (table, counts) = self.prices.each[self._asking], self._counts(self.state[self.clock[k.LANE]])
        if status == k.ASK_DECODE:
            prices.learn_decode(counts[3])
        elif status == k.ASK_PART:
            prices.learn_parts(table, counts)
        else:
            super()._answer(status)

    def _sizes(self, rows: Sequence[Any]) -> Int64Array:
        widths = np.array([one.kernel.cores for one in self.prices.each])
        pool = (rows[k.ROW_REPLICA] >= self.entry).astype(np.int64)
        sizes: Int64Array = widths[pool, TABLES[rows[k.ROW_KIND]]] * rows[k.ROW_COUNT]
        return sizes

    def _hand_on(self, now: int, *, stops: bool = False) -> int:
        """Say where steps lost time, and hand on what was logged, with the moves that have ended."""
        del stops
        self._tell()
        count = int(self.moved[0, 0])
        self.moves.record(self.moved[1 : 1 + count])
        self.moved[0, 0] = 0
        return super()._hand_on(now)

    def _tell(self) -> None:
        """Say where steps lost time whose rows are handed on now; keep what those lost that are under way."""
        filled, stretches = int(self.clock[k.STRETCH_AT]), self.links.told[-1]
        rows, found = self._rows(), stretches[:filled].copy()
        ended = np.zeros(filled, np.bool_)
        for number in np.unique(found[:, 4]).tolist():
            log = self.lanes[number].log
            counts = rows[k.ROW_COUNT][rows[k.ROW_REPLICA] == number]
            last = log.flushed + np.cumsum(counts)
            mine = (found[:, 4] == number) & (found[:, 0] < last.max(initial=0))
            ended |= mine
            for step in np.unique(found[mine, 0]).tolist():
                pairs = found[mine & (found[:, 0] == step), 2:4]
                log.stretch(0, pairs.ravel().tolist(), int(np.searchsorted(last, step, side="right")))
        left = found[~ended]
        stretches[: len(left)] = left
        self.clock[k.STRETCH_AT] = len(left)
        self.arriving[:, tr.TOLD] = 0
