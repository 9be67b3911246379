"""What a lane did, in flat arrays of its own: appended in the hot loop, handed to the recorder in bulk."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array, in_time
from clustersim.column import constant
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.replay.lanes.stretched_pass import StretchedPass, with_times
from clustersim.timeline.columns import Columns
from clustersim.timeline.record import MAX_INT32, NOT_POOLED, Recorder
from clustersim.timeline.row_numbers import Rows
from clustersim.timeline.stretch import Irregular, Stretch

STEP_ROW: Final = (
    "start_ns", "kind", "slot", "batch_requests", "prefill_tokens", "decode_tokens", "context_tokens", "waiting",
    "running", "kv_blocks_used",
)  # fmt: skip
"""What a lane says of a run of steps when it begins."""
FLUSH_STEPS: Final = 1 << 15
"""Runs of steps after which a log hands on what it has."""

NOTHING: Final[Int64Array] = np.empty(0, np.int64)


class LaneLog:
    """Steps, prompt chunks, episodes of decoding and facts of one replica.

    Parameters
    ----------
    replica : int
    templates : sequence of mapping
        Per stage: kind of step → number of its template.
    rows : sequence of Rows
        Per stage; they may grow. None where passes are recorded elsewhere.
    blocks : int
        K/V blocks of the replica's pools.
    ranks : int
        Ranks of a stage.
    token_bytes : sequence of float
        Per boundary what each rank sends of one token.
    recorder : Recorder
    """

    def __init__(
        self,
        replica: int,
        templates: Sequence[Mapping[str, int]],
        rows: Sequence[Rows],
        blocks: int,
        ranks: int,
        token_bytes: Sequence[float],
        recorder: Recorder,
    ) -> None:
        self.replica = replica
        self.templates = templates
        self.rows = rows
        self.blocks = blocks
        self.ranks = ranks
        self.token_bytes = np.array(token_bytes, np.float64)
        self.recorder = recorder
        self.stages = len(rows)
        self.flushed = 0
        """Steps handed on."""
        self._steps = array("q")
        self._passes = array("q")
        self._varying = array("q")
        self._sends = array("q")
        self._carried = array("q")
        self._stretches: list[tuple[int, Irregular | StretchedPass]] = []
        """Passes not handed on that were stretched: their position among those, and where."""
        self._chunks = array("q")
        self._decodes = array("q")
        self._facts = array("q")
        self._kept = array("q")
        self._starts = array("q")
        self.tells_starts = self.stages == 1 and not recorder.templates[templates[0]["decode"]].is_chain
        """Whether ranks do different work in decode steps, so that each run of them tells when they start."""
        self._width = len(STEP_ROW) + 2 + (self.stages <= 1)
        self._full = FLUSH_STEPS * self._width
        self._many: list[Columns] = []
        """Chunks, episodes and facts that came many at once, as narrow as they are recorded."""
        self._numbers = [recorder.numbered(*stage) for stage in zip(rows, templates, strict=True)]
        """Stage by stage the recorder's numbers of its rows."""

    def run(
        self,
        row: tuple[int, ...],
        number: int,
        count: int,
        end: int,
        varying: Iterable[int],
        starts: Iterable[int] = (),
    ) -> None:
        """Append a run of ``count`` steps of one stage: its row of durations, and what varied from step to step.

        Where ranks do different work in them, the ``starts`` of several steps are told, too.
        """
        steps = self._steps
        self._starts.extend(starts)
        steps.extend((*row, count, in_time(end), number))
        self._varying.extend(varying)
        if len(steps) >= self._full:
            self.flush_steps()

    def step(
        self,
        row: tuple[int, ...],
        passes: Iterable[int],
        end: int,
        varying: Iterable[int],
        sends: Iterable[int],
        carried: Iterable[int] = (),
    ) -> None:
        """Append one step of all stages.

        Parameters
        ----------
        row : tuple of int
            ``STEP_ROW``.
        passes : iterable of int
            Start and row of durations, stage by stage.
        end : int
        varying : iterable of int
            What varies, stage by stage.
        sends : iterable of int
            Per boundary the starts of the sends by rank, then their ends.
        carried : iterable of int
            Per boundary the bytes that each rank sends; told of no step where all ranks send all tokens.
        """
        self._steps.extend((*row, 1, in_time(end)))
        self._passes.extend(passes)
        self._varying.extend(varying)
        self._sends.extend(sends)
        self._carried.extend(carried)
        if len(self._steps) >= self._full:
            self.flush_steps()

    def stretch(self, stage: int, pairs: Sequence[int], after: int = 0) -> None:
        """Say where a pass lost time, instance and ns in turns: of the step that is appended next, or so many later."""
        self.irregular(stage, Stretch.of(pairs), after)

    def irregular(self, stage: int, found: Irregular | StretchedPass, after: int = 0) -> None:
        """Say how a pass was stretched, in whatever form."""
        step = len(self._steps) // self._width + after
        self._stretches.append((step * self.stages + stage, found))

    def chunk(self, step: int, request: int, start: int, count: int, sampled: int) -> None:
        """Append a prompt chunk that a step computed."""
        self._chunks.extend((step, request, start, count, sampled))

    def decode(self, slot: int, request: int, first_step: int, last_step: int) -> None:
        """Append an episode of decoding."""
        self._decodes.extend((slot, request, first_step, last_step))

    def fact(self, time: int, kind: int, request: int, value: int, used: int) -> None:
        """Append what the scheduler decided."""
        self._facts.extend((time, kind, request, value, used))

    def kept(self, time: int, request: int, owner: int) -> None:
        """Append which SP rank keeps a request that was admitted."""
        self._kept.extend((request, time, owner))

    def extend(
        self,
        rows: Mapping[str, Any],
        varying: Int64Array,
        many: Sequence[Mapping[str, Any]],
        *of_stages: Int64Array,
    ) -> None:
        """Append many rows of each kind at once: what :meth:`run` or :meth:`step` and the others append, row by row.

        ``rows`` are columns of ``STEP_ROW``, ``count``, ``end_ns`` and ``number``, which is written to; ``many`` are
        chunks, episodes and facts, of the types of :meth:`tables`; ``of_stages`` are passes, which are written to,
        sends, and what these carry where ranks do different work, where there are stages.
        """
        if not self._many:
            self._many = self.tables()
        for kept, some in zip(self._many, many, strict=True):
            kept.adopt(some)
        if len(rows["count"]):
            passes, sends, *carried = of_stages or (None, NOTHING)
            for sizes in carried:
                self._carried.frombytes(sizes.tobytes())
            self._hand_steps(rows, varying, passes, sends)

    def tell_starts(self, starts: Int64Array) -> None:
        """Say when the steps of runs start that are appended next, where ranks do different work in them."""
        self._starts.frombytes(starts.tobytes())

    def tables(self) -> list[Columns]:
        """Return what takes the chunks, episodes and facts of one replica."""
        return [
            table.without("replica") for table in (self.recorder.chunks, self.recorder.decodes, self.recorder.facts)
        ]

    def arrivals(self, times: Int64Array, kinds: Int64Array, requests: Int64Array, prompts: Int64Array) -> None:
        """Hand the recorder the arrivals here, with the prompt tokens of each."""
        self.recorder.facts.extend_columns(
            replica=same(self.replica, len(times)),
            time_ns=times,
            kind=kinds,
            request=requests,
            value=prompts,
            used=same(NOT_POOLED, len(times)),
        )

    def flush(self) -> None:
        """Hand everything to the recorder."""
        self.flush_steps()
        recorder = self.recorder
        for kept, table in zip(self._many, (recorder.chunks, recorder.decodes, recorder.facts), strict=False):
            table.take(kept, replica=self.replica)
        self._many = []
        self._hand(recorder.chunks, self._chunks)
        self._hand(recorder.decodes, self._decodes)
        self._hand(recorder.facts, self._facts)
        self._hand(recorder.owners, self._kept)

    def _hand(self, table: Columns, flat: array[int]) -> None:
        names = [name for name in table.types if name != "replica"]
        found = np.ascontiguousarray(taken_rows(flat, len(names)).T)
        table.extend_columns(replica=same(self.replica, found.shape[1]), **dict(zip(names, found, strict=True)))

    def _hand_rows(self, rows: Mapping[str, Any]) -> Any:
        """Hand on rows of steps, told by column; return the first step of each."""
        count = rows["count"]
        after = self.flushed + int(count.sum())
        first: Any = np.cumsum(count, dtype=np.int32 if after <= MAX_INT32 else np.int64)
        first -= count.astype(first.dtype, copy=False)
        first += self.flushed
        self.flushed = after
        replica, blocks = same(self.replica, len(count)), same(self.blocks, len(count))
        told = {name: rows[name] for name in (*STEP_ROW, "count", "end_ns")}
        self.recorder.steps.extend_columns(replica=replica, step=first, kv_blocks_total=blocks, **told)
        return first

    def flush_steps(self) -> None:
        """Hand on the steps that were appended one by one."""
        if self._steps:
            rows, varying = self._taken_steps(), taken_rows(self._varying, 1)
            passes = None if self.stages == 1 else taken_rows(self._passes, 2 * self.stages)
            self._hand_steps(rows, varying, passes, taken_rows(self._sends, 1))

    def _taken_steps(self) -> dict[str, Int64Array]:
        """Return the steps that were appended one by one, by column, and forget them."""
        return dict(zip((*STEP_ROW, "count", "end_ns", "number"), taken_rows(self._steps, self._width).T, strict=False))

    def _hand_steps(
        self, rows: Mapping[str, Any], varying: Int64Array, passes: Int64Array | None, sends: Int64Array
    ) -> None:
        """Hand on rows of steps: what varied in them, their passes and sends; of one stage passes follow from rows."""
        first = self._hand_rows(rows)
        counts, kinds, recorder, flat = rows["count"], rows["kind"], self.recorder, len(rows["count"]) * self.stages
        if passes is None:
            starts, numbers = [rows["start_ns"]], [rows["number"]]
        else:
            starts, numbers = map(list, passes.reshape(-1, self.stages, 2).transpose(2, 1, 0))
        templates: Any = np.empty((len(counts), self.stages), np.int16)
        varying_at = np.empty(flat, np.int64)
        at, done = recorder.varying.extend(varying.ravel()), 0
        for begin in range(0, len(counts), FLUSH_STEPS):  # so that what is in between stays in the processor's cache
            some = slice(begin, begin + FLUSH_STEPS)
            widths = np.empty((len(counts[some]), self.stages), np.int64)
            for stage, of in enumerate(self._numbers):
                mine = numbers[stage][some]
                mine[:], templates[some, stage], widths[:, stage] = of.told(kinds[some], mine)
            sizes = (widths * counts[some, None]).ravel()
            ends = np.cumsum(sizes)
            ends += at
            np.subtract(ends, sizes, out=varying_at[done : done + len(ends)])
            at, done = int(ends[-1]), done + len(ends)
        recorder.passes.extend_columns(
            replica=same(self.replica, flat),
            stage=same(0, flat) if self.stages == 1 else np.tile(np.arange(self.stages), len(counts)),
            template=templates.ravel(),
            first_step=self._by_pass(first),
            steps=self._by_pass(counts),
            start_ns=_by_stage(starts),
            row=_by_stage(numbers),
            starts_at=self._starts_at(kinds, counts) if self.stages == 1 else same(-1, flat),
            varying_at=varying_at,
            irregular=self._irregular(flat),
        )
        self._hand_sends(first, rows["prefill_tokens"] + rows["decode_tokens"], sends)

    def _by_pass(self, of_steps: Int64Array) -> Int64Array:
        """Return for each pass what is known of its step."""
        return of_steps if self.stages == 1 else np.repeat(of_steps, self.stages)

    def _starts_at(self, kinds: Int64Array, counts: Int64Array) -> Int64Array:
        """Hand on the starts of runs whose ranks do different work; return where those of each run are, −1 of most."""
        if not self.tells_starts:
            return same(-1, len(counts))
        found = np.full(len(counts), -1, np.int64)
        told = (kinds == STEP_KINDS.index("decode")) & (counts > 1)
        found[told] = self.recorder.starts.extend(taken_rows(self._starts, 1)) + np.cumsum(counts[told]) - counts[told]
        return found

    def _irregular(self, passes: int) -> Int64Array:
        """Hand on what was stretched, and return which of it each pass is, −1 for most."""
        if not self._stretches:
            return same(-1, passes)
        found = np.full(passes, -1, np.int64)
        known = self.recorder.irregular
        found[[at for at, _ in self._stretches]] = np.arange(len(known), len(known) + len(self._stretches))
        known.extend(with_times([stretch for _, stretch in self._stretches]))
        self._stretches = []
        return found

    def _hand_sends(self, steps: Int64Array, tokens: Int64Array, sends: Int64Array) -> None:
        boundaries, width = self.stages - 1, 2 * self.ranks
        if not boundaries:
            return
        recorder = self.recorder
        at = recorder.transfer_times.extend(sends.ravel())
        carried = np.repeat(np.rint(tokens[:, None] * self.token_bytes).astype(np.int64).ravel(), self.ranks)
        recorder.transfer_bytes.extend(taken_rows(self._carried, 1) if self._carried else carried)
        recorder.transfers.extend_columns(
            replica=same(self.replica, len(steps) * boundaries),
            stage=np.tile(np.arange(boundaries), len(steps)),
            step=np.repeat(steps, boundaries),
            at=at + width * np.arange(len(steps) * boundaries),
        )


class StepLog(LaneLog):
    """The log of a replica whose passes are recorded elsewhere."""

    def __init__(self, replica: int, blocks: int, recorder: Recorder) -> None:
        super().__init__(replica, (), (), blocks, 0, (), recorder)

    def _hand_steps(
        self,
        rows: Mapping[str, Any],
        varying: Int64Array,
        passes: Int64Array | None,
        sends: Int64Array,
    ) -> None:
        self._hand_rows(rows)


def taken_rows(flat: array[int], width: int) -> Int64Array:
    """Return a flat array as rows, and empty it."""
    found = np.array(flat, np.int64)
    del flat[:]
    return found if width == 1 else found.reshape(-1, width)


def same(value: int, rows: int) -> Int64Array:
    """Return a column that is the same in all rows."""
    found: Int64Array = constant(np.int64(value), rows)
    return found


def _by_stage(columns: Sequence[Int64Array]) -> Int64Array:
    """Return what stages have by step, step by step."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).ravel()
