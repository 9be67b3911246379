"""What the core says of one replica, as columns: steps, their passes and sends, chunks, episodes of decoding, facts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import constant
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.replay.prepared import Prepared
from clustersim.timeline.columns import Columns
from clustersim.timeline.record import MAX_INT32, NOT_POOLED, Recorder
from clustersim.timeline.row_numbers import Rows
from clustersim.timeline.stretch import Irregular, Stretch

STEP_ROW: Final = (
    "start_ns", "kind", "slot", "batch_requests", "prefill_tokens", "decode_tokens", "context_tokens", "waiting",
    "running", "kv_blocks_used",
)  # fmt: skip
"""What the log says of a run of steps when it begins."""
AT_ONCE: Final = 1 << 15
"""Runs of steps that are handed on together, so that what is in between stays in the processor's cache."""

NOTHING: Final[Int64Array] = np.empty(0, np.int64)


class ReplicaLog:
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
        self._stretches: list[tuple[int, Irregular]] = []
        """Passes not handed on that were stretched: their position among those, and where."""
        self._kept = array("q")
        self._starts = array("q")
        self.tells_starts = self.stages == 1 and not recorder.templates[templates[0]["decode"]].is_chain
        """Whether ranks do different work in decode steps, so that each run of them tells when they start."""
        self._many: list[Columns] = []
        """Chunks, episodes and facts that came many at once, as narrow as they are recorded."""
        self._numbers = [recorder.numbered(*stage) for stage in zip(rows, templates, strict=True)]
        """Stage by stage the recorder's numbers of its rows."""

    def stretch(self, stage: int, pairs: Sequence[int], after: int = 0) -> None:
        """Say where a pass lost time, instance and ns in turns: of the step that comes so many after the next one."""
        self.irregular(stage, Stretch.of(pairs), after)

    def irregular(self, stage: int, found: Irregular, after: int = 0) -> None:
        """Say how a pass was stretched, in whatever form."""
        self._stretches.append((after * self.stages + stage, found))

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
        """Append rows of each kind.

        ``rows`` are columns of ``STEP_ROW``, ``count``, ``end_ns`` and ``number``, which is written to; ``many`` are
        chunks, episodes and facts, of the types of :meth:`tables`; ``of_stages`` are passes, which are written to,
        sends, and what these carry where ranks do different work, where there are stages.
        """
        if not self._many:
            self._many = self.tables()
        for kept, some in zip(self._many, many, strict=True):
            kept.adopt(some)
        if len(rows["count"]):
            self._hand_steps(rows, varying, *of_stages)

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
        recorder = self.recorder
        for kept, table in zip(self._many, (recorder.chunks, recorder.decodes, recorder.facts), strict=False):
            table.take(kept, replica=self.replica)
        self._many = []
        names = [name for name in recorder.owners.types if name != "replica"]
        owners = np.ascontiguousarray(taken(self._kept).reshape(-1, len(names)).T)
        told = dict(zip(names, owners, strict=True))
        recorder.owners.extend_columns(replica=same(self.replica, owners.shape[1]), **told)

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

    def _hand_steps(
        self, rows: Mapping[str, Any], varying: Int64Array, passes: Int64Array | None = None,
        sends: Int64Array = NOTHING, carried: Int64Array = NOTHING,
    ) -> None:  # fmt: skip
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
        for begin in range(0, len(counts), AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
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
        self._hand_sends(first, rows["prefill_tokens"] + rows["decode_tokens"], sends, carried)

    def _by_pass(self, of_steps: Int64Array) -> Int64Array:
        """Return for each pass what is known of its step."""
        return of_steps if self.stages == 1 else np.repeat(of_steps, self.stages)

    def _starts_at(self, kinds: Int64Array, counts: Int64Array) -> Int64Array:
        """Hand on the starts of runs whose ranks do different work; return where those of each run are, −1 of most."""
        if not self.tells_starts:
            return same(-1, len(counts))
        found = np.full(len(counts), -1, np.int64)
        told = (kinds == STEP_KINDS.index("decode")) & (counts > 1)
        found[told] = self.recorder.starts.extend(taken(self._starts)) + np.cumsum(counts[told]) - counts[told]
        return found

    def _irregular(self, passes: int) -> Int64Array:
        """Hand on what was stretched, and return which of it each pass is, −1 for most."""
        if not self._stretches:
            return same(-1, passes)
        found = np.full(passes, -1, np.int64)
        known = self.recorder.irregular
        found[[at for at, _ in self._stretches]] = np.arange(len(known), len(known) + len(self._stretches))
        known.extend([stretch for _, stretch in self._stretches])
        self._stretches = []
        return found

    def _hand_sends(self, steps: Int64Array, tokens: Int64Array, sends: Int64Array, carried: Int64Array) -> None:
        boundaries, width = self.stages - 1, 2 * self.ranks
        if not boundaries:
            return
        recorder = self.recorder
        at = recorder.transfer_times.extend(sends.ravel())
        each = np.repeat(np.rint(tokens[:, None] * self.token_bytes).astype(np.int64).ravel(), self.ranks)
        recorder.transfer_bytes.extend(carried.ravel() if carried.size else each)
        recorder.transfers.extend_columns(
            replica=same(self.replica, len(steps) * boundaries),
            stage=np.tile(np.arange(boundaries), len(steps)),
            step=np.repeat(steps, boundaries),
            at=at + width * np.arange(len(steps) * boundaries),
        )


class StepLog(ReplicaLog):
    """The log of a replica whose passes are recorded elsewhere."""

    def __init__(self, replica: int, blocks: int, recorder: Recorder) -> None:
        super().__init__(replica, (), (), blocks, 0, (), recorder)

    def _hand_steps(self, rows: Mapping[str, Any], varying: Int64Array, *of_stages: Any) -> None:
        self._hand_rows(rows)


def log_of(prepared: Prepared, replica: int) -> ReplicaLog:
    """Return what records a replica."""
    pool = prepared.pool_of(replica)
    plan, blocks = pool.input.plan, pool.capacity.total
    if plan.is_lockstep:
        return StepLog(replica, blocks, prepared.recorder)
    kinds = [pool.programs[replica, stage] for stage in range(plan.pp)]
    templates = [{kind: pool.numbers[program.key] for kind, program in one.items()} for one in kinds]
    rows = [one.rows for one in pool.prices_of(replica)]
    senders = [one["decode"] for one in kinds[:-1]]
    token_bytes = [payload_bytes(one, {"tokens": (1.0,)}, one.template.send_classes[0]) for one in senders]
    return ReplicaLog(replica, templates, rows, blocks, plan.stage_ranks, token_bytes, prepared.recorder)


def taken(numbers: array[int]) -> Int64Array:
    """Return numbers, and forget them."""
    found = np.array(numbers, np.int64)
    del numbers[:]
    return found


def same(value: int, rows: int) -> Int64Array:
    """Return a column that is the same in all rows."""
    found: Int64Array = constant(np.int64(value), rows)
    return found


def _by_stage(columns: Sequence[Int64Array]) -> Int64Array:
    """Return what stages have by step, step by step."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).ravel()
