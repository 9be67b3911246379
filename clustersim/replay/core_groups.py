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
from clustersim.compiled import field_of, set_field
from clustersim.core.tables.groups import GroupTables
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.prices.pricer import decode_keys, decoding
from clustersim.graph.prices.step_table import ATTENDED
from clustersim.graph.program import StageProgram
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.input import PoolInput
from clustersim.replay.prepared import Prepared, PreparedPool
from clustersim.replay.replica_log import StepLog, same
from clustersim.serving.decision import Decision, batch_of
from clustersim.serving.halves import halves_of
from clustersim.serving.sequence import Sequence as Member
from clustersim.timeline.record import Recorder
from clustersim.timeline.row_numbers import NOTHING, Row

AT_FIRST: Final = 8
"""Steps that are priced at once when a run begins."""
LONGEST_RUN: Final = 1 << 8
"""Most steps of one run."""
KNOWN: Final = ("request", "prompt", "output", "computed", "generated", "owner")
"""Fields of a sequence that make up what a step carries of it."""
NOBODY: Final = -1
"""The request of a dummy batch."""


def is_grouped(plan: ParallelPlan) -> bool:
    """Whether the steps of a plan's replicas are those of a group, be it of one."""
    return plan.is_lockstep or plan.is_two_batch


def any_grouped(prepared: Prepared) -> bool:
    """Whether the steps of any pool are those of groups: then one replica by itself is a group of one."""
    return any(is_grouped(pool.input.plan) for pool in prepared.pools)


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
        self.decisions, self.owners = decisions, pool.owners
        each = [decisions, *self.parts]
        parts = [[batch_of(one, pool.owners, windows) for one in some] for some in each]
        whole, *halves = (together(some) if plan.is_lockstep else some[0] for some in parts)
        self.batch = replace(whole, halves=tuple(halves))

    def keys(self, first: int, count: int) -> dict[tuple[int, int | None], Int64Array]:
        """Return what decodes attend to in so many steps from one of a run on, by coordinate and window.

        A dummy batch stays as it is. Of two halves the coordinates of one follow those of the other.
        """
        decisions = [decision for part in self.parts or [self.decisions] for decision in part]
        decodes = [[one for one in each.decodes if one.owner == s] for each in decisions for s in range(self.owners)]
        grown = np.arange(first, first + count, dtype=np.int64)
        keys: dict[tuple[int, int | None], Int64Array] = {}
        for (s, window), attended in decode_keys(self.batch).items():
            if window is None or not decodes[s]:
                keys[s, window] = attended + len(decodes[s]) * grown
            else:
                own = np.array([sequence.computed + 1 for sequence in decodes[s]], np.int64)
                keys[s, window] = np.minimum(own[:, None] + grown[None, :], window).sum(axis=0)
        return keys


