"""What every rank did with its time: busy by stream, exposed communication, and how long its stage was held.

All of it is what a count over unfolded spans gives, to the nanosecond, but is added up from the folded passes: in a
chain one operator follows the other, so sums by cost class tell all; only passes whose operators overlap (SP,
experts beside a shared one, contention between replicas) are laid out, a bounded number at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.beside import Beside, Times
from clustersim.timeline.class_time import ClassTime, class_times
from clustersim.timeline.intervals import Intervals, union
from clustersim.timeline.parts import of_ranges
from clustersim.timeline.passes import Passes, blocks
from clustersim.timeline.rank_nodes import COMM, RankNodes, rank_nodes
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

LAID_OUT: Final = 1 << 21
"""Operators that are laid out at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Usage:
    """What ranks and stages did, in ns.

    Parameters
    ----------
    busy_ns : int64 array of shape (ranks, streams)
        Sum of the spans on each stream (``STREAMS``) of each global rank.
    exposed_ns : int64 array of shape (ranks,)
        Time in which a rank communicates (a collective, a send or receive, a move of K/V entries) while no operator
        of its compute and host streams runs.
    held_ns : int64 array of shape (replicas, stages)
        Sum of the times from start to end of the passes of each stage.
    in_flight_ns : int64 array of shape (replicas,)
        Time in which a step of the replica was under way on some stage or between two.
    """

    busy_ns: Int64Array
    exposed_ns: Int64Array
    held_ns: Int64Array
    in_flight_ns: Int64Array


def usage_of(tables: Tables, replicas: int) -> Usage:
    """Add up what every rank of so many replicas did.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    replicas : int
        Those without any step count, too.
    """
    per_stage = tables.sp_tp[0] * tables.sp_tp[1]
    busy = np.zeros((replicas, tables.stages, per_stage, len(STREAMS)), np.int64)
    exposed = np.zeros((replicas, tables.stages, per_stage), np.int64)
    held = np.zeros((replicas, tables.stages), np.int64)
    shapes = [rank_nodes(template) for template in tables.templates]
    beside = Beside(tables, replicas)
    idle = dict.fromkeys(np.ndindex(replicas, tables.stages))
    for passes, times_of in _by_stage(tables, idle):
        for (replica, stage), times in times_of.items():
            found = _Stage(passes, shapes, times, [beside.of(replica, stage, local) for local in range(per_stage)])
            busy[replica, stage] += found.busy_ns
            exposed[replica, stage] = found.exposed_ns
            held[replica, stage] = found.held_ns
    of_ranks = busy.reshape(-1, len(STREAMS))
    beside.add_busy(of_ranks)
    return Usage(busy_ns=of_ranks, exposed_ns=exposed.ravel(), held_ns=held, in_flight_ns=_in_flight(tables, replicas))


def _by_stage(
    tables: Tables, idle: dict[tuple[int, ...], None]
) -> Iterator[tuple[Passes, dict[tuple[int, ...], list[ClassTime]]]]:
    """Yield the passes of ranges of replicas, and the times of each of their stages; then those that are idle."""
    for part in of_ranges(tables):
        passes, found = Passes(part), dict[tuple[int, ...], list[ClassTime]]()
        for time in class_times(passes):
            found.setdefault((time.replica, time.stage), []).append(time)
            idle.pop((time.replica, time.stage), None)
        yield passes, found
    yield Passes(tables), {place: [] for place in idle}


def _in_flight(tables: Tables, replicas: int) -> Int64Array:
    steps, rows_of = tables.steps, RowsOf(tables.steps["replica"])
    each = (rows_of.of(replica) for replica in range(replicas))
    return np.array([union(steps["start_ns"][mine], steps["end_ns"][mine]).length_ns for mine in each], np.int64)


