"""Steps whose prompts are split over SP ranks, or whose decodes are: what each rank has of them, and what they take.

Counts are in the order of ``graph.prices.counts.SplitCounts``: by name, then by rank. What a prompt chunk adds to them
is looked up by its tokens. Where it goes on with a prompt, each token of the context adds as much to what is attended
to, so that a chunk behind one token tells of all; within sliding windows that is not so, and it is asked for.
"""

from __future__ import annotations

from typing import Any, Final

from clustersim.core.paths import add_parts, note_exits, walk_pass
from clustersim.core.state import ASK_ROW, NEVER, TOO_LATE

TOKENS, PREFILL_TOKENS, DECODES, ROWS, ALIKE = range(5)
"""Where counts of ranks begin, and those that are the same on all: so many behind one another."""
NUM_ALIKE: Final = 8
BY_RANKS: Final = 2
"""Where not only prompts are priced rank by rank, but decodes too."""
OF_PREFILL, OF_MIXED, OF_DECODE, OF_GRAPH, PROGRAMS = range(5)
"""Kinds of step of a kind of stage, and how many these are."""


def add_up_decodes(s: Any, r: int, base: int, decodes: int) -> None:
    """Add up who decodes on each rank, and what they attend to."""
    rep, window = s.replicas[r], s.replicas[r].window
    for owner in range(rep.owners):
        own = s.owners[rep.first_owner + owner]
        own.decodes = own.attended = own.near_attended = own.near_growth = 0
    for place in range(base, base + decodes):
        seq = s.sequences[s.members[r][place]]
        own, seen = s.owners[rep.first_owner + seq.owner], seq.computed + 1
        own.decodes += 1
        own.attended += seen
        own.near_attended += min(seen, window)
        own.near_growth += seen < window


def add_chunk(p: Any, row: int, taken: int, times: int) -> bool:
    """Add what a chunk of so many tokens adds to sums, so many times; return whether it is known."""
    whole = p.whole[0]
    at = p.chunk_at[row * whole.chunk_width + taken]
    for place in range(whole.sums if at >= 0 else 0):
        p.sums[place] += times * p.chunk_sums[at + place]
    return at >= 0


def add_up_prompts(s: Any, p: Any, r: int, at: int, chunks: int) -> int:
    """Add up what prompt chunks are to each rank; return what is to be asked for, 0 for nothing."""
    for place in range(p.whole[0].sums):
        p.sums[place] = 0
    for place in range(at, at + chunks):
        seq = s.sequences[s.members[r][place]]
        start, known = seq.computed, True
        known = add_chunk(p, 0, seq.taken, 1 - start)
        if start > 0:
            known = add_chunk(p, 1 + seq.owner, seq.taken, start) and known
        if not known:
            return ASK_ROW
    return 0


def count_ranks(s: Any, p: Any, r: int, base: int, decodes: int, chunks: int) -> int:
    """Fill in the counts of a step; return what is to be asked for, 0 for nothing."""
    rep, counts, whole = s.replicas[r], p.counts, p.whole[0]
    degree = whole.degree
    add_up_decodes(s, r, base, decodes)
    if rep.window == 0 or chunks == 0:
        asked = add_up_prompts(s, p, r, base + decodes, chunks)
        if asked:
            return asked
    elif p.asked[0] == 0:  # else sums were answered
        return ASK_ROW
    new = context = segment = peak = 0
    for place in range(base + decodes, base + decodes + chunks):
        seq = s.sequences[s.members[r][place]]
        new += seq.taken
        context += seq.computed
    graph = chunks == 0 and decodes <= whole.graph_most
    alike, attended = ALIKE * degree, (ALIKE + NUM_ALIKE) * degree
    keys = attended + whole.sums - 2 * degree
    near = keys + degree * (rep.window > 0)
    for rank in range(degree):
        own, prefill = s.owners[rep.first_owner + (rank if rank < rep.owners else 0)], p.sums[rank]
        here = own.decodes if rank < rep.owners else 0
        mine = prefill + here
        counts[TOKENS * degree + rank] = p.padded[mine] if graph else mine
        counts[PREFILL_TOKENS * degree + rank] = prefill
        counts[DECODES * degree + rank] = here
        counts[ROWS * degree + rank] = p.sums[degree + rank] + here
        segment, peak = max(segment, prefill), max(peak, counts[TOKENS * degree + rank])
        counts[keys + rank] = own.attended if rank < rep.owners else 0
        if rep.window > 0:
            counts[near + rank] = own.near_attended if rank < rep.owners else 0
        counts[near + degree + rank] = mine
    for place in range(whole.sums - 2 * degree):
        counts[attended + place] = p.sums[2 * degree + place]
    for rank in range(degree):
        at = alike + rank
        counts[at], counts[at + degree], counts[at + 2 * degree] = new + decodes, peak, segment
        counts[at + 3 * degree], counts[at + 4 * degree], counts[at + 5 * degree] = new, context, context + new
        counts[at + 6 * degree], counts[at + 7 * degree] = segment + context, decodes + chunks
    return 0


