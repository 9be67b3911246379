"""What was recorded of one replica, instant by instant: its steps, what ends, comes and leaves, what was decided."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from clustersim.clock import LATEST_NS, Int64Array
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.policy.moved import Moved
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.tables import HOST

ENDED, MOVED, CAME, LEFT, DECIDES = range(5)
OF_FACTS: Final = {
    SWAPPED_OUT: MOVED, HANDED_OVER: MOVED, RECEIVED: MOVED, ARRIVED: CAME, REJECTED: LEFT, CANCELLED: LEFT, LOST: LEFT,
}  # fmt: skip
"""In which part of its instant a fact happens that no decision tells."""
DECISIONS: Final = (ADMITTED, PREEMPTED, REUSED, SWAPPED_IN)
FAILS, REVIVES, COMES, STEP, FREE, BACK, WITHIN, AWAKE = range(-8, 0)
"""The replica fails, or is back; a request comes whose own has failed; a step has ended; its first stage is free; a
copy back has ended; a step within a run, or something else, begins."""
PLACE: Final = 8
"""What a step costs to look at besides the sequences that run: as much as so many of these."""

Event = tuple[int, int, int, int, int, int]
"""(instant, part of it, order there, kind, request or number, value)."""
Fact = tuple[int, int, int, int]
"""(kind, request, blocks in use right after it, value)."""


class Steps:
    """The first steps of one replica, in order: when each begins and ends, and what it carries.

    Parameters
    ----------
    reading : Reading
    replica : int
    most : int
        About so many sequences in them are looked at.
    known : int or None
        From when on it is not known what comes to the replica.
    """

    def __init__(self, reading: Reading, replica: int, most: int, known: int | None) -> None:
        runs, history = reading.runs, reading.history
        assert runs is not None
        assert history.chunks is not None
        assert history.decodes is not None
        low, high = runs.bounds[replica : replica + 2].tolist() if replica + 1 < len(runs.bounds) else (len(runs),) * 2
        running = runs.column("running", slice(low, high))
        work = np.cumsum((np.zeros(high - low, np.int64) if running is None else running) + PLACE)
        last = low + int(np.searchsorted(work, most, side="right"))
        mine = slice(low, last)
        horizon = reading.declared.horizon_ns
        downs = [(since, until) for failed, since, until in reading.declared.down if failed == replica]
        self.downs = [one for one in downs if horizon is None or one[0] <= horizon]
        others = [] if known is None else [known]
        self.until = min([*others, *runs.start[last:high][:1].tolist()], default=None)
        names = ("prefill_tokens", "decode_tokens", "waiting", "running", "kv_blocks_used")
        self.columns = {name: one.tolist() for name in names if (one := runs.column(name, mine)) is not None}
        self.begin, self.end = runs.start[mine].tolist(), runs.recorded_end[mine].tolist()
        self.step, self.many, self.slot = (one[mine].tolist() for one in (runs.step, runs.count, runs.slot))
        past = self.step[-1] + self.many[-1] if self.step else 0
        chunks, decodes = history.chunks, history.decodes
        self.chunks = _chunks(chunks, reading.rows_at(chunks["replica"], replica), past)
        self.episodes = _episodes(decodes, reading.rows_at(decodes["replica"], replica), past)

    def __len__(self) -> int:
        return len(self.step)

    def decodes(self, at: int, request: int) -> bool:
        """Return whether a run of steps gives a request a token each."""
        slot, first, last = self.slot[at], self.step[at], self.step[at] + self.many[at] - 1
        return any(
            mine == slot and begins <= first and last <= ends for mine, begins, ends in self.episodes.get(request, ())
        )


def _chunks(chunks: Any, rows: Int64Array, past: int) -> dict[int, list[tuple[int, int, int]]]:
    """Return request, first token and tokens of each chunk of the steps of a replica, in their order."""
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    some = rows[chunks["step"][rows] < past]
    columns = (chunks[name][some].tolist() for name in ("step", "request", "start", "count"))
    for step, request, start, count in zip(*columns, strict=True):
        found[step].append((request, start, count))
    return found


def _episodes(decodes: Any, rows: Int64Array, past: int) -> dict[int, list[tuple[int, int, int]]]:
    """Return slot, first and last step of each time for which a request decodes on a replica."""
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    some = rows[decodes["first_step"][rows] < past]
    columns = (decodes[name][some].tolist() for name in ("request", "slot", "first_step", "last_step"))
    for request, slot, first, last in zip(*columns, strict=True):
        found[request].append((slot, first, last))
    return found


def _owners(reading: Reading, replica: int) -> dict[tuple[int, int], int]:
    """Return the SP rank that keeps each request of a replica, by the instant since which it does."""
    assert reading.history.folded is not None
    table = reading.history.folded.owners
    mine = reading.rows_at(table["replica"], replica)
    request, time, owner = (table[name][mine].tolist() for name in ("request", "time_ns", "owner"))
    return {(who, when): one for who, when, one in zip(request, time, owner, strict=True)}


class Instants:
    """What happened on a replica, in the order of its instants, and what decisions told.

    Parameters
    ----------
    reading : Reading
    replica : int
    steps : Steps
    moved : Moved

    Attributes
    ----------
    events : list of Event
    decided : dict
        Instant → the facts of decisions, in their order.
    finished : dict
        Instant → request and blocks in use after each that has all of its tokens.
    given_up : dict
        Instant → who is given up then.
    owners : dict
        Request and instant → the SP rank that keeps it from then on, where several keep whole sequences.
    """

    def __init__(self, reading: Reading, replica: int, steps: Steps, moved: Moved) -> None:
        self.reading, self.replica, self.steps = reading, replica, steps
        facts = reading.history.facts
        assert facts is not None
        rows = reading.rows_at(facts["replica"], replica)
        rows = rows if steps.until is None else rows[facts["time_ns"][rows] < steps.until]
        rows = rows[np.argsort(facts["time_ns"][rows], kind="stable")]
        names = ("time_ns", "kind", "request", "used", "value")
        self.events: list[Event] = []
        self.decided: dict[int, list[Fact]] = defaultdict(list)
        self.finished: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.given_up: dict[int, set[int]] = defaultdict(set)
        columns = (facts[name][rows].tolist() for name in names)
        for order, (time, kind, request, used, value) in enumerate(zip(*columns, strict=True)):
            if kind in OF_FACTS:
                self.events.append((time, OF_FACTS[kind], order, kind, request, value))
            elif kind in DECISIONS and not any(time == since for since, _ in steps.downs):
                self.decided[time].append((kind, request, used, value))
                if kind == PREEMPTED and moved.breaks_off:
                    self.events.append((time, LEFT, order, kind, request, value))
            elif kind == FINISHED:
                self.finished[time].append((request, used))
            if kind == CANCELLED:
                self.given_up[time].add(request)
        self.events += [(time, DECIDES, 0, AWAKE, 0, 0) for time in self.decided]
        self.owners = _owners(reading, replica)
        self._copies()
        for since, until in steps.downs:
            self.events.append((since, LEFT, -2, FAILS, 0, 0))
            if until <= (LATEST_NS if reading.declared.horizon_ns is None else reading.declared.horizon_ns):
                self.events.append((until, LEFT, -2, REVIVES, 0, 0))
        self.events += [(time, LEFT, -1, COMES, request, tokens) for time, request, tokens in moved.to(replica)]
        self._within()
        self._passes()
        for at, (begin, end) in enumerate(zip(steps.begin, steps.end, strict=True)):
            self.events += [(begin, DECIDES, 0, AWAKE, 0, 0), (end, ENDED, at, STEP, at, 0)]
        if steps.until is not None:
            self.events = [event for event in self.events if event[0] < steps.until]
        self.events.sort()

    def _copies(self) -> None:
        """Add when sequences are back from host memory: all of its ranks' copies have ended."""
        moves, declared = self.reading.history.moves, self.reading.declared
        if moves is None:
            return
        rows = self.reading.rows_at(moves["to_replica"], self.replica)
        rows = rows[moves["from_rank"][rows] == HOST]
        rows = rows[np.argsort(moves["end_ns"][rows], kind="stable")]
        ranks, ended = declared.tp * declared.pp, defaultdict[int, int](int)
        for request, end in zip(moves["request"][rows].tolist(), moves["end_ns"][rows].tolist(), strict=True):
            ended[request] += 1
            if ended[request] % ranks == 0:
                self.events.append((end, MOVED, request, BACK, request, 0))

    def _within(self) -> None:
        """Add when steps within runs begin before which something happened."""
        steps, times = self.steps, np.array(sorted({event[0] for event in self.events}), np.int64)
        begin, end, step, many = (np.array(one, np.int64) for one in (steps.begin, steps.end, steps.step, steps.many))
        first, last = np.searchsorted(times, begin, side="right"), np.searchsorted(times, end)
        some = (many > 1) & (last > first)
        number, starts = self._starts(step, some)
        low, high = np.searchsorted(number, step), np.searchsorted(number, step + many)
        for at in np.flatnonzero(some).tolist():
            mine = starts[low[at] : high[at]]
            which = np.unique(np.searchsorted(mine, times[first[at] : last[at]]))
            for place in which[which < len(mine)].tolist():
                self.events.append((int(mine[place]), DECIDES, at, WITHIN, at, place))

    def _starts(self, step: Int64Array, some: BoolArray) -> tuple[Int64Array, Int64Array]:
        """Return the steps of some runs, and of others between them, and when each begins."""
        tables = self.reading.history.folded
        assert tables is not None
        if not some.any():
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        passes, table = self.reading.expanded, tables.passes
        replica = self.reading.declared.first_replica if tables.lockstep > 1 else self.replica
        past = int(step[-1]) + self.steps.many[-1]
        rows = self.reading.rows_at(table["replica"], replica)
        rows = rows[(table["stage"][rows] == 0) & (table["first_step"][rows] < past)]
        rows = rows[np.argsort(table["first_step"][rows], kind="stable")]
        opens = table["first_step"][rows].astype(np.int64)
        chosen = np.append(0, np.cumsum(some))
        before, past = (np.searchsorted(step, one, side="right") for one in (opens, opens + table["steps"][rows] - 1))
        rows = rows[chosen[past] > chosen[np.maximum(before - 1, 0)]]
        found = [
            (table["first_step"][block.runs[block.of]] + block.index, passes.starts(block))
            for block in passes.blocks(rows)
        ]
        number, starts = (np.concatenate([one[which] for one in found]) for which in (0, 1))
        return number, starts

    def _passes(self) -> None:
        """Add when the first of several stages is free again."""
        passes = self.reading.passes
        if self.reading.declared.pp == 1 or passes is None:
            return
        mine = self.reading.rows_at(passes.replica, self.replica)
        mine = mine[passes.stage[mine] == 0]
        mine = mine if self.steps.until is None else mine[passes.end[mine] < self.steps.until]
        self.events += [(end, ENDED, -1, FREE, 0, 0) for end in passes.end[mine].tolist()]
