"""Where requests wait, pool by pool, as it follows from when they come, leave the other pool, or lose their replica.

::

    arrived ─► a prefill replica ─ ✕ ─► another one      prompt computed ─► a decode replica ─ ✕ ─► another one
               waits until it is admitted                                  waits until blocks are set aside

What a replica that fails has, goes in order of requests to those that live then, or waits for one to come back. Who
leaves where is told by facts; a step that was cut off is not recorded, and where it may have let a prompt leave layer
by layer, nothing follows for the turns of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    LOST,
    RECEIVED,
    REJECTED,
    History,
)
from clustersim.legality.timeline_rules.requests.turns import UNKNOWN, Place, Turns
from clustersim.legality.timeline_rules.views.hand_overs import HandOvers
from clustersim.legality.timeline_rules.views.pieces import Pieces
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.tables import Table

ENDS: Final = (REJECTED, FINISHED, CANCELLED, LOST)
COMPLETES, MOVES, LEAVES, COMES, CHANGES, IS_DECIDED, LEAVES_BY_LAYER, IS_TAKEN, GOES, IS_UNSURE = range(10)
"""What happens at one instant, in this order."""
PHASE: Final = {FINISHED: COMPLETES, HANDED_OVER: MOVES, RECEIVED: MOVES, ADMITTED: IS_DECIDED} | dict.fromkeys(
    (REJECTED, CANCELLED, LOST), GOES
)
Event = tuple[int, int, int, int]
"""Instant, what happens, request, row of the fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A request that waited on a replica between instants, ns."""

    request: int
    replica: int
    since: int
    until: int


@dataclass(slots=True, eq=False)
class Whereabouts:
    """What a history comes to.

    Parameters
    ----------
    history : History
    waits : list of Wait
        Until blocks were taken there, or the request left.
    astray : list of (int, int)
        Rows of facts that find a request elsewhere than it went to, and where that was.
    aside : list of (int, int)
        Rows of facts that set blocks aside, and when the request had left; −1 where it had not.
    """

    history: History
    waits: list[Wait] = field(default_factory=list)
    astray: list[tuple[int, int]] = field(default_factory=list)
    aside: list[tuple[int, int]] = field(default_factory=list)
    _entry: Turns = field(init=False)
    _decode: Turns | None = field(init=False)
    _at: dict[int, Place] = field(default_factory=dict)
    """Where requests are in the pool that they come to, until they are handed over or end."""
    _to: dict[int, Place] = field(default_factory=dict)
    """To which decode replica requests are on their way."""
    _decoding: dict[int, int] = field(default_factory=dict)
    _nowhere: dict[int, None] = field(default_factory=dict)
    """Those for which no replica lives."""
    _stranded: dict[int, None] = field(default_factory=dict)
    """Those that have left, and for which no decode replica lives."""
    _since: dict[int, int] = field(default_factory=dict)
    """Since when those wait that do."""
    _ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    _shaken: int = -1
    """When something went somewhere last of which the record does not tell whether it was before a change."""

    def __post_init__(self) -> None:
        pools = self.history.pools or (self.history.given,)
        self._entry = Turns(pools[0])
        self._decode = Turns(pools[1]) if len(pools) > 1 else None

    @property
    def _in_a_loop(self) -> bool:
        """Whether requests come when others end."""
        return self.history.requests is None or "arrives_ns" not in self.history.requests

    @property
    def _facts(self) -> Table:
        assert self.history.facts is not None
        return self.history.facts

    def follow(self, events: Iterable[Event], reserved: frozenset[int]) -> None:
        """Follow all requests; ``reserved`` are rows that set blocks aside on a decode replica."""
        kind, replica = (self._facts[name].tolist() for name in ("kind", "replica"))
        ordered = sorted(events)
        self._ends = {who: (time, kind[row]) for time, _, who, row in ordered if row >= 0 and kind[row] in ENDS}
        for time, what, who, row in ordered:
            if what == COMES:
                self._comes(time, who, row, replica[row])
            elif what in (LEAVES, LEAVES_BY_LAYER):
                self._leaves(time, who, after=what == LEAVES_BY_LAYER)
            elif what == CHANGES:
                self._change(time)
            elif what in (IS_DECIDED, IS_TAKEN):
                self._taken(time, who, row, replica[row], aside=row in reserved)
            elif what == MOVES and kind[row] == HANDED_OVER:
                self._at.pop(who, None)
                self._to.pop(who, None)
            elif what == MOVES:
                self._decoding[who] = replica[row]
            elif what == IS_UNSURE:
                assert self._decode is not None
                self._decode.unsure += 1
            else:
                if (
                    kind[row] == CANCELLED and who in self._to
                ):  # it may have left the queue before the step that ends now
                    self._since.pop(who, None)
                self._goes(time, who)
        horizon = self.history.given.horizon_ns
        if horizon is not None:
            for who in list(self._since):
                self._waited(who, self._to.get(who) or self._at.get(who), horizon)

    def _found(self, row: int, replica: int, place: Place) -> None:
        due = place.replica
        if due not in (UNKNOWN, replica):
            self.astray.append((row, due))
        place.found_at(replica)

    def _waited(self, who: int, place: Place | None, until: int) -> None:
        since = self._since.pop(who, until)
        if place is not None and place.replica != UNKNOWN and until > since:
            self.waits.append(Wait(request=who, replica=place.replica, since=since, until=until))

    def _comes(self, time: int, who: int, row: int, replica: int) -> None:
        before, after = (self._entry.living(time, after=later) for later in (False, True))
        place = self._entry.take(before)
        if self._in_a_loop and any(
            time in one.instants for one in self.history.given.down
        ):  # before or after what changes
            self._shaken = time
            self._entry.doubt()
            place = Place(told=replica if replica in before and replica in after else UNKNOWN)
        elif place is None:
            self._nowhere[who] = None
            return
        else:
            self._found(row, replica, place)
        self._at[who], self._since[who] = place, time

    def _leaves(self, time: int, who: int, *, after: bool) -> None:
        assert self._decode is not None
        if self._ends.get(who) == (time, CANCELLED) and not after:  # it may have left, or not
            self._decode.doubt()
            return
        self._depart(time, who, after=after)

    def _depart(self, time: int, who: int, *, after: bool) -> None:
        assert self._decode is not None
        place = self._decode.take(self._decode.living(time, after=after))
        if place is None:
            self._stranded[who] = None
        else:
            self._to[who], self._since[who] = place, time

    def _taken(self, time: int, who: int, row: int, replica: int, *, aside: bool) -> None:
        place = (self._to if aside else self._at).get(who)
        if aside and (place is not None or not self._may_have_left(who)):
            self.aside.append((row, self._since.get(who, UNKNOWN)))
        if place is None or (not aside and who in self._decoding):
            return
        self._found(row, replica, place)
        self._waited(who, place, time)

    def _may_have_left(self, who: int) -> bool:
        """Return whether a request may be on its way that is not known to be: nothing tells when its client gave up."""
        assert self._decode is not None
        return self._decode.unsure > 0 or self._ends.get(who, (-1, 0))[1] == CANCELLED

    def _goes(self, time: int, who: int) -> None:
        self._waited(who, self._to.get(who) or self._at.get(who), time)
        for table in (self._at, self._to, self._decoding, self._nowhere, self._stranded):
            table.pop(who, None)

    def _change(self, time: int) -> None:
        failing = {one for one, since, _ in self.history.given.down if since == time}
        first = failing.intersection(self._entry.replicas)
        moved, again = list(self._nowhere), list(self._stranded)
        for who, place in self._at.items():
            if place.replica in failing:
                moved.append(who)
            elif place.replica == UNKNOWN and first:
                self._shaken = time
                self._entry.doubt()
                self._since[who] = time
        moved += [who for who, replica in self._decoding.items() if replica in failing]
        gone = set(moved)
        if self._decode is not None:
            if self.history.layerwise and first:
                self._decode.unsure -= len(first)
                self._decode.doubt()
            again += self._sent_again(time, failing, gone)
        for who in sorted(gone):
            self._move(time, who)
        for who in sorted(set(again) - gone):
            self._stranded.pop(who, None)
            if self._ends.get(who, (-1, 0))[0] != time:
                self._depart(time, who, after=True)
        if self._shaken == time:
            self._entry.doubt()

    def _sent_again(self, time: int, failing: set[int], gone: set[int]) -> list[int]:
        """Return who was on the way to what fails, and is elsewhere still."""
        assert self._decode is not None
        found = []
        for who, place in list(self._to.items()):
            if who in gone or place.replica in failing:
                self._waited(who, place, time)
                del self._to[who]
                if who not in gone and self._ends.get(who, (-1, 0))[1] == CANCELLED:  # given up by now, or not
                    self._decode.doubt()
                elif who not in gone:
                    found.append(who)
            elif place.replica == UNKNOWN and failing.intersection(self._decode.replicas):
                self._decode.doubt()
                self._to[who], self._since[who] = Place(), time
        return found

    def _move(self, time: int, who: int) -> None:
        """Let a request that lost its replica, or waits for one, go to one that lives."""
        self._waited(who, self._at.pop(who, None), time)
        for table in (self._to, self._decoding, self._nowhere, self._stranded):
            table.pop(who, None)
        ended, how = self._ends.get(who, (-1, 0))
        if ended == time:
            if how != LOST:  # before it went, or after
                self._entry.doubt()
            return
        place = self._entry.take(self._entry.living(time, after=True))
        if place is None:
            self._nowhere[who] = None
        else:
            self._at[who], self._since[who] = place, time


def whereabouts_of(
    history: History, hand_overs: HandOvers, pieces: Pieces | None, runs: Runs | None, outputs: Int64Array | None
) -> Whereabouts:
    """Return where requests wait, as it follows from a history with facts; ``pieces`` tell who leaves when."""
    found = Whereabouts(history)
    events = list(_told(history, hand_overs.reserved))
    until = np.iinfo(np.int64).max if history.given.horizon_ns is None else history.given.horizon_ns
    changes = {instant for one in history.given.down for instant in one.instants if instant < until}
    events += [(instant, CHANGES, UNKNOWN, UNKNOWN) for instant in changes]
    if len(history.pools) > 1 and pieces is not None and runs is not None and outputs is not None:
        events += _leaving(history, pieces, runs, outputs)
    found.follow(events, frozenset(hand_overs.reserved.tolist()))
    return found


def _told(history: History, reserved: Int64Array) -> Iterator[Event]:
    """Yield what facts tell."""
    facts = history.facts
    assert facts is not None
    kind, request, time = (facts[name].tolist() for name in ("kind", "request", "time_ns"))
    come: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(facts["kind"], (ARRIVED, REJECTED))).tolist():
        if request[row] not in come or (time[row], row) < (time[come[request[row]]], come[request[row]]):
            come[request[row]] = row
    aside = set(reserved.tolist())
    for who, row in come.items():
        yield time[row], COMES, who, row
    for row in np.flatnonzero(np.isin(facts["kind"], list(PHASE))).tolist():
        yield time[row], IS_TAKEN if row in aside else PHASE[kind[row]], request[row], row


def _leaving(history: History, pieces: Pieces, runs: Runs, outputs: Int64Array) -> Iterator[Event]:
    """Yield when prompts that are computed leave, and from when on steps may let some leave that are not recorded."""
    given, first_decode = history.given, history.pools[1].first_replica
    leaves = (pieces.replica < first_decode) & (pieces.gave > 0)
    leaves &= pieces.tokens + pieces.gave < outputs[pieces.request]
    early = leaves & pieces.is_chunk & history.layerwise
    ends = runs.recorded_end[pieces.last_run]
    for mine, times, what in ((early, pieces.begin, LEAVES_BY_LAYER), (leaves & ~early, ends, LEAVES)):
        yield from (
            (time, what, who, UNKNOWN)
            for time, who in zip(times[mine].tolist(), pieces.request[mine].tolist(), strict=True)
        )
    if not history.layerwise:
        return
    cuts = [(failed, since) for failed, since, _ in given.down if failed < first_decode]
    if given.horizon_ns is not None:
        cuts = [cut for cut in cuts if cut[1] < given.horizon_ns]
        cuts += [(replica, given.horizon_ns) for replica in range(first_decode)]
    for failed, since in cuts:
        begun = runs.start[(runs.replica == failed) & (runs.start < since)]
        yield int(begun.max(initial=-1)), IS_UNSURE, UNKNOWN, UNKNOWN