def add_step(s: Any, p: Any, r: int, steps: int) -> None:
    """Let decodes attend to what they do so many steps later."""
    rep, whole = s.replicas[r], p.whole[0]
    keys = (ALIKE + NUM_ALIKE) * whole.degree + whole.sums - 2 * whole.degree
    for owner in range(rep.owners):
        own = s.owners[rep.first_owner + owner]
        p.counts[keys + owner] = own.attended + steps * own.decodes
        if rep.window > 0:
            p.counts[keys + whole.degree + owner] = own.near_attended + steps * own.near_growth


def pass_of(p: Any, kind: int, decodes: int, chunks: int) -> int:
    """Return which table prices a step on a kind of stage."""
    if chunks > 0:
        return kind * PROGRAMS + (OF_MIXED if decodes > 0 else OF_PREFILL)
    return kind * PROGRAMS + (OF_GRAPH if decodes <= p.whole[0].graph_most else OF_DECODE)


def price_ranks(s: Any, p: Any, r: int) -> int:
    """Price the step that was decided, on each kind of stage of a replica; return what to ask for, 0 for nothing."""
    rep, clock = s.replicas[r], s.clock[0]
    k = rep.oldest + rep.flying
    k = k - rep.stages if k >= rep.stages else k
    asked = count_ranks(s, p, r, k * (len(s.members[r]) // rep.stages), rep.decodes, rep.chunks)
    if asked:
        return asked
    clock.serial += 1
    for stage in range(rep.stages):
        kind = p.of_stage[r][stage]
        if p.priced[kind] == clock.serial:
            continue
        number = pass_of(p, kind, rep.decodes, rep.chunks)
        asked = add_parts(p, number)
        if asked == 0:
            asked = walk_pass(p, number, kind, clock.answered)
        if asked:
            return asked
        note_sends(p, number, kind)
        p.priced[kind] = clock.serial
    p.asked[0] = 0
    return 0


def note_sends(p: Any, number: int, kind: int) -> None:
    """Note what sends of each rank take, and when they may begin at the earliest; −1 of those who send nothing."""
    whole = p.whole[0]
    note_exits(p, number, p.leaves_of, 0)
    for rank in range(whole.ranks):
        at = 2 * (number * whole.ranks + rank)
        part = p.path_sends[at]
        p.sent[kind * whole.ranks + rank] = p.values[p.found[part] + p.path_sends[at + 1]] if part >= 0 else 0
        leaves = max(p.leaves_of[rank * whole.degree // whole.ranks], 0)
        p.leaves[kind * whole.ranks + rank] = leaves if part >= 0 else -1


def note_found(s: Any, p: Any, r: int, k: int) -> None:
    """Note where the values of each part of a step were found, behind all else that varies in it."""
    rep, flight, pending = s.replicas[r], s.flights[r][k], s.pending[r]
    flight.found = 0
    for stage in range(rep.stages):
        flight.found += p.pass_tables[pass_of(p, p.of_stage[r][stage], flight.decodes, flight.chunks)].parts
    at = (k + 1) * (len(pending) // rep.stages) - flight.found
    for stage in range(rep.stages):
        table = p.pass_tables[pass_of(p, p.of_stage[r][stage], flight.decodes, flight.chunks)]
        for place in range(table.parts):
            pending[at] = p.found[table.first_part + place]
            at += 1


def extend_ranks(s: Any, p: Any, r: int, least: int, until: int) -> int:
    """Price further steps of a run of decodes of all ranks, as ``core.steps`` does; return 0, or what to ask for."""
    clock, flight, pending, whole = s.clock[0], s.flights[r][0], s.pending[r], p.whole[0]
    kind = p.of_stage[r][0]
    number, steps, end = pass_of(p, kind, flight.decodes, 0), flight.steps, flight.end
    asked = count_ranks(s, p, r, 0, flight.decodes, 0)
    if asked == 0:
        asked = add_parts(p, number)
    if asked:
        return asked
    table, begun = p.pass_tables[number], steps
    width, enough = table.attends + 1, steps + least
    while steps < flight.limit and (end < until or steps < enough):
        add_step(s, p, r, steps)
        asked = walk_pass(p, number, kind, clock.answered)
        if asked:
            if steps == begun:
                return asked
            break
        took = p.cost[kind][0]
        if took >= NEVER - end:
            return TOO_LATE
        for core in range(table.attends):
            pending[steps * width + core] = p.varying[kind * whole.classes + core]
        pending[steps * width + width - 1] = took
        clock.answered = 0
        end += took
        steps += 1
    flight.steps, flight.end, flight.width, flight.timed = steps, end, width, 1
    note_found(s, p, r, 0)
    return 0
