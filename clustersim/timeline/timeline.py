"""The folded timeline: passes as (start, durations by class), unfolded into spans on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STREAMS
from clustersim.graph.template import PassTemplate
from clustersim.timeline.record import Recorder
from clustersim.timeline.spans import Spans, sorted_spans

Table = Mapping[str, Int64Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """All passes, transfers, tokens, steps and facts of a run.

    Parameters
    ----------
    templates : tuple of PassTemplate
    sp_tp : (int, int)
        SP and TP degree; a stage has sp × tp ranks.
    stages : int
        Stages of a replica.
    passes : mapping of int64 arrays
        A row per run of passes (columns ``PASS_COLUMNS``).
    starts, varying : int64 arrays
        Start of every pass; durations that vary from step to step.
    rows : tuple of int64 array
        Durations by class that passes refer to; ``row_columns`` names the classes that vary.
    irregular : tuple of (starts, ends)
        Times of every node, relative to the pass, where contention stretched it.
    transfers, transfer_times
        Sends of each step and boundary: starts then ends by local rank.
    steps, facts, token_runs : mappings of int64 arrays
    token_ids, token_ends : int64 arrays
    digest : str
    num_spans, num_steps : int
    """

    templates: tuple[PassTemplate, ...]
    sp_tp: tuple[int, int]
    stages: int
    passes: Table
    starts: Int64Array
    varying: Int64Array
    rows: tuple[Int64Array, ...]
    row_columns: tuple[tuple[int, ...], ...]
    irregular: tuple[tuple[Int64Array, Int64Array], ...]
    transfers: Table
    transfer_times: Int64Array
    steps: Table
    facts: Table
    token_runs: Table
    token_ids: Int64Array
    token_ends: Int64Array
    digest: str
    num_spans: int
    num_steps: int

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage."""
        return self.sp_tp[0] * self.sp_tp[1]

    @cached_property
    def _words(self) -> tuple[dict[str, int], dict[str, int]]:
        names: dict[str, int] = {}
        ops: dict[str, int] = {}
        for template in self.templates:
            for name, op, _ in template.symbols:
                names.setdefault(name, len(names))
                ops.setdefault(op, len(ops))
        for word in ("send", "recv"):
            names.setdefault(word, len(names))
            ops.setdefault(word, len(ops))
        return names, ops

    @cached_property
    def end_ns(self) -> int:
        """End of the last step."""
        ends = self.steps["end_ns"]
        return int(ends.max()) if len(ends) else 0

    @cached_property
    def _run_bounds(self) -> tuple[Int64Array, Int64Array]:
        """Start of each run's first pass, and an upper bound of its last pass's end."""
        first = self.starts[self.passes["starts_at"]]
        last = self.starts[self.passes["starts_at"] + self.passes["steps"] - 1]
        longest = np.zeros(len(first), np.int64)
        for index in range(len(first)):
            longest[index] = self._duration_bound(index)
        return first, last + longest

    def _duration_bound(self, run: int) -> int:
        irregular = int(self.passes["irregular"][run])
        if irregular >= 0:
            return int(self.irregular[irregular][1].max())
        template = self.templates[int(self.passes["template"][run])]
        row = self.rows[int(self.passes["row"][run])]
        steps, columns = int(self.passes["steps"][run]), self.row_columns[int(self.passes["row"][run])]
        total = int(template.counts @ row)
        if columns:
            at = int(self.passes["varying_at"][run])
            varying = self.varying[at : at + steps * len(columns)].reshape(steps, len(columns))
            total += int((varying.max(axis=0) * template.counts[list(columns)]).sum())
        return total

    def durations(self, run: int, index: int) -> Int64Array:
        """Return the durations by class of the ``index``-th pass of a run."""
        number = int(self.passes["row"][run])
        row, columns = self.rows[number].copy(), self.row_columns[number]
        if columns:
            at = int(self.passes["varying_at"][run]) + index * len(columns)
            row[list(columns)] = self.varying[at : at + len(columns)]
        return row

    def unfold(self, start_ns: int = 0, end_ns: int | None = None, ranks: Iterable[int] | None = None) -> Spans:
        """Return every span that overlaps [start_ns, end_ns) on the given ranks.

        Parameters
        ----------
        start_ns, end_ns : int
            Window; by default everything.
        ranks : iterable of int, optional
            Global ranks; by default all.
        """
        until = self.end_ns + 1 if end_ns is None else end_ns
        wanted = None if ranks is None else np.array(sorted(ranks), np.int64)
        parts = []
        first, bound = self._run_bounds
        for run in np.flatnonzero((first < until) & (bound > start_ns)).tolist():
            at, steps = int(self.passes["starts_at"][run]), int(self.passes["steps"][run])
            for index in range(steps):
                begin = int(self.starts[at + index])
                if begin >= until:
                    break
                later = int(self.starts[at + index + 1]) if index + 1 < steps else None
                if later is not None and later <= start_ns:
                    continue
                parts.append(self._unfold_pass(run, index, begin))
        parts.extend(self._unfold_transfers(start_ns, until))
        clipped = []
        for part in parts:
            keep = (part[0] < until) & (part[1] > start_ns)
            if wanted is not None:
                keep &= np.isin(part[2], wanted)
            clipped.append(part[:, keep])
        names, ops = self._words
        return sorted_spans(clipped, tuple(names), tuple(ops))

    @cached_property
    def _node_columns(self) -> list[tuple[Int64Array, Int64Array]]:
        """Per template: node of each span, and a (5, spans) block of local rank, stream, name, op, layer."""
        names, ops = self._words
        found = []
        for template in self.templates:
            counts = np.array([len(m) for m in template.members], np.int64)
            node = np.repeat(np.arange(len(counts)), counts)
            local = np.array([rank for m in template.members for rank in m], np.int64)
            name = np.array([names[template.symbols[s][0]] for s in template.node_symbol.tolist()], np.int64)
            op = np.array([ops[template.symbols[s][1]] for s in template.node_symbol.tolist()], np.int64)
            stream = template.instance_stream[template.node_instance]
            block = np.stack((local, stream[node], name[node], op[node], template.node_layer[node]))
            found.append((node, block))
        return found

    def _unfold_pass(self, run: int, index: int, begin: int) -> Int64Array:
        number = int(self.passes["template"][run])
        template = self.templates[number]
        irregular = int(self.passes["irregular"][run])
        if irregular >= 0:
            starts, ends = (times.astype(np.int64) for times in self.irregular[irregular])
        else:
            by_instance = self.durations(run, index)[template.instance_class]
            instance_ends = template.ends(by_instance)
            ends = instance_ends[template.node_instance]
            starts = (instance_ends - by_instance)[template.node_instance]
        node, block = self._node_columns[number]
        replica, stage = int(self.passes["replica"][run]), int(self.passes["stage"][run])
        base = (replica * self.stages + stage) * self.stage_ranks
        step = int(self.passes["first_step"][run]) + index
        part = np.empty((10, len(node)), np.int64)
        part[0], part[1] = starts[node] + begin, ends[node] + begin
        part[2] = block[0] + base
        part[3:7] = block[1:]
        part[7], part[8], part[9] = step, replica, stage
        return part

    def _unfold_transfers(self, start_ns: int, end_ns: int) -> list[Int64Array]:
        names, ops = self._words
        ranks = self.stage_ranks
        count = len(self.transfers["at"])
        if not count:
            return []
        times = self.transfer_times.reshape(count, 2, ranks)
        chosen = np.flatnonzero((times[:, 0].min(axis=1) < end_ns) & (times[:, 1].max(axis=1) > start_ns))
        parts = []
        for row in chosen.tolist():
            replica, stage = int(self.transfers["replica"][row]), int(self.transfers["stage"][row])
            for word, side in (("send", 0), ("recv", 1)):
                part = np.empty((10, ranks), np.int64)
                part[0], part[1] = times[row]
                part[2] = (replica * self.stages + stage + side) * ranks + np.arange(ranks)
                part[3], part[4], part[5] = STREAMS.index(word), names[word], ops[word]
                part[6], part[7] = -1, self.transfers["step"][row]
                part[8], part[9] = replica, stage + side
                parts.append(part[:, part[1] > part[0]])
        return parts


def timeline_of(recorder: Recorder, *, sp: int, tp: int, stages: int) -> Timeline:
    """Freeze what a recorder took."""
    return Timeline(
        templates=tuple(recorder.templates),
        sp_tp=(sp, tp),
        stages=stages,
        passes=recorder.passes.arrays(),
        starts=recorder.starts.array(),
        varying=recorder.varying.array(),
        rows=tuple(recorder.rows),
        row_columns=tuple(recorder.row_columns),
        irregular=tuple(recorder.irregular),
        transfers=recorder.transfers.arrays(),
        transfer_times=recorder.transfer_times.array(),
        steps=recorder.steps.arrays(),
        facts=recorder.facts.arrays(),
        token_runs=recorder.token_runs.arrays(),
        token_ids=recorder.token_ids.array(),
        token_ends=recorder.token_ends.array(),
        digest=recorder.digest(),
        num_spans=recorder.num_spans,
        num_steps=recorder.num_steps,
    )
