"""Whether tables read from files can be those of a timeline: values in their ranges, references to what is there.

What computes with a timeline relies on this and does not look again. Whether a timeline that makes sense is also
*legal* is left to the rules, and whether it is the one that was recorded to its digest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from clustersim.errors import InputError, Problem
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.memory import let_go
from clustersim.timeline.columns import is_any
from clustersim.timeline.head import HEAD, MOST, MOST_LAYERS, MOST_RANKS
from clustersim.timeline.passes import parts
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.tables import ALL_HEADS, ALL_LAYERS, HOST, TABLES, VECTORS, Table, Tables
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass

MOST_REPLICAS: Final = 1 << 20
FACTS: Final = (
    "arrived", "rejected", "admitted", "preempted", "finished", "reused", "swapped_out", "swapped_in", "cancelled",
    "lost", "handed_over", "received",
)  # fmt: skip
ARRIVED, REJECTED = FACTS.index("arrived"), FACTS.index("rejected")
_TIMES: Final = (0, MOST)
_SIGNED: Final = {"row_values", "varying"}
"""Durations, of which RUN-2 says that they are not negative."""
_PLACES: Final = ("stage", "irregular", "template", "row", "columns", "slot", "starts_at", "varying_at", "at", "steps")
_INT32: Final = (1 << 31) - 1


def refuse_unsound(timeline: Timeline, folder: Path) -> None:
    """Refuse tables that can't be those of a timeline.

    Parameters
    ----------
    timeline : Timeline
        As it was read: columns have their types.
    folder : Path
        Where its files are.

    Raises
    ------
    InputError
        Names file, column, row, what was found and what was expected: the first row of every column.
    """
    for judge in (_values, _references, _in_order, _recorded_steps, _carried, _unsent):
        problems = [found.problem(folder) for found in judge(timeline)]
        if problems:  # what comes next relies on it
            raise InputError(problems)


@dataclass(frozen=True, slots=True)
class UnsoundValue:
    """A value that can't be: of which table and column, what was found and what was expected."""

    table: str
    column: str
    message: str

    def problem(self, folder: Path) -> Problem:
        name = self.table if self.table == HEAD else f"{self.table}.parquet"
        return Problem(file=str(folder / name), path=self.column, message=self.message)


def misplaced(timeline: Tables) -> Iterator[UnsoundValue]:
    """Yield values that name what is not there: rows, templates, positions in lists of values, stages.

    A timeline without them can be computed with, whether it is legal or not.
    """
    found = list(_values(timeline, _PLACES))
    yield from found or _references(timeline)


def _judged(table: str, column: str, values: Any, wrong: Any, expected: Any) -> Iterator[UnsoundValue]:
    """Yield the first row of a column that is wrong; ``expected`` is a text, or makes one of the row."""
    places = np.flatnonzero(wrong)
    if len(places):
        row = int(places[0])
        words = expected if isinstance(expected, str) else expected(row)
        yield UnsoundValue(table, column, f"{values[row]:,} in row {row + 1} can't be; expected {words}")


def _values(timeline: Tables, only: Collection[str] = ()) -> Iterator[UnsoundValue]:
    """Judge every value by itself."""
    for table, columns in TABLES.items():
        let_go()
        for column in columns:
            if only and column not in only:
                continue
            low, high = _range(timeline, table, column)
            values = getattr(timeline, table)[column]
            yield from _judged(table, column, values, (values < low) | (values > high), _words(low, high))
    for name in () if only else VECTORS:
        values, low = getattr(timeline, name), -MOST if name in _SIGNED else 0
        yield from _judged(name, name, values, (values < low) | (values > MOST), _words(low, MOST))


def _words(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low:,} to {high:,}" if high >= low else "no row: there is nothing to name"