class _Stage:
    """One stage of one replica.

    Parameters
    ----------
    passes : Passes
    shapes : list of RankNodes
        By number of template.
    times : list of ClassTime
        Of this stage.
    beside : list of (starts, ends)
        By local rank, what it sends, receives and moves.
    """

    def __init__(self, passes: Passes, shapes: list[RankNodes], times: list[ClassTime], beside: list[Times]) -> None:
        self.passes = passes
        self.shapes = shapes
        self.times = times
        self.beside = beside
        ranks = len(beside)
        self.busy_ns = np.zeros((ranks, len(STREAMS)), np.int64)
        self.exposed_ns = np.zeros(ranks, np.int64)
        self.held_ns = 0
        alike = self._alike()
        occupied: dict[int, list[Intervals]] = {ranks_[0]: [] for ranks_ in alike}
        for time in times:
            shape = shapes[time.template]
            template = shape.template
            by_instance = time.by_class[template.instance_class] + time.lost
            inside = shape.by_rank(by_instance[template.node_instance])
            self.busy_ns += inside
            if template.is_chain:
                self.held_ns += int(by_instance.sum())
                self.exposed_ns += inside[:, COMM]
                self._whole_passes(time, occupied)
            for starts, ends, of_nodes in self._laid_out(time, alike, occupied):
                self._add_laid_out(time, starts, ends, of_nodes, alike, occupied)
        for ranks_ in alike:
            starts, ends = beside[ranks_[0]]
            if len(starts):
                self.exposed_ns[ranks_] += union(starts, ends).outside(_together(occupied[ranks_[0]]))

    def _alike(self) -> list[list[int]]:
        """Group local ranks whose streams are busy at the same instants."""
        odd = any(len(time.odd) for time in self.times)
        found: dict[tuple[object, ...], list[int]] = {}
        for rank, (starts, ends) in enumerate(self.beside):
            inside = [self.shapes[time.template] for time in self.times]
            of = tuple(shape.alike[rank] for shape in inside)
            found.setdefault((of, starts.tobytes(), ends.tobytes(), rank if odd else 0), []).append(rank)
        return list(found.values())

    def _sends(self, rank: int) -> bool:
        return len(self.beside[rank][0]) > 0

    def _whole_passes(self, time: ClassTime, occupied: dict[int, list[Intervals]]) -> None:
        """Note the passes of a chain as occupied on ranks that take part in all of it."""
        fills = self.shapes[time.template].fills
        wanted = [rank for rank in occupied if fills[rank] and self._sends(rank)]
        if not wanted:
            return
        table, irregular = self.passes.tables.passes, self.passes.tables.irregular
        for block in self.passes.blocks(time.runs):
            starts, ends = self.passes.starts(block), self.passes.lengths(block)
            numbers = table["irregular"][block.runs]
            for position in np.flatnonzero(numbers >= 0).tolist():
                found = irregular[int(numbers[position])]
                assert isinstance(found, Stretch)
                ends[block.firsts[position]] += found.lost_ns
            for rank in wanted:
                occupied[rank].append(union(starts, starts + ends))

    def _laid_out(
        self, time: ClassTime, alike: list[list[int]], occupied: dict[int, list[Intervals]]
    ) -> Iterator[tuple[Int64Array, Int64Array, bool]]:
        """Yield starts and ends of operators, and whether they are those of nodes and not of instances."""
        shape = self.shapes[time.template]
        template, tables = shape.template, self.passes.tables
        gaps = any(self._sends(rank) and not shape.fills[rank] and len(shape.nodes_of[rank][0]) for rank in occupied)
        if not template.is_chain or gaps:
            width = len(template.instance_class)
            by_stretch = not template.is_chain and not any(map(self._sends, occupied))
            for block in self.passes.blocks(time.runs):
                begins, durations = self.passes.starts(block), self.passes.durations(block, time.template)
                left = np.arange(len(begins))
                if by_stretch:
                    regular = tables.passes["irregular"][block.runs[block.of]] < 0
                    self._add_stretches(time.template, begins[regular], durations[regular], alike)
                    left = np.flatnonzero(~regular)
                for part in blocks(np.ones(len(left), np.int64), max(1, LAID_OUT // width)):
                    some = left[part]
                    by_instance = durations[some][:, template.instance_class]
                    self._stretch(by_instance, block.runs[block.of[some]])
                    ends = shape.ends(by_instance) + begins[some, None]
                    yield ends - by_instance, ends, False
        for odd in blocks(np.full(len(time.odd), len(template.node_instance)), LAID_OUT):
            found = [tables.irregular[n] for n in tables.passes["irregular"][time.odd[odd]].tolist()]
            begins = tables.passes["start_ns"][time.odd[odd]][:, None]
            starts, ends = (np.stack([one[side] for one in found]).astype(np.int64) + begins for side in (0, 1))
            yield starts, ends, True

    def _add_stretches(self, number: int, begins: Int64Array, durations: Int64Array, alike: list[list[int]]) -> None:
        """Add up passes stretch by stretch, equal ones once: nothing goes on from one of them to the next."""
        shape = self.shapes[number]
        template = shape.template
        for stretch, series in template.path.parts:
            classes = template.instance_class[stretch.first : stretch.stop]
            every = []
            for ranks in alike:
                nodes, communicates = shape.nodes_of[ranks[0]]
                columns = template.node_instance[nodes] - stretch.first
                there = (columns >= 0) & (columns < len(classes))
                both = (columns[there & communicates], columns[there & ~communicates])
                every.append((ranks, [series.runs(some) for some in both]))
            for part in blocks(np.ones(len(begins), np.int64), max(1, LAID_OUT // len(classes))):
                spent = np.ascontiguousarray(durations[part].T)[classes]
                ends = series.ends(spent)
                self.held_ns += stretch.times * int(ends.max(axis=0).sum())
                ends += begins[part]
                starts = ends - spent
                for ranks, runs in every:
                    comm, busy = (union(starts[first].T.ravel(), ends[last].T.ravel()) for first, last in runs)
                    self.exposed_ns[ranks] += stretch.times * comm.outside(busy)

    def _stretch(self, by_instance: Int64Array, runs: Int64Array) -> None:
        """Add what contention made single passes lose."""
        numbers = self.passes.tables.passes["irregular"][runs]
        for row in np.flatnonzero(numbers >= 0).tolist():
            found = self.passes.tables.irregular[int(numbers[row])]
            assert isinstance(found, Stretch)
            by_instance[row, found.pairs[:, 0]] += found.pairs[:, 1]

    def _add_laid_out(
        self,
        time: ClassTime,
        starts: Int64Array,
        ends: Int64Array,
        of_nodes: bool,
        alike: list[list[int]],
        occupied: dict[int, list[Intervals]],
    ) -> None:
        shape = self.shapes[time.template]
        template = shape.template
        if of_nodes:
            self.busy_ns += shape.by_rank((ends - starts).sum(axis=0))
        if of_nodes or not template.is_chain:
            self.held_ns += int((ends.max(axis=1) - starts.min(axis=1)).sum())
        for ranks in alike:
            nodes, communicates = shape.nodes_of[ranks[0]]
            columns = nodes if of_nodes else template.node_instance[nodes]
            if of_nodes or not template.is_chain:
                comm, busy = (
                    union(starts[:, columns[which]].ravel(), ends[:, columns[which]].ravel())
                    for which in (communicates, ~communicates)
                )
                self.exposed_ns[ranks] += comm.outside(busy)
            if self._sends(ranks[0]) and (of_nodes or not shape.fills[ranks[0]]):
                occupied[ranks[0]].append(union(starts[:, columns].ravel(), ends[:, columns].ravel()))


def _together(pieces: list[Intervals]) -> Intervals:
    """Return what any of the pieces covers."""
    nothing = np.empty(0, np.int64)
    return union(
        np.concatenate([nothing, *(piece.starts for piece in pieces)]),
        np.concatenate([nothing, *(piece.ends for piece in pieces)]),
    )
