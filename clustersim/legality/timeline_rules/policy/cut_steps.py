"""RUN-5: a horizon, or a failure, cuts off the step that is under way, and leaves out none that would have ended.

::

    step 6 │ step 7 │ ✕        what decodes on would have ended before the cut: a replica idles while it could decode
    step 6 │ step 7 │ ste✕     step 8 is not recorded

Judged where the step after the last one that was recorded is surely a decode of those that go on: then it lasts as
long as the last one, and as much longer as there are more keys to attend. Not looked at are experts, whose loads
differ from step to step, faults that slow down, steps of several stages, and such as replicas take together.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ARRIVED, FINISHED, RECEIVED, REJECTED, Declared
from clustersim.legality.timeline_rules.policy.declared import Policies, keeps_whole
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.passes import Passes

FIX: Final = "let a replica go on as long as somebody decodes, and record each step that has ended"
ROUNDING: Final = 1.01
"""Durations are whole nanoseconds."""
FEWER: Final = 1.5
"""Where some have ended, the others run in another size of batch."""


def as_far_as_it_goes(reading: Reading, policies: Policies) -> Finding:
    """Judge whether steps that would have ended before something cuts them off were recorded."""
    tables, runs = reading.history.folded, reading.runs
    if tables is None or runs is None or reading.history.facts is None or tables.lockstep > 1:
        return NOTHING
    if any(pool.slow or pool.weak_groups for pool in policies.pools):
        return NOTHING
    return merged(*(_of_pool(reading, policies, runs, pool) for pool in policies.pools if _is_told(pool)))


def _is_told(pool: Declared) -> bool:
    named = pool.policy is not None and pool.policy.scheduler is not None
    return named and pool.pp == 1 and pool.top_k is None and None not in (pool.pool_blocks, pool.block_tokens)


def _of_pool(reading: Reading, policies: Policies, runs: Runs, pool: Declared) -> Finding:
    columns = {name: runs.column(name) for name in ("prefill_tokens", "decode_tokens", "running", "context_tokens")}
    free = _free(policies, runs, pool)
    if free is None or any(one is None for one in columns.values()):
        return NOTHING
    found = []
    for replica in range(pool.first_replica, pool.first_replica + pool.dp):
        horizon = reading.declared.horizon_ns
        cuts = [since for failed, since, _ in reading.declared.down if failed == replica]
        cuts = cuts if horizon is None else [*(since for since in cuts if since < horizon), horizon]
        found += [(at, cut) for cut in cuts if (at := _last(reading, runs, replica, cut)) >= 0]
    if not found:
        return NOTHING
    at, cut = np.array(found, np.int64).T
    prefills, decodes, running, context = (
        np.zeros(0, np.int64) if one is None else one[at] for one in columns.values()
    )
    ended, came, entries, told = _between(reading, runs, at)
    last, left, size = _lasted(reading, runs, at), decodes - ended + came, pool.block_tokens or 1
    some = (prefills == 0) & (decodes == running) & (decodes > 0) & (left > 0) & told
    some &= free[at] >= decodes * -(-(runs.count[at] - 1) // size) + left
    # What has as many times the sequences, and keys, takes at most as many times as long.
    keys = np.maximum(context, 1)
    longer = np.maximum(left / np.maximum(decodes, 1), 1 + (left + entries + came) * pool.sp / keys)
    times = ROUNDING * np.where(ended > 0, FEWER, 1.0) * _beside(reading, pool)
    due = runs.recorded_end[at] + np.ceil(last * longer * times).astype(np.int64)
    return judged(
        int(some.sum()), some & (due <= cut), Rows(runs, at),
        "ends at {end:,} ns, and {left:,} sequences decode on in a step that ends by {due:,} ns and is not "
        "recorded, though nothing cuts it off before {cut:,} ns",
        FIX, end=runs.recorded_end[at], left=left, due=due, cut=cut,
    )  # fmt: skip


def _beside(reading: Reading, pool: Declared) -> int:
    """Return how many times longer collectives may take that share links with what other replicas do."""
    moves = reading.history.moves
    others = sum(one.dp for one in reading.history.pools) + (moves is not None and len(moves["request"]) > 0)
    return others if pool.stage_ranks > 1 else 1


def _free(policies: Policies, runs: Runs, pool: Declared) -> Int64Array | None:
    """Return how many blocks are free when each run of steps begins, on the fullest SP rank that keeps sequences."""
    if keeps_whole(pool):
        apart = policies.free_at_runs(pool)
        return None if apart is None else apart.min(axis=1)
    used = runs.column("kv_blocks_used")
    return None if used is None else (pool.pool_blocks or 0) - used


def _last(reading: Reading, runs: Runs, replica: int, cut: int) -> int:
    """Return the last run of steps of a replica that ended by an instant, since it was up; −1 where there is none."""
    low, high = np.searchsorted(runs.replica, (replica, replica + 1)).tolist()
    at = low + int(np.searchsorted(runs.recorded_end[low:high], cut, side="right")) - 1
    up = max((until for failed, _, until in reading.declared.down if failed == replica and until <= cut), default=0)
    begun = any(failed == replica and since < cut < until for failed, since, until in reading.declared.down)
    return at if at >= low and not begun and runs.start[at] >= up else -1


def _between(reading: Reading, runs: Runs, at: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, BoolArray]:
    """Return how many finished while each run of steps ran, how many were received, with how many entries in all.

    And whether nothing else was decided then.
    """
    facts = reading.history.facts
    assert facts is not None
    rows = []
    for run in at.tolist():
        here = reading.rows_at(facts["replica"], int(runs.replica[run]))
        here = here[(facts["time_ns"][here] > runs.start[run]) & (facts["time_ns"][here] <= runs.recorded_end[run])]
        kind = facts["kind"][here]
        told = np.isin(kind, (ARRIVED, REJECTED, FINISHED, RECEIVED)).all()
        came = kind == RECEIVED
        rows.append((int((kind == FINISHED).sum()), int(came.sum()), int(facts["value"][here][came].sum()), int(told)))
    ended, came, entries, told = np.array(rows, np.int64).T
    return ended, came, entries, told > 0


def _lasted(reading: Reading, runs: Runs, at: Int64Array) -> Int64Array:
    """Return how long the last step of each run of steps took."""
    tables = reading.history.folded
    assert tables is not None
    passes, table = Passes(tables), tables.passes
    found: Int64Array = runs.recorded_end[at] - runs.start[at]
    for number, run in enumerate(at.tolist()):
        last = runs.last_step(run)
        rows = np.flatnonzero((table["replica"] == runs.replica[run]) & (table["first_step"] <= last))
        rows = rows[table["first_step"][rows].astype(np.int64) + table["steps"][rows] > last]
        for block in passes.blocks(rows[:1]):
            found[number] = runs.recorded_end[run] - int(passes.starts(block)[-1])
    return found