def _range(timeline: Tables, table: str, column: str) -> tuple[int, int]:
    """Return the least and the greatest value that a column can hold."""
    stages = max(pool.stages for pool in timeline.layout.pools)
    if column == "stage":
        return 0, stages - (2 if table == "transfers" else 1)
    num_steps = timeline.num_steps if isinstance(timeline, Timeline) else _INT32
    if column == "irregular":
        return -1, len(timeline.irregular) - 1
    known = {
        "replica": (0, MOST_REPLICAS),
        "template": (0, len(timeline.templates) - 1),
        "row": (0, len(timeline.rows["at"]) - 1),
        "columns": (0, len(timeline.column_sets) - 1),
        "slot": (0 if table == "decodes" else -1, stages - 1),
        "kind": (0, (len(FACTS) if table == "facts" else len(STEP_KINDS)) - 1),
        "sampled": (0, 1),
        "start_ns": _TIMES,
        "end_ns": _TIMES,
        "time_ns": _TIMES,
        "starts_at": (-1, MOST),
        "used": (-1, _INT32),
        **dict.fromkeys(("from_replica", "to_replica"), (0, MOST_REPLICAS)),
        **dict.fromkeys(("from_rank", "to_rank"), (HOST, MOST_RANKS)),
        "layer": (ALL_LAYERS, MOST_LAYERS),
        **dict.fromkeys(("head", "heads"), (ALL_HEADS, 2**15 - 1)),
        **dict.fromkeys(("first_step", "last_step", "step"), (0, num_steps - 1)),
    }
    if column in ("steps", "count") and table != "chunks":
        return 1, num_steps
    if column == "tokens":
        return 1, _INT32
    return known.get(column, (0, MOST))


def _references(timeline: Tables) -> Iterator[UnsoundValue]:
    """Judge what rows say of other rows and of lists of values."""
    passes, rows = timeline.passes, timeline.rows
    widths = np.array([template.num_classes for template in timeline.templates], np.int64)
    highest = np.array([max(columns, default=-1) for columns in timeline.column_sets], np.int64)
    if len(rows["at"]):
        yield from _inside("rows", "at", rows["at"], widths[rows["template"]], timeline.row_values, "row_values")
        odd = highest[rows["columns"]] >= widths[rows["template"]]
        words = "a set of columns that its template has"
        yield from _judged("rows", "columns", rows["columns"], odd, words)
    named = _Named(
        chains=np.array([template.is_chain for template in timeline.templates], bool),
        stages=np.array([template.stage for template in timeline.templates], np.int64),
        varying=np.array([len(columns) for columns in timeline.column_sets], np.int64),
    )
    some = ({name: values[part] for name, values in passes.items()} for part in parts(len(passes["row"])))
    if any(True for part in some for _ in _of_passes(timeline, named, part)):
        yield from _of_passes(timeline, named, passes)  # of all, as it is told in which row of them
    yield from _transferred(timeline)


class _Named(NamedTuple):
    """What passes name: whether templates are chains, and their stages; how many columns of each set vary."""

    chains: Any
    stages: Any
    varying: Any


def _of_passes(timeline: Tables, named: _Named, passes: Table) -> Iterator[UnsoundValue]:
    """Judge what passes say of rows of durations, templates and lists of values."""
    rows, steps, of = timeline.rows, passes["steps"].astype(np.int64), passes["template"]
    odd = rows["template"][passes["row"]] != of
    yield from _judged("passes", "row", passes["row"], odd, "a row of durations of its template")
    odd = named.stages[of] != passes["stage"]
    yield from _judged("passes", "template", of, odd, "a template of its stage")
    taken = np.where(passes["starts_at"] < 0, 0, steps)
    yield from _inside("passes", "starts_at", passes["starts_at"], taken, timeline.starts, "starts")
    implied = (passes["starts_at"] < 0) & (steps > 1) & ~named.chains[of]
    words = "where its starts are: they do not follow from durations"
    yield from _judged("passes", "starts_at", passes["starts_at"], implied, words)
    taken = steps * named.varying[rows["columns"][passes["row"]]]
    yield from _inside("passes", "varying_at", passes["varying_at"], taken, timeline.varying, "varying")
    odd = (passes["irregular"] >= 0) & ((steps != 1) | ~_fitting(timeline, passes))
    yield from _judged("passes", "irregular", passes["irregular"], odd, "-1, or times of one pass of its template")


