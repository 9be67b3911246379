"""What tables say twice, of which both must be true: operators and their steps, blocks in use, instants of requests.

A replay of this program tells each of these once, or is held to it elsewhere; tables from elsewhere need not agree.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ARRIVED, FINISHED, REJECTED, STREAMS
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.tables import Table

NEVER = np.iinfo(np.int64).max
AHEAD: Final = (STREAMS.index("host"), STREAMS.index("recv"))
"""Streams on which something may begin before its step does."""
MOVE: Final = "kv_move"


def inside_steps(reading: Reading) -> Finding:
    """RUN-2: an operator runs while its step does, where single spans were recorded.

    Hosts may prepare a step ahead of it, receives may be posted early, and K/V may be on its way to later steps (KV-2).
    """
    spans, runs = reading.history.spans, reading.runs
    if spans is None or runs is None or not spans.numbered or not reading.declared.mesh:
        return NOTHING
    start, end, replica, step, rank = (
        spans.columns[name].astype(np.int64) for name in ("start_ns", "end_ns", "replica", "step", "rank")
    )
    run = runs.at(replica, step)
    moves = np.array([name == MOVE for name, _, _ in spans.symbols], bool)[spans.columns["symbol"]]
    known = (run >= 0) & ~np.isin(spans.columns["stream"], AHEAD) & ~moves
    at = np.where(known, run, 0)
    if not len(runs):
        return NOTHING
    whole = reading.declared.horizon_ns is None and not reading.declared.down  # else a step may be cut off
    alone = judged(
        0, (run < 0) & whole & np.isin(replica, runs.replica), "replica {replica}, step {step}, rank {rank}",
        "runs an operator of a step that is not among those that were recorded",
        "record the step, or declare the horizon that cuts it off", replica=replica, step=step, rank=rank,
    )  # fmt: skip
    inside = judged(  # that it agrees does not tell what it waits for
        0, known & ((start < runs.start[at]) | (end > runs.end[at])), "replica {replica}, step {step}, rank {rank}",
        "{name} runs from {start:,} to {end:,} ns, and its step from {run.start:,} to {run.end:,} ns",
        "let a step last from its first operator to its last one", replica=replica, step=step, rank=rank,
        name=lambda i: spans.symbols[int(spans.columns["symbol"][i])][0] or "an operator", start=start, end=end,
        run=Rows(runs, at),
    )  # fmt: skip
    return merged(inside, alone)


def blocks_in_use(reading: Reading) -> Finding:
    """KV-6: the blocks in use after a decision are those that are held then.

    What is taken or given back at that very instant may be counted or not: blocks may change hands right after it.
    """
    held, facts = reading.history.held, reading.history.facts
    if held is None or facts is None or "used" not in facts:
        return NOTHING
    replica, time, used = (facts[name].astype(np.int64) for name in ("replica", "time_ns", "used"))
    low, high = (np.zeros(len(time), np.int64) for _ in range(2))
    owned = RowsOf(held["replica"])
    for one, here in RowsOf(replica):
        taken, freed = _stretches(held, owned.of(one))
        high[here] = np.searchsorted(np.sort(taken), time[here], side="right")
        high[here] -= np.searchsorted(np.sort(freed), time[here], side="left")
        low[here] = np.searchsorted(np.sort(taken), time[here], side="left")
        low[here] -= np.searchsorted(np.sort(freed), time[here], side="right")
    low = np.maximum(low, 0)
    return judged(
        int((used >= 0).sum()), (used >= 0) & ((used < low) | (used > high)), "replica {replica} at {time:,} ns",
        "says that {used:,} blocks are in use, and {blocks} are held",
        "count the blocks that are held, shared ones once", replica=replica, time=time, used=used,
        blocks=lambda i: from_to(low[i], high[i]),
    )  # fmt: skip


def from_to(low: Any, high: Any) -> str:
    """Return a number, or the two that it is between."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _stretches(held: Table, mine: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return from when until when each block of a replica is held by anybody, without what lasts no time."""
    block, taken, freed = (held[name][mine].astype(np.int64) for name in ("block", "taken_ns", "freed_ns"))
    freed = np.where(freed < 0, NEVER, freed)
    order = np.lexsort((taken, block))
    block, taken, freed = block[order], taken[order], freed[order]
    starts, ends = list[int](), list[int]()
    last = None
    for one, since, until in zip(block.tolist(), taken.tolist(), freed.tolist(), strict=True):
        if one == last and since <= ends[-1]:
            ends[-1] = max(ends[-1], until)
        else:
            starts.append(since)
            ends.append(until)
        last = one
    begin, end = np.array(starts, np.int64), np.array(ends, np.int64)
    return begin[end > begin], end[end > begin]


def instants_of_requests(reading: Reading) -> Finding:
    """RUN-4: a request arrives, has its first token and finishes when the table of requests says so."""
    requests, facts, pieces = reading.history.requests, reading.history.facts, reading.pieces
    if requests is None:
        return NOTHING
    count, findings = len(requests["prompt_tokens"]), []
    if facts is not None:
        for name, verb, kinds in (
            ("arrived_ns", "arrives", (ARRIVED, REJECTED)), ("finished_ns", "finishes", (FINISHED,)),
        ):  # fmt: skip
            if name in requests:
                rows = reading.facts_of(*kinds)
                found = reading.residency.first_ns(count, *kinds)
                # No fact of the kind at all: it was not recorded.
                findings.append(_instants(requests[name], found, verb, judge_lack=bool(len(rows))))
    if "first_token_ns" in requests and pieces is not None:
        some = np.flatnonzero(pieces.is_chunk & (pieces.gave > 0))
        some, found = some[pieces.request[some] < count], np.full(count, NEVER)
        np.minimum.at(found, pieces.request[some], pieces.end[some])
        lack = reading.declared.horizon_ns is None
        findings.append(_instants(requests["first_token_ns"], found, "has its first token", judge_lack=lack))
    return merged(*findings)


def _instants(told: Int64Array, found: Int64Array, verb: str, *, judge_lack: bool) -> Finding:
    differs: BoolArray = (told >= 0) & (told != found) & ((found < NEVER) | judge_lack)
    words = (
        "{verb} at {told:,} ns by the table of requests, and nothing else that was recorded says so",
        "{verb} at {found:,} ns, and by the table of requests at {told:,} ns",
    )
    return judged(  # that it agrees does not tell that no request is lost
        0, differs, "request {at}", Rows(words, found < NEVER),
        "record one instant for one thing", verb=verb, told=told, found=found,
    )  # fmt: skip
