"""What a replay records, folded as it comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import AllColumns, same
from clustersim.graph.template import PassTemplate
from clustersim.timeline.columns import Columns, Flat
from clustersim.timeline.episodes import Episodes
from clustersim.timeline.layout import Layout
from clustersim.timeline.row_numbers import Row, RowNumbers, Rows
from clustersim.timeline.stretch import Irregular, Stretch
from clustersim.timeline.tables import TABLES, Tables
from clustersim.values import dataclass

MAX_INT32 = np.iinfo(np.int32).max
NOT_POOLED = -1
"""Blocks in use after a fact that has nothing to do with a K/V pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Durations by class of a run of passes: a row that all share, and columns that vary from step to step.

    Parameters
    ----------
    row : int64 array of shape (classes,)
    columns : tuple of int
        Classes whose duration varies.
    varying : int64 array of shape (steps, len(columns))
    """

    row: Int64Array
    columns: tuple[int, ...]
    varying: Int64Array

    def table(self) -> Int64Array:
        """Return the durations of every step, of shape (steps, classes)."""
        table = np.repeat(self.row[None, :], len(self.varying), axis=0)
        table[:, list(self.columns)] = self.varying
        return table

    @classmethod
    def of_one(cls, row: Int64Array) -> Durations:
        """Return the durations of a single pass."""
        return cls(row=row, columns=(), varying=np.empty((1, 0), np.int64))


class Recorder:
    """Takes passes, transfers, steps, prompt chunks, decodes, facts and moves of K/V, and folds them.

    What has a table of its own may also be put into it in bulk (``recorder.steps.extend_columns(…)``).

    Parameters
    ----------
    templates : sequence of PassTemplate
        Passes name them by position.
    slots : int or callable
        Micro-batches of a replica that may be in flight (pp); of each replica, where they differ.
    """

    def __init__(self, templates: Sequence[PassTemplate], slots: int | Callable[[int], int] = 1) -> None:
        self.templates = list(templates)
        self.slots = slots
        together = AllColumns()
        (
            self.passes, self.rows, self.transfers, self.steps, self.chunks, self.decodes, self.facts, self.moves,
            self.owners,
        ) = (Columns(types, together) for types in TABLES.values())  # fmt: skip
        self.starts, self.varying, self.row_values, self.transfer_times, self.transfer_bytes = (
            Flat(together) for _ in range(5)
        )
        self.column_sets: dict[tuple[int, ...], int] = {}
        self.irregular: list[Irregular] = []
        self._row_numbers: dict[tuple[int, bytes, tuple[int, ...]], int] = {}
        self._numbered: dict[tuple[int, tuple[tuple[str, int], ...]], RowNumbers] = {}
        self._episodes: dict[int, Episodes] = {}

    def run(
        self,
        replica: int,
        stage: int,
        template: int,
        first_step: int,
        starts: Int64Array,
        durations: Durations,
    ) -> None:
        """Record passes whose spans are those that their durations imply.

        Parameters
        ----------
        replica, stage, template, first_step : int
        starts : int64 array of shape (steps,)
        durations : Durations
        """
        row = self.row(template, durations.row, durations.columns)
        alone = len(starts) == 1
        starts_at = -1 if alone or self._back_to_back(template, starts, durations) else self.starts.extend(starts)
        self.passes.append(
            replica, stage, template, first_step, len(starts), int(starts[0]), row, starts_at,
            self.varying.extend(durations.varying.ravel()), -1,
        )  # fmt: skip

    def _back_to_back(self, template: int, starts: Int64Array, durations: Durations) -> bool:
        shape = self.templates[template]
        if not shape.is_chain:
            return False
        columns = list(durations.columns)
        constant = int(shape.counts @ durations.row) - int(shape.counts[columns] @ durations.row[columns])
        lengths = constant + durations.varying @ shape.counts[columns]
        return np.array_equal(np.diff(starts), lengths[:-1])

    def nodes(
        self,
        replica: int,
        stage: int,
        template: int,
        step: int,
        start: int,
        durations: Int64Array,
        node_starts: Int64Array,
        node_ends: Int64Array,
    ) -> None:
        """Record a pass node by node; it is folded when its spans are those that ``durations`` imply.

        Parameters
        ----------
        replica, stage, template, step, start : int
        durations : int64 array of shape (classes,)
        node_starts, node_ends : int64 arrays of shape (nodes,)
            Absolute times in ns, in the order of the template's nodes.
        """
        shape = self.templates[template]
        by_instance = durations[shape.instance_class]
        if np.array_equal(node_ends - node_starts, by_instance[shape.node_instance]):  # or no walk tells more
            ends = shape.ends(by_instance)[shape.node_instance] + start
            if np.array_equal(node_ends, ends):
                self.run(replica, stage, template, step, np.array([start]), Durations.of_one(durations))
                return
        relative = (node_starts - start, node_ends - start)
        size = np.int32 if relative[1].max() <= MAX_INT32 else np.int64  # 2.1 s of ns, for half of the memory
        times: Irregular = (relative[0].astype(size), relative[1].astype(size))
        self._irregular(replica, stage, template, step, start, durations, times)

    def chain(
        self, replica: int, stage: int, template: int, step: int, start: int, durations: Int64Array, lost: Sequence[int]
    ) -> None:
        """Record a pass of a chain that took longer: by which instances, and how much, ns, in turns."""
        self._irregular(replica, stage, template, step, start, durations, Stretch.of(lost))

    def _irregular(
        self, replica: int, stage: int, template: int, step: int, start: int, durations: Int64Array, times: Irregular
    ) -> None:
        self.passes.append(
            replica, stage, template, step, 1, start, self.row(template, durations), -1, len(self.varying),
            len(self.irregular),
        )  # fmt: skip
        self.irregular.append(times)

    def row(self, template: int, row: Int64Array, columns: tuple[int, ...] = ()) -> int:
        """Return the number of a row of durations, and register it if it is new.

        Parameters
        ----------
        template : int
        row : int64 array of shape (classes,)
        columns : tuple of int
            Classes whose duration varies from step to step; their values in ``row`` do not count.
        """
        return self.numbers_of(template, [(np.asarray(row, np.int64), columns)])[0]

    def numbered(self, rows: Rows, templates: Mapping[str, int]) -> RowNumbers:
        """Return the numbers of the rows of a stage, which those have that are asked for with the same ones.

        Parameters
        ----------
        rows : Rows
            They may grow.
        templates : mapping
            Kind of step → number of its template.
        """
        key = id(rows), tuple(sorted(templates.items()))
        if key not in self._numbered:
            self._numbered[key] = RowNumbers(rows, templates, self.numbers_of)
        return self._numbered[key]

    def numbers_of(self, template: int, rows: Iterable[Row]) -> list[int]:
        """Return the numbers of rows of durations and the columns that vary in each; see :meth:`row`."""
        known, found = self._row_numbers, []
        values: list[bytes] = []
        made: list[int] = []
        at = len(self.row_values)
        for row, columns in rows:
            key = template, row.tobytes(), columns
            number = known.get(key)
            if number is None:
                number = known[key] = len(known)
                made += template, at, self.column_sets.setdefault(columns, len(self.column_sets))
                values.append(key[1])
                at += len(row)
            found.append(number)
        self.row_values.extend_bytes(b"".join(values))
        self.rows.append(*made)
        return found

    def transfer(
        self, replica: int, stage: int, step: int, starts: Int64Array, ends: Int64Array, carried: Int64Array
    ) -> None:
        """Record the sends of one step from ``stage`` to the next, and their bytes, by local rank; 0 of idle ranks."""
        self.transfer_bytes.extend(carried)
        self.transfers.append(replica, stage, step, self.transfer_times.extend(np.concatenate((starts, ends))))

    def decoded(self, replica: int, step: int, steps: int, requests: tuple[int, ...]) -> int:
        """Record that ``steps`` steps from ``step`` on gave each of ``requests`` a token, in order of completion.

        Returns
        -------
        int
            The slot of these steps (see ``timeline.episodes``); −1 when there are no requests.
        """
        episodes = self._episodes.get(replica)
        if episodes is None:
            slots = self.slots(replica) if callable(self.slots) else self.slots
            episodes = self._episodes[replica] = Episodes(slots, partial(self.decodes.append, replica))
        return episodes.decoded(step, steps, requests)

    def finished(self, replica: int, requests: tuple[int, ...]) -> None:
        """End the episodes of requests that finished, are swapped out, or whose tokens are computed anew."""
        if replica in self._episodes:
            self._episodes[replica].close(requests)

    def chunk(self, replica: int, step: int, request: int, start: int, count: int, *, sampled: bool) -> None:
        """Record a prompt chunk that a step computed, and whether the step sampled a token of it."""
        self.chunks.append(replica, step, request, start, count, sampled)
        self.finished(replica, (request,))

    def step(self, *row: int) -> None:
        """Record a run of equal steps; the values are those of ``STEP_COLUMNS``."""
        self.steps.append(*row)

    def replica_facts(self, replica: int, facts: Iterable[tuple[int, int, int, int, int]]) -> None:
        """Record what a scheduler decided, in order: (time, kind, request, value, blocks in use)."""
        for fact in facts:
            self.facts.append(replica, *fact)

    def arrival(self, time: int, kind: int, request: int, replica: int, value: int) -> None:
        """Record an arrival or a rejection."""
        self.facts.append(replica, time, kind, request, value, NOT_POOLED)

    def move(self, *row: int) -> None:
        """Record a transfer of K/V entries that has ended; the values are those of ``MOVE_COLUMNS``."""
        self.moves.append(*row)

    def kept(self, replica: int, request: int, time: int, owner: int) -> None:
        """Record which SP rank of a replica keeps a request that was admitted."""
        self.owners.append(replica, request, time, owner)

    def tables(self, layout: Layout) -> Tables:
        """Return what was recorded of replicas that have these ranks; episodes that are open end here."""
        for episodes in self._episodes.values():
            episodes.close()
        tables = {name: getattr(self, name).arrays() for name in TABLES}
        passes, steps = tables["passes"], tables["steps"]
        for name, of in (("replica", "replica"), ("first_step", "step"), ("steps", "count"), ("start_ns", "start_ns")):
            if same(passes[name], steps[of]):  # those of replicas of one stage: they are kept once
                passes[name] = steps[of]
        return Tables(
            templates=tuple(self.templates),
            layout=layout,
            column_sets=tuple(self.column_sets),
            irregular=tuple(self.irregular),
            starts=self.starts.array(),
            varying=self.varying.array(),
            row_values=self.row_values.array(),
            transfer_times=self.transfer_times.array(),
            transfer_bytes=self.transfer_bytes.array(),
            **tables,
        )
