"""The folded timeline: passes as (start, durations by class), unfolded into spans on demand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_S, Int64Array
from clustersim.errors import InputError, Problem
from clustersim.timeline.digest import digest_of
from clustersim.timeline.layout import Layout
from clustersim.timeline.passes import Block, Passes
from clustersim.timeline.record import Recorder
from clustersim.timeline.spans import SPAN_COLUMNS, STREAMS, Spans, sorted_spans
from clustersim.timeline.stretch import node_times
from clustersim.timeline.tables import HOST, Tables
from clustersim.values import dataclass

MOVES: Final = ("hand_over", "swap")
"""Names of moves of K/V entries: between replicas, and between a rank and its host."""


def _ranks(ranks: object) -> list[int]:
    """Return ranks in order; what is none, a lone one included, is refused."""
    found: list[Any] = list(ranks) if isinstance(ranks, Iterable) and not isinstance(ranks, str) else [None]
    if any(not _is_number(one) or one < 0 or one != one // 1 for one in found):
        raise InputError(Problem(path="ranks", message=f"expected ranks such as [0, 1], but found {ranks!r}"))
    return sorted(map(int, found))


def _check_window(start_ns: object, end_ns: object) -> None:
    """Refuse what are no instants, and a window that ends before it begins."""
    for name, instant in (("start_ns", start_ns), ("end_ns", end_ns)):
        if not _is_number(instant) and (instant is not None or name == "start_ns"):
            raise InputError(Problem(path=name, message=f"expected an instant in nanoseconds, but found {instant!r}"))
    if end_ns is not None and start_ns > end_ns:  # type: ignore[operator]
        message = f"{end_ns} is before start_ns, {start_ns}; expected an instant from there on, in nanoseconds"
        raise InputError(Problem(path="end_ns", message=message))


def _is_number(value: object) -> bool:
    """Return whether something is a number, which NaN and truth values are not."""
    if isinstance(value, float | np.floating):
        return not math.isnan(value)
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Timeline(Tables):
    """All passes, transfers, steps, prompt chunks, decodes, facts and moves of a run, and what they come to.

    Parameters
    ----------
    num_spans, num_steps : int
    told_digest : str or None
        That of the file which it was read from.
    """

    num_spans: int
    num_steps: int
    told_digest: str | None = None

    def __repr__(self) -> str:
        return f"<Timeline of {self.num_spans:,} spans in {self.num_steps:,} steps, {self.end_ns / NS_PER_S:.6g} s>"

    @cached_property
    def digest(self) -> str:
        """See ``timeline.digest``; worked out when somebody asks."""
        return digest_of(self) if self.told_digest is None else self.told_digest

    @cached_property
    def words(self) -> tuple[dict[str, int], dict[str, int]]:
        """Names and kinds of operators, and their numbers in spans."""
        names: dict[str, int] = {}
        ops: dict[str, int] = {}
        for template in self.templates:
            for name, op, _ in template.symbols:
                names.setdefault(name, len(names))
                ops.setdefault(op, len(ops))
        for word in ("send", "recv", *(MOVES if len(self.moves["request"]) else ())):
            names.setdefault(word, len(names))
            ops.setdefault(word, len(ops))
        return names, ops

    @cached_property
    def end_ns(self) -> int:
        """End of the last step, or of the last move of K/V entries."""
        return max(int(table["end_ns"].max(initial=0)) for table in (self.steps, self.moves))

    @cached_property
    def _passes(self) -> Passes:
        return Passes(self)

    @property
    def run_bounds(self) -> tuple[Int64Array, Int64Array]:
        """Start of the first pass of each run, and an upper bound of the end of its last one."""
        return self._passes.bounds

    def starts_of(self, run: int) -> Int64Array:
        """Return the start of each pass of a run."""
        return self._passes.starts(self._block(run))

    def durations(self, run: int) -> Int64Array:
        """Return the durations by class of each pass of a run, of shape (steps, classes)."""
        return self._passes.durations(self._block(run), int(self.passes["template"][run]))

    def _block(self, run: int) -> Block:
        (block,) = self._passes.blocks(np.array([run]))
        return block

    def unfold(
        self, start_ns: int = 0, end_ns: int | None = None, ranks: Iterable[int] | None = None, *, passes: bool = True
    ) -> Spans:
        """Return every span that overlaps [start_ns, end_ns) on the given ranks.

        Parameters
        ----------
        start_ns, end_ns : int
            Window; by default everything.
        ranks : iterable of int, optional
            Global ranks; by default all.
        passes : bool
            Whether with what stages did, or only what moved between them.

        Raises
        ------
        InputError
            For what is no instant, a window that ends before it begins, and what is no rank.
        """
        _check_window(start_ns, end_ns)
        until = self.end_ns + 1 if end_ns is None else end_ns
        wanted = None if ranks is None else np.array(_ranks(ranks), np.int64)
        parts: list[Int64Array] = []
        for run in self._runs_in(start_ns, until, wanted) if passes else ():
            starts = self.starts_of(run)
            begin = max(0, int(np.searchsorted(starts, start_ns, side="right")) - 1)
            end = int(np.searchsorted(starts, until, side="left"))
            durations = self.durations(run)
            parts.extend(self._unfold_pass(run, i, int(starts[i]), durations[i]) for i in range(begin, end))
        parts.extend(self._unfold_transfers(start_ns, until, wanted))
        parts.extend(self._unfold_moves())
        clipped = []
        for part in parts:
            keep = (part[0] < until) & (part[1] > start_ns)
            if wanted is not None:
                keep &= np.isin(part[2], wanted)
            clipped.append(part[:, keep])
        names, ops = self.words
        return sorted_spans(clipped, tuple(names), tuple(ops))

    def _runs_in(self, start_ns: int, end_ns: int, ranks: Int64Array | None) -> list[int]:
        first, bound = self._passes.bounds
        held = self._holds(self.passes["replica"], self.passes["stage"], ranks)
        found: list[int] = np.flatnonzero((first < end_ns) & (bound > start_ns) & held).tolist()
        return found

    def _holds(self, replica: Int64Array, stage: Int64Array, ranks: Int64Array | None) -> npt.NDArray[np.bool_]:
        """Tell which of these stages hold any of the ranks, which are in order."""
        if ranks is None:
            return np.ones(len(stage), np.bool_)
        first = self.layout.stage_base(replica, stage)
        many = self.layout.values("pass_ranks")[self.layout.of_replica(replica)]
        return np.searchsorted(ranks, first) < np.searchsorted(ranks, first + many)

    @cached_property
    def _node_columns(self) -> list[tuple[Int64Array, Int64Array]]:
        """Per template: node of each span, and a (6, spans) block of local rank, stream, name, op, layer, half."""
        names, ops = self.words
        found = []
        for template in self.templates:
            counts = np.array([len(m) for m in template.members], np.int64)
            node = np.repeat(np.arange(len(counts)), counts)
            local = np.array([rank for m in template.members for rank in m], np.int64)
            name = np.array([names[template.symbols[s][0]] for s in template.node_symbol.tolist()], np.int64)
            op = np.array([ops[template.symbols[s][1]] for s in template.node_symbol.tolist()], np.int64)
            stream = template.instance_stream[template.node_instance]
            half = template.node_half if len(template.node_half) else np.zeros(len(counts), np.int64)
            block = np.stack((local, stream[node], name[node], op[node], template.node_layer[node], half[node]))
            found.append((node, block))
        return found

    def _unfold_pass(self, run: int, index: int, begin: int, durations: Int64Array) -> Int64Array:
        number = int(self.passes["template"][run])
        template = self.templates[number]
        irregular = int(self.passes["irregular"][run])
        if irregular >= 0:
            found = node_times(self.irregular[irregular], template, durations)
            starts, ends = (times.astype(np.int64) for times in found)
        else:
            by_instance = durations[template.instance_class]
            instance_ends = template.ends(by_instance)
            ends = instance_ends[template.node_instance]
            starts = (instance_ends - by_instance)[template.node_instance]
        node, block = self._node_columns[number]
        replica, stage = int(self.passes["replica"][run]), int(self.passes["stage"][run])
        base = int(self.layout.stage_base(np.array([replica]), np.array([stage]))[0])
        step = int(self.passes["first_step"][run]) + index
        part = np.zeros((len(SPAN_COLUMNS), len(node)), np.int64)
        part[0], part[1] = starts[node] + begin, ends[node] + begin
        part[2] = block[0] + base
        part[3:7] = block[1:5]
        part[7], part[8], part[9] = step, replica, stage
        part[10] = block[5]
        shape = self.layout.pool_of(replica)
        if shape.lockstep > 1:
            part[8] += block[0] // shape.stage_ranks
        return part

    def _unfold_transfers(self, start_ns: int, end_ns: int, wanted: Int64Array | None) -> list[Int64Array]:
        names, ops = self.words
        parts = []
        for mine, times in self.sends():
            ranks = times.shape[2]
            replicas, stages = (self.transfers[name][mine].astype(np.int64) for name in ("replica", "stage"))
            steps = self.transfers["step"][mine]
            base = self.layout.stage_base(replicas, stages)
            shown = self._holds(replicas, stages, wanted) | self._holds(replicas, stages + 1, wanted)
            shown &= (times[:, 0].min(axis=1) < end_ns) & (times[:, 1].max(axis=1) > start_ns)
            for row in np.flatnonzero(shown).tolist():
                for word, side in (("send", 0), ("recv", 1)):
                    part = np.zeros((len(SPAN_COLUMNS), ranks), np.int64)
                    part[0], part[1] = times[row]
                    part[2] = base[row] + side * ranks + np.arange(ranks)
                    part[3], part[4], part[5] = STREAMS.index(word), names[word], ops[word]
                    part[6], part[7] = -1, steps[row]
                    part[8], part[9] = replicas[row], stages[row] + side
                    parts.append(part[:, part[1] > part[0]])
        return parts

    def _unfold_moves(self) -> list[Int64Array]:
        """Return what moves of K/V entries are on the ranks that they leave and reach."""
        names, ops = self.words
        moves = self.moves
        within_host = (moves["from_rank"] == HOST) | (moves["to_rank"] == HOST)
        parts = []
        for stream, side in (("kv_out", "from"), ("kv_in", "to")):
            for word, chosen in zip(MOVES, (~within_host, within_host), strict=True):
                rows = np.flatnonzero(chosen & (moves[f"{side}_rank"] != HOST))
                if not len(rows):
                    continue
                rank = moves[f"{side}_rank"][rows].astype(np.int64)
                part = np.zeros((len(SPAN_COLUMNS), len(rows)), np.int64)
                part[0], part[1], part[2] = moves["start_ns"][rows], moves["end_ns"][rows], rank
                part[3], part[4], part[5] = STREAMS.index(stream), names[word], ops[word]
                part[6], part[7], part[8] = moves["layer"][rows], -1, moves[f"{side}_replica"][rows]
                part[9] = self.layout.place_of(rank)[1]
                parts.append(part)
        return parts


def timeline_of(recorder: Recorder, layout: Layout) -> Timeline:
    """Freeze what a recorder took; see :meth:`Recorder.tables`."""
    tables = recorder.tables(layout)
    return Timeline(**vars(tables), num_spans=tables.count_spans(), num_steps=tables.count_steps())
