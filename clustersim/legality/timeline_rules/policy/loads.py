"""What the router of replicas at which requests arrive sees of them when it is asked, as it follows from the facts.

One instant has phases: completions, arrivals, those that leave by themselves, decisions. Who is given up leaves in the
third one when its client gives it up, and later in the first one, with the step that carried it. In a closed loop
others arrive when it has left, or before: what is routed at such an instant is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    LOST,
    PREEMPTED,
    REJECTED,
    Declared,
)
from clustersim.legality.timeline_rules.policy.declared import NEVER
from clustersim.legality.timeline_rules.requests.moments import given_up
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.residency import NONE
from clustersim.timeline.columns import is_any
from clustersim.timeline.rows_of import in_order
from clustersim.values import dataclass

COMPLETION, ARRIVAL, DEPARTURE, DECISION = range(4)


_MOST: Final = 1 << 20
"""Numbers of a table of requests and replicas that is held at a time."""
_ROUTED: Final = 1 << 18
"""Requests whose router is looked at together, where what it sees follows from those before."""
_FEW: Final = 64
"""Requests of which all but some 100 replicas show the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Requests that are routed, in order, and what the router sees.

    Parameters
    ----------
    request, time, target : int64 arrays of shape (routed,)
        ``target`` is the number of the replica in its pool.
    replicas : int
    asks : int64 array of shape (routed,)
        How many changes each one that is routed finds behind it.
    changed : int64 array of shape (changes,)
        The replica of each change, in order.
    outstanding, waiting, running : int64, int8 and int8 arrays of shape (changes,)
        What changes: tokens of unfinished requests; requests.
    told : bool array of shape (routed,)
        Whether these follow from the facts.
    before : int64 array of shape (replicas,), optional
        What is outstanding before the first change; without it nothing.
    """

    request: Int64Array
    time: Int64Array
    target: Int64Array
    replicas: int
    asks: Int64Array
    changed: Int64Array
    outstanding: Int64Array
    waiting: npt.NDArray[np.int8]
    running: npt.NDArray[np.int8]
    told: BoolArray
    before: Int64Array | None = None

    def of_each(self, *changes: Int64Array) -> Iterator[tuple[slice, tuple[Int64Array, ...]]]:
        """Yield what some that are routed see, part by part: int64 arrays of shape (those, replicas), one for each."""
        seen, before = [np.zeros(self.replicas, np.int64) for _ in changes], 0
        rows = max(1, _MOST // self.replicas)
        for first in range(0, len(self.asks), rows):
            part = slice(first, first + rows)
            asks = self.asks[part]
            since = slice(before, before := int(asks[-1]))
            at = np.searchsorted(asks, np.arange(since.start, since.stop), side="right"), self.changed[since]
            tables = []
            for number, change in enumerate(changes):
                table = np.zeros((len(asks), self.replicas), np.int64)
                table[0] = seen[number]
                np.add.at(table, at, change[since])
                np.cumsum(table, axis=0, out=table)
                seen[number] = table[-1]
                tables.append(table)
            yield part, tuple(tables)

    def least(self, change: Int64Array) -> Int64Array:
        """Return the first replica of which each one that is routed sees the least of what changes.

        Of few that follow each other all but a few replicas show the same, which are looked through once for them.
        """
        found, seen, before = np.empty(len(self.asks), np.int64), self._seen(0, change), 0
        rows = max(_FEW, _MOST // self.replicas**2)
        for first in range(0, len(self.asks), rows):
            part = slice(first, first + rows)
            asks = self.asks[part]
            since = slice(before, before := int(asks[-1]))
            moved, place = np.unique(self.changed[since], return_inverse=True)
            rest = seen.copy()
            rest[moved] = NEVER
            other = int(rest.argmin())
            found[part] = other
            if len(moved):
                table = np.zeros((len(asks), len(moved)), np.int64)
                table[0] = seen[moved]
                at = np.searchsorted(asks, np.arange(since.start, since.stop), side="right")
                np.add.at(table, (at, place), change[since])
                np.cumsum(table, axis=0, out=table)
                best = table.argmin(axis=1)
                least, best = np.take_along_axis(table, best[:, None], axis=1)[:, 0], moved[best]
                sooner = (least < rest[other]) | ((least == rest[other]) & (best < other))
                found[part][sooner] = best[sooner]
                seen[moved] = table[-1]
        return found

    def seen_by(self, index: int, change: Int64Array) -> Int64Array:
        """Return what one that is routed sees of each replica, int64 of shape (replicas,)."""
        return self._seen(int(self.asks[index]), change)

    @property
    def after(self) -> Int64Array:
        """What is outstanding after the last change, int64 of shape (replicas,)."""
        return self._seen(len(self.changed), self.outstanding)

    def _seen(self, changes: int, change: Int64Array) -> Int64Array:
        found = np.zeros(self.replicas, np.int64) if self.before is None else self.before.copy()
        np.add.at(found, self.changed[:changes], change[:changes])
        return found


def loads_of(reading: Reading, declared: Declared) -> Loads | None:
    """Return what the router of a pool sees; None where the record does not say when prompts have been computed."""
    facts, requests, pieces = reading.history.facts, reading.history.requests, reading.pieces
    if facts is None or requests is None or pieces is None or pieces.astray:
        return None
    count, first = len(requests["prompt_tokens"]), declared.first_replica
    kind, time, request, replica = (facts[name] for name in ("kind", "time_ns", "request", "replica"))
    if count <= int(request.max(initial=-1)):
        return None
    here = (replica >= first) & (replica < first + declared.dp)
    prompt, output = (requests[name].astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    goes_on = (output > 1) if declared.role != "all" else np.zeros(count, bool)
    comes = here & is_any(kind, (ARRIVED, REJECTED))
    rows = np.flatnonzero(comes & (reading.residency.before(comes) < 0))
    rows = rows[in_order(time[rows], request[rows])]
    came, came_at, joins = request[rows], time[rows], kind[rows] == ARRIVED
    to = replica[rows].astype(np.int64) - first
    weight = prompt + np.where(goes_on, 1, output)
    ends = here & is_any(kind, (FINISHED, CANCELLED, LOST, REJECTED))
    member = np.zeros(count, bool)
    member[came[joins]] = True
    leaves = np.empty(0, np.int64)
    samples = _samples(reading, count)
    if declared.role == "prefill":
        leaves = np.flatnonzero(goes_on & (samples < NEVER) & member)
        ends &= ~(goes_on[request] & (samples[request] <= time))
    home = np.zeros(count, np.int64)
    home[came[joins]] = to[joins]
    done = np.flatnonzero(ends & member[request])
    due = np.full(count, NEVER)
    told = given_up(reading.history)
    due[list(told)] = list(told.values())
    late = (kind == FINISHED) | ((kind == CANCELLED) & (time > due[request]))
    states = np.flatnonzero(here & is_any(kind, (ADMITTED, PREEMPTED)))
    state = _states(
        (came[joins], came_at[joins], np.full(int(joins.sum()), ARRIVAL, np.int8)),
        (request[states], time[states], np.full(len(states), DECISION, np.int8)), kind[states] == ADMITTED,
        (request[done], time[done], np.where(late[done], COMPLETION, DEPARTURE).astype(np.int8)),
        (leaves, samples[leaves], np.full(len(leaves), COMPLETION, np.int8)),
    )  # fmt: skip
    who, opens = state.who, state.opens
    change = np.where(opens > 0, weight[who], np.where(opens < 0, -weight[who], 0))
    asks = np.repeat(np.array((1, 0), np.int8), (len(who), len(came)))  # who asks is not there yet
    phases = np.concatenate((state.phase, np.full(len(came), ARRIVAL, np.int8)))
    key = in_order(np.concatenate((state.when, came_at)), phases, np.concatenate((who, came)), asks)
    order, asked = key[key < len(who)], np.flatnonzero(key >= len(who))  # who ask are in order already
    in_a_loop = "arrives_ns" not in requests
    sure = late | (not in_a_loop and ((time == due[request]) | (kind == REJECTED)))
    unclear = time[done[~sure[done]]]
    return Loads(
        request=came, time=came_at, target=to, replicas=declared.dp, asks=asked - np.arange(len(came)),
        changed=home[who][order], outstanding=change[order], waiting=state.waits[order], running=state.runs[order],
        told=~np.isin(came_at, unclear),
    )  # fmt: skip


def outstanding_of(reading: Reading, declared: Declared) -> Iterator[Loads | None]:
    """Yield what the router of a pool sees, of which only what is outstanding is told: some that it routes at a time.

    That follows from arrivals and ends alone where nothing else ends a request; elsewhere it is :func:`loads_of`.
    """
    facts, requests = reading.history.facts, reading.history.requests
    recorded = facts is not None and requests is not None and reading.history.folded is not None
    if not recorded or declared.role != "all" or reading.facts_of(REJECTED, CANCELLED, LOST).size:
        yield loads_of(reading, declared)
        return
    assert facts is not None
    assert requests is not None
    time, request, count = facts["time_ns"], facts["request"], len(requests["prompt_tokens"])
    came, done = reading.facts_of(ARRIVED), reading.facts_of(FINISHED)
    home, at = np.full(count, NONE, np.int32), np.full(count, NONE)
    home[request[came]], at[request[came]] = facts["replica"][came] - declared.first_replica, came
    once = all(np.bincount(request[rows], minlength=1).max() <= 1 for rows in (came, done))
    if not once or home.min(initial=0) < 0 or home.max(initial=0) >= declared.dp:
        yield loads_of(reading, declared)
        return
    came = at if (np.diff(time[at]) >= 0).all() else at[in_order(time[at])]  # of one instant by number
    done = done[in_order(time[done])]
    seen, low = np.zeros(declared.dp, np.int64), 0
    left = time[done]
    while len(came):
        some, came = came[:_ROUTED], came[_ROUTED:]
        until = time[came[0]] if len(came) else NEVER  # of an instant completions come first
        high = int(np.searchsorted(left, until, side="right"))
        ends, low = done[low:high], high
        who, asks = (
            request[some].astype(np.int64),
            np.repeat(np.array((1, 1, 0), np.int8), (len(some), len(ends), len(some))),
        )
        changing = np.concatenate((who, request[ends], who))
        arrives = np.repeat((True, False, True), (len(some), len(ends), len(some)))
        when = np.concatenate((time[some], time[ends], time[some]))
        key = in_order(when, arrives, changing, asks)
        order, asked = key[key < len(some) + len(ends)], np.flatnonzero(key >= len(some) + len(ends))
        weight = requests["prompt_tokens"][changing] + requests["output_tokens"][changing].astype(np.int64)
        none = np.zeros(len(order), np.int8)
        found = Loads(
            request=who, time=time[some], target=home[who].astype(np.int64), replicas=declared.dp,
            asks=asked - np.arange(len(some)), changed=home[changing[order]].astype(np.int64),
            outstanding=np.where(arrives, weight, -weight)[order], waiting=none, running=none,
            told=np.ones(len(some), bool), before=seen,
        )  # fmt: skip
        yield found
        seen = found.after


def _samples(reading: Reading, count: int) -> Int64Array:
    """Return when the step of each request's first token ends."""
    pieces = reading.pieces
    assert pieces is not None
    ends = np.full(count, NEVER)
    some = np.flatnonzero(pieces.gave > 0)[::-1]
    ends[pieces.request[some]] = pieces.end[some]
    return ends