def _in_order(timeline: Timeline) -> Iterator[UnsoundValue]:
    """Judge what ends, and what comes one after the other."""
    yield from _ordered("steps", "end_ns", timeline.steps["start_ns"], timeline.steps["end_ns"], "start_ns")
    yield from _ordered("moves", "end_ns", timeline.moves["start_ns"], timeline.moves["end_ns"], "start_ns")
    yield from _moved(timeline)
    first, last = (timeline.decodes[name] for name in ("first_step", "last_step"))
    yield from _ordered("decodes", "last_step", first, last, "first_step")
    yield from _facts(timeline)


def _inside(table: str, column: str, at: Any, taken: Any, values: Any, name: str) -> Iterator[UnsoundValue]:
    """Judge whether as many values as are taken from a position on are there."""
    wrong = (taken > 0) & (at.astype(np.int64) > len(values) - taken)
    yield from _judged(
        table, column, at, wrong, lambda row: f"at most {len(values) - taken[row]:,}: {name} has {len(values):,} values"
    )


def _ordered(table: str, column: str, low: Any, high: Any, name: str) -> Iterator[UnsoundValue]:
    yield from _judged(table, column, high, high < low, lambda row: f"at least the {low[row]:,} of {name}")


def _fitting(timeline: Tables, passes: Table) -> Any:
    """Return whether what each pass says of its irregular times has as many values as its template asks for."""
    found = np.ones(len(passes["irregular"]), bool)
    for at in np.flatnonzero(passes["irregular"] >= 0).tolist():
        times = timeline.irregular[int(passes["irregular"][at])]
        template = timeline.templates[int(passes["template"][at])]
        if isinstance(times, Stretch):
            instances = times.pairs[:, 0]
            found[at] = ((instances >= 0) & (instances < len(template.instance_class))).all()
            found[at] &= template.is_chain and len(np.unique(instances)) == len(instances)
        else:
            found[at] = len(times[0]) == len(template.members)
    return found


def _unsent(timeline: Tables) -> Iterator[UnsoundValue]:
    """Judge what stands for ranks that send nothing, as those that are idle in decode: no time and no bytes."""
    for rows, times in timeline.sends():
        start, end = times[:, 0], times[:, 1]
        odd = (start == 0) != (end == 0)
        odd |= (end == 0) & (timeline.sent_bytes(rows, times.shape[2]) != 0)
        for row, rank in np.argwhere(odd)[:1].tolist():
            at = int(timeline.transfers["at"][rows[row]]) + rank
            message = (
                f"{start[row, rank]:,} in row {at + 1} can't be; expected no time and no bytes of what is not sent"
            )
            yield UnsoundValue("transfer_times", "transfer_times", message)


def _transferred(timeline: Tables) -> Iterator[UnsoundValue]:
    at, layout = timeline.transfers["at"], timeline.layout
    each = 2 * layout.values("stage_ranks")
    alike = len(each) == 1  # no look at whose they are is needed
    widths = np.broadcast_to(each, at.shape) if alike else each[layout.of_replica(timeline.transfers["replica"])]
    due = np.cumsum(widths) - widths
    yield from _judged(
        "transfers", "at", at, at != due, lambda row: f"{due[row]:,}: {widths[row]} times of each transfer"
    )
    if len(timeline.transfer_times) != widths.sum():
        expected = f"{widths.sum():,}: two times of each rank of {len(at):,} transfers"
        message = f"found {len(timeline.transfer_times):,} rows; expected {expected}"
        yield UnsoundValue("transfer_times", "transfer_times", message)
    if 2 * len(timeline.transfer_bytes) != widths.sum():
        expected = f"{widths.sum() // 2:,}: what each rank of {len(at):,} transfers carries"
        message = f"found {len(timeline.transfer_bytes):,} rows; expected {expected}"
        yield UnsoundValue("transfer_bytes", "transfer_bytes", message)


