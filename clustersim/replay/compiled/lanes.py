"""What drives :mod:`clustersim.replay.compiled.kernel`: its state, its prices, and what it logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array, too_late
from clustersim.errors import BrokenLawError
from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled.prices import DECODE, MIXED, PREFILL, KernelPrices
from clustersim.replay.events import decode_run
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.replay.lanes.log import STEP_ROW

ROOM: Final = 1 << 15
"""Runs of steps between two times that what was logged is handed on; twice as many for each lane where that is more."""
WIDTHS: Final = {"rows": len(k.ROW), "varying": 1, "chunks": 6, "decodes": 5, "facts": 6}
"""What is logged, and in how many columns."""


class CompiledLanes:
    """Lanes and the requests that come to them, until the last token or the horizon.

    Parameters
    ----------
    intake : Intake
    lanes : sequence of Lane
        With nothing in them; they say what may run and take what is logged.
    prices : KernelPrices
        Of all of them.
    first, stride : int
        The requests that come to them.
    """

    def __init__(self, intake: Intake, lanes: Sequence[Lane], prices: KernelPrices, first: int, stride: int) -> None:
        self.intake = intake
        self.lanes = lanes
        self.prices = prices
        count, requests = len(lanes), intake.requests
        scheduler = lanes[0].scheduler.scheduler
        config, pool = scheduler.config, scheduler.pool
        slots, classes = config.max_batch_requests, int(prices.cores.max(initial=1))
        longest = (
            config.long_prompt_tokens if config.scheduler == "chunked_prefill" else None
        ) or config.max_batch_tokens
        chunked, longest_run = config.scheduler == "chunked_prefill", decode_run.MAX_RUN
        much = max(ROOM, 2 * count)
        room = {"rows": much, "varying": 4 * much * classes, "chunks": much, "decodes": much, "facts": 2 * much}
        values = {
            "block_tokens": pool.block_tokens, "blocks": pool.total, "max_tokens": config.max_batch_tokens,
            "max_requests": slots, "longest": longest,
            "chunked": chunked, "max_run": longest_run, "stride": stride, "first": first,
            "closed": requests.concurrency is not None, "balanced": intake.balanced and count > 1,
            "horizon": min(intake.horizon, k.NEVER - 1),
            "stages": 1, "overlap": True, **room,
        }  # fmt: skip
        self.limits = np.array([values[name] for name in k.LIMITS], np.int64)
        self.clock = np.zeros(len(k.CLOCK_SCALARS), np.int64)
        self.clock[[k.PHASE, k.FREED]] = k.ARRIVALS, requests.concurrency or 0
        self.state = np.zeros((count, len(k.SCALARS)), np.int64)
        self.state[:, k.REPLICA] = np.arange(count)
        self.state[:, [k.FREE, k.LAST, k.SPARE]] = pool.free[0], -1, slots
        self.slots = np.zeros((count, len(k.FIELDS), slots), np.int64)
        self.lines = np.zeros((count, len(k.LINES), slots), np.int64)
        self.lines[:, k.SPARES] = np.arange(slots)[::-1]
        self.finishes = np.zeros((count, slots), np.int64)
        self.phases = np.zeros((count, pool.block_tokens), np.int64)
        self.heads = np.zeros((count, len(k.ROW)), np.int64)
        self.pending = np.zeros((count, longest_run * classes), np.int64)
        self.ends = np.full(count, k.NEVER, np.int64)
        self.answer = np.zeros(classes, np.int64)
        spare = {"rows": 2, "varying": longest_run * classes, "chunks": slots, "decodes": 4 * slots, "facts": 8 * slots}
        sizes = {name: (room[name] + spare[name], width)[: 1 + (width > 1)] for name, width in WIDTHS.items()}
        self.logged: list[Int64Array] = [np.zeros(size, np.int64) for size in sizes.values()]

    def run(self) -> int:
        """Simulate to the end, and log it; return how many requests arrived."""
        g, prices, fixed = self.clock, self.prices, self._fixed()
        status, now, ended = k.FULL, 0, 0
        while status != k.DONE:
            priced = (
                prices.radix, prices.places, prices.keys, prices.values, prices.parts, prices.part_ns,
                prices.made, prices.decode_rows, prices.cores, prices.kinds, prices.terms,
            )  # fmt: skip
            everything: list[Any] = [*fixed, *priced, *self.logged]
            status = k.advance(*everything)
            if status in (k.FULL, k.DONE):
                now = self._hand_on(now)
                more, ended = int(g[k.ENDED]) - ended, int(g[k.ENDED])
                if more:
                    self.intake.end(more, now)
            elif status == k.WIDEN:
                prices.widen()
            elif status == k.TOO_LATE:
                raise too_late()
            else:
                self._answer(status)
        self._stop()
        return int(g[k.NEXT])

    def _fixed(self) -> tuple[Any, ...]:
        """Return what the kernel is called with each time."""
        intake, requests = self.intake, self.intake.requests
        columns = (requests.arrived_at_ns, requests.prompt_tokens, requests.output_tokens)
        return (
            self.clock, self.state, self.slots, self.lines, self.finishes, self.phases, self.heads, self.pending,
            self.ends, tournament(len(self.lanes)), np.zeros(len(self.lanes), np.int64), tournament(len(self.lanes)),
            np.zeros(len(self.lanes), np.int64), self.answer, self.limits, self.prices.seconds,
            *(np.ascontiguousarray(column, np.int64) for column in columns), intake.refused,
            np.zeros(len(requests), np.int64), np.full(len(self.lanes), -1, np.int64), intake.arrived,
            intake.replica_of,
        )  # fmt: skip

    def _hand_on(self, now: int) -> int:
        """Hand on what was logged since the last time; return when the last step of it ends."""
        g = self.clock
        filled = (k.ROW_AT, k.VARYING_AT, k.CHUNK_AT, k.DECODE_AT, k.FACT_AT)
        rows, varying, chunks, decodes, facts = (array[: g[at]] for array, at in zip(self.logged, filled, strict=True))
        self.prices.settle()
        if len(rows):
            now = int(rows[:, k.ROW_END].max())
        sizes = self.prices.cores[_TABLES[rows[:, k.ROW_KIND]]] * rows[:, k.ROW_COUNT]
        begin = np.cumsum(sizes) - sizes
        order, cuts = _by_lane(rows, len(self.lanes))
        steps = np.delete(rows, k.ROW_REPLICA, axis=1)[order]
        spread = np.repeat(begin[order] - (np.cumsum(sizes[order]) - sizes[order]), sizes[order])
        varied = varying[spread + np.arange(len(spread))]
        widths = np.concatenate([[0], np.cumsum(sizes[order])])[cuts]
        parts = [(steps, cuts), (varied, widths)]
        for table in (chunks, decodes, facts):
            order, cuts = _by_lane(table, len(self.lanes))
            parts.append((table[order, :-1], cuts))
        for number, lane in enumerate(self.lanes):
            lane.log.extend(*(table[cuts[number] : cuts[number + 1]] for table, cuts in parts))
        g[list(filled)] = 0
        return now

    def _answer(self, status: int) -> None:
        """Find what the kernel asks for."""
        prices, s = self.prices, self.state[self.clock[k.LANE]]
        chunks, new, context, decodes, attended = (
            int(s[one]) for one in (k.CHUNKS, k.NEW, k.CONTEXT, k.DECODES, k.ATTENDED)
        )
        counts = new + decodes, chunks + decodes, new, decodes, context, context + new, int(s[k.KEYS])
        table = DECODE if not chunks else MIXED if decodes else PREFILL
        if status == k.ASK_DECODE:
            prices.learn_decode(decodes)
        elif status == k.ASK_PART:
            prices.learn_parts(table, counts)
        elif table == DECODE:
            keys = attended + int(s[k.STEPS]) * decodes
            self._tell([ns(keys) for ns in prices.prices.decode(decodes).ns])
        else:
            prices.settle()
            total, number, varying, _ = prices.prices.prompts(
                chunks, new, context, int(s[k.PAIRS]), int(s[k.KEYS]), decodes, attended
            )
            prices.settle()
            if status == k.ASK_STEP:
                self._tell(varying)
                return
            for (_, instances), ns in zip(prices.classes[table], varying, strict=True):
                total -= instances * ns
            at, key = k.find_row(s, prices.radix, prices.places[table], prices.keys[table])
            prices.learn_row(table, int(at), int(key), total, number)

    def _tell(self, varying: Sequence[int]) -> None:
        self.answer[: len(varying)] = varying
        self.clock[k.ANSWERED] = 1

    def _stop(self) -> None:
        """Log what has ended at the horizon, and the episodes that are open; what is in flight has not happened."""
        if self.intake.horizon != NEVER - 1:
            for number in range(len(self.lanes)):
                self._stop_lane(number)
        elif (self.state[:, [k.WAITING, k.ORDER]] > 0).any():  # those that can never run were refused when they came
            raise BrokenLawError("requests wait in a compiled lane, but nothing happens any more")

    def _stop_lane(self, number: int) -> None:
        s, slot, line, log = self.state[number], self.slots[number], self.lines[number], self.lanes[number].log
        flies, decodes = self.ends[number] != k.NEVER, int(s[k.DECODES])
        previous = int(s[k.BEFORE])
        ended = int(s[k.STEPS]) - 1
        if flies and not s[k.CHUNKS] and ended:  # all but the last step, which ends later
            width = int(self.prices.cores[DECODE])
            varying = self.pending[number, : ended * width].tolist()
            last = self.pending[number, ended * width : (ended + 1) * width]
            took = int(self.prices.decode_rows[decodes, 0] + self.prices.kinds[DECODE, :width, 1] @ last)
            head = self.heads[number].tolist()
            log.run(tuple(head[: len(STEP_ROW)]), head[k.ROW_NUMBER], ended, int(self.ends[number]) - took, varying)
            previous = int(s[k.STEP]) + ended - 1
        carried = flies and decodes
        open_ = []
        group = line[k.HEAP, : s[k.COUNT]].tolist()
        for one in sorted(group, key=lambda one: (self.finishes[number, one], slot[k.PLACE, one])):
            fresh = not carried and slot[k.IS_FRESH, one]
            open_.append((one, slot[k.LAST_STEP, one] if fresh else previous if carried else s[k.LAST]))
        lists = ((k.LOOSENED, k.LOOSE), (k.BEGINNING, k.BEGUN), (k.PREEMPTED_ONES, k.GIVEN_UP), (k.CARRIED, k.CHUNKS))
        for name, count in lists:
            open_ += [(one, slot[k.LAST_STEP, one]) for one in line[name, : s[count]].tolist()]
        for one, last_step in open_:
            if 0 <= slot[k.FIRST_STEP, one] <= last_step:
                log.decode(0, int(slot[k.REQUEST, one]), int(slot[k.FIRST_STEP, one]), int(last_step))


_TABLES: Final = np.array([PREFILL, DECODE, MIXED])
"""Kind of step as it is logged → its table of prices."""


def tournament(lanes: int) -> Int64Array:
    """Return a tree of lanes whose keys are all equal: each node has the first lane below it."""
    size = 1 << max(lanes - 1, 0).bit_length()
    tree = np.full(2 * size, -1, np.int64)
    tree[size : size + lanes] = np.arange(lanes)
    for at in range(size - 1, 0, -1):
        tree[at] = tree[2 * at]
    return tree


def _by_lane(table: Int64Array, lanes: int) -> tuple[Int64Array, Int64Array]:
    """Return the order of rows by their last column, and where each lane begins."""
    column = table[:, -1]
    order = np.argsort(column, kind="stable")
    return order, np.searchsorted(column[order], np.arange(lanes + 1))
