"""What drives compiled lanes, of one stage or several: their state, requests and log, and when they go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Final, Protocol

import numpy as np

from clustersim.clock import FloatArray, Int64Array, too_late
from clustersim.copies import several
from clustersim.errors import BrokenLawError
from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled.prices import DECODE, MIXED, PREFILL, KernelPrices
from clustersim.replay.events import decode_run
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.swapping import SPARE
from clustersim.timeline.columns import shelved

ROOM: Final = 1 << 15
"""Runs of steps between two times that what was logged is handed on, of so many lanes at most: of more lanes more, as
handing on costs each some sixty calls, and an array for each of its columns."""
LANES: Final = 1 << 5
MANY: Final = 1 << 13
"""Requests for which there is as much room again: memory that is new costs few requests more."""
MOST_TIMES: Final = 4
MOST_TIMES_ALONE: Final = 32
"""How many times, and for one lane without stages: what it logged is its record, so that a run of 250,000 requests is
handed on once."""
TOGETHER: Final = 8
"""Decode steps that are priced at once: told to the kernel, since a loop of so many would be written out otherwise."""
WIDTHS: Final = {
    "rows": (k.WIDE, len(k.ROW) - k.WIDE), "varying": (1, 0), "chunks": (0, 6), "decodes": (0, 5), "facts": (1, 5),
}  # fmt: skip
"""What is logged, and in how many columns of int64 and of int32; the last of several is the lane, left out of one."""


class Prices(Protocol):
    """What all lanes ask of their prices, those of a stage, of several, or of pools."""

    seconds: FloatArray

    def settle(self) -> None:
        """Tell the prices of rows that the kernel has made since."""

    def widen(self) -> None:
        """Make room for more rows."""


class CompiledLanes(ABC):
    """Lanes and the requests that come to them, until the last token or the horizon.

    Parameters
    ----------
    intake : Intake
    lanes : sequence of Lane
        With nothing in them; they say what may run and take what is logged.
    prices : Prices
        Of all of them.
    first, stride : int
        The requests that come to them.
    """

    scalars: int
    """Of a lane."""
    unlogged: int
    """How many of the kernel's columns, the last ones, the logs of lanes do not have."""

    def __init__(self, intake: Intake, lanes: Sequence[Lane], prices: Prices, first: int, stride: int) -> None:
        self.intake = intake
        self.lanes = lanes
        self.prices = prices
        self.windows = lanes[0].prices.windows  # one at most
        self.first, self.stride = first, stride
        count, requests = len(lanes), intake.requests
        self.alone = count == 1
        schedulers = [lane.scheduler.scheduler for lane in lanes]
        places = [one.config.max_batch_requests for one in schedulers]
        slots, classes, longest_run = max(places), self._classes(), decode_run.MAX_RUN
        most = MOST_TIMES_ALONE if self.alone and schedulers[0].stages == 1 else MOST_TIMES
        times = min(max(len(requests) // (stride * MANY), 1), most)
        much = max(ROOM * times, max(2, ROOM // LANES) * count)
        room = {"rows": much, "varying": 4 * much * classes, "chunks": much, "decodes": much, "facts": 2 * much}
        room["stretches"] = much
        self.limits = self._limits(schedulers[0], room)
        self.clock = np.zeros(len(k.CLOCK_SCALARS), np.int64)
        self.clock[[k.PHASE, k.FREED]] = k.ARRIVALS, requests.concurrency or 0
        self.state = np.zeros((count, self.scalars), np.int64)
        self.state[:, k.REPLICA], self.state[:, k.LAST] = np.arange(count), -1
        self.state[:, k.FREE], self.state[:, k.SPARE] = [one.pool.free[0] for one in schedulers], places
        self.state[:, [k.IN_END, k.OUT_END, k.COPY_END]] = k.NEVER
        self.slots = np.zeros((count, slots, len(k.FIELDS)), np.int64)
        self.lines = np.zeros((count, len(k.LINES), slots), np.uint32)
        self.lines[:, k.SPARES] = np.arange(slots)[::-1]
        self.finishes = np.zeros((count, slots), np.int64)
        self.ends = np.full(count, k.NEVER, np.int64)
        spare = {"rows": 2, "varying": longest_run * classes, "chunks": slots, "decodes": 4 * slots, "facts": 8 * slots}
        self.rooms = {name: room[name] + spare[name] for name in WIDTHS}
        self.logged = self._room()
        self._spare: list[Any] | None = None
        """Room for as much again, which the kernel logs to while a thread hands on what is in the other."""
        self._thread: ThreadPoolExecutor | None = None
        self._dealt: Future[None] | None = None

    def _room(self) -> list[Any]:
        """Return room for what is logged."""
        return [room_for(name, rows, alone=self.alone) for name, rows in self.rooms.items()]

    def _limits(self, scheduler: Scheduler, room: Mapping[str, int]) -> Int64Array:
        """Return what limits the lanes of a pool."""
        intake, config, pool = self.intake, scheduler.config, scheduler.pool
        chunked = config.scheduler == "chunked_prefill"
        values = {
            "block_tokens": pool.block_tokens, "blocks": pool.total, "max_tokens": config.max_batch_tokens,
            "max_requests": config.max_batch_requests,
            "longest": (config.long_prompt_tokens if chunked else None) or config.max_batch_tokens,
            "chunked": chunked, "max_run": decode_run.MAX_RUN, "stride": self.stride, "first": self.first,
            "closed": intake.requests.concurrency is not None,
            "balanced": intake.balanced and len(self.lanes) > 1, "horizon": min(intake.horizon, k.NEVER - 1),
            "keeps_room": config.preemption == "never", "first_chunk": config.admits_first_chunks,
            "gives_up": config.preemption == "recompute", "window": sum(self.windows), "margin": pool.total // SPARE,
            "together": TOGETHER,
            "stages": scheduler.stages, "overlap": scheduler.decode_overlap,
            **room,
        }  # fmt: skip
        return np.array([values[name] for name in k.LIMITS], np.int64)

    @property
    def overlaps(self) -> bool:
        """Whether a thread may hand on what was logged while the kernel, which holds no lock of Python's, goes on."""
        return False

    @abstractmethod
    def _classes(self) -> int:
        """Return how many values may vary in a step."""

    @abstractmethod
    def _advance(self, fixed: tuple[Any, ...]) -> int:
        """Let the kernel go on, and return why it stopped."""

    @abstractmethod
    def _fixed(self) -> tuple[Any, ...]:
        """Return what the kernel is called with each time."""

    @abstractmethod
    def _sizes(self, rows: Sequence[Any]) -> Int64Array:
        """Return how many varying values each row of the log has, told its columns."""

    def _besides(self, order: Int64Array | slice) -> tuple[Int64Array, ...]:
        """Return what else is logged by row, in this order."""
        del order
        return ()

    def _hand_on(self, now: int, *, stops: bool = False) -> int:
        """Hand on what was logged since the last time; return when the last step of it ends.

        ``stops``: at the horizon, which cuts off what is under way.
        """
        rows, (varying,), *tables = self._taken()
        self.prices.settle()
        now = int(rows[k.ROW_END].max(initial=now))
        self._wait()
        if self._thread is None or stops:
            self._deal(rows, varying, tables, stops=stops)
        else:
            self._dealt = self._thread.submit(self._deal, rows, varying, tables)
            self.logged, self._spare = self._spare or self._room(), self.logged
        return now

    def _wait(self) -> None:
        """Wait for the thread that hands on what was logged."""
        if self._dealt is not None:
            self._dealt.result()
            self._dealt = None

    def _deal(self, rows: Sequence[Any], varying: Int64Array, tables: Sequence[Any], *, stops: bool = False) -> None:
        """Give each lane what it logged."""
        count, into = len(self.lanes), self.lanes[0].log.tables()
        if self.alone:
            many = [one.typed(table) for one, table in zip(into, tables, strict=True)]
            self.lanes[0].log.extend(
                dict(zip(k.ROW[:-1], rows, strict=True)), varying, many, *self._besides(slice(len(rows[0])))
            )
        else:
            order, cuts = by_lane(rows[-1], count)
            parts = [spread(varying, self._sizes(rows), order, cuts)]
            parts += [(table, cuts) for table in self._besides(order)]
            by_order = [(table[:-1], *by_lane(table[-1], count)) for table in tables]
            kept = [
                (shelved(one.typed([column[mine] for column in table])), places)
                for one, (table, mine, places) in zip(into, by_order, strict=True)
            ]
            logged = {name: column[order] for name, column in zip(k.ROW, rows, strict=True)}
        for number, lane in enumerate(self.lanes):
            if not self.alone:
                varied, *of_stages = (table[at[number] : at[number + 1]] for table, at in parts)
                many = [part_of(columns, at, number) for columns, at in kept]
                lane.log.extend(part_of(logged, cuts, number), varied, many, *of_stages)
            if stops:  # lane by lane, as Python lanes hand on what they have in the end
                self._stop_lane(number)
                lane.log.flush_steps()

    @abstractmethod
    def _answer(self, status: int) -> None:
        """Find what the kernel asks for."""

    @abstractmethod
    def _stop_lane(self, number: int) -> None:
        """Log what has ended at the horizon, and the episodes that are open; what is in flight has not happened."""

    def run(self) -> int:
        """Simulate to the end, and log it; return how many requests arrived."""
        with ExitStack() as stack:
            if self.overlaps and not self.alone and several():
                thread = stack.enter_context(ThreadPoolExecutor(1))
                with suppress(RuntimeError):  # no room for another thread
                    thread.submit(int).result()
                    self._thread = thread
            return self._run()

    def _run(self) -> int:
        g, fixed, endless = self.clock, self._fixed(), self.intake.horizon == NEVER - 1
        status, now, ended = k.FULL, 0, 0
        while status != k.DONE:
            status = self._advance(fixed)
            if status in (k.FULL, k.DONE):
                now = self._hand_on(now, stops=status == k.DONE and not endless)
                more, ended = int(g[k.ENDED]) - ended, int(g[k.ENDED])
                if more:
                    self.intake.end(more, now)
            elif status == k.WIDEN:
                self.prices.widen()
            elif status == k.TOO_LATE:
                raise too_late()
            else:
                self._answer(status)
        self._wait()
        if (
            endless and (self.state[:, [k.WAITING, k.ORDER, k.SWAPPED]] > 0).any()
        ):  # what can never run was refused as it came
            raise BrokenLawError("requests wait in a compiled lane, but nothing happens any more")
        return int(g[k.NEXT])

    def _requests(self) -> tuple[Any, ...]:
        """Return the limits and the requests as the kernel takes them."""
        intake, requests = self.intake, self.intake.requests
        columns = (requests.arrived_at_ns, requests.prompt_tokens, requests.output_tokens)
        return (
            np.zeros(len(self.lanes), np.int64), tournament(len(self.lanes)), np.zeros(len(self.lanes), np.int64),
            self.limits, self.prices.seconds, *map(only_read, columns),
            intake.refused, np.zeros(len(requests), np.int64), np.full(len(self.lanes), -1, np.int64), intake.arrived,
            intake.replica_of,
        )  # fmt: skip

    def _rows(self) -> list[Any]:
        """Return the columns of rows that were logged since the last time."""
        return columns_of(self.logged[0], int(self.clock[k.ROW_AT]))

    def _taken(self) -> list[list[Any]]:
        """Return the columns of what was logged since the last time.

        Of one lane they are given away where much of their memory is filled; else copied, or to be copied before the
        kernel goes on.
        """
        filled = [k.ROW_AT, k.VARYING_AT, k.CHUNK_AT, k.DECODE_AT, k.FACT_AT]
        found = []
        for at, (name, room) in enumerate(self.rooms.items()):
            count = int(self.clock[filled[at]])
            columns = columns_of(self.logged[at], count)
            if self.alone and FILLED * count >= room:
                self.logged[at] = room_for(name, room, alone=self.alone)
            elif self.alone:
                columns = [column.copy() for column in columns]
            found.append(columns)
        self.clock[filled] = 0
        return found

    def _counts(self, s: Int64Array) -> tuple[int, tuple[int, ...]]:
        """Return the table of prices of the step that a lane has launched, and what it is told by."""
        chunks, new, context, decodes = (int(s[one]) for one in (k.CHUNKS, k.NEW, k.CONTEXT, k.DECODES))
        table = DECODE if not chunks else MIXED if decodes else PREFILL
        return table, (new + decodes, chunks + decodes, new, decodes, context, context + new, int(s[k.KEYS]))

    def _price(self, prices: KernelPrices, s: Int64Array) -> tuple[int, int, Sequence[int]]:
        """Return nanoseconds of that step without attention, the number of its row, and what varies."""
        table, counts = self._counts(s)
        decodes, attended = int(s[k.DECODES]), int(s[k.ATTENDED])
        if table == DECODE:
            price, steps = prices.prices.decode(decodes), int(s[k.STEPS])
            keys, seen = attended + steps * decodes, int(s[k.NEAR_ATTENDED] + steps * s[k.NEAR_GROWTH])
            pairs = zip(price.ns, price.windows, strict=True)
            return price.base_ns, price.number, [ns(keys if window is None else seen) for ns, window in pairs]
        prices.settle()
        near = int(s[k.NEAR_PAIRS]), int(s[k.NEAR_KEYS]), int(s[k.NEAR_ATTENDED]) if decodes else 0
        total, number, varying, _ = prices.prices.prompts(
            int(s[k.CHUNKS]), counts[2], counts[4], int(s[k.PAIRS]), counts[6], decodes, attended,
            dict.fromkeys(self.windows, near),
        )  # fmt: skip
        prices.settle()
        for (_, instances), ns in zip(prices.classes[table], varying, strict=True):
            total -= instances * ns
        return total, number, varying

    def _close(self, lane: int, open_: Iterable[tuple[int, int]]) -> None:
        """Log episodes that are open at the horizon: slots, and the last step of each."""
        slot, log = self.slots[lane], self.lanes[lane].log
        for one, last_step in open_:
            if 0 <= slot[one, k.FIRST_STEP] <= last_step:
                at, request, first_step = slot[one, [k.SLOT, k.REQUEST, k.FIRST_STEP]].tolist()
                log.decode(at, request, first_step, int(last_step))

    def _apart(self, number: int) -> list[tuple[int, int]]:
        """Return who is in no group and not in flight, with the last step of each."""
        s, slot, line = self.state[number], self.slots[number], self.lines[number]
        lists = ((k.LOOSENED, k.LOOSE), (k.BEGINNING, k.BEGUN), (k.PREEMPTED_ONES, k.GIVEN_UP))
        return [(one, slot[one, k.LAST_STEP]) for name, count in lists for one in line[name, : s[count]].tolist()]


FILLED: Final = 4
"""What was logged keeps its memory where at least one in so many parts of it is filled."""
TABLES: Final = np.array([PREFILL, DECODE, MIXED])
"""Kind of step as it is logged → its table of prices."""


def tournament(lanes: int) -> Int64Array:
    """Return a tree of lanes whose keys are all equal: each node has the first lane below it."""
    size = 1 << max(lanes - 1, 0).bit_length()
    tree = np.full(2 * size, -1, np.int64)
    tree[size : size + lanes] = np.arange(lanes)
    for at in range(size - 1, 0, -1):
        tree[at] = tree[2 * at]
    return tree


def only_read(numbers: Int64Array) -> Int64Array:
    """Return numbers that a kernel reads alone: to it, those that may be written to are another type.

    What another process hands over may be; a kernel would be compiled again for it.
    """
    found: Int64Array = np.ascontiguousarray(numbers, np.int64).view()
    found.flags.writeable = False
    return found


def room_for(name: str, rows: int, *, alone: bool) -> Any:
    """Return room for rows of something that is logged, of which each column lies together: by type, or of one type."""
    wide, narrow = WIDTHS[name]
    narrow -= alone and narrow > 0
    if not wide + narrow > 1:
        return np.empty(rows, np.int64)
    each = [np.empty((width, rows), to).T for width, to in ((wide, np.int64), (narrow, np.int32)) if width]
    return tuple(each) if len(each) > 1 else each[0]


def columns_of(table: Any, rows: int) -> list[Any]:
    """Return the columns of the first rows of what is logged."""
    return [
        column[:rows] for one in (table if isinstance(table, tuple) else (table,)) for column in np.atleast_2d(one.T)
    ]


def by_lane(column: Any, lanes: int) -> tuple[Int64Array, Int64Array]:
    """Return the order of rows by their lane, and where each lane begins."""
    order = np.argsort(column, kind="stable")
    return order, np.searchsorted(column[order], np.arange(lanes + 1))


def part_of(columns: Mapping[str, Any], cuts: Int64Array, number: int) -> dict[str, Any]:
    """Return the rows of one lane."""
    return {name: column[cuts[number] : cuts[number + 1]] for name, column in columns.items()}


def spread(
    varying: Int64Array, sizes: Int64Array, order: Int64Array, cuts: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return what varies in rows of so many values in another order of rows, and where each lane begins."""
    begin, mine = np.cumsum(sizes) - sizes, sizes[order]
    places = np.repeat(begin[order] - (np.cumsum(mine) - mine), mine)
    return varying[places + np.arange(len(places))], np.concatenate([[0], np.cumsum(mine)])[cuts]