def _moved(timeline: Timeline) -> Iterator[UnsoundValue]:
    """Judge whether moves of K/V entries lead from one rank to another one, or between one and its host."""
    moves = timeline.moves
    for side in ("from", "to"):
        rank = moves[f"{side}_rank"]
        odd = (rank != HOST) & (timeline.layout.place_of(rank)[0] != moves[f"{side}_replica"])
        yield from _judged("moves", f"{side}_rank", rank, odd, f"a rank of {side}_replica, or {HOST} for its host")
    at_host = (moves["from_rank"] == HOST).astype(np.int64) + (moves["to_rank"] == HOST)
    odd = (at_host == 2) | ((at_host == 1) & (moves["from_replica"] != moves["to_replica"]))
    yield from _judged("moves", "to_rank", moves["to_rank"], odd, "a rank, or the host of a rank of the same replica")


def _facts(timeline: Timeline) -> Iterator[UnsoundValue]:
    """Judge whether what each replica decided is in order of time: the order tells who took turns at one instant."""
    facts = timeline.facts
    decided = np.flatnonzero(~is_any(facts["kind"], (ARRIVED, REJECTED)))
    order = decided[np.argsort(facts["replica"][decided], kind="stable")]
    before, after = order[:-1], order[1:]
    back = np.zeros(len(facts["kind"]), bool)
    back[after] = facts["replica"][before] == facts["replica"][after]
    back[after] &= facts["time_ns"][after] < facts["time_ns"][before]
    yield from _judged("facts", "time_ns", facts["time_ns"], back, "what a replica decides in order of time")


def _recorded_steps(timeline: Timeline) -> Iterator[UnsoundValue]:
    """Judge whether steps are recorded once."""
    steps = timeline.steps
    first, past = _numbered(timeline, steps["replica"], steps["step"]), steps["step"].astype(np.int64) + steps["count"]
    words = f"runs that end with step {timeline.num_steps - 1:,} at the latest: {HEAD} counts {timeline.num_steps:,}"
    yield from _judged("steps", "count", steps["count"], past > timeline.num_steps, words)
    order = np.argsort(first, kind="stable")
    twice = np.zeros(len(first), bool)
    twice[order[1:]] = first[order[1:]] < (first + steps["count"])[order[:-1]]
    yield from _judged("steps", "step", steps["step"], twice, "each step of a replica once")


def _numbered(timeline: Timeline, replica: Any, step: Any) -> Any:
    """Return a number for each (replica, step)."""
    return replica.astype(np.int64) * (timeline.num_steps + 1) + step


def _carried(timeline: Timeline) -> Iterator[UnsoundValue]:
    """Judge whether chunks, episodes and passes belong to steps that are recorded."""
    steps, passes = timeline.steps, timeline.passes
    number = _numbered(timeline, steps["replica"], steps["step"])
    order = np.argsort(number, kind="stable")
    number, count, slot = number[order], steps["count"][order], steps["slot"][order]

    def run_of(replica: Any, step: Any) -> Any:
        wanted = _numbered(timeline, replica, step)
        at = np.searchsorted(number, wanted, side="right") - 1
        if not len(number):
            return np.full(len(wanted), -1)
        return np.where((at >= 0) & (wanted < number[at] + count[at]), at, -1)

    def missing(table: str, column: str, replica: Any) -> Iterator[UnsoundValue]:
        step = getattr(timeline, table)[column]
        wrong = run_of(replica, step) < 0
        words = "a step of its replica that steps.parquet has"
        yield from _judged(table, column, step, wrong, words)

    yield from missing("chunks", "step", timeline.chunks["replica"])
    for column in ("first_step", "last_step"):
        step, replica = timeline.decodes[column], timeline.decodes["replica"]
        run = run_of(replica, step)
        wrong = (run < 0) | ((slot[run] != timeline.decodes["slot"]) if len(slot) else True)
        yield from _judged("decodes", column, step, wrong, "a step of its replica and slot that steps.parquet has")
    if (steps["count"] > 1).any():  # then ends of steps follow from starts of passes
        yield from missing("passes", "first_step", passes["replica"])
        last = passes["first_step"].astype(np.int64) + passes["steps"] - 1
        wrong = run_of(passes["replica"], last) < 0
        words = "steps of its replica that steps.parquet has"
        yield from _judged("passes", "steps", passes["steps"], wrong, words)
