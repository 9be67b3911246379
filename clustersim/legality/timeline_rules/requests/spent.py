"""RUN-4: the time of a request that finished is accounted for: its causes add up, and the record supports each.

What a request is said to have waited for must have been so at a replica of its own while it was there: no place in the
batch while as many run as may, prompts of others while a step carries prompts, a stage where there are several. Who
lacks blocks has not begun where a place is free, or is between two of its steps; and there is budget left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, judged, merged
from clustersim.legality.history import ARRIVED, FINISHED, PREEMPTED, RECEIVED, SWAPPED_OUT, Declared
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.passes import parts
from clustersim.timeline.rows_of import RowsOf

QUEUED: Final = (
    "batch_wait_ns", "blocks_wait_ns", "budget_wait_ns", "choice_wait_ns", "step_wait_ns", "replica_wait_ns",
)  # fmt: skip
"""What a request may be waiting for before its first step."""
WAITED: Final = ("stage_wait_ns", "hand_over_ns", "transfer_ns", "preempted_ns", "interference_ns")
GOT: Final = ("compute_ns", "communication_ns", "host_ns", "bubble_ns")
SPENT: Final = (*QUEUED, *WAITED, *GOT)
"""Columns of the table of requests that are judged, ns; −1 where it does not say."""
_FIX: Final = "count each nanosecond once, as what the record says that it was"
NEVER = np.iinfo(np.int64).max


def time_is_spent(reading: Reading) -> Finding:
    """RUN-4: the causes of every request that finished add up, and what it waited for was there to wait for."""
    requests, runs, pieces = reading.history.requests, reading.runs, reading.pieces
    if requests is None or runs is None or pieces is None or any(name not in requests for name in SPENT):
        return NOTHING
    count = len(requests["compute_ns"])
    came, ended = (reading.residency.first_ns(count, kind)[:count] for kind in (ARRIVED, FINISHED))
    done = (ended < NEVER) & (came < NEVER)
    spent = {name: requests[name] if done.all() else np.where(done, requests[name], 0) for name in SPENT}
    whole, below = np.zeros(count, np.int64), np.zeros(count, bool)
    for values in spent.values():
        whole += values
        below |= values < 0
    if not done.all():
        came, ended = (np.where(done, instants, 0) for instants in (came, ended))
    lasted = ended - came
    adds_up = judged(
        int(done.sum()), done & (below | (whole != lasted)), "request {at}",
        "takes {lasted:,} ns, and what these were spent on comes to {whole:,} ns, each from 0", _FIX,
        lasted=lasted, whole=whole,
    )  # fmt: skip
    if adds_up.faults:
        return adds_up
    del whole, below, lasted, values
    return merged(adds_up, *_bounds(reading, spent, came, ended))


def _bounds(reading: Reading, spent: dict[str, Int64Array], came: Int64Array, ended: Int64Array) -> Iterator[Finding]:
    """Yield what is said to have been spent on something for longer than the record has it."""
    history, runs, pieces = reading.history, reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    count = len(came)
    none, any_time = np.zeros(count, np.int64), ended - came
    inside, first = none.copy(), ended.copy()
    opens = pieces.opens
    if len(opens):
        who = pieces.request[opens]
        mine = np.flatnonzero((who < count) & (ended[np.minimum(who, count - 1)] > 0))
        who, begun = who[mine], pieces.begin[opens[mine]]
        inside[who] = np.add.reduceat(pieces.end - pieces.begin, opens)[mine]
        first[who] = np.maximum(begun, came[who])
    queued = first - came
    waited = sum((spent[name] for name in QUEUED), none)
    yield _said(queued > waited, "is in its queue for {most:,} ns, and said to wait for {ns:,} ns", queued, waited)
    got = sum((spent[name] for name in GOT), none)
    yield _said(got > inside, "got {ns:,} ns of steps, of which {most:,} ns had it", inside, got)
    del opens, queued, waited, got, inside
    lost, received = (_had(reading, count, *kinds) for kinds in ((PREEMPTED, SWAPPED_OUT), (RECEIVED,)))
    handed_over = np.where(received, any_time, 0) if received.any() else none
    limits = {
        "stage_wait_ns": any_time if any(pool.pp > 1 for pool in history.pools) else none,
        "replica_wait_ns": any_time if reading.declared.down or lost.any() else none,
        "preempted_ns": np.where(lost, any_time, 0) if lost.any() else none,
        "hand_over_ns": handed_over,
        "transfer_ns": handed_over,
    }
    users = [pool.policy is not None and pool.policy.scheduler is None for pool in history.pools]
    limits["choice_wait_ns"] = any_time if any(users) else none
    told = all(name in runs.table for name in _TELLING)
    if told and not any(pool.down for pool in history.pools):  # else it may have waited where it was in no step
        limits |= _while(reading, came, first, ended)
    for name, most in limits.items():
        words = f"spends {{ns:,}} ns on {name.removesuffix('_ns')}, which the record has for {{most:,}} ns at most"
        yield _said(spent[name] > most, words, most, spent[name])


def _said(broken: BoolArray, words: str, most: Int64Array, ns: Int64Array) -> Finding:
    return judged(0, broken, "request {at}", words, _FIX, most=most, ns=ns)


def _had(reading: Reading, count: int, *kinds: int) -> BoolArray:
    """Return which requests have a fact of some kinds."""
    facts, found = reading.history.facts, np.zeros(count, bool)
    assert facts is not None
    found[facts["request"][reading.facts_of(*kinds)]] = True
    return found


def _full(runs: Runs, declared: Declared) -> BoolArray:
    """Say from which steps on as many run as may; of a static batch, always."""
    static = declared.policy is not None and declared.policy.scheduler == "static"
    most = declared.max_batch_requests
    return _column(runs, "running") >= (0 if static or most is None else most)


def _room(runs: Runs, declared: Declared) -> BoolArray:
    """Say from which steps on fewer run than may, and there is budget left."""
    most = declared.max_batch_requests
    places = _column(runs, "running") < (NEVER if most is None else most)
    return places & _budget_left(runs, declared)


def _budget_left(runs: Runs, declared: Declared) -> BoolArray:
    """Say which steps had fewer tokens than they may; one that only decodes may begin no prompt for other reasons."""
    prompts = _column(runs, "prefill_tokens")
    most = NEVER if declared.max_batch_tokens is None else declared.max_batch_tokens
    found: BoolArray = (prompts + _column(runs, "decode_tokens") < most) | (prompts == 0)
    return found


def _budget_spent(runs: Runs, declared: Declared) -> BoolArray:
    """Say which steps had as many tokens as they may, or a prompt that has to be whole might not fit into them."""
    prompts = _column(runs, "prefill_tokens")
    tokens = prompts + _column(runs, "decode_tokens")
    whole = declared.policy is not None and declared.policy.scheduler == "continuous"
    most = 0 if declared.max_batch_tokens is None else declared.max_batch_tokens
    return (tokens >= most) | (whole & (prompts > 0))


_SUPPORTS: Final[dict[str, Callable[[Runs, Declared], BoolArray]]] = {
    "batch_wait_ns": _full,
    "blocks_wait_ns": _room,
    "budget_wait_ns": _budget_spent,
}
"""What is waited for → from which steps to the next ones of their replica that is possible."""


_TELLING: Final = ("running", "prefill_tokens", "decode_tokens")
"""Columns of steps that tell what was possible."""


def _column(runs: Runs, name: str) -> Int64Array:
    found = runs.column(name)
    assert found is not None
    return found


def _while(reading: Reading, came: Int64Array, first: Int64Array, ended: Int64Array) -> dict[str, Int64Array]:
    """Return for how long each wait was possible at the replicas of each request while it was there.

    For a place, and for blocks to begin with, that is up to its first step. Of steps with prompts it is all of the
    time up to the next ones but the share of its own prompt.
    """
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    changes = np.append(True, (pieces.replica[1:] != pieces.replica[:-1]) | ~pieces.follows[1:])[: len(pieces)]
    at = np.flatnonzero(changes & (pieces.request < len(came)))
    request, replica = pieces.request[at], pieces.replica[at]
    found = {name: np.zeros(len(came), np.int64) for name in (*_SUPPORTS, "interference_ns")}
    between = _between_steps(pieces, len(came))
    whose, whose_between = RowsOf(replica), RowsOf(between.replica)
    prompts = _column(runs, "prefill_tokens") > 0
    for declared in reading.history.pools:
        holds = {name: support(runs, declared) for name, support in _SUPPORTS.items()}
        left = _budget_left(runs, declared)
        for one in range(declared.first_replica, min(declared.first_replica + declared.dp, len(runs.bounds) - 1)):
            mine = slice(int(runs.bounds[one]), int(runs.bounds[one + 1]))
            who = request[whose.of(one)]
            if mine.stop > mine.start and len(who):
                steps = _Steps(runs.start[mine], runs.end[mine])
                arrival, begin, end = (steps.at(instant[who]) for instant in (came, first, ended))
                for name, held in holds.items():
                    until = end if name == "budget_wait_ns" else begin
                    np.add.at(found[name], who, steps.until_next(held[mine], arrival, until))
                some = whose_between.of(one)
                lacks = steps.until_next(left[mine], *(steps.at(one[some]) for one in (between.since, between.until)))
                np.add.at(found["blocks_wait_ns"], between.request[some], lacks)
                np.add.at(found["interference_ns"], who, steps.whole(prompts[mine], came[who], ended[who]))
    own = np.where(ended > 0, _own_prompts(reading, len(came)), 0)
    found["interference_ns"] -= own
    return found


class _Intervals(NamedTuple):
    """Times between pieces of requests: where each goes on, from the end of the one piece to the begin of the next."""

    request: Int64Array
    replica: Int64Array
    since: Int64Array
    until: Int64Array


def _between_steps(pieces: Pieces, count: int) -> _Intervals:
    """Return when requests were in none of their steps, from their first ones on.

    An episode of decoding is one piece: a sequence that decodes has its blocks, or loses them.
    """
    order = pieces.by_instant
    if order is None:
        waits = np.flatnonzero(pieces.follows[1:] & (pieces.begin[1:] > pieces.end[:-1]))
        before, after = waits, waits + 1
    else:
        before, after = order[:-1], order[1:]
        waits = (pieces.request[before] == pieces.request[after]) & (pieces.begin[after] > pieces.end[before])
        before, after = before[waits], after[waits]
    some = pieces.request[after] < count
    before, after = before[some], after[some]
    return _Intervals(pieces.request[after], pieces.replica[after], pieces.end[before], pieces.begin[after])


def _own_prompts(reading: Reading, count: int) -> Int64Array:
    """Return how long steps took for a request's own prompt, by its share of their prompts' tokens."""
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    own = np.flatnonzero(pieces.is_chunk & (pieces.request < count))
    at = pieces.first_run[own]
    tokens = np.maximum(_column(runs, "prefill_tokens")[at], 1)
    found = np.zeros(count, np.int64)
    np.add.at(found, pieces.request[own], (runs.end[at] - runs.start[at]) * pieces.count[own] // tokens)
    return found


class _Steps:
    """The steps of a replica in order of their starts, of which something is asked between two instants."""

    def __init__(self, start: Int64Array, end: Int64Array) -> None:
        in_order = (start[1:] >= start[:-1]).all()
        self._order = slice(None) if in_order else np.argsort(start, kind="stable")
        self._start, self._end = start[self._order], end[self._order]
        self._lasts = np.diff(np.append(self._start, max(int(self._end.max()), int(self._start[-1]))))

    def at(self, instant: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return at each instant the last step that has started, the first one before all, and for how long it has."""
        at = np.maximum(np.searchsorted(self._start, instant, side="right") - 1, 0)
        return at.astype(np.int32), np.maximum(instant - self._start[at], 0)

    def until_next(
        self, holds: BoolArray, since: tuple[Int64Array, Int64Array], until: tuple[Int64Array, Int64Array]
    ) -> Int64Array:
        """Return for how long something held from one instant to another, from steps of which it does to the next."""
        lasts = self._lasts * holds[self._order]
        before = np.cumsum(lasts) - lasts
        held = np.empty(len(since[0]), np.int64)
        for some in parts(len(held), 4):
            first, last = (
                before[at[some]] + np.minimum(passed[some], lasts[at[some]]) for at, passed in (since, until)
            )
            held[some] = last - first
        return held

    def whole(self, holds: BoolArray, since: Int64Array, until: Int64Array) -> Int64Array:
        """Return how long the steps take together that start meanwhile and of which something holds.

        Up to its end, or to the next step where that starts later: none takes up what waits before.
        """
        lasts = np.maximum(self._end - self._start, self._lasts) * holds[self._order]
        took = np.concatenate((np.zeros(1, np.int64), np.cumsum(lasts)))
        first, last = (np.searchsorted(self._start, instant) for instant in (since, until))
        found: Int64Array = took[last] - took[first]
        return found
