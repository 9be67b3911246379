"""Steps of replicas that take them together, or that split them into two halves: what they carry, cost, and record.

The passes of a group are recorded as of its first replica; steps, chunks, decodes and facts name the replica whose they
are, and each has a row for every step of the group, an empty one where it brought a dummy batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.compiled import Storage, field_of, set_field
from clustersim.core.prices import COUNTS, Prices, Whole
from clustersim.core.tables import EventTables
from clustersim.cost.attention import Terms
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.prices.lockstep_prices import Brought, LockstepPrices, lockstep_prices
from clustersim.graph.prices.pricer import decode_keys, decoding
from clustersim.graph.program import StageProgram
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.input import PoolInput
from clustersim.replay.lanes.log import StepLog, same
from clustersim.replay.prepared import Prepared, PreparedPool
from clustersim.serving.decision import Decision, batch_of
from clustersim.serving.halves import halves_of
from clustersim.serving.sequence import Sequence as Member
from clustersim.timeline.record import Recorder
from clustersim.timeline.row_numbers import first_of_each

LONGEST_RUN: Final = 1 << 8
"""Most steps of one run."""
KNOWN: Final = ("request", "prompt", "output", "computed", "generated", "owner")
"""Fields of a sequence that make up what a step carries of it."""
NOBODY: Final = -1
"""The request of a dummy batch."""


def is_grouped(plan: ParallelPlan) -> bool:
    """Whether the steps of a plan's replicas are those of a group, be it of one."""
    return plan.is_lockstep or plan.is_two_batch


