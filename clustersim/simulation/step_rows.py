"""The steps of a run as rows whose steps are alike in everything, also in what waits and in blocks in use.

A replay that folds writes one row for a run of decode steps, with the state at its first step. What changes within it
follows from the rest of the record: a request that arrives waits from the next step on (whoever leaves the queue ends
the run), and each sequence grows by a token a step and takes a K/V block where it enters one. So a run is split where
either changes, and both replays give the same figures, in ``full`` with a row per step and here with fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.column import one_after_the_other
from clustersim.copies import in_turn
from clustersim.serving.decision import ARRIVED
from clustersim.simulation.residency import empties_ns, residency_of
from clustersim.timeline.columns import as_one, repeated, shelved
from clustersim.timeline.digest import in_order
from clustersim.timeline.parts import of_ranges
from clustersim.timeline.passes import blocks, within
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.rows_of import in_order as rows_in_order
from clustersim.timeline.steps import drop_steps, steps_of
from clustersim.timeline.tables import Tables
from clustersim.timeline.tokens import TokenEvents, token_events
from clustersim.values import dataclass

BoolArray = npt.NDArray[np.bool_]

COLUMNS: Final = (
    "replica", "step", "count", "kind", "start_ns", "end_ns", "batch_requests", "prefill_tokens", "decode_tokens",
    "waiting", "running",
)  # fmt: skip
KV_COLUMNS: Final = ("replica", "start_ns", "end_ns", "kv_blocks_used", "kv_blocks_total")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Single:
    """Steps of some rows one by one.

    Parameters
    ----------
    row, index : int64 arrays
        Which row each is of, and its number within that.
    at : int64 array
        Its position among all steps (``timeline.steps``).
    start_ns, end_ns : int64 arrays
    """

    row: Int64Array
    index: Int64Array
    at: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array

    def opening(self, differ: BoolArray, more: Int64Array) -> tuple[Any, ...]:
        """Return row, number within it, start and ``more`` of those that open a part of a row.

        That are the first ones of rows, and those after the first of all that ``differ`` from the one before.
        """
        opens = self.index == 0
        opens[1:] |= differ
        row, index, many = (column[opens].astype(np.int32) for column in (self.row, self.index, more))  # these are many
        return row, index, self.start_ns[opens], many


class _OfRange:
    """Rows of steps of a range of replicas: see :class:`StepRows`."""

    def __init__(self, tables: Tables, block_tokens: int) -> None:
        self._tables, self._block_tokens = tables, block_tokens

    @cached_property
    def _recorded(self) -> Mapping[str, Any]:
        """The rows as they are recorded, in order, and when each replica had no request behind one."""
        steps = self._tables.steps
        order = in_order(steps, ("replica", "step"))
        if (order[1:] < order[:-1]).any():
            steps = {name: steps[name][order] for name in {*COLUMNS, *KV_COLUMNS, "slot"}}
        return {**steps, **shelved({"empties_ns": empties_ns(steps, residency_of(self._tables))})}

    @cached_property
    def rows(self) -> Mapping[str, Any]:
        rows = {name: self._recorded[name] for name in (*COLUMNS, "empties_ns")}
        return self._split_by_queue(rows) if (rows["count"] > 1).any() else rows

    def _split_by_queue(self, rows: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the rows, split where somebody comes to wait."""
        arrivals, queues = _Arrivals(self._tables), []
        before = arrivals.until(rows["replica"], rows["start_ns"])
        while_there = arrivals.until(rows["replica"], rows["end_ns"]) > before
        chosen = np.flatnonzero(while_there & (rows["count"] > 1))
        for single in self._singles(chosen, rows):
            come = arrivals.until(rows["replica"][single.row], single.start_ns) - before[single.row]
            queues.append(single.opening(come[1:] != come[:-1], come))
        return _split(rows, "waiting", *_whole(queues)) if queues else rows

    @cached_property
    def kv_rows(self) -> Mapping[str, Any]:
        recorded = self._recorded
        rows = {name: recorded[name] for name in (*KV_COLUMNS, "empties_ns")}
        if not (recorded["count"] > 1).any():
            return rows
        events = token_events(self._tables)
        rank, entered = events.rank, _entered(events, _Arrivals(self._tables), self._block_tokens)
        del events
        held, decodes = [], recorded["slot"] >= 0
        for single in self._singles(np.flatnonzero(recorded["count"] > 1), recorded):
            grown = entered[rank[single.at]] - entered[rank[single.at - single.index]]
            grown *= decodes[single.row]  # not a dummy batch beside others that decode
            held.append(single.opening(grown[1:] != grown[:-1], grown))
        del entered, rank
        drop_steps(self._tables)
        return _split(rows, "kv_blocks_used", *_whole(held))

    def forget(self) -> None:
        """Forget what was worked out."""
        for name in ("_recorded", "rows", "kv_rows"):
            vars(self).pop(name, None)

    def _singles(self, chosen: Int64Array, rows: Mapping[str, Any] | None = None) -> Iterator[_Single]:
        """Yield the steps of the chosen rows, a bounded number at a time."""
        rows, steps = self.rows if rows is None else rows, steps_of(self._tables)
        counts = rows["count"][chosen].astype(np.int64)
        for some in blocks(counts):
            row, index = np.repeat(chosen[some], counts[some]), within(counts[some])
            at = steps.at(rows["replica"][row], rows["step"][row].astype(np.int64)) + index
            start = np.where(index > 0, steps.end_ns[at - 1], rows["start_ns"][row])
            yield _Single(row=row, index=index, at=at, start_ns=start, end_ns=steps.end_ns[at])

    def single_steps(self) -> Iterator[dict[str, Any]]:
        held = _Held(self.kv_rows)
        for row, step, start, end in self._every_step():
            told = {
                name: self.rows[name][row] for name in COLUMNS if name not in ("step", "count", "start_ns", "end_ns")
            }
            blocks_used = self.kv_rows["kv_blocks_used"][held.rows(told["replica"], start)]
            yield told | {"step": step, "start_ns": start, "end_ns": end, "kv_blocks_used": blocks_used}

    def _every_step(self) -> Iterator[tuple[Int64Array, Int64Array, Int64Array, Int64Array]]:
        """Yield row, number, start and end of all steps."""
        rows, every = self.rows, np.arange(len(self.rows["start_ns"]))
        if (rows["count"] > 1).any():
            for single in self._singles(every):
                yield single.row, rows["step"][single.row] + single.index, single.start_ns, single.end_ns
            return
        for some in blocks(rows["count"]):
            yield every[some], rows["step"][some], rows["start_ns"][some], rows["end_ns"][some]

    def cut(self, edges_ns: Int64Array, apart: tuple[int, int, int] | None = None) -> Mapping[str, Any]:
        rows = self.rows
        within_bin = np.searchsorted(edges_ns, rows["start_ns"], side="right")
        cut = np.searchsorted(edges_ns, rows["end_ns"], side="left") > within_bin
        if apart is not None:
            replica, first, last = apart
            cut |= (rows["replica"] == replica) & (rows["step"] <= last) & (rows["step"] + rows["count"] > first)
        chosen = np.flatnonzero(cut & (rows["count"] > 1))
        if not len(chosen):
            return rows
        parts = []
        for single in self._singles(chosen):
            bin_of = np.searchsorted(edges_ns, single.start_ns, side="right")
            alone = np.searchsorted(edges_ns, single.end_ns, side="left") > bin_of
            if apart is not None:
                step = rows["step"][single.row] + single.index
                alone |= (rows["replica"][single.row] == replica) & (first <= step) & (step <= last)
            parts.append(single.opening(alone[1:] | alone[:-1] | (bin_of[1:] != bin_of[:-1]), np.zeros_like(bin_of)))
        return _split(rows, "waiting", *_whole(parts))


