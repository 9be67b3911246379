"""The first difference of two timelines, in words: a span, and where all spans are equal a chunk, decode or fact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.serving.decision import FACT_KINDS
from clustersim.timeline.digest import EPISODE_ORDER
from clustersim.timeline.spans import STREAMS, Spans
from clustersim.timeline.tables import CHUNK_COLUMNS, FACT_COLUMNS, MOVE_COLUMNS, OWNER_COLUMNS, Table
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass

WINDOW_SPANS: Final = 100_000
"""About how many spans are unfolded at a time."""
_ORDER: Final = ("start_ns", "rank", "stream", "end_ns", "step", "layer", "name", "op", "replica", "stage")
_OTHER_TABLES: Final = {
    "facts": tuple(FACT_COLUMNS),
    "chunks": tuple(CHUNK_COLUMNS),
    "decodes": EPISODE_ORDER,
    "moves": tuple(MOVE_COLUMNS),
    "owners": tuple(OWNER_COLUMNS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which span of a timeline; ``number`` counts those that are called the same, from 0 in order of start."""

    replica: int
    stage: int
    rank: int
    stream: str
    name: str
    layer: int
    step: int
    number: int = 0

    def __str__(self) -> str:
        layer = f"layer {self.layer}" if self.layer >= 0 else "outside the layers"
        again = f" (number {self.number + 1} of that name)" if self.number else ""
        return (
            f"replica {self.replica}, stage {self.stage}, rank {self.rank}, stream {self.stream}, "
            f"{self.name}{again}, {layer}, step {self.step}"
        )


def difference(expected: Timeline, found: Timeline) -> str | None:
    """Return the first difference in words; None where spans, facts, chunks and decodes are equal."""
    for start, end in _windows(expected, found):
        place = _first_place(expected, found, start, end)
        if place is not None:
            return (
                f"first differing span: {place}\n"
                f"  expected {_times(expected, place)}\n"
                f"  found    {_times(found, place)}"
            )
    for name, columns in _OTHER_TABLES.items():
        rows = _first_rows(getattr(expected, name), getattr(found, name), columns)
        if rows is not None:
            return f"all spans are equal; first differing row of {name}:\n  expected {rows[0]}\n  found    {rows[1]}"
    return None


def _windows(expected: Timeline, found: Timeline) -> Iterator[tuple[int, int]]:
    """Yield stretches of time that hold about as many spans as are looked at at once."""
    end = max(expected.end_ns, found.end_ns) + 1
    spans = max(expected.num_spans, found.num_spans, 1)
    width = max(1, end * WINDOW_SPANS // spans)
    for start in range(0, end, width):
        yield start, min(start + width, end)


def _first_place(expected: Timeline, found: Timeline, start: int, end: int) -> Place | None:
    """Return the first span that starts in [start, end) in one of the timelines and is not so in the other."""
    numbers: dict[str, int] = {}
    sides = [(timeline, _rows(timeline, start, end, numbers)) for timeline in (expected, found)]
    at = _first_unequal(sides[0][1], sides[1][1])
    left = [(tuple(rows[:, at].tolist()), side) for side, (_, rows) in enumerate(sides) if at < rows.shape[1]]
    if not left:
        return None
    values, side = min(left)
    row = dict(zip(_ORDER, values, strict=True))
    place = Place(
        replica=row["replica"],
        stage=row["stage"],
        rank=row["rank"],
        stream=STREAMS[row["stream"]],
        name=list(numbers)[row["name"]],
        layer=row["layer"],
        step=row["step"],
    )
    starts = _called(sides[side][0], place)[0]
    return replace(place, number=int(np.searchsorted(starts, row["start_ns"])))


def _rows(timeline: Timeline, start: int, end: int, numbers: dict[str, int]) -> Int64Array:
    """Return the spans that start in [start, end) as columns in the order of :data:`_ORDER`, sorted by it.

    Names and kinds of operators are written as their position in ``numbers``, where new ones are added.
    """
    spans = timeline.unfold(start - 1, end)  # a span without length at the start ends there
    table = np.stack([getattr(spans, name).astype(np.int64) for name in _ORDER])
    for name, words in (("name", spans.names), ("op", spans.ops)):
        known = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64)
        table[_ORDER.index(name)] = known[getattr(spans, name)]
    table = table[:, (table[0] >= start) & (table[0] < end)]
    return table[:, np.lexsort(table[::-1])]


def _first_unequal(one: Int64Array, other: Int64Array) -> int:
    """Return the first column in which two tables differ, or the number of columns of the shorter one."""
    length = min(one.shape[1], other.shape[1])
    unequal = np.flatnonzero((one[:, :length] != other[:, :length]).any(axis=0))
    return int(unequal[0]) if len(unequal) else length


def _called(timeline: Timeline, place: Place) -> tuple[Int64Array, Int64Array]:
    """Return starts and ends of the spans that are called like a place, in order of start."""
    if place.step < 0:  # a move of K/V entries belongs to no step
        spans = timeline.unfold(ranks=[place.rank])
        if place.name not in spans.names:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return _like(spans, place)
    steps = timeline.steps
    held = (steps["replica"] == place.replica) & (steps["step"] <= place.step)
    held &= place.step < steps["step"] + steps["count"]
    if not held.any() or place.name not in (spans := _spans_of(timeline, place, held)).names:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return _like(spans, place)


def _like(spans: Spans, place: Place) -> tuple[Int64Array, Int64Array]:
    same = (spans.step == place.step) & (spans.layer == place.layer) & (spans.stage == place.stage)
    same &= (spans.stream == STREAMS.index(place.stream)) & (spans.name == spans.names.index(place.name))
    return spans.start_ns[same], spans.end_ns[same]


def _spans_of(timeline: Timeline, place: Place, held: Int64Array) -> Spans:
    """Return what the rank of a place does while the steps that ``held`` selects run."""
    start, end = timeline.steps["start_ns"][held].min(), timeline.steps["end_ns"][held].max()
    return timeline.unfold(int(start) - 1, int(end) + 1, ranks=[place.rank])


def _times(timeline: Timeline, place: Place) -> str:
    starts, ends = _called(timeline, place)
    if place.number >= len(starts):
        return "no such span"
    start, end = int(starts[place.number]), int(ends[place.number])
    return f"{start:,} … {end:,} ns ({end - start:,} ns)"


def _first_rows(expected: Table, found: Table, columns: Sequence[str]) -> tuple[str, str] | None:
    """Return the first rows, in order of the columns, in which two tables differ, in words."""
    tables = []
    for table in (expected, found):
        rows = np.stack([table[name].astype(np.int64) for name in columns])
        tables.append(rows[:, np.lexsort(rows[::-1])])
    at = _first_unequal(tables[0], tables[1])
    if at == tables[0].shape[1] == tables[1].shape[1]:
        return None
    words = [_row_words(columns, rows[:, at].tolist()) if at < rows.shape[1] else "no such row" for rows in tables]
    return words[0], words[1]


def _row_words(columns: Sequence[str], values: Sequence[int]) -> str:
    pairs = zip(columns, values, strict=True)
    return ", ".join(f"{name} {FACT_KINDS[value] if name == 'kind' else value}" for name, value in pairs)
