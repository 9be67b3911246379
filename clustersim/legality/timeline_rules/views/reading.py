"""One reading of a history, shared by all rules: what follows from the record, worked out once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import (
    CANCELLED,
    FINISHED,
    LOST,
    PREEMPTED,
    SWAPPED_IN,
    SWAPPED_OUT,
    Declared,
    History,
)
from clustersim.legality.timeline_rules.requests.whereabouts import Whereabouts, whereabouts_of
from clustersim.legality.timeline_rules.transfers.owners import owner_at
from clustersim.legality.timeline_rules.views.arrivals import Arrivals, Sends, arrivals_in, sends_of
from clustersim.legality.timeline_rules.views.grouping import without
from clustersim.legality.timeline_rules.views.hand_overs import HandOvers
from clustersim.legality.timeline_rules.views.occupation import Occupation, occupation_of
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.prefixes import Prefixes
from clustersim.legality.timeline_rules.views.residency import Residency
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.legality.timeline_rules.views.sheet import Sheet, sheet_of_spans
from clustersim.legality.timeline_rules.views.swaps import Swap, swaps_of
from clustersim.legality.timeline_rules.views.unfolding import sheets_of_tables
from clustersim.legality.timeline_rules.views.use import Use, use_of
from clustersim.memory import MANY, let_go
from clustersim.timeline.columns import is_any, is_one
from clustersim.timeline.passes import Passes, parts
from clustersim.timeline.rows_of import RowsOf, in_order

SOON_MADE: Final = frozenset((
    "known", "finished", "gone", "preempted", "facts_in_time", "_rows_at",
    "tokens", "computed", "turn", "turn_of", "opens", "closes", "_carried", "_by_begin", "_by_end", "_places",
    "place", "_run_of", "run_at_place", "rank_in_slots", "slotted", "key",
))  # fmt: skip
"""Views of a history, its pieces, its steps and its passes that take less time to make again than they take memory."""


class Reading:
    """A history and what it comes to.

    Parameters
    ----------
    history : History
    """

    def __init__(self, history: History) -> None:
        self.history = history

    def forget(self, *also: str) -> None:
        """Drop views of a large history that are soon made again, and others that nobody will ask for."""
        views = vars(self)
        for name in also:
            views.pop(name, None)
        pieces = views.get("pieces")
        if pieces is None or len(pieces) < MANY:
            return
        let_go()
        for view in (self, pieces, views.get("runs"), views.get("passes")):
            for name in SOON_MADE.intersection(getattr(view, "__dict__", ())):
                del view.__dict__[name]

    @property
    def declared(self) -> Declared:
        """What was declared."""
        return self.history.declared

    @cached_property
    def runs(self) -> Runs | None:
        """The steps; None where none were recorded. A step has not ended before its last pass, whatever it says."""
        if self.history.steps is None:
            return None
        runs = Runs(self.history.steps)
        passes = self.passes
        if passes is not None and len(runs):
            for some in parts(len(passes)):
                at = runs.at(passes.replica[some], passes.step[some])
                known = at >= 0
                runs.end_later(at[known], passes.end[some][known])
        return runs

    @cached_property
    def pieces(self) -> Pieces | None:
        """What each sequence did; None where it was not recorded."""
        history = self.history
        if self.runs is None or history.chunks is None or history.decodes is None:
            return None
        return Pieces(history, self.runs)

    @cached_property
    def prompts(self) -> Int64Array | None:
        """Prompt tokens by number of the request; None where they were not recorded."""
        return self._lengths("prompt_tokens")

    @cached_property
    def outputs(self) -> Int64Array | None:
        """Output tokens by number of the request; None where they were not recorded."""
        return self._lengths("output_tokens")

    def _lengths(self, name: str) -> Int64Array | None:
        requests, pieces = self.history.requests, self.pieces
        if requests is None or name not in requests:
            return None
        found: Int64Array = requests[name].astype(np.int64, copy=False)
        if pieces is not None and len(pieces) and int(pieces.request.max()) >= len(found):
            return None
        return found

    @cached_property
    def passes(self) -> Occupation | None:
        """When each pass holds its stage; None where there is no folded form and no span, or two pools are in it."""
        if self.history.hands_over:
            return None
        if self.history.folded is not None:
            return occupation_of(self.history.folded)
        return None

    @cached_property
    def expanded(self) -> Passes:
        """Expands the runs of passes of the folded form, which is there."""
        assert self.history.folded is not None
        return Passes(self.history.folded)

    @cached_property
    def sends(self) -> Sends | None:
        """What each pass sent to the next stage; None where there is no folded form."""
        tables, passes = self.history.folded, self.passes
        return None if tables is None or passes is None else sends_of(tables, passes)

    @cached_property
    def arrivals(self) -> Arrivals | None:
        """When outputs of passes have arrived at the next stage; None where there is one stage, or no span."""
        if self.declared.pp == 1:
            return None
        if self.sends is not None and self.passes is not None:
            return Arrivals(passes=self.passes, sends=self.sends)
        spans = self.history.spans
        return arrivals_in(spans) if spans is not None and spans.numbered else None

    def sheets(self) -> Iterator[Sheet]:
        """Yield the operators that are looked at span by span."""
        history = self.history
        if history.folded is not None:
            yield from sheets_of_tables(history.folded, self.declared)
        elif history.spans is not None:
            yield sheet_of_spans(history.spans, self.declared, self._kinds)

    @cached_property
    def _kinds(self) -> dict[tuple[int, int], int]:
        runs = self.runs
        kinds = None if runs is None else runs.column("kind")
        if runs is None or kinds is None:
            return {}
        return {
            (replica, step): kind
            for replica, first, count, kind in zip(
                runs.replica.tolist(), runs.step.tolist(), runs.count.tolist(), kinds.tolist(), strict=True
            )
            for step in range(first, first + count)
        }

    def facts_of(self, *kinds: int) -> Int64Array:
        """Return the rows of the facts of some kinds, in the order of the record."""
        facts = self.history.facts
        return np.flatnonzero(is_any(facts["kind"], kinds)) if facts is not None else np.empty(0, np.int64)

    def replicas_of(self, declared: Declared) -> list[int]:
        """Return the replicas of a pool; those alone that facts or steps name, where the record is all that can be odd.

        A range of a long history names few (:mod:`clustersim.legality.timeline_rules.views.ranges`).
        """
        every = range(declared.first_replica, declared.first_replica + declared.dp)
        facts, runs = self.history.facts, self.runs
        if facts is None or runs is None or declared.down or self.history.hands_over:
            return list(every)
        return [one for one in self._named if one in every]

    @cached_property
    def _named(self) -> list[int]:
        """The replicas that facts or steps name, ascending."""
        facts, runs = self.history.facts, self.runs
        named = [table["replica"] for table in (facts, None if runs is None else runs.table) if table is not None]
        most = max(int(one.max(initial=-1)) for one in named)
        there = np.zeros(most + 1, bool)
        for one in named:
            there[one] = True
        return np.flatnonzero(there).tolist()

    def rows_at(self, column: Any, replica: int) -> Int64Array:
        """Return the rows of a replica, by the column of a table of this history, or of a view of it, that names it."""
        kept, found = self._rows_at.get(id(column), (None, None))
        if found is None or kept is not column:
            found = RowsOf(column)
            self._rows_at[id(column)] = column, found
        return found.of(replica)

    @cached_property
    def _rows_at(self) -> dict[int, tuple[Any, RowsOf]]:
        return {}

    @cached_property
    def facts_in_time(self) -> Int64Array:
        """The rows of the facts by replica and time, those of one instant as they were recorded."""
        facts = self.history.facts
        assert facts is not None
        if is_one(facts["replica"]):
            return np.argsort(facts["time_ns"], kind="stable")
        return in_order(facts["replica"], facts["time_ns"])

    @cached_property
    def twice(self) -> BoolArray:
        """Whether a piece shares a step with the one before it of its request."""
        pieces, runs = self.pieces, self.runs
        assert pieces is not None
        assert runs is not None
        before = np.arange(len(pieces)) - 1
        overlaps = pieces.follows & (pieces.replica == pieces.replica[before])
        overlaps &= pieces.first_step <= pieces.last_step[before]
        same_slot = runs.slot[pieces.first_run] == runs.slot[pieces.last_run[before]]
        exactly = pieces.first_step == pieces.last_step[before]
        found: BoolArray = overlaps & (same_slot | exactly)
        return found

    @cached_property
    def split(self) -> BoolArray:
        """Whether a piece lies, step by step, between steps of another micro-batch that carries its request."""
        pieces = self.pieces
        assert pieces is not None
        before = np.arange(len(pieces)) - 1
        overlaps = pieces.follows & (pieces.replica == pieces.replica[before])
        overlaps &= pieces.first_step <= pieces.last_step[before]
        found: BoolArray = overlaps & ~self.twice
        return found

    @cached_property
    def moved(self) -> BoolArray:
        """Whether a piece runs on another replica than the one before it of its request."""
        pieces = self.pieces
        assert pieces is not None
        before = np.arange(len(pieces)) - 1
        found: BoolArray = pieces.follows & (pieces.replica != pieces.replica[before])
        found &= ~self.retried & ~self.failed_between(pieces.replica[before], pieces.end[before], pieces.begin)
        hand_overs = self.hand_overs
        if hand_overs.again and len(hand_overs):  # or on a replica that received it and took no step with it
            at = hand_overs.of(pieces.request, pieces.begin)
            via = (at >= 0) & (hand_overs.source[at] == pieces.replica[before])
            found &= ~(via & self.failed_between(hand_overs.target[at], hand_overs.came_ns[at], pieces.begin))
        return found

    @property
    def may_have_failed(self) -> bool:
        """Whether nobody could declare what is down: tables from elsewhere do not say which replicas failed when."""
        return self.declared.deployment is None and not self.declared.down

    @cached_property
    def retried(self) -> BoolArray:
        """Whether a piece computes a prompt anew whose entries were given up since the piece before it.

        Only of replicas that may have failed.
        """
        pieces = self.pieces
        assert pieces is not None
        if not self.may_have_failed or self.history.facts is None:
            return np.zeros(len(pieces), bool)
        before = np.arange(len(pieces)) - 1
        given_up = np.zeros(len(pieces), bool)
        request, time = self._told(PREEMPTED)
        for at in np.flatnonzero(pieces.follows & pieces.is_chunk & (pieces.start == 0)).tolist():
            mine = time[np.searchsorted(request, pieces.request[at]) : np.searchsorted(request, pieces.request[at] + 1)]
            given_up[at] = bool(((mine >= pieces.end[before[at]]) & (mine <= pieces.begin[at])).any())
        return given_up

    def failed_between(self, replica: Int64Array, since: Int64Array, until: Int64Array) -> BoolArray:
        """Return whether something that a replica needs was out of order at some instant in [since, until].

        At the instant at which it comes back it still is for what arrives then: arrivals come first.
        """
        found = np.zeros(len(replica), bool)
        for failed, start, end in self.declared.down:
            found |= (replica == failed) & (start <= until) & (end >= since)
        return found

    @cached_property
    def hand_overs(self) -> HandOvers:
        """Declared hand-overs."""
        return HandOvers(self.history)

    @cached_property
    def whereabouts(self) -> Whereabouts | None:
        """Where requests wait; None where facts lack."""
        if self.history.facts is None:
            return None
        return whereabouts_of(self.history, self.hand_overs, self.pieces, self.runs, self.outputs)

    @cached_property
    def declared_moves(self) -> BoolArray:
        """Whether a piece runs on another replica than the one before it, and a hand-over says so."""
        pieces = self.pieces
        assert pieces is not None
        return self.moved & self.hand_overs.declares(pieces)

    def declared_of(self, name: str) -> Int64Array | None:
        """Return a declared number by replica; None where it was not declared."""
        runs = self.runs
        replicas = len(runs.bounds) - 1 if runs is not None else 0
        pools = self.history.pools
        values = [getattr(declared, name) for declared in pools]
        if any(value is None for value in values):
            return None
        at = np.searchsorted([declared.first_replica for declared in pools], np.arange(replicas), side="right") - 1
        return np.array(values, np.int64)[at]

    @cached_property
    def plain(self) -> BoolArray:
        """Whether the request of a piece has all its pieces one after the other on one replica, or was handed over.

        Where it has not, what it computed when can't be told, and rules that need that say nothing of it.
        """
        pieces = self.pieces
        assert pieces is not None
        if not len(pieces):
            return np.empty(0, bool)
        tangled = np.logical_or.reduceat(self.twice | self.split | (self.moved & ~self.declared_moves), pieces.opens)
        return np.repeat(~tangled, np.diff(np.append(pieces.opens, len(pieces))))

    @property
    def residency(self) -> Residency:
        """The facts of each request one after the other."""
        return self.hand_overs.residency

    @cached_property
    def preempted(self) -> tuple[Int64Array, Int64Array]:
        """Request and instant of every preemption, in order of these; without those that gave no entries back.

        What fails in the first step of a sequence that it carries takes no entries along: none was complete.
        """
        reservations = self.hand_overs.reservations
        request, time = self._told(PREEMPTED, but=None if reservations is None else reservations.vain)
        if not self.declared.down or self.pieces is None:
            return request, time
        some = self.pieces.ended_before(request, time)
        before = np.where(np.append(False, request[1:] == request[:-1])[: len(request)], np.append(0, some)[:-1], 0)
        return request[some > before], time[some > before]

    @cached_property
    def finished(self) -> tuple[Int64Array, Int64Array]:
        """Request and instant of every end, in order of these."""
        return self._told(FINISHED)

    @cached_property
    def gone(self) -> tuple[Int64Array, Int64Array]:
        """Request and instant of every end by which a request left without its tokens, in order of these."""
        return self._told(CANCELLED, LOST)

    def _told(self, *kinds: int, but: Int64Array | None = None) -> tuple[Int64Array, Int64Array]:
        facts = self.history.facts
        if facts is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows = self.residency.among(is_any(facts["kind"], kinds))
        rows = rows if but is None else without(rows, but)
        return facts["request"][rows].astype(np.int64), facts["time_ns"][rows].astype(np.int64)

    def count_before(self, told: tuple[Int64Array, Int64Array], time: Int64Array, *, also_at: bool) -> Int64Array:
        """Return how many of the facts of each piece's request came before an instant (or at it)."""
        pieces = self.pieces
        assert pieces is not None
        request, times = told
        if not len(request):
            return np.zeros(len(pieces), np.int64)
        some = np.flatnonzero(np.isin(pieces.request, request))
        low = np.searchsorted(request, pieces.request[some])
        high = np.searchsorted(request, pieces.request[some], side="right")
        found = np.zeros(len(pieces), np.int64)
        for turn in range(int((high - low).max(initial=0))):
            exists = low + turn < high
            at = times[np.where(exists, low + turn, 0)]
            earlier = (at <= time[some]) if also_at else (at < time[some])
            found[some] += exists & earlier
        return found

    @cached_property
    def known(self) -> Int64Array | None:
        """Tokens of the sequence that exist before each piece: prompt and generated."""
        pieces, prompts = self.pieces, self.prompts
        if pieces is None or prompts is None:
            return None
        found: Int64Array = prompts[pieces.request] + pieces.tokens
        return found

    @cached_property
    def prefixes(self) -> Prefixes:
        """What sequences have in common."""
        return Prefixes(self.history, self.pieces, self.prompts, self.hand_overs)

    @cached_property
    def use(self) -> Use | None:
        """K/V blocks in use as they follow from what was computed; None where the record can't tell."""
        history, pieces, runs, size = self.history, self.pieces, self.runs, self.declared.block_tokens
        if pieces is None or runs is None or self.prompts is None or history.facts is None or size is None:
            return None
        found = use_of(history, pieces, runs, history.facts, size, self.hand_overs)
        if not self.declared.prefix_caching:
            return None if self.prefixes.shares_undeclared else found
        if self.prefixes.contents is not None and not self.prefixes.contents.numbers:  # there is nothing to share
            return found
        sharing, facts = self.prefixes.sharing, history.facts
        if sharing is None or self.several_pools:
            return None if self.prefixes.may_share(self.declared) else found
        saved = sharing.changes.at_runs(runs)[0]
        (replica, time), others = (
            [facts[name][rows].astype(np.int64) for name in ("replica", "time_ns")]
            for rows in (found.ends, found.others)
        )
        fewest, most = sharing.changes.around(*others)
        return replace(
            found,
            at_run=found.at_run - saved,
            at_last=found.at_last - saved,
            at_end=found.at_end - sharing.changes.at_facts(replica, time, found.ends),
            least=found.least - most,
            greatest=found.greatest - fewest,
        )

    @cached_property
    def owners(self) -> Int64Array | None:
        """The SP rank that keeps the sequence of each piece, −1 where none does; None where none was recorded."""
        tables, pieces = self.history.folded, self.pieces
        if tables is None or pieces is None or not len(tables.owners["request"]):
            return None
        return owner_at(tables.owners, pieces.replica, pieces.request, pieces.begin)

    @property
    def several_pools(self) -> bool:
        """Whether a replica has several K/V pools, of which nothing says which one keeps a sequence."""
        return self.declared.sp > 1 and self.declared.sp_decode == "dp"

    @cached_property
    def swaps(self) -> list[Swap]:
        """When sequences were in host memory; none where the record can't tell."""
        history = self.history
        if not self.facts_of(SWAPPED_OUT, SWAPPED_IN).size or (pieces := self.pieces) is None:
            return []
        return swaps_of(self.residency, history.moves, pieces)

    @cached_property
    def sound(self) -> BoolArray:
        """Whether each replica's pieces add up, so that the blocks in use follow from them."""
        pieces, runs, known = self.pieces, self.runs, self.known
        assert runs is not None
        replicas = len(runs.bounds) - 1
        found = np.ones(replicas, bool)
        if pieces is None or pieces.astray or known is None:
            return np.zeros(replicas, bool)
        chunk = pieces.is_chunk
        odd = ~self.plain | (chunk & (pieces.start != pieces.computed)) | (~chunk & (pieces.computed != known - 1))
        if self.history.facts is not None:
            odd |= pieces.turn != self.count_before(self.preempted, pieces.begin, also_at=True)
        found[np.unique(pieces.replica[odd])] = False
        return found
