"""Who holds which full prompt block when, where prefixes are shared: from the record and the declared hashes alone.

::

    block of content c   computed by 3 ──────────── ends            taken over by 9 ─────── ends
                                    taken over by 5 ────── ends
    holders                       1 2              1      0          1                      0
    more than one counts once     0 1              0      0          0
    kept though nobody holds it                           1 ──────── 0

A sequence holds a block from the end of the step that filled it, or from the instant at which it takes it over, until
it ends or is preempted. Sequences that hold equal blocks at a time hold one. A block that is taken over when nobody
holds it has been kept since somebody did: it has filled its place in the pool meanwhile, whoever decides what goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.declared.faults import Outage
from clustersim.legality.timeline_rules.views.contents import Contents
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.tables import Table
from clustersim.values import dataclass

_BEFORE_FACTS = -1
"""In place of a row, for what happens as a step ends: at one instant that comes before all facts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reused:
    """Facts that say that a sequence takes tokens over.

    Parameters
    ----------
    row, request, replica, time, tokens : int64 arrays of shape (facts,)
    piece : int64 array
        The first piece of the sequence from then on; −1 where there is none.
    """

    row: Int64Array
    request: Int64Array
    replica: Int64Array
    time: Int64Array
    tokens: Int64Array
    piece: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """How many blocks are saved by sharing, and how many are kept though nobody holds them, change by change.

    Parameters
    ----------
    replica, time, row, saved, kept : int64 arrays of shape (changes,)
        In order of (replica, time, row); ``saved`` and ``kept`` are what each adds.
    """

    replica: Int64Array
    time: Int64Array
    row: Int64Array
    saved: Int64Array
    kept: Int64Array

    def at_runs(self, runs: Runs) -> tuple[Int64Array, Int64Array]:
        """Return (saved, kept) when the first step of each run has been decided."""
        saved, kept, _ = self._after(runs.replica, runs.start, np.full(len(runs), np.iinfo(np.int64).max))
        return saved, kept

    def at_facts(self, replica: Int64Array, time: Int64Array, row: Int64Array) -> Int64Array:
        """Return what is saved right after each fact."""
        return self._after(replica, time, row)[0]

    def around(self, replica: Int64Array, time: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the least and the most that can be saved between two decisions of an instant."""
        before, _, gained = self._after(replica, time, np.full(len(time), _BEFORE_FACTS - 1))
        after, _, gained_then = self._after(replica, time, np.full(len(time), np.iinfo(np.int64).max))
        gained = gained_then - gained
        return after - gained, before + gained

    def _after(self, replica: Int64Array, time: Int64Array, row: Int64Array) -> list[Int64Array]:
        """Return what is saved, what is kept, and what came to be saved so far."""
        count = len(self.row)
        asked = np.arange(len(row)) + count
        order = np.lexsort(
            (
                np.concatenate((np.zeros(count, np.int64), np.ones(len(row), np.int64))),
                np.concatenate((self.row, row)),
                np.concatenate((self.time, time)),
                np.concatenate((self.replica, replica)),
            )
        )
        found = []
        added = (self.saved, self.kept, np.maximum(self.saved, 0))
        for values in added:
            total = np.cumsum(np.concatenate((values, np.zeros(len(row), np.int64)))[order])
            at = np.empty(len(order), np.int64)
            at[order] = total
            found.append(at[asked])  # what a replica saves comes back to 0 only where all ends: subtract those before
        replicas = int(max(self.replica.max(initial=-1), replica.max(initial=-1))) + 1
        for number, values in enumerate(added):
            sums = np.bincount(self.replica, weights=values, minlength=replicas).astype(np.int64)
            found[number] = found[number] - (np.cumsum(sums) - sums)[replica]
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sharing:
    """What sharing comes to.

    Parameters
    ----------
    changes : Changes
    unknown : bool array of shape (reused facts,)
        Whether a sequence takes over a block that nobody had computed on its replica before.
    """

    changes: Changes
    unknown: BoolArray


def reused_in(facts: Table, rows: Int64Array, pieces: Pieces, *, failures: bool = False) -> Reused:
    """Return the facts at ``rows``, each with the piece that it opens."""
    request, time = facts["request"][rows].astype(np.int64), facts["time_ns"][rows].astype(np.int64)
    return Reused(
        row=rows,
        request=request,
        replica=facts["replica"][rows].astype(np.int64),
        time=time,
        tokens=facts["value"][rows].astype(np.int64),
        piece=pieces.opened_by(facts, rows, failures=failures),
    )


def sharing_of(
    pieces: Pieces,
    reused: Reused,
    released: tuple[Int64Array, Int64Array, Int64Array],
    contents: Contents,
    size: int,
    down: Sequence[Outage] = (),
    caches: BoolArray | None = None,
) -> Sharing:
    """Follow every block that has a declared content.

    Parameters
    ----------
    pieces, reused, contents
    released : (turn, time, row)
        When which turn of a request (``Pieces.turn_of``) gave its blocks back, and the row that says so.
    size : int
        Tokens per block.
    down : sequence of (int, int, int)
        Replica and the instants between which it was down: what it had cached before is gone.
    caches : bool array of shape (replicas,), optional
        Whether each keeps prefixes; all do by default.
    """
    turns = int(pieces.turn_of.max(initial=-1)) + 1
    never = np.iinfo(np.int64).max
    freed_at, freed_row = np.full(turns, never), np.full(turns, never)
    freed_at[released[0]], freed_row[released[0]] = released[1], released[2]

    chunk = np.flatnonzero(pieces.is_chunk if caches is None else pieces.is_chunk & caches[pieces.replica])
    mine = contents.blocks[pieces.request[chunk]]
    filled = [np.minimum(tokens[chunk] // size, mine) for tokens in (pieces.computed, pieces.computed + pieces.count)]
    opened = np.flatnonzero(reused.piece >= 0)
    known = np.minimum(reused.tokens // size, contents.blocks[reused.request])[opened]
    of = np.concatenate((chunk, reused.piece[opened]))
    blocks = contents.runs(
        pieces.request[of],
        np.concatenate((filled[0], np.zeros(len(opened), np.int64))),
        np.concatenate((filled[1], known)),
    )
    piece, made = of[blocks.of], blocks.of < len(chunk)
    time = np.concatenate((pieces.end[chunk], reused.time[opened]))[blocks.of]
    row = np.concatenate((np.full(len(chunk), _BEFORE_FACTS), reused.row[opened]))[blocks.of]
    fact = np.concatenate((np.full(len(chunk), -1), opened))[blocks.of]
    place = _place(pieces, blocks.number, piece, failures(pieces.replica[piece], time, down))
    turn = pieces.turn_of[piece]
    ends = np.flatnonzero(freed_at[turn] < never)
    return _followed(
        place=np.concatenate((place, place[ends])),
        replica=np.concatenate((pieces.replica[piece], pieces.replica[piece[ends]])),
        time=np.concatenate((time, freed_at[turn[ends]])),
        row=np.concatenate((row, freed_row[turn[ends]])),
        change=np.concatenate((np.ones(len(piece), np.int64), np.full(len(ends), -1))),
        many=np.concatenate((blocks.many, blocks.many[ends])),
        made=np.concatenate((made, np.zeros(len(ends), bool))),
        fact=np.concatenate((fact, np.full(len(ends), -1))),
        facts=len(reused.row),
    )


def failures(replica: Int64Array, time: Int64Array, down: Sequence[Outage]) -> Int64Array:
    """Return how often a replica had failed before an instant; a step that ends as it fails has ended."""
    found = np.zeros(len(replica), np.int64)
    for failed, since, _ in down:
        found += (replica == failed) & (time > since)
    return found


def _place(pieces: Pieces, content: Int64Array, piece: Int64Array, failures: Int64Array) -> Int64Array:
    """Return a number for (replica, how often it had failed, content)."""
    life = pieces.replica[piece] * (int(failures.max(initial=0)) + 1) + failures
    return life * (int(content.max(initial=-1)) + 1) + content


def _followed(
    *,
    place: Int64Array,
    replica: Int64Array,
    time: Int64Array,
    row: Int64Array,
    change: Int64Array,
    many: Int64Array,
    made: BoolArray,
    fact: Int64Array,
    facts: int,
) -> Sharing:
    order = np.lexsort((row, time, place))
    place, replica, time, row, change, fact = (values[order] for values in (place, replica, time, row, change, fact))
    opens = np.concatenate((np.ones(1, bool), place[1:] != place[:-1]))[: len(place)]
    group = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    holders = _since(change, first, group)
    computed = _since(made[order].astype(np.int64), first, group)
    before = holders - change
    saved = np.where(change > 0, before >= 1, 0).astype(np.int64) - np.where(change < 0, holders >= 1, 0)
    revived = np.flatnonzero((fact >= 0) & (before == 0) & ~opens)
    kept = np.zeros(len(place), np.int64)
    kept[revived] -= 1
    kept[revived - 1] += 1  # what came before is the end of its last holder
    unknown = np.zeros(facts, bool)
    unknown[fact[(fact >= 0) & (computed == 0)]] = True
    saved, kept = saved * many[order], kept * many[order]
    some = np.flatnonzero((saved != 0) | (kept != 0))
    some = some[np.lexsort((row[some], time[some], replica[some]))]
    return Sharing(
        changes=Changes(replica=replica[some], time=time[some], row=row[some], saved=saved[some], kept=kept[some]),
        unknown=unknown,
    )


def _since(values: Int64Array, first: Int64Array, group: Int64Array) -> Int64Array:
    total = np.cumsum(values)
    found: Int64Array = total - (total[first] - values[first])[group]
    return found