class Rows(dict[str, Any]):
    """Columns of rows; ``made`` is what was worked out of them and is asked for again: the same of rows split more."""

    def __init__(self, columns: Mapping[str, Any], made: dict[str, Any] | None = None) -> None:
        super().__init__(columns)
        self.made: dict[str, Any] = {} if made is None else made


class StepRows:
    """Rows of steps, in order of (replica, step).

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    block_tokens : int
        Tokens that a K/V block holds.

    Notes
    -----
    ``empties_ns`` of a row: from when on the replica had no request, after the row and before the next one; −1 where
    it had some.
    """

    def __init__(self, tables: Tables, block_tokens: int) -> None:
        self._ranges = [_OfRange(part, block_tokens) for part in of_ranges(tables)]

    @cached_property
    def rows(self) -> Rows:
        """The columns ``COLUMNS``, which say the same of all steps of a row, and ``empties_ns``."""
        return self._whole("rows")

    @cached_property
    def kv_rows(self) -> Rows:
        """The columns ``KV_COLUMNS`` and ``empties_ns``, of rows of their own; worked out when somebody asks.

        Blocks change in most steps, and the others seldom within a run.
        """
        return self._whole("kv_rows")

    def _whole(self, name: str) -> Rows:
        if len(self._ranges) > 1:
            try:
                return self._both[name]
            except Exception:  # what was recorded, by whomever, may tell one of them alone
                return self._found((name,))[name]
        found = vars(self._ranges[0])[name] = Rows(getattr(self._ranges[0], name))
        return found

    @cached_property
    def _both(self) -> Mapping[str, Rows]:
        return self._found(("rows", "kv_rows"))

    def _found(self, names: Sequence[str]) -> Mapping[str, Rows]:
        """Return kinds of rows, one range after the other; these then look into them."""
        bounds = [[0] * len(names)]

        def of(number: int) -> dict[tuple[str, str], Any]:
            one = self._ranges[number]
            found = {(name, column): values for name in names for column, values in getattr(one, name).items()}
            one.forget()  # the rows of all ranges are not there at once
            return found

        def noted(tables: Iterator[Mapping[tuple[str, str], Any]]) -> Iterator[Mapping[tuple[str, str], Any]]:
            for table in tables:
                counts = (len(table[name, "start_ns"]) for name in names)
                bounds.append([before + count for before, count in zip(bounds[-1], counts, strict=True)])
                yield {key: as_one(values) for key, values in table.items()}

        with in_turn(of, len(self._ranges)) as tables:
            whole = one_after_the_other(noted(tables))
        found = {name: Rows({column: whole[of, column] for of, column in whole if of == name}) for name in names}
        for one, firsts, lasts in zip(self._ranges, bounds, bounds[1:], strict=False):
            for name, first, last in zip(names, firsts, lasts, strict=True):
                vars(one)[name] = {column: values[first:last] for column, values in found[name].items()}
        return found

    def single_steps(self) -> Iterator[dict[str, Any]]:
        """Yield all steps one by one, a bounded number at a time, in order: ``rows`` and what blocks were in use."""
        for one in self._ranges:
            yield from one.single_steps()

    def cut(self, edges_ns: Int64Array, apart: tuple[int, int, int] | None = None) -> Rows:
        """Return the rows, split further: a step during which an instant lies is a row of its own.

        Parameters
        ----------
        edges_ns : int64 array
            The instants, ascending.
        apart : (replica, first, last), optional
            These steps of a replica are rows of their own, too.
        """
        return Rows(one_after_the_other(one.cut(edges_ns, apart) for one in self._ranges), self.rows.made)