class GroupSteps:
    """The steps of a group, where they are asked for, and what each is recorded by.

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
        self.pool, self.pricer = pool, pool.input.pricer
        self.programs: Mapping[str, StageProgram] = pool.programs[replica, 0]
        self.replicas = range(r, r + pool.together)
        self.rows: dict[int, tuple[int, Row]] = {}
        """Template and row of each step that was asked for, by number."""
        self.next_row = 0
        self.batch: GroupBatch | None = None
        self.tables: GroupTables | None = None

    @property
    def room(self) -> int:
        """How many values vary in a run at most: of each step, with its length; then where others were found."""
        programs = self.programs.values()
        attended = max(sum(cls.node.op in ATTENDED for cls in program.classes) for program in programs)
        parts = 0 if self.tables is None else int(self.tables.parts.max())
        return (1 + attended) * LONGEST_RUN + parts

    def answer(self, s: Any) -> None:
        """Price further steps of the step or run that is decided, or under way."""
        r = self.replicas[0]
        done, limit = (int(field_of(s.flights[r], 0, name)) for name in ("steps", "limit"))
        count = min(limit - done, max(AT_FIRST, done))
        number, row, varying, lengths = self._price(s, done, count)
        columns = row[1]
        if done == 0:
            self.rows[self.next_row] = number, row
            set_field(s.flights[r], 0, "row", self.next_row)
            set_field(s.flights[r], 0, "width", 1 + len(columns))
            self.next_row += 1
        values = np.concatenate([varying, lengths[:, None]], axis=1).ravel()
        at = done * (1 + len(columns))
        if isinstance(s.pending, np.ndarray):
            s.pending[r, at : at + len(values)] = values
        else:
            s.pending[r][at : at + len(values)] = values.tolist()
        set_field(s.clock, 0, "answered", count)

    def foresee_layers(self, s: Any, h: Any) -> None:
        """Tell when the step that is decided passes each layer: when its attention over prompts has ended on all."""
        first = self.replicas[0]
        row, start, width, parts = (
            int(field_of(s.flights[first], 0, name)) for name in ("row", "start", "width", "found")
        )
        pending = np.asarray(s.pending[first])
        if self.tables is None:
            by_class = self.rows[row][1][0]
            program = self.programs[self.batch.batch.program] if self.batch is not None else None
        else:
            ((found, columns),) = self.tables.rows(row, pending[None, len(pending) - parts :])
            by_class, program = found.copy(), self.tables.every[row].program
            by_class[list(columns)] = pending[: width - 1]
        assert program is not None
        template = program.template
        ends = start + template.ends(by_class[template.instance_class])[template.node_instance]
        passed = {layer: int(ends[nodes].max()) for layer, nodes in template.prompt_layers}
        for r in self.replicas:
            for at, layer in enumerate(np.asarray(h.layers).tolist()):
                h.layer_times[r][at] = passed[layer]

    def _price(self, s: Any, done: int, count: int) -> tuple[int, Row, Int64Array, Int64Array]:
        """Return the template and the row of some steps, what varies in them, and how long they are."""
        if done == 0:
            self.batch = GroupBatch([decision_of(s, r) for r in self.replicas], self.pool.input)
        assert self.batch is not None
        batch = self.batch.batch
        program = self.programs[batch.program]
        number, path = self.pool.numbers[program.key], program.template
        if batch.kind != "decode":
            row = self.pricer.durations(program, batch, self.pricer.features(batch))
            return number, (row, ()), np.empty((1, 0), np.int64), path.total_times(row[None])
        row, columns, varying = self.pricer.decode_run(program, decoding(batch), self.batch.keys(done, count))
        table = np.repeat(row[None], count, axis=0)
        table[:, columns] = varying
        return number, (row, columns), varying, path.total_times(table)

    def sizes(self, numbers: Int64Array, counts: Int64Array) -> Int64Array:
        """Return how many values vary in so many steps that are logged with one of these numbers."""
        if self.tables is not None:
            return (1 + self.tables.attends[numbers]) * counts + self.tables.parts[numbers]
        widths = [1 + len(self.rows[number][1][1]) if number >= 0 else 0 for number in numbers.tolist()]
        return counts * np.array(widths, np.int64)

    def untangle(
        self, numbers: Int64Array, counts: Int64Array, values: Int64Array
    ) -> tuple[list[tuple[int, Row]], Int64Array, Int64Array]:
        """Return the template and the row of each run of steps, how long steps are, and what varies besides."""
        ends = np.cumsum(self.sizes(numbers, counts))
        kept = np.ones(len(values), np.bool_)
        found: list[tuple[int, Row]] = [self.rows[number] for number in numbers.tolist()] if self.tables is None else []
        if self.tables is not None:
            found = [(0, (NOTHING, ()))] * len(numbers)
            for number in np.unique(numbers).tolist():
                mine, parts = np.flatnonzero(numbers == number), int(self.tables.parts[number])
                places = (ends[mine] - parts)[:, None] + np.arange(parts)
                kept[places] = False
                template = self.pool.numbers[self.tables.every[number].program.key]
                for at, row in zip(mine.tolist(), self.tables.rows(number, values[places]), strict=True):
                    found[at] = template, row
        widths = np.array([1 + len(row[1]) for _, row in found], np.int64)
        steps = np.flatnonzero(kept)[np.cumsum(np.repeat(widths, counts)) - 1]
        lengths = values[steps]
        kept[steps] = False
        for number in [one for one in self.rows if one < int(numbers[-1])]:
            del self.rows[number]
        return found, lengths, values[kept]


class GroupLog(StepLog):
    """The log of the first replica of a group, which records the passes of all."""

    def __init__(self, steps: GroupSteps, replica: int, blocks: int, recorder: Recorder) -> None:
        super().__init__(replica, blocks, recorder)
        self.of_group = steps

    def _hand_steps(self, rows: Mapping[str, Any], varying: Int64Array, *of_stages: Any) -> None:
        first, recorder, priced = self._hand_rows(rows), self.recorder, rows["number"] >= 0
        if not priced.any():  # passes are recorded where they run by events
            return
        first, counts, begins = first[priced], rows["count"][priced], rows["start_ns"][priced]
        found, lengths, varying = self.of_group.untangle(rows["number"][priced], counts, varying)
        templates = np.array([template for template, _ in found], np.int64)
        numbers = np.array([recorder.numbers_of(template, [row])[0] for template, row in found], np.int64)
        sizes = np.array([len(columns) for _, (_, columns) in found], np.int64) * counts
        at = recorder.varying.extend(varying)
        recorder.passes.extend_columns(
            replica=same(self.replica, len(counts)), stage=same(0, len(counts)), template=templates, first_step=first,
            steps=counts, start_ns=begins, row=numbers,
            starts_at=self._tell_starts(begins, counts, lengths, templates),
            varying_at=at + np.cumsum(sizes) - sizes, irregular=same(-1, len(counts)),
        )  # fmt: skip

    def _tell_starts(
        self, begins: Int64Array, counts: Int64Array, lengths: Int64Array, templates: Int64Array
    ) -> Int64Array:
        """Hand on when each step of a run begins where that does not follow from durations; return where those are."""
        chains = np.array([one.is_chain for one in self.recorder.templates])
        explicit = (counts > 1) & ~chains[templates]
        firsts = np.cumsum(counts) - counts
        ends = np.cumsum(lengths)
        starts = np.repeat(begins - (ends - lengths)[firsts], counts) + ends - lengths
        sizes = np.where(explicit, counts, 0)
        at = self.recorder.starts.extend(starts[np.repeat(explicit, counts)])
        return np.where(explicit, at + np.cumsum(sizes) - sizes, -1)
