"""Where requests wait, pool by pool, as it follows from when they come, leave the other pool, or lose their replica.

::

    arrived ─► a prefill replica ─ ✕ ─► another one      prompt computed ─► a decode replica ─ ✕ ─► another one
               waits until it is admitted                                  waits until blocks are set aside

What a replica that fails has, goes in order of requests to those that live then, or waits for one to come back. Who
leaves where is told by facts; a step that was cut off is not recorded, and where it may have let a prompt leave layer
by layer, nothing follows for the turns of the others. Where something may fail, what each replica has to do is counted
on the way, for routers that go by it (``tally``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import (
    ARRIVED,
    CANCELLED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    REJECTED,
    History,
)
from clustersim.legality.timeline_rules.requests.moments import (
    CHANGES,
    COMES,
    ENDS,
    GIVES_UP,
    GOES,
    IS_COMPUTED,
    IS_DECIDED,
    IS_TAKEN,
    IS_UNSURE,
    LEAVES,
    LEAVES_BY_LAYER,
    MOVES,
    Event,
    given_up,
    gives_up,
    leaving,
    told,
)
from clustersim.legality.timeline_rules.requests.tally import UNKNOWN
from clustersim.legality.timeline_rules.requests.turns import Place, Turns
from clustersim.legality.timeline_rules.views.hand_overs import HandOvers
from clustersim.legality.timeline_rules.views.pieces import Pieces
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.tables import Table
from clustersim.values import dataclass


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
    misled: list[tuple[int, int]] = field(default_factory=list)
    """As ``astray``, where the router goes by loads."""
    moved: list[tuple[int, int, Place]] = field(default_factory=list)
    """When a request went to another replica since its own had failed, or none had lived, and to which; to an unknown
    one where it may have been moved."""
    _entry: Turns = field(init=False)
    _decode: Turns | None = field(init=False)
    _unclear: set[int] = field(default_factory=set)
    _generated: dict[tuple[int, int], int] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)
    _is_last: frozenset[int] = frozenset()
    """Facts of requests that leave after whatever changes at that instant."""
    _made: dict[int, int] = field(default_factory=dict)
    """How many tokens were generated of those that another pool is to go on with."""
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
    _due: dict[int, int] = field(init=False)
    """When clients give up those that they give up."""
    _shaken: int = -1
    """When something went somewhere last of which the record does not tell whether it was before a change."""

    def __post_init__(self) -> None:
        pools = self.history.pools
        self._entry = Turns(pools[0], self._unclear)
        self._decode = Turns(pools[1], self._unclear) if len(pools) > 1 else None
        facts, self._due = self._facts, given_up(self.history)
        if self._decode is not None and pools[0].down and "value" in facts:
            lost = np.flatnonzero((facts["kind"] == PREEMPTED) & (facts["replica"] >= pools[1].first_replica))
            columns = (facts[name][lost].tolist() for name in ("request", "time_ns", "value"))
            self._generated = {(who, time): value for who, time, value in zip(*columns, strict=True)}

    def judged_by_load(self, pool: int) -> bool:
        """Return whether it follows for all that went somewhere in a pool where its router was to send it."""
        turns = self._entry if pool == 0 else self._decode
        assert turns is not None
        return turns.tally.by_load and not turns.tally.blind

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
        self._rows = {who: row for _, _, who, row in ordered if row >= 0 and kind[row] in ENDS}
        come = {row for _, what, _, row in ordered if what == COMES}
        gone = {one for one in ordered if one[1] == GOES and one[3] not in come and kind[one[3]] != LOST}
        due = self._due
        late = {one for one in gone if kind[one[3]] == CANCELLED and one[0] > due.get(one[2], one[0])}
        last = {one for one in gone - late if kind[one[3]] == REJECTED or one[2] in due}
        self._unclear |= {one[0] for one in gone - late - (set() if self._in_a_loop else last)}
        self._is_last = frozenset() if self._in_a_loop else frozenset(one[3] for one in last)
        ordered = sorted([*ordered, *((time, IS_COMPUTED, who, row) for time, _, who, row in late)])
        if self._decode is not None:
            unclear = self._unclear if self.history.declared.down else {one[0] for one in gone if one[2] not in due}
            self._decode.tally.unclear = unclear
        for time, what, who, row in ordered:
            if what == IS_COMPUTED and row >= 0:
                self._forget(who)
            elif what == IS_COMPUTED:
                self._made[who] = self._made.get(who, 0) + 1
                self._entry.tally.drop(who)
            elif row >= 0 and kind[row] == PREEMPTED:
                self._preempted(time, who, replica[row])
            elif what == COMES:
                self._comes(time, who, row, replica[row])
            elif what in (LEAVES, LEAVES_BY_LAYER):
                self._leaves(time, who, after=what == LEAVES_BY_LAYER)
            elif what == CHANGES:
                self._change(time)
            elif what == GIVES_UP:
                assert self._decode is not None
                self._decode.tally.drop(who)
            elif what in (IS_DECIDED, IS_TAKEN):
                self._taken(time, who, row, replica[row], aside=row in reserved)
                self._turns(replica[row]).tally.run(who, runs=True)
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
                place = self._at.get(who)
                if place is not None and row in self._is_last and who not in self._to and who not in self._stranded:
                    self._found(row, replica[row], place)
                self._goes(time, who)
        horizon = self.history.declared.horizon_ns
        if horizon is not None:
            for who in list(self._since):
                self._waited(who, self._to.get(who) or self._at.get(who), horizon)

    def _found(self, row: int, replica: int, place: Place) -> None:
        due = place.replica
        if due not in (UNKNOWN, replica):
            (self.misled if place.by_load else self.astray).append((row, due))
        place.found_at(replica)

    def _tokens(self, who: int, *, decodes: bool = False) -> int | None:
        """Return what a request counts for where it goes; None where that was not recorded."""
        requests = self.history.requests
        if requests is None or who >= len(requests["prompt_tokens"]):
            return None
        last = self._decode is None or decodes
        made = int(requests["output_tokens"][who]) if last else self._made.get(who, 0) + 1
        return int(requests["prompt_tokens"][who]) + made

    def _turns(self, replica: int) -> Turns:
        return self._decode if self._decode is not None and replica in self._decode.replicas else self._entry

    def _preempted(self, time: int, who: int, replica: int) -> None:
        if not any(one == replica and since == time for one, since, _ in self.history.declared.down):
            self._turns(replica).tally.run(who, runs=False)

    def _waited(self, who: int, place: Place | None, until: int) -> None:
        since = self._since.pop(who, until)
        if place is not None and place.replica != UNKNOWN and until > since:
            self.waits.append(Wait(request=who, replica=place.replica, since=since, until=until))

    def _comes(self, time: int, who: int, row: int, replica: int) -> None:
        before, after = (self._entry.living(time, after=later) for later in (False, True))
        place = self._entry.take(before, time)
        changes = any(time in one.instants for one in self.history.declared.down)
        if self._in_a_loop and changes:  # before or after what changes
            self._shaken = time
            self._entry.doubt()
            place = Place(told=replica if replica in before and replica in after else UNKNOWN)
            if place.told == UNKNOWN:
                self.moved.append((time, who, Place()))
        elif place is None:
            self._nowhere[who] = None
            return
        else:
            self._found(row, replica, place)
        self._at[who], self._since[who] = place, time
        if self._facts["kind"][row] == ARRIVED:
            self._entry.tally.put(who, place.replica, self._tokens(who))

    def _leaves(self, time: int, who: int, *, after: bool) -> None:
        assert self._decode is not None
        if self._ends.get(who) == (time, CANCELLED) and not after and self._due.get(who) != time:
            if who not in self._due:  # it may have left, or not
                self._decode.doubt()
            return
        self._depart(time, who, after=after)

    def _depart(self, time: int, who: int, *, after: bool) -> None:
        assert self._decode is not None
        place = self._decode.take(self._decode.living(time, after=after), time)
        if place is None:
            self._stranded[who] = None
        else:
            self._to[who], self._since[who] = place, time
            vague = self.history.layerwise and self._ends.get(who, (-1, 0))[1] == CANCELLED  # nothing tells when
            vague &= bool(self.history.declared.down) or who not in self._due
            self._decode.tally.put(who, place.replica, None if vague else self._tokens(who, decodes=True))

    def _taken(self, time: int, who: int, row: int, replica: int, *, aside: bool) -> None:
        place = (self._to if aside else self._at).get(who)
        if aside and (place is not None or not self._may_have_left(who)):
            self.aside.append((row, self._since.get(who, UNKNOWN)))
        if place is None or (not aside and who in self._decoding):
            return
        self._found(row, replica, place)
        self._turns(replica).tally.find(who, replica)
        self._waited(who, place, time)

    def _may_have_left(self, who: int) -> bool:
        """Return whether a request may be on its way that is not known to be: nothing tells when its client gave up."""
        assert self._decode is not None
        return self._decode.unsure > 0 or self._ends.get(who, (-1, 0))[1] == CANCELLED

    def _goes(self, time: int, who: int) -> None:
        self._waited(who, self._to.get(who) or self._at.get(who), time)
        for table in (self._at, self._to, self._decoding, self._nowhere, self._stranded):
            table.pop(who, None)
        self._forget(who)

    def _forget(self, who: int) -> None:
        self._entry.tally.drop(who)
        if self._decode is not None:
            self._decode.tally.drop(who)

    def _change(self, time: int) -> None:
        failing = {one for one, since, _ in self.history.declared.down if since == time}
        first = failing.intersection(self._entry.replicas)
        moved, again = list(self._nowhere), list(self._stranded)
        for who, place in self._at.items():
            if place.replica in failing:
                moved.append(who)
            elif place.replica == UNKNOWN and first:
                self._shaken = time
                self._entry.doubt()
                self.moved.append((self._since.get(who, 0), who, Place()))
                self._since[who] = time
        moved += [who for who, replica in self._decoding.items() if replica in failing]
        gone = set(moved)
        self._made |= {who: self._generated.get((who, time), 0) for who in gone.intersection(self._decoding)}
        if self._decode is not None:
            if self.history.layerwise and first:
                self._decode.unsure -= len(first)
                self._decode.doubt()
            again += self._sent_again(time, failing, gone)
        for who in gone:
            self._forget(who)
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
                self._decode.tally.drop(who)
                if who not in gone and self._ends.get(who, (-1, 0))[1] == CANCELLED:  # given up by now, or not
                    self._decode.doubt()
                    self._decode.tally.put(who, UNKNOWN, None)
                elif who not in gone:
                    found.append(who)
            elif place.replica == UNKNOWN and failing.intersection(self._decode.replicas):
                self._decode.doubt()
                self._to[who], self._since[who] = Place(), time
                self._decode.tally.put(who, UNKNOWN, None)
        return found

    def _move(self, time: int, who: int) -> None:
        """Let a request that lost its replica, or waits for one, go to one that lives."""
        self._waited(who, self._at.pop(who, None), time)
        for table in (self._to, self._decoding, self._nowhere, self._stranded):
            table.pop(who, None)
        ended, how = self._ends.get(who, (-1, 0))
        if ended == time and self._rows[who] not in self._is_last:
            if how != LOST:  # before it went, or after
                self._entry.doubt()
            return
        place = self._entry.take(self._entry.living(time, after=True), time)
        if place is None:
            self._nowhere[who] = None
        else:
            self._at[who], self._since[who] = place, time
            self.moved.append((time, who, place))
            self._entry.tally.put(who, place.replica, self._tokens(who))


def whereabouts_of(
    history: History, hand_overs: HandOvers, pieces: Pieces | None, runs: Runs | None, outputs: Int64Array | None
) -> Whereabouts:
    """Return where requests wait, as it follows from a history with facts; ``pieces`` tell who leaves when."""
    found = Whereabouts(history)
    events = list(told(history, hand_overs))
    until = np.iinfo(np.int64).max if history.declared.horizon_ns is None else history.declared.horizon_ns
    changes = {instant for one in history.declared.down for instant in one.instants if instant <= until}
    events += [(instant, CHANGES, UNKNOWN, UNKNOWN) for instant in changes]
    if history.hands_over and pieces is not None and runs is not None and outputs is not None:
        leaves = list(leaving(history, pieces, runs, outputs))
        if history.layerwise:  # who left before gets its blocks before others leave that are computed from then on
            now = {(time, who) for time, what, who, _ in leaves if what == LEAVES_BY_LAYER}
            events = [
                (one[0], IS_DECIDED, *one[2:]) if one[1] == IS_TAKEN and (one[0], one[2]) not in now else one
                for one in events
            ]
        if history.layerwise and not history.declared.down:
            events += gives_up(history, given_up(history))
        events += leaves
    found.follow(events, frozenset(hand_overs.reserved.tolist()))
    return found