def decision_of(s: Any, r: int, k: int = 0) -> Decision:
    """Return what the step carries that a replica has decided; ``k``: its flight."""
    decodes, chunks, stages = (int(field_of(s.replicas, r, name)) for name in ("decodes", "chunks", "stages"))
    first = k * (len(s.members[r]) // stages)
    chosen = s.members[r][first : first + decodes + chunks]
    seen = []
    for one in chosen:
        request, prompt, output, computed, generated, owner = (int(field_of(s.sequences, one, name)) for name in KNOWN)
        seen.append(Member(request, prompt, output, computed, generated))
        seen[-1].owner = owner
    taken = [int(field_of(s.sequences, one, "taken")) for one in chosen[decodes:]]
    return Decision(tuple(seen[:decodes]), tuple(zip(seen[decodes:], taken, strict=True)))


def together(parts: Sequence[StepBatch]) -> StepBatch:
    """Return what a group takes through a step: what each replica brings, a dummy batch where that is nothing.

    A dummy batch is one token: of a prompt where all others prefill, else of a sequence that begins to decode.
    """
    prefills = not any(part.num_decodes for part in parts)
    chunks: list[Chunk] = []
    decodes, keys = [part.decode_sequences[0] for part in parts], [part.decode_keys[0] for part in parts]
    windowed = {window: [part.windowed_keys[window][0] for part in parts] for window in parts[0].windowed_keys}
    for owner, part in enumerate(parts):
        chunks += [replace(chunk, owner=owner) for chunk in part.chunks]
        if part.chunks or part.num_decodes:
            continue
        if prefills:
            chunks.append(Chunk(request=NOBODY, start=0, count=1, owner=owner))
            continue
        decodes[owner] = keys[owner] = 1
        for sums in windowed.values():
            sums[owner] = 1
    return StepBatch(
        chunks=tuple(chunks),
        decode_sequences=tuple(decodes),
        decode_keys=tuple(keys),
        windowed_keys={window: tuple(sums) for window, sums in windowed.items()},
    )


class GroupBatch:
    """What a group takes through a step: of each replica, and of its halves where all of them can split it.

    Parameters
    ----------
    decisions : sequence of Decision
    pool : PoolInput
    """

    def __init__(self, decisions: Sequence[Decision], pool: PoolInput) -> None:
        plan, windows = pool.plan, pool.pricer.windows
        found = [halves_of(decision, plan.ep) for decision in decisions]
        both = [one for one in found if one is not None]
        self.parts: list[Sequence[Decision]] = (
            [[half[at] for half in both] for at in (0, 1)] if len(both) == len(found) else []
        )
        """The decisions of each half."""
        self.decisions = decisions
        each = [decisions, *self.parts]
        parts = [[batch_of(one, pool.owners, windows) for one in some] for some in each]
        whole, *halves = (together(some) if plan.is_lockstep else some[0] for some in parts)
        self.batch = replace(whole, halves=tuple(halves))

    def keys(self, first: int, count: int) -> dict[tuple[int, int | None], Int64Array]:
        """Return what decodes attend to in so many steps from one of a run on, by coordinate and window.

        A dummy batch stays as it is. Of two halves the coordinates of one follow those of the other.
        """
        decodes = [decision.decodes for part in self.parts or [self.decisions] for decision in part]
        grown = np.arange(first, first + count, dtype=np.int64)
        keys: dict[tuple[int, int | None], Int64Array] = {}
        for (s, window), attended in decode_keys(self.batch).items():
            if window is None or not decodes[s]:
                keys[s, window] = attended + len(decodes[s]) * grown
            else:
                own = np.array([sequence.computed + 1 for sequence in decodes[s]], np.int64)
                keys[s, window] = np.minimum(own[:, None] + grown[None, :], window).sum(axis=0)
        return keys


Row = tuple[int, Int64Array, tuple[int, ...]]
"""A template, nanoseconds by class, and the columns that vary."""


class GroupSteps:
    """The steps of a group.

    Parameters
    ----------
    prepared : Prepared
    pool : PreparedPool
        Of one stage.
    replica : int
        The first of the group.
    r : int
        Its place in the state.
    """

    def __init__(self, prepared: Prepared, pool: PreparedPool, replica: int, r: int) -> None:
        self.pool, self.plan, self.pricer = pool, pool.input.plan, pool.input.pricer
        self.programs: Mapping[str, StageProgram] = pool.programs[replica, 0]
        self.replicas = range(r, r + (self.plan.dp if self.plan.is_lockstep else 1))
        self.prices: LockstepPrices | None = None
        if self.plan.is_lockstep and not self.plan.is_two_batch:
            found = lockstep_prices(self.pricer, self.programs)
            self.prices = found if found.supported else None
        self.width = 1 + max(
            sum(cls.node.op == "attention_decode" for cls in program.classes) for program in self.programs.values()
        )
        """Values that are logged of a step at most: its length is the last one."""
        self.rows: dict[int, Row] = {}
        self.next_row = 0
        self.batch: GroupBatch | None = None
        self.columns: tuple[int, ...] = ()
        windows = len(self.pricer.windows)
        self.prompt = Brought((1, 1, 1, 0, 0, 1, 1, 1, 0, *(1, 1, 0) * windows), (0,) * (1 + windows))
        self.decode = Brought((1, 1, 0, 1, 0, 0, 0, 0, 1, *(0, 0, 1) * windows), (0,) * (1 + windows))
        """What a replica brings that has nothing to run."""

    def answer(self, s: Any) -> None:
        """Price further steps of the step or run that is decided, or under way."""
        r = self.replicas[0]
        done, limit = (int(field_of(s.flights[r], 0, name)) for name in ("steps", "limit"))
        count = min(limit - done, max(1, done))
        row, columns, varying, lengths = self._price(s, done, count)
        if done == 0:
            self.rows[self.next_row] = row
            set_field(s.flights[r], 0, "row", self.next_row)
            set_field(s.flights[r], 0, "width", 1 + len(columns))
            self.next_row += 1
        table = np.concatenate([varying, lengths[:, None]], axis=1)
        width, values = 1 + len(columns), table.ravel()
        at = done * width
        if isinstance(s.pending, np.ndarray):
            s.pending[r, at : at + len(values)] = values
        else:
            s.pending[r][at : at + len(values)] = values.tolist()
        set_field(s.clock, 0, "answered", count)

    def _price(self, s: Any, done: int, count: int) -> tuple[Row, tuple[int, ...], Int64Array, Int64Array]:
        """Return the row of some steps, the columns that vary, what these take, and how long the steps are."""
        if self.prices is not None:
            return self._price_by_counts(self.prices, s, done, count)
        if done == 0:
            decisions = [decision_of(s, r) for r in self.replicas]
            self.batch = GroupBatch(decisions, self.pool.input)
        assert self.batch is not None
        batch = self.batch.batch
        program = self.programs[batch.program]
        number = self.pool.numbers[program.key]
        if batch.kind != "decode":
            row = self.pricer.durations(program, batch, self.pricer.features(batch))
            return (number, row, ()), (), np.empty((1, 0), np.int64), program.template.total_times(row[None])
        row, columns, varying = self.pricer.decode_run(program, decoding(batch), self.batch.keys(done, count))
        table = np.repeat(row[None], count, axis=0)
        table[:, columns] = varying
        return (number, row, columns), columns, varying, program.template.total_times(table)

    def _price_by_counts(
        self, prices: LockstepPrices, s: Any, done: int, count: int
    ) -> tuple[Row, tuple[int, ...], Int64Array, Int64Array]:
        fields = ("chunks", "decodes", "new", "context", "pairs", "keys", "attended", "near_pairs", "near_keys",
                  "near_attended", "near_growth")  # fmt: skip
        found = [[int(field_of(s.replicas, r, name)) for name in fields] for r in self.replicas]
        decodes = any(mine[1] for mine in found)
        kind = ("mixed" if decodes else "prefill") if any(mine[0] for mine in found) else "decode"
        nothing = self.decode if decodes else self.prompt
        brought = [self._brought(mine, done) if mine[0] + mine[1] else nothing for mine in found]
        number = self.pool.numbers[self.programs[kind].key]
        if kind != "decode":
            row, lengths = prices.prompts(kind, brought)
            return (number, row, ()), (), np.empty((1, 0), np.int64), lengths
        row, columns, varying, lengths = prices.decodes(brought, count)
        return (number, row, columns), columns, varying, lengths

    def _brought(self, fields: list[int], done: int) -> Brought:
        chunks, decodes, new, context, pairs, keys, attended, near_pairs, near_keys, near, growth = fields
        counts = (
            new + decodes, chunks + decodes, new, decodes, context, context + new, keys, pairs,
            attended + done * decodes,
        )  # fmt: skip
        if not self.pricer.windows:
            return Brought(counts, (decodes,))
        return Brought((*counts, near_pairs, near_keys, near + done * growth), (decodes, growth))

    def sizes(self, numbers: Int64Array) -> Int64Array:
        """Return how many values each step has that is logged with one of these rows."""
        return np.array([1 + len(self.rows[number][2]) for number in numbers.tolist()], np.int64)

    def record(self, recorder: Recorder, numbers: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the recorder's number of each row, its template, and how many columns vary; forget earlier ones."""
        each = first_of_each(numbers, self.next_row).tolist()
        found = np.zeros((3, self.next_row - min(each)), np.int64)
        for number in each:
            template, row, columns = self.rows[number]
            found[:, number - min(each)] = (*recorder.numbers_of(template, [(row, columns)]), template, len(columns))
        told = found[:, numbers - min(each)]
        for number in [one for one in self.rows if one < max(each)]:
            del self.rows[number]
        return told[0], told[1], told[2]


class GroupLog(StepLog):
    """The log of the first replica of a group, which records the passes of all."""

    def __init__(self, steps: GroupSteps, replica: int, blocks: int, recorder: Recorder) -> None:
        super().__init__(replica, blocks, recorder)
        self.of_group = steps

    def _hand_steps(
        self, rows: Mapping[str, Any], varying: Int64Array, passes: Int64Array | None, sends: Int64Array
    ) -> None:
        first, counts, recorder = self._hand_rows(rows), rows["count"], self.recorder
        numbers, templates, widths = self.of_group.record(recorder, rows["number"])
        last = np.cumsum(np.repeat(widths + 1, counts)) - 1
        lengths, kept = varying[last], np.ones(len(varying), bool)
        kept[last] = False
        sizes = widths * counts
        at = recorder.varying.extend(varying[kept])
        recorder.passes.extend_columns(
            replica=same(self.replica, len(counts)), stage=same(0, len(counts)), template=templates, first_step=first,
            steps=counts, start_ns=rows["start_ns"], row=numbers,
            starts_at=self._tell_starts(rows["start_ns"], counts, lengths, templates),
            varying_at=at + np.cumsum(sizes) - sizes, irregular=same(-1, len(counts)),
        )  # fmt: skip

    def _tell_starts(
        self, begins: Int64Array, counts: Int64Array, lengths: Int64Array, templates: Int64Array
    ) -> Int64Array:
        """Hand on when each step of a run begins where that does not follow from durations; return where those are."""
        chains = np.array([one.is_chain for one in self.recorder.templates])
        told = (counts > 1) & ~chains[templates]
        firsts = np.cumsum(counts) - counts
        ends = np.cumsum(lengths)
        starts = np.repeat(begins - (ends - lengths)[firsts], counts) + ends - lengths
        sizes = np.where(told, counts, 0)
        at = self.recorder.starts.extend(starts[np.repeat(told, counts)])
        return np.where(told, at + np.cumsum(sizes) - sizes, -1)


class GroupTables(EventTables):
    """Stands for the table of prices where all replicas are in groups."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        ints, rows = {"priced", "part_count", "send_place", "attending", "layers", "sent", "varying", "answer"}, {}
        for name in Prices._fields:
            rows[name] = storage.numbers(1) if name in ints else storage.table(1, 1)
        rows |= {
            "whole": storage.records(Whole, 1), "terms": storage.grid(Terms, 1, 1),
            "curves": storage.column(np.zeros(1)), "weights": storage.table(1, COUNTS),
        }  # fmt: skip
        self.p = Prices(**rows)