Events = tuple[Int64Array, Int64Array, Int64Array]
"""Requests, instants, and phases of these."""


class LoadChanges(NamedTuple):
    """Who, when, in which phase, and what that adds to who waits, runs and is there at all."""

    who: Int64Array
    when: Int64Array
    phase: npt.NDArray[np.int8]
    waits: npt.NDArray[np.int8]
    runs: npt.NDArray[np.int8]
    opens: npt.NDArray[np.int8]


def _states(came: Events, decided: Events, admitted: BoolArray, done: Events, leaves: Events) -> LoadChanges:
    """Return what requests that come, are decided on, end and leave change, by request and time."""
    parts = (came, decided, done, leaves)
    who, when, phase = (np.concatenate([part[at] for part in parts]) for at in range(3))
    state = np.concatenate(
        (np.ones(len(came[0]), np.int8), admitted + np.int8(1), np.zeros(len(done[0]) + len(leaves[0]), np.int8))
    )
    order = in_order(who, when, phase)
    who, when, phase, state = who[order], when[order], phase[order], state[order]
    before = np.zeros(len(who), np.int8)
    before[1:] = np.where(who[1:] == who[:-1], state[:-1], 0)
    waits = (state == 1).astype(np.int8) - (before == 1)
    runs = (state == 2).astype(np.int8) - (before == 2)
    opens = (state > 0).astype(np.int8) - (before > 0)
    return LoadChanges(who, when, phase, waits, runs, opens)
