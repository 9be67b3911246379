"""KV-6, KV-7: what is in use fits the pool and the buffers, and all blocks come back, once."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.history import (
    ADMITTED,
    CANCELLED,
    FACTS,
    FINISHED,
    HANDED_OVER,
    PREEMPTED,
    RECEIVED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.blocks.holding import fits_pool, given_back, kept
from clustersim.legality.timeline_rules.blocks.idle import none_left
from clustersim.legality.timeline_rules.blocks.lent import told_right
from clustersim.legality.timeline_rules.blocks.owners import fits_each_rank
from clustersim.legality.timeline_rules.requests.told import blocks_in_use
from clustersim.legality.timeline_rules.transfers.hand_overs import freed_when_moved
from clustersim.legality.timeline_rules.transfers.swaps import away, host_pool
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.use import Use

DIFFERENCE: Final = "{told:,} blocks are in use where {follows:,} follow from the tokens: some were {what}"
WRONG: Final = ("given back twice", "not given back")
ONCE: Final = "give every block back once, when its sequence ends or is preempted"


def within_pool(reading: Reading) -> Finding:
    """KV-6: live blocks never exceed the pool, and no step exceeds what its buffers were sized for."""
    return merged(_sized(reading), fits_pool(reading), fits_each_rank(reading), blocks_in_use(reading))


def _sized(reading: Reading) -> Finding:
    runs, facts = reading.runs, reading.history.facts
    if runs is None:
        return NOTHING
    findings = []
    pool, most_tokens, most_requests = (
        reading.declared_of(name) for name in ("pool_blocks", "max_batch_tokens", "max_batch_requests")
    )

    def exceeds(name: str, noun: str, limits: Int64Array, values: Int64Array) -> None:
        limit = limits[runs.replica]
        findings.append(judged(
            len(runs), values > limit, Rows(runs),
            "has {values:,} {noun}, {name} {limit:,}", "admit fewer sequences or tokens", values=values, noun=noun,
            name=name, limit=limit,
        ))  # fmt: skip

    told, total = runs.column("kv_blocks_used"), runs.column("kv_blocks_total")
    if pool is not None and total is not None:
        findings.append(judged(
            len(runs), total != pool[runs.replica], Rows(runs),
            "tells a pool of {total:,} blocks, which has {pool:,}", "tell the pool that was declared", total=total,
            pool=Rows(pool, runs.replica),
        ))  # fmt: skip
    use = reading.use
    shared = use is not None and any(some.any() for some in _perhaps_shared(reading, use))
    if pool is not None:
        if use is not None and not shared:
            exceeds("but the pool has", "blocks in use", pool, np.where(reading.sound[runs.replica], use.at_run, 0))
        elif told is not None:
            exceeds("but the pool has", "blocks in use", pool, told)
        elif shared or reading.prefixes.shares_undeclared or reading.declared.prefix_caching:
            findings.append(lacking("whether blocks fit the pool (which of them are shared was not declared)"))
        if facts is not None and "used" in facts:
            rows = reading.facts_of(
                ADMITTED, PREEMPTED, FINISHED, CANCELLED, HANDED_OVER, RECEIVED, REUSED, SWAPPED_OUT, SWAPPED_IN
            )
            rows = rows[(facts["replica"][rows] >= 0) & (facts["replica"][rows] < len(pool))]
            used, there = facts["used"][rows], pool[facts["replica"][rows]]
            findings.append(judged(
                int((used >= 0).sum()), used > there, "replica {fact.replica}, request {fact.request}",
                "{used:,} blocks are in use at {fact.time_ns:,} ns, the pool has {there:,}", "admit fewer sequences",
                fact=Rows(facts, rows), used=used, there=there,
            ))  # fmt: skip
    prefills, decodes = runs.column("prefill_tokens"), runs.column("decode_tokens")
    if most_tokens is not None and prefills is not None and decodes is not None:
        exceeds("but its buffers hold", "tokens", most_tokens, prefills + decodes)
    running = runs.column("batch_requests")
    if most_requests is not None and running is not None:
        exceeds("but its buffers hold", "sequences", most_requests, running)
    return merged(*findings, host_pool(reading))


def all_return(reading: Reading) -> Finding:
    """KV-7: blocks come back when a sequence ends, is preempted or swapped, once, and none is missing at the end."""
    pieces, runs, facts = reading.pieces, reading.runs, reading.history.facts
    by_record = merged(given_back(reading), kept(reading), none_left(reading))
    if pieces is None or runs is None or facts is None:
        return by_record
    moved = freed_when_moved(reading.hand_overs, pieces)
    return merged(_in_time(reading), _counted(reading), _preempted(reading), moved, away(reading), by_record)


def _in_time(reading: Reading) -> Finding:
    """A sequence ends when its last step does.

    A record that lets it end sooner lets its blocks be lent again while a step still writes and reads them; the tokens
    that it got, and when, are as they should be (PH-4, RUN-4).
    """
    pieces = reading.pieces
    assert pieces is not None
    gone = _steps_of_the_gone(reading)
    request, time = reading.finished
    last = pieces.closes
    at = np.searchsorted(pieces.request[last], request)
    some = np.flatnonzero(at < len(last))
    some = some[pieces.request[last[at[some]]] == request[some]]
    piece = last[at[some]]
    mine = reading.plain[piece]
    some, piece = some[mine], piece[mine]
    late = pieces.end[piece] < time[some]  # elsewhere a request may end later than its last step: tokens become text
    wrong = (pieces.end[piece] > time[some]) | (late & (reading.history.folded is not None))
    early = judged(
        len(some), wrong, "replica {piece.replica}, request {request}",
        "gives its blocks back at {time:,} ns, but its last step ends at {piece.end:,} ns",
        "free the blocks of a sequence when its last step ends", piece=Rows(pieces, piece), request=Rows(request, some),
        time=Rows(time, some),
    )  # fmt: skip
    return merged(gone, early)


def _steps_of_the_gone(reading: Reading) -> Finding:
    """No step carries a request after it was given up or lost."""
    pieces = reading.pieces
    assert pieces is not None
    late = reading.count_before(reading.gone, pieces.end, also_at=False) > 0
    return judged(
        len(reading.gone[0]), late, Rows(pieces),
        "a step carries it until {end:,} ns, after it had given its blocks back for good",
        "free the blocks of a sequence when its last step ends",
    )  # fmt: skip


def _counted(reading: Reading) -> Finding:
    runs, facts, use = reading.runs, reading.history.facts, reading.use
    if use is None:
        if reading.declared.prefix_caching:
            return lacking("how many blocks are in use (which pool keeps a sequence, or its hashes, are not recorded)")
        return NOTHING
    assert runs is not None
    assert facts is not None
    findings = []
    told, (fewer, fewer_at_end) = runs.column("kv_blocks_used"), _perhaps_shared(reading, use)
    if fewer.any() or fewer_at_end.any():
        findings.append(lacking("whether blocks are given back twice (whether they are shared was not declared)"))
    if told is not None:
        looked = reading.sound[runs.replica] & ~fewer
        findings.append(judged(
            int(looked.sum()), looked & (told != use.at_run), Rows(runs), DIFFERENCE, ONCE, told=told,
            follows=use.at_run, what=Rows(WRONG, told > use.at_run),
        ))  # fmt: skip
    if "used" in facts:
        rows = use.ends
        replica = facts["replica"][rows].astype(np.int64)
        inside = (replica >= 0) & (replica < len(reading.sound))
        sound = np.append(reading.sound, False)[np.where(inside, replica, -1)]
        looked = (facts["used"][rows] >= 0) & use.certain & sound & ~fewer_at_end
        used = facts["used"][rows].astype(np.int64)
        findings.append(judged(
            int(looked.sum()), looked & ((used < use.at_end) | (used > use.most)),
            "replica {fact.replica}, request {fact.request}", "after it {ended} at {fact.time_ns:,} ns, " + DIFFERENCE,
            ONCE, fact=Rows(facts, rows), ended=lambda i: _ended(int(facts["kind"][rows[i]])), told=used,
            follows=use.at_end, what=Rows(WRONG, used > use.at_end),
        ))  # fmt: skip
        findings.append(told_right(reading, use))
    return merged(*findings)


def _perhaps_shared(reading: Reading, use: Use) -> tuple[BoolArray, BoolArray]:
    """Return where fewer blocks are in use than without sharing, by steps and by ends, and may be shared."""
    runs, facts, near = reading.runs, reading.history.facts, reading.prefixes.neighbours
    assert runs is not None
    assert facts is not None
    fewer, fewer_at_end = np.zeros(len(runs), bool), np.zeros(len(use.ends), bool)
    if near is None:
        return fewer, fewer_at_end
    told = runs.column("kv_blocks_used")
    if told is not None:
        fewer = (told < use.at_run) & near.several(runs.replica, runs.start)
    if "used" in facts:
        used, replica, time = (facts[name][use.ends].astype(np.int64) for name in ("used", "replica", "time_ns"))
        fewer_at_end = (used >= 0) & (used < use.at_end) & near.several(replica, time, use.ends)
    return fewer, fewer_at_end


def _ended(kind: int) -> str:
    return {FINISHED: "finished", SWAPPED_OUT: "was swapped out"}.get(kind, f"was {FACTS[kind]}")


def _preempted(reading: Reading) -> Finding:
    """What was preempted uses its entries no longer."""
    pieces = reading.pieces
    assert pieces is not None
    gone = reading.count_before(reading.preempted, pieces.end, also_at=False)
    broken = reading.plain & (gone > pieces.turn)
    return judged(
        len(reading.preempted[0]), broken, Rows(pieces),
        "goes on with {computed:,} entries, which it gave back when it was preempted",
        "compute a preempted sequence anew",
    )  # fmt: skip
