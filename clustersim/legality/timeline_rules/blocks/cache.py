"""KV-1, KV-3, KV-5: entries are appended in order, one per token, and read by their own sequence alone."""

from __future__ import annotations

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.timeline_rules.blocks.holding import lent_to_one
from clustersim.legality.timeline_rules.blocks.reuse import taken_over
from clustersim.legality.timeline_rules.requests.phases import gaps, resumed
from clustersim.legality.timeline_rules.transfers.swaps import keeps_its_entries
from clustersim.legality.timeline_rules.views.reading import Reading


def append_only(reading: Reading) -> Finding:
    """KV-1: each chunk continues where the entries end; they are computed anew only after a preemption.

    What goes on elsewhere than at token 0 after a preemption uses entries that it gave back: that is KV-7's.
    """
    pieces = reading.pieces
    if pieces is None:
        return NOTHING
    at = np.flatnonzero(pieces.is_chunk & reading.plain & ~resumed(reading))
    start, computed = pieces.start[at], pieces.computed[at]
    broken, told = start != computed, NOTHING
    if reading.prefixes.reused is None and reading.declared.prefix_caching is not False:
        broken &= start < computed
        told = lacking("whether entries are skipped (what is taken over from a prefix cache was not recorded)")
    contiguous = judged(
        len(at), broken, Rows(pieces, at),
        "a chunk starts at token {start:,}, but {computed:,} are computed: entries are {what}",
        "start each chunk where the last one ended", start=start, computed=computed,
        what=Rows(("written again", "skipped"), start > computed),
    )  # fmt: skip
    if reading.history.facts is None:
        return merged(contiguous, told)
    kept = keeps_its_entries(reading)
    gone = reading.count_before(reading.preempted, pieces.begin, also_at=True)[at]
    again = judged(
        len(at), pieces.restarts[at] & (pieces.turn[at] > gone), Rows(pieces, at),
        "is computed anew from token 0, though its entries were never given back",
        "keep the entries, or preempt the sequence first",
    )  # fmt: skip
    return merged(contiguous, told, again, kept)


def one_entry(reading: Reading) -> Finding:
    """KV-3: a decode step adds one entry per sequence, a chunk of n tokens n; no more than there are tokens.

    A chunk beyond the end of a prompt is contiguous, as KV-1 asks, and computes the whole prompt, as PH-1 asks: what is
    wrong with it is the number of entries that it adds.
    """
    pieces, runs, known = reading.pieces, reading.runs, reading.known
    if pieces is None or runs is None:
        return NOTHING
    findings = []
    fix = "add one entry per computed token"
    told = runs.column("prefill_tokens")
    if told is not None:
        chunk = pieces.is_chunk
        added = np.bincount(pieces.first_run[chunk], weights=pieces.count[chunk], minlength=len(runs)).astype(np.int64)
        prefills = np.flatnonzero((told > 0) | (added > 0))
        findings.append(judged(
            len(prefills), added[prefills] != told[prefills], Rows(runs, prefills),
            "prefills {told:,} tokens, its chunks add {added:,} entries", fix, told=Rows(told, prefills),
            added=Rows(added, prefills),
        ))  # fmt: skip
    if known is not None:
        after = pieces.computed + pieces.count
        most = known + np.where(pieces.is_chunk, 0, pieces.gave - 1)
        excess = (after > most) & reading.plain
        excess &= ~gaps(reading)
        findings.append(judged(
            len(pieces), excess, Rows(pieces),
            "holds {after:,} entries after it, and only {most:,} tokens could be computed", fix, after=after, most=most,
        ))  # fmt: skip
    return merged(*findings)


def own_entries(reading: Reading) -> Finding:
    """KV-5: a step attends to as many entries as its own sequences have; no block has two holders at a time.

    The exception are full blocks of prompts that start alike, where prefixes are shared.
    """
    return merged(_attended(reading), lent_to_one(reading), taken_over(reading))


def _attended(reading: Reading) -> Finding:
    pieces, runs = reading.pieces, reading.runs
    told = None if runs is None else runs.column("context_tokens")
    if pieces is None or runs is None or told is None:
        return lacking("what a step attends to (no context_tokens of steps, chunks and decodes were recorded)")
    chunk = pieces.is_chunk
    attended = np.bincount(pieces.first_run[chunk], weights=pieces.start[chunk], minlength=len(runs)).astype(np.int64)
    # A sequence that begins an episode with c entries at place p attends to c + 1 + (q - p) of them at place q.
    decodes = np.flatnonzero(~chunk)
    first, last = (runs.rank_in_slots[where[decodes]] for where in (pieces.first_run, pieces.last_run))
    offset = pieces.computed[decodes] + 1 - runs.place[pieces.first_run[decodes]]
    sums, counts = (np.zeros(len(runs.slotted) + 1, np.int64) for _ in range(2))
    for change, value in ((sums, offset), (counts, np.ones(len(decodes), np.int64))):
        np.add.at(change, first, value)
        np.add.at(change, last + 1, -value)
    at_place = runs.place[runs.slotted]
    attended[runs.slotted] += np.cumsum(sums[:-1]) + np.cumsum(counts[:-1]) * at_place
    looked = reading.sound[runs.replica]
    return judged(
        int(looked.sum()), looked & (attended != told), Rows(runs),
        "attends to {told:,} cached tokens, its own sequences have {attended:,}",
        "let a sequence read the entries that it wrote, and no others", told=told, attended=attended,
    )  # fmt: skip