class _Held:
    """Finds the row of blocks in use that holds at an instant."""

    def __init__(self, kv_rows: Mapping[str, Any]) -> None:
        self._rows, self._start_ns = RowsOf(kv_rows["replica"]), kv_rows["start_ns"]

    def rows(self, replica: Int64Array, instant: Int64Array) -> Int64Array:
        """Return the last row of each replica up to an instant; replicas are in order."""
        found = np.empty(len(replica), np.int64)
        for one, mine in RowsOf(replica):
            rows = self._rows.of(one)
            found[mine] = rows[0] - 1 + np.searchsorted(self._start_ns[rows], instant[mine], side="right")
        return found


class _Arrivals:
    """When requests arrived where, and the prompt of each."""

    def __init__(self, tables: Tables) -> None:
        facts = tables.facts
        mine = np.flatnonzero(facts["kind"] == ARRIVED)
        request, tokens = facts["request"][mine], facts["value"][mine]
        order = rows_in_order(request)
        self._request, self._prompt_tokens = request[order], tokens[order].astype(np.int64)
        mine = mine[rows_in_order(facts["replica"][mine], facts["time_ns"][mine])]
        self._rows, self._time = RowsOf(facts["replica"][mine]), facts["time_ns"][mine]

    def prompt_of(self, request: Int64Array) -> Int64Array:
        """Return the prompt tokens of requests; nothing is as long as the numbers of requests are high."""
        last = np.searchsorted(self._request, request.astype(self._request.dtype), side="right") - 1
        found: Int64Array = self._prompt_tokens[last]
        return found

    def until(self, replica: Int64Array, instant: Int64Array) -> Int64Array:
        """Return how many arrived at each replica up to an instant; replicas are in order."""
        found = np.empty(len(replica), np.int64)
        for one, mine in RowsOf(replica):
            found[mine] = np.searchsorted(self._time[self._rows.of(one)], instant[mine], side="right")
        return found


