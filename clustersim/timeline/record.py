"""What a replay records, folded as it comes in, with a running digest.

**The canonical form.** The digest is a SHA-256 over, in this order: the templates of the passes; for every replica
and stage its passes in order of start, each as ``start, template, regular, durations by class…``; for every boundary
between stages its transfers, each as ``step, starts…, ends…`` by rank; for every replica its tokens (``time, count,
requests…`` per step) and its facts (``time, kind, request, value``); and the arrivals. A pass whose spans are not
those that its durations imply (contention stretched something) is ``regular = 0`` and is followed by the start and
end of every node. Spans follow from these values and these values follow from the spans, so the digest is equal
exactly when all spans and facts are. A folded replay computes it without unfolding; a full one derives the same
values from what it recorded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.timeline.columns import Columns, Flat

PASS_COLUMNS = (
    "replica",
    "stage",
    "template",
    "first_step",
    "steps",
    "row",
    "starts_at",
    "varying_at",
    "irregular",
)
STEP_COLUMNS = (
    "replica", "step", "count", "kind", "start_ns", "end_ns", "batch_requests", "prefill_tokens", "decode_tokens",
    "context_tokens", "waiting", "running", "kv_blocks_used", "kv_blocks_total",
)  # fmt: skip
FACT_COLUMNS = ("replica", "time_ns", "kind", "request", "value")
MAX_INT32 = np.iinfo(np.int32).max


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
    """Takes passes, transfers, tokens, steps and facts, and folds them.

    Parameters
    ----------
    templates : sequence of PassTemplate
        Passes name them by position.
    """

    def __init__(self, templates: Sequence[PassTemplate]) -> None:
        self.templates = list(templates)
        self.passes = Columns(*PASS_COLUMNS)
        self.starts = Flat()
        self.varying = Flat()
        self.rows: list[Int64Array] = []
        self.row_columns: list[tuple[int, ...]] = []
        self.irregular: list[tuple[Int64Array, Int64Array]] = []
        self.transfers = Columns("replica", "stage", "step", "at")
        self.transfer_times = Flat()
        self.steps = Columns(*STEP_COLUMNS)
        self.facts = Columns(*FACT_COLUMNS)
        self.token_runs = Columns("replica", "ids_at", "count", "ends_at", "steps")
        self.token_ids = Flat()
        self.token_ends = Flat()
        self.num_spans = 0
        self.num_steps = 0
        self._row_numbers: dict[tuple[int, bytes, tuple[int, ...]], int] = {}
        self._hashes: dict[tuple[str, int, int], hashlib._Hash] = {}

    def _feed(self, name: str, replica: int, stage: int, values: Int64Array) -> None:
        key = (name, replica, stage)
        if key not in self._hashes:
            self._hashes[key] = hashlib.sha256()
        self._hashes[key].update(np.ascontiguousarray(values, "<i8").tobytes())

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
        steps = len(starts)
        self.passes.append(
            replica, stage, template, first_step, steps, self._row(template, durations), self.starts.extend(starts),
            self.varying.extend(durations.varying.ravel()), -1,
        )  # fmt: skip
        table = durations.table()
        head = np.empty((steps, 3), np.int64)
        head[:, 0], head[:, 1], head[:, 2] = starts, template, 1
        self._feed("passes", replica, stage, np.concatenate((head, table), axis=1))
        self.num_spans += steps * self.templates[template].num_inner_spans

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
        ends = shape.ends(by_instance)
        implied_ends = (ends + start)[shape.node_instance]
        implied_starts = (ends - by_instance + start)[shape.node_instance]
        one = Durations.of_one(durations)
        if np.array_equal(node_starts, implied_starts) and np.array_equal(node_ends, implied_ends):
            self.run(replica, stage, template, step, np.array([start]), one)
            return
        relative = (node_starts - start, node_ends - start)
        self.passes.append(
            replica, stage, template, step, 1, self._row(template, one), self.starts.extend(np.array([start])),
            len(self.varying), len(self.irregular),
        )  # fmt: skip
        size = np.int32 if relative[1].max() <= MAX_INT32 else np.int64  # 2.1 s of ns, for half of the memory
        self.irregular.append((relative[0].astype(size), relative[1].astype(size)))
        self._feed("passes", replica, stage, np.concatenate((np.array([start, template, 0]), durations, *relative)))
        self.num_spans += shape.num_inner_spans

    def _row(self, template: int, durations: Durations) -> int:
        key = (template, durations.row.tobytes(), durations.columns)
        number = self._row_numbers.get(key)
        if number is None:
            number = self._row_numbers[key] = len(self.rows)
            self.rows.append(durations.row)
            self.row_columns.append(durations.columns)
        return number

    def transfer(self, replica: int, stage: int, step: int, starts: Int64Array, ends: Int64Array) -> None:
        """Record the sends of one step from ``stage`` to the next, by local rank; idle ranks have 0 and 0."""
        times = np.concatenate((starts, ends))
        self.transfers.append(replica, stage, step, self.transfer_times.extend(times))
        self._feed("transfers", replica, stage, np.concatenate(([step], times)))
        self.num_spans += 2 * int(np.count_nonzero(ends))

    def tokens(self, replica: int, requests: Int64Array, ends: Int64Array) -> None:
        """Record that each of ``requests`` got a token at each of ``ends``."""
        self.token_runs.append(
            replica, self.token_ids.extend(requests), len(requests), self.token_ends.extend(ends), len(ends)
        )
        rows = np.empty((len(ends), len(requests) + 2), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2:] = ends, len(requests), requests
        self._feed("tokens", replica, 0, rows)

    def step(self, *row: int) -> None:
        """Record a run of equal steps; the values are those of ``STEP_COLUMNS``."""
        self.steps.append(*row)
        self.num_steps += row[2]

    def replica_facts(self, replica: int, facts: Sequence[tuple[int, int, int, int]]) -> None:
        """Record what a scheduler decided, in order."""
        rows = np.array([(replica, *fact) for fact in facts], np.int64)
        self.facts.extend(rows)
        self._feed("facts", replica, 0, rows)

    def arrival(self, time: int, kind: int, request: int, replica: int, value: int) -> None:
        """Record an arrival or a rejection."""
        self.facts.append(replica, time, kind, request, value)
        self._feed("arrivals", 0, 0, np.array([time, kind, request, replica, value]))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical form, in hexadecimal."""
        total = hashlib.sha256()
        for template in self.templates:
            total.update(json.dumps(template.as_mapping(), sort_keys=True).encode())
        for key in sorted(self._hashes):
            total.update(f"{key[0]}/{key[1]}/{key[2]}:".encode())
            total.update(self._hashes[key].digest())
        return total.hexdigest()
