"""The tables of a timeline: what a replay recorded, as plain arrays.

K/V entries that leave the rank that computed them are rows of ``moves``, one per transfer::

    request  from_replica from_rank  to_replica to_rank  layer  head heads  first tokens  bytes  start_ns end_ns
    7        0            1          2          9        -1     4    2      0     512     …   all layers at once
    7        0            1          2          9        3      4    2      0     512     …   layer by layer
    7        2            9          2          -1       -1     -1   -1     0     530     …   a swap to host memory
    7        2            -1         2          9        -1     -1   -1     0     530     …   and back

A rank of −1 is the memory of the host that has the other one. Each row is a span on the stream ``kv_out`` of the rank
that it leaves and one on the stream ``kv_in`` of the rank that it reaches; a stream carries one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.timeline.layout import Layout
from clustersim.timeline.stretch import Irregular
from clustersim.values import dataclass

Table = Mapping[str, Any]
"""Name of a column → its values, an integer array of shape (rows,)."""

PASS_COLUMNS: Final = {
    "replica": "int32", "stage": "int16", "template": "int16", "first_step": "int32", "steps": "int32",
    "start_ns": "int64", "row": "int32", "starts_at": "int64", "varying_at": "int64", "irregular": "int32",
}  # fmt: skip
ROW_COLUMNS: Final = {"template": "int16", "at": "int64", "columns": "int32"}
TRANSFER_COLUMNS: Final = {"replica": "int32", "stage": "int16", "step": "int32", "at": "int64"}
STEP_COLUMNS: Final = {
    "replica": "int32", "step": "int32", "count": "int32", "slot": "int16", "kind": "int8", "start_ns": "int64",
    "end_ns": "int64", "batch_requests": "int32", "prefill_tokens": "int32", "decode_tokens": "int32",
    "context_tokens": "int64", "waiting": "int32", "running": "int32", "kv_blocks_used": "int32",
    "kv_blocks_total": "int32",
}  # fmt: skip
CHUNK_COLUMNS: Final = {
    "replica": "int32", "step": "int32", "request": "int32", "start": "int32", "count": "int32", "sampled": "int8",
}  # fmt: skip
DECODE_COLUMNS: Final = {
    "replica": "int32", "slot": "int16", "request": "int32", "first_step": "int32", "last_step": "int32",
}  # fmt: skip
FACT_COLUMNS: Final = {
    "replica": "int32", "time_ns": "int64", "kind": "int8", "request": "int32", "value": "int32", "used": "int32",
}  # fmt: skip
MOVE_COLUMNS: Final = {
    "request": "int32", "from_replica": "int32", "from_rank": "int32", "to_replica": "int32", "to_rank": "int32",
    "layer": "int32", "head": "int16", "heads": "int16", "first": "int32", "tokens": "int32", "bytes": "int64",
    "start_ns": "int64", "end_ns": "int64",
}  # fmt: skip
OWNER_COLUMNS: Final = {"replica": "int32", "request": "int32", "time_ns": "int64", "owner": "int16"}
HOST: Final = -1
"""As the rank of a move: host memory."""
ALL_LAYERS: Final = -1
"""As the layer of a move: all that both ranks have in common."""
ALL_HEADS: Final = -1
"""As ``head`` and ``heads`` of a move: all K/V heads that both ends have in common."""

TABLES: Final = {
    "passes": PASS_COLUMNS, "rows": ROW_COLUMNS, "transfers": TRANSFER_COLUMNS, "steps": STEP_COLUMNS,
    "chunks": CHUNK_COLUMNS, "decodes": DECODE_COLUMNS, "facts": FACT_COLUMNS,
    "moves": MOVE_COLUMNS, "owners": OWNER_COLUMNS,
}  # fmt: skip
VECTORS: Final = ("starts", "varying", "row_values", "transfer_times", "transfer_bytes")


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """All passes, transfers, steps, prompt chunks, decodes and facts of a run.

    Parameters
    ----------
    templates : tuple of PassTemplate
    layout : Layout
        Which ranks each stage of each replica has.
    passes : Table
        A row per run of passes of one stage in consecutive steps (``PASS_COLUMNS``). ``start_ns`` is when the first
        one starts. ``starts_at`` is where in ``starts`` the starts of all are, or −1 when each starts as the one
        before it ends, so that they follow from the durations; then the template is a chain, or the pass alone.
        ``varying_at`` is where in ``varying`` the durations are that vary, step by step. ``irregular`` is −1 or the
        position in ``irregular``.
    starts, varying : int64 arrays
    rows : Table
        Durations by class that passes refer to (``ROW_COLUMNS``): ``at`` in ``row_values``; ``columns`` is the
        position in ``column_sets`` of the classes that vary.
    row_values : int64 array
    column_sets : tuple of tuple of int
    irregular : tuple of Irregular
        Where contention stretched a pass: times of every node relative to it, or what a chain lost where.
    transfers, transfer_times : Table, int64 array
        Sends of each step and boundary: starts, then ends, by local rank; idle ranks have 0 and 0.
    transfer_bytes : int64 array
        What each of these carries, by local rank: half as long, and in the same order.
    steps : Table
        A row per run of equal steps, each of which starts when the one before it ends (``STEP_COLUMNS``). ``slot``
        says which of the lists of decodes of the replica the steps carry, −1 for none.
    chunks : Table
        A row per prompt chunk [start, start + count) of a completed step (``CHUNK_COLUMNS``). ``sampled`` is 1 when
        the step also sampled a token of it: all known tokens are computed now, and output remains to be generated.
    decodes : Table
        A row per episode (``DECODE_COLUMNS``): the request got one token in every step of the slot from
        ``first_step`` to ``last_step``.
    facts : Table
        What was decided (``FACT_COLUMNS``); those of a replica in order. ``used`` are the K/V blocks in use in its
        pools right after it, −1 for arrivals and rejections.
    moves : Table
        A row per transfer of K/V entries of one request (``MOVE_COLUMNS``): those of the tokens [first, first +
        tokens) in one layer, or in all layers that both ranks have in common (−1), and of the K/V heads [head, head +
        heads), or all that both have (−1); a latent that all heads share counts as head 0.
        Ranks are global, −1 for host memory.
    owners : Table
        Where the SP ranks of a replica keep whole sequences each (``OWNER_COLUMNS``): which one of them keeps a
        request from when it was admitted on; else empty.
    """

    templates: tuple[PassTemplate, ...]
    layout: Layout
    passes: Table
    starts: Int64Array
    varying: Int64Array
    rows: Table
    row_values: Int64Array
    column_sets: tuple[tuple[int, ...], ...]
    irregular: tuple[Irregular, ...]
    transfers: Table
    transfer_times: Int64Array
    transfer_bytes: Int64Array
    steps: Table
    chunks: Table
    decodes: Table
    facts: Table
    moves: Table
    owners: Table

    @cached_property
    def made(self) -> dict[type, Any]:
        """What was worked out of them and is asked for again, by what it is."""
        return {}

    @cached_property
    def of_rows(self) -> dict[str, Any]:
        """What was worked out of ``rows`` and templates alone; parts that have the same share it."""
        return {}

    def part(self, **others: Any) -> Tables:
        """Return these tables with others in place of some, of the same rows and templates."""
        found = replace(self, **others)
        vars(found)["of_rows"] = self.of_rows
        return found

    @property
    def sp_tp(self) -> tuple[int, int]:
        """SP and TP degree, where all replicas are alike; a stage has sp × tp ranks."""
        return self.layout.only.sp, self.layout.only.tp

    @property
    def stages(self) -> int:
        """Stages of a replica, where all are alike."""
        return self.layout.only.stages

    @property
    def lockstep(self) -> int:
        """Replicas that share each pass; where there are several pools, none do."""
        return self.layout.only.lockstep if len(self.layout.pools) == 1 else 1

    def count_spans(self) -> int:
        """Return how many spans there are, by rank, with both ends of a send and of a move."""
        inner = np.array([template.num_inner_spans for template in self.templates], np.int64)
        passes = self.passes["steps"].astype(np.int64) @ inner[self.passes["template"]] if len(inner) else 0
        sends = sum(np.count_nonzero(times[:, 1]) for _, times in self.sends())
        moved = sum(np.count_nonzero(self.moves[end] != HOST) for end in ("from_rank", "to_rank"))
        return int(passes) + 2 * int(sends) + int(moved)

    def sends(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yield, pool by pool, rows of ``transfers`` and their times, of shape (rows, 2, ranks): starts, ends."""
        if len(self.layout.pools) == 1:
            ranks = self.layout.only.stage_ranks
            yield np.arange(len(self.transfers["at"])), self.transfer_times.reshape(-1, 2, ranks)
            return
        pool = self.layout.of_replica(self.transfers["replica"])
        for number, shape in enumerate(self.layout.pools):
            rows = np.flatnonzero(pool == number)
            at = self.transfers["at"][rows][:, None] + np.arange(2 * shape.stage_ranks)
            yield rows, self.transfer_times[at].reshape(len(rows), 2, shape.stage_ranks)

    def sent_bytes(self, rows: Int64Array, ranks: int) -> Int64Array:
        """Return what sends carry, of shape (rows, ranks), for rows of ``transfers`` of stages of so many ranks."""
        at = self.transfers["at"][rows].astype(np.int64)[:, None] // 2 + np.arange(ranks)
        found: Int64Array = self.transfer_bytes[at]
        return found

    def count_steps(self) -> int:
        """Return how many steps there are."""
        return int(self.steps["count"].sum())