def _entered(events: TokenEvents, arrivals: _Arrivals, block_tokens: int) -> Int64Array:
    """Return how many blocks sequences had entered in all steps with decodes up to each (``TokenEvents.rank``).

    Before a decode all known tokens of a sequence but the last have entries, so the token that it got as its n-th
    finds prompt + n − 2 of them, and needs a block where these fill some: every so many steps of an episode.
    """
    opens = np.append(True, events.request[1:] != events.request[:-1])[: len(events.request)]
    before = np.cumsum(events.count) - events.count
    generated = before - np.maximum.accumulate(np.where(opens, before, 0))
    mine = np.flatnonzero(events.first >= 0)
    computed = arrivals.prompt_of(events.request[mine]) + generated[mine] - 1
    first, last = events.first[mine] + -computed % block_tokens, events.last[mine]
    some = first <= last
    first, last = first[some], last[some]
    after = last - (last - first) % block_tokens + block_tokens
    width = (len(events.ends) // block_tokens + 2) * block_tokens
    change = np.bincount(first, minlength=width) - np.bincount(after, minlength=width)
    found: Int64Array = np.cumsum(change.reshape(-1, block_tokens).cumsum(axis=0).ravel()[: len(events.ends)])
    return found


def _whole(parts: list[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield the columns of parts, each whole; the parts are used up."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    while columns:
        yield np.concatenate(columns.pop(0))


def _split(
    rows: Mapping[str, Any], column: str, row: Int64Array, index: Int64Array, start: Int64Array, more: Int64Array
) -> Mapping[str, Any]:
    """Split some rows where parts of them begin; a part has ``more`` of a column. The others stay as they are.

    Parts are in order of their rows, from the first one on.
    """
    if not index.any():
        return rows
    many = np.bincount(row, minlength=len(rows["start_ns"]))
    parted = np.repeat(many > 0, np.maximum(many, 1))
    many = np.maximum(many, 1)
    lasts = np.cumsum(many) - 1
    change = {column, "start_ns", "end_ns", "empties_ns", "step", "count"}
    found = {name: (np.repeat if name in change else repeated)(values, many) for name, values in rows.items()}
    found[column][parted] += more.astype(rows[column].dtype, copy=False)
    found["start_ns"][parted] = start
    found["end_ns"][:-1] = found["start_ns"][1:]
    found["end_ns"][lasts] = rows["end_ns"]
    if "empties_ns" in rows:
        found["empties_ns"][:] = -1
        found["empties_ns"][lasts] = rows["empties_ns"]
    if "count" in rows:
        step = found["step"]
        before = step[lasts] + rows["count"]
        step[parted] += index.astype(step.dtype, copy=False)
        found["count"][:-1] = step[1:] - step[:-1]
        found["count"][lasts] = before - step[lasts]
    return shelved(found)
