"""Where the time of each request went, from its arrival to its last token, without remainder.

A request waits until its first step for what the decisions of its replica kept it from (``decisions``), is in steps,
whose time is that of their operators, collectives, host work and waits (:mod:`clustersim.timeline.step_parts`) but for
what devices took for the sake of other requests' prompts (``interference``), and waits between them: because it lost
its blocks, is handed over, or other steps run. What computes tokens that had been computed is recomputation as a
whole. Chunks of one prompt that are in the pipeline together count once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import Column, by_parts, constant
from clustersim.copies import in_turn
from clustersim.memory import let_go
from clustersim.simulation.causes.conditions import Conditions
from clustersim.simulation.causes.decisions import REASONS, Decisions
from clustersim.simulation.causes.episodes import Episodes
from clustersim.simulation.causes.events import (
    AT_A_TIME,
    NEVER,
    NONE,
    Events,
    Facts,
    Preemptions,
    RequestRows,
    events_of,
    received,
)
from clustersim.simulation.causes.first_steps import with_first_steps
from clustersim.simulation.causes.interference import Plain
from clustersim.simulation.causes.labels import (
    DEAD,
    FRONT_END,
    HAND_OVER,
    PREEMPTED,
    PROMPTS,
    STAGE,
    STEP,
    TRANSFER,
    WAITS,
)
from clustersim.simulation.causes.sums import Groups, Sums, groups_of, without
from clustersim.timeline.columns import as_one, taken
from clustersim.timeline.parts import by_ranges, of_replicas, ranges_of, with_own_requests
from clustersim.timeline.passes import PART
from clustersim.timeline.passes import parts as blocks_of
from clustersim.timeline.rows_of import rows_between
from clustersim.timeline.step_parts import Label, StepParts, StepRows, labels_of, scaled, step_parts
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Causes:
    """What the time of requests was.

    Parameters
    ----------
    labels : tuple of (name, kind)
        Kinds are ``wait`` and those of parts of steps: ``operator``, ``collective``, ``host``, ``send``, ``bubble``;
        or ``got``, where operators are not told apart.
    to_first_ns, after_ns : int64 arrays of shape (requests, labels)
        Up to the first token (to the end where none was asked for), and from there to the last one. Of a request that
        finished all add up to its end-to-end latency; the others have zeros.
    """

    labels: tuple[Label, ...]
    to_first_ns: Int64Array
    after_ns: Int64Array

    @cached_property
    def ns(self) -> Int64Array:
        """Both together."""
        return by_label(one + other for one, other in zip(self.to_first_ns.T, self.after_ns.T, strict=True))


def by_label(columns: Iterable[Int64Array]) -> Int64Array:
    """Return what requests have by label, of shape (requests, labels), from columns of one label each."""
    found, many = Column("int64"), 0
    for column in columns:  # one after the other: many are in a file
        found.append(column)
        many += 1
    rows: Int64Array = found.whole().reshape(many, -1)
    return rows.T


def causes_of(
    tables: Tables,
    rows: Mapping[str, Any],
    columns: Mapping[str, Any],
    conditions: Conditions,
    merged: Callable[[Label], Label] | None = None,
) -> Causes:
    """Split the time of every request that finished.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    rows : mapping
        Its steps, as :class:`clustersim.simulation.step_rows.StepRows` has them in ``rows``.
    columns : mapping
        ``requests.parquet``: ``request``, which ascend, ``arrived_ns``, ``first_token_ns``, ``front_end_ns``,
        ``outcome``.
    conditions : Conditions
        What the scenario says of what is waited for.
    merged : callable, optional
        Part of a step → what it counts as; each operator by itself without it.
    """
    plain, divided, of_rows = Plain(tables), ranges_of(tables), columns["request"]
    count, outcome = int(of_rows.max(initial=-1)) + 1, columns["outcome"]
    is_done = by_parts(bool, len(of_rows), lambda some: np.asarray(outcome[some]) == "finished")
    first_ns = by_parts("int64", len(of_rows), lambda some: _instants(columns["first_token_ns"][some]))
    more = {"is_done": is_done, "first_ns": first_ns}
    if len(divided) < 2 or len(of_rows) < count:
        return _causes(tables, rows, {**columns, **more}, conditions, merged, plain)
    found = _OfRanges(count)
    told = {name: columns[name] for name in ("arrived_ns", "front_end_ns")} | more
    each = by_ranges(tables, told)

    def of(number: int) -> tuple[Int64Array, Causes]:
        low, high = rows_between(rows["replica"], divided[number])
        mine, part = with_own_requests(of_replicas(tables, divided[number]))
        of_range = {name: taken(values, mine) for name, values in told.items()} if each is None else each[number]
        causes = _causes(
            part, {name: values[low:high] for name, values in rows.items()},
            {**of_range, "request": np.arange(len(mine))}, conditions, merged, plain,
        )  # fmt: skip
        let_go()
        return mine, causes

    with in_turn(of, len(divided)) as ranges:
        for mine, causes in ranges:
            found.take(mine, causes)
    return found.whole(dict.fromkeys((FRONT_END, *WAITS, *labels_of(tables, merged))))


def _instants(values: Any) -> Int64Array:
    """Return instants, ``NEVER`` for those that are lacking."""
    if isinstance(values, np.ma.MaskedArray):
        found: Int64Array = values.filled(NEVER)
        return found
    lacks = np.isnan(values)
    return np.where(lacks, NEVER, np.where(lacks, 0, values).astype(np.int64))


class _OfRanges:
    """Takes the causes of ranges of replicas, label by label, and puts them in order of requests."""

    def __init__(self, count: int) -> None:
        self._count, self._rows = count, Column("int32")
        self._taken: dict[tuple[Label, int], Column] = {}
        self._before = 0

    def take(self, rows: Int64Array, causes: Causes) -> None:
        """Take what requests have."""
        self._rows.append(rows.astype(np.int32))
        for at, label in enumerate(causes.labels):
            for side, ns in enumerate((causes.to_first_ns, causes.after_ns)):
                column = self._taken.get((label, side))
                if column is None:
                    column = self._taken[label, side] = Column("int64")
                    column.append(constant(np.int64(0), self._before))
                column.append(as_one(ns[:, at]))
        for (label, _), column in self._taken.items():
            if label not in causes.labels:
                column.append(constant(np.int64(0), len(rows)))
        self._before += len(rows)

    def whole(self, labels: Iterable[Label]) -> Causes:
        """Return the causes of all, with those of some labels that there are, in the order of these."""
        rows, there = self._rows.whole(), tuple(label for label in labels if (label, 0) in self._taken)
        to_first, after = (by_label(self._in_order(rows, label, side) for label in there) for side in (0, 1))
        return Causes(labels=there, to_first_ns=to_first, after_ns=after)

    def _in_order(self, rows: Any, label: Label, side: int) -> Int64Array:
        found = np.zeros(self._count, np.int64)
        found[rows] = self._taken.pop((label, side)).whole()
        let_go()
        return found


def _causes(
    tables: Tables,
    rows: Mapping[str, Any],
    columns: Mapping[str, Any],
    conditions: Conditions,
    merged: Callable[[Label], Label] | None,
    plain: Plain,
) -> Causes:
    """Split the time of every request of one range of replicas."""
    of_rows = columns["request"]
    count = int(of_rows.max(initial=-1)) + 1
    finished, arrived, first_ns = np.zeros(count, np.bool_), np.zeros(count, np.int64), np.full(count, NEVER)
    done = columns["is_done"]
    finished[of_rows], arrived[of_rows], first_ns[of_rows] = done, columns["arrived_ns"], columns["first_ns"]
    decisions, losses = Decisions(tables, rows, conditions), Preemptions(tables.facts)
    tables, parts = with_first_steps(tables, step_parts(tables, merged), first_ns, merged)
    labels, found = tuple(dict.fromkeys((FRONT_END, *WAITS, *parts.labels))), StepRows(tables)
    sums = Sums(labels, count)
    let_go()
    prompts, episodes = plain.time_of_prompts(tables), Episodes(tables.steps)
    of_some = RequestRows(tables)
    for some in blocks_of(count, AT_A_TIME // PART):
        events = events_of(tables, found, finished, first_ns, *of_some.events(some))
        account = _Account(tables, events, losses, sums, first_ns)
        account.in_chunks(parts, prompts)
        account.between(decisions, episodes.take(account.events))
        account.queued(decisions, arrived, some, of_some.arrivals(some))
    episodes.add_to(sums, parts, prompts)
    sums.ns[0, 0, of_rows] = np.where(done, columns["front_end_ns"], 0)
    kept, ns = sums.packed()
    to_first, after = ns if len(of_rows) == count else ns[:, :, of_rows]
    return Causes(labels=tuple(labels[at] for at in kept), to_first_ns=to_first.T, after_ns=after.T)


class _Account:
    """Takes what events of some requests spent in steps that carry a prompt, and between steps."""

    def __init__(self, tables: Tables, events: Events, losses: Preemptions, sums: Sums, first_ns: Int64Array) -> None:
        self.tables, self.events, self._sums, self._first_ns = tables, events, sums, first_ns
        before = np.append(0, events.end_ns[:-1])[: len(events.end_ns)]
        self.gap_ns = np.where(events.opens, 0, events.start_ns - before)
        self.lost_ns, self.away = losses.before(events)

    def add(self, label: Label, which: Int64Array, ns: Int64Array, groups: Groups | None = None) -> None:
        """Add nanoseconds of some events, which ascend; ``groups`` are theirs, where they are at hand."""
        if ns.any():
            self._sums.add(label, ns, self._groups(which) if groups is None else groups)

    def _groups(self, which: Int64Array) -> Groups:
        return groups_of(self.events.request[which], self.events.answered[which])

    def add_between(self, label: Label, which: Int64Array, since: Int64Array, until: Int64Array) -> None:
        """Add what lies between some events and those before them, during which clients may get first tokens."""
        if not (until > since).any():
            return
        request = self.events.request[which]
        first = np.clip(self._first_ns[request], since, until)
        for side, ns in enumerate((first - since, until - first)):
            self._sums.add(label, ns, groups_of(request, np.full(len(request), side)))

    def in_chunks(self, parts: StepParts, prompts: Int64Array) -> None:
        """Add what was spent inside steps that carry a prompt; ``prompts`` is the time that each row took for such."""
        tables, events = self.tables, self.events
        every = np.flatnonzero(events.chunk != NONE)
        for some in blocks_of(len(every), 4):
            chunks = every[some]
            row = events.first_row[chunks]
            tokens = tables.steps["prefill_tokens"][row].astype(np.int64)
            others = tokens - tables.chunks["count"][events.chunk[chunks]]
            overlap = np.maximum(-self.gap_ns[chunks], 0)
            lasted = events.end_ns[chunks] - events.start_ns[chunks]
            inside = scaled(parts.ns[row], np.maximum(lasted - overlap, 0))
            inside, interference = without(parts.labels, inside, prompts[row] * others // np.maximum(tokens, 1))
            self._add_parts(parts, chunks, inside, interference)

    def _add_parts(self, parts: StepParts, which: Int64Array, inside: Int64Array, interference: Int64Array) -> None:
        again = self.events.again[which]
        self.add(PREEMPTED, which[again], interference[again] + inside[again].sum(axis=1))
        which, interference, inside = (which, interference, inside) if not again.any() else (
            which[~again], interference[~again], inside[~again])  # fmt: skip
        groups = self._groups(which)
        self.add(PROMPTS, which, interference, groups)
        for at, label in enumerate(parts.labels):
            self.add(label, which, inside[:, at], groups)

    def between(self, decisions: Decisions, inside_ns: Int64Array) -> None:
        """Add what was spent waiting between steps, and inside episodes, whose steps took ``inside_ns``."""
        events, layout = self.events, self.tables.layout
        pool = layout.of_replica(events.replica)
        staged = layout.values("stages")[pool] > 1
        changes = ~events.opens & (np.append(-1, pool[:-1])[: len(pool)] != pool)
        replica_changes = ~events.opens & (np.append(-1, events.replica[:-1])[: len(pool)] != events.replica)
        lost = ~events.opens & (self.lost_ns >= 0)
        gap = np.maximum(self.gap_ns, 0)
        dead = (lost & self.away) | (replica_changes & ~changes & ~lost)
        for label, which in (
            (DEAD, dead),
            (PREEMPTED, lost & ~self.away),
            (STAGE, staged & ~lost & ~replica_changes & ~events.opens),
        ):
            rows = np.flatnonzero(which)
            self.add_between(label, rows, events.start_ns[rows] - gap[rows], events.start_ns[rows])
        self._handed_over(np.flatnonzero(changes & ~lost))
        plain = np.flatnonzero(~events.opens & ~lost & ~replica_changes & ~staged & (gap > 0))
        since = events.start_ns[plain] - gap[plain]
        self._add_reasons(plain, decisions.waits(events.replica[plain], since, events.start_ns[plain], running=True))
        self._between_decodes(decisions, staged, inside_ns)

    def _add_reasons(self, which: Int64Array, ns: Int64Array) -> None:
        for number, label in enumerate(REASONS):
            self.add(label, which, ns[number])

    def _between_decodes(self, decisions: Decisions, staged: Any, inside_ns: Int64Array) -> None:
        """Add what episodes spent between their steps: others that only prefill run, or other micro-batches do."""
        events = self.events
        which = np.flatnonzero(events.chunk == NONE)
        rest = events.end_ns[which] - events.start_ns[which] - inside_ns
        some = rest > 0
        which, rest = which[some], rest[some]
        piped = staged[which]
        self.add(STAGE, which[piped], rest[piped])
        which, rest = which[~piped], rest[~piped]
        prompts = decisions.prompts(events.replica[which], events.start_ns[which], events.end_ns[which])
        prompts = np.minimum(prompts, rest)
        self.add(PROMPTS, which, prompts)
        self.add(STEP, which, rest - prompts)

    def _handed_over(self, which: Int64Array) -> None:
        """Add how long requests waited for blocks of the pool that they go on in, for their K/V, and for a step."""
        if not len(which):
            return
        events = self.events
        until = events.start_ns[which]
        since = until - np.maximum(self.gap_ns[which], 0)
        aside, come = (np.clip(one, since, until) for one in received(self.tables, events, which))
        self.add_between(HAND_OVER, which, since, aside)
        self.add_between(TRANSFER, which, aside, come)
        self.add_between(STEP, which, come, until)

    def queued(self, decisions: Decisions, arrived: Int64Array, these: slice, came_in: Int64Array) -> None:
        """Add what these requests waited for before their first step, at each replica that they came to."""
        events, facts = self.events, self.tables.facts
        first = np.flatnonzero(events.opens)
        came = Facts(facts, came_in)
        of = np.full(these.stop - these.start, NONE, np.int64)
        of[events.request[first] - these.start] = first
        event = of[came.request - these.start]
        some = np.flatnonzero(event >= 0)
        event, since = event[some], came.time_ns[some]
        follows = np.append(event[1:] == event[:-1], False)[: len(event)]
        until = np.where(follows, np.append(since[1:], 0)[: len(since)], events.start_ns[event])
        # what a step that was lost with its replica had begun is begun anew
        since = np.maximum(since, self.lost_ns[event])
        since, until = (np.minimum(one, events.start_ns[event]) for one in (since, until))
        until = np.maximum(until, since)
        waits = decisions.waits(facts["replica"][came.rows[some]].astype(np.int64), since, until, running=False)
        self._add_reasons(event, waits)
        at_replicas = np.bincount(event, until - since, len(events.request))[first].astype(np.int64)
        self.add(DEAD, first, events.start_ns[first] - arrived[events.request[first]] - at_replicas)
