"""What replicas bring to a step that they take together, and what that takes.

Counts (``p.counts``) are in the order of ``graph.prices.counts.lockstep_counts``: those of one replica behind the
other, then of all. Where steps run in two halves there are three such blocks: of both, and of each half. Sequences are
cut where both halves have as equal tokens as possible (``plan.halves``), where each replica can split its step.
"""

from __future__ import annotations

from typing import Any, Final

from clustersim.compiled import Record
from clustersim.core.paths import add_parts, walk_pass
from clustersim.core.state import ASK_STEP, NEVER, TOO_LATE

OF_PREFILL, OF_MIXED, OF_DECODE, OF_GRAPH, OF_HALVES = range(5)
"""Tables of a group; from the last one on there are those of two halves, by three times the first one's kind …"""
GRAPH_OF_HALVES: Final = OF_HALVES + 9
"""… and one where both decode, as a captured graph."""
PROGRAMS: Final = GRAPH_OF_HALVES + 1
ATTENDED, NEAR = 8, 11
"""Where the counts of a replica have what its decodes attend to: all, and within a window."""
OF_ALL: Final = 2
"""Counts of all replicas together: the tokens of all, and the most of one."""


class Group(Record):
    """A group as prices know it: its tables from ``first_pass`` on, and so many ``counts`` of each replica.

    Steps of up to ``graph_most`` decodes on each replica run as captured graphs; where these ``pad``, tokens are in
    ``p.padded`` from ``first_padded`` on. Steps run in ``halves`` from so many tokens on. It ``asks`` for each price
    where counts do not tell all.
    """

    __slots__ = (
        "asks", "counts", "decode_tokens", "first_padded", "first_pass", "graph_most", "halves", "pads",
        "prefill_tokens",
    )  # fmt: skip


def put(p: Any, at: int, tokens: int, decodes: int, chunks: int, new: int, context: int) -> None:
    """Fill in the first counts of a replica."""
    counts = p.counts
    counts[at], counts[at + 1], counts[at + 2], counts[at + 3] = tokens, chunks + decodes, new, decodes
    counts[at + 4], counts[at + 5] = context, context + new


def put_attended(p: Any, at: int, keys: int, pairs: int, attended: int) -> None:
    """Fill in what a replica attends to: without a window, or within one."""
    counts = p.counts
    counts[at], counts[at + 1], counts[at + 2] = keys, pairs, attended


def cut_of(s: Any, p: Any, r: int, kind: int) -> int:
    """Return how many sequences of a replica's step are in the first half, 0 where it can't be split."""
    flight, group, batch = s.flights[r][0], p.groups[kind], s.members[r]
    many, total = flight.decodes + flight.chunks, flight.decodes + flight.new
    if many < 2 or total < (group.prefill_tokens if flight.chunks > 0 else group.decode_tokens):
        return 0
    before, found, best = 0, 0, NEVER
    for place in range(many - 1):
        before += 1 if place < flight.decodes else s.sequences[batch[place]].taken
        apart = abs(total - 2 * before)
        if apart < best:
            found, best = place + 1, apart
    return found


def count_half(s: Any, p: Any, r: int, slot: int, at: int, first: int, end: int) -> int:
    """Fill in the counts of some sequences of a replica's step; return 1 where some decode, 2 more where not all do."""
    rep, flight, batch, window = s.replicas[r], s.flights[r][0], s.members[r], s.replicas[r].window
    decodes = max(min(end, flight.decodes) - first, 0)
    new = context = pairs = keys = attended = near_pairs = near_keys = near = growth = 0
    for place in range(first, end):
        seq = s.sequences[batch[place]]
        start, taken = seq.computed, seq.taken
        if place < flight.decodes:
            attended += start + 1
            near += min(start + 1, window)
            growth += start + 1 < window
            continue
        new += taken
        context += start
        pairs += taken * start + taken * (taken + 1) // 2
        keys += start + taken
        short = min(max(window - 1 - start, 0), taken)
        near_pairs += short * (start + 1) + short * (short - 1) // 2 + (taken - short) * window
        near_keys += min(start, window - 1) + taken
    chunks = end - first - decodes
    put(p, at, new + decodes, decodes, chunks, new, context)
    put_attended(p, at + 6, keys, pairs, attended)
    if rep.window > 0:
        put_attended(p, at + 9, near_pairs, near_keys, near)
    p.sums[2 * slot], p.sums[2 * slot + 1] = decodes, growth
    return (decodes > 0) + 2 * (chunks > 0)


def count_halves(s: Any, p: Any, r: int, kind: int) -> int:
    """Fill in the counts of both halves of a group's step; return its table, 0 where it is not split."""
    group, size = p.groups[kind], s.replicas[r].group_size
    block = size * group.counts + OF_ALL
    for one in range(r, r + size):
        if cut_of(s, p, one, kind) == 0:
            return 0
    first = second = 0
    for one in range(r, r + size):
        flight, cut, at = s.flights[one][0], cut_of(s, p, one, kind), block + (one - r) * group.counts
        first |= count_half(s, p, one, one - r, at, 0, cut)
        second |= count_half(s, p, one, size + one - r, at + block, cut, flight.decodes + flight.chunks)
    # of decodes alone 1, of prompts alone 2, of both 3; kinds are in the order prefill, mixed, decode
    return OF_HALVES + 3 * kind_of(first) + kind_of(second)


def kind_of(bits: int) -> int:
    """Return the kind of a step with decodes (1), prompts (2), or both."""
    return OF_DECODE if bits == 1 else OF_PREFILL if bits == 2 else OF_MIXED


def count_whole(s: Any, p: Any, r: int, kind: int) -> int:
    """Fill in the counts of a group's step; return its table."""
    group, end, most, bits = p.groups[kind], r + s.replicas[r].group_size, 1, 0
    for one in range(r, end):
        rep = s.replicas[one]
        bits |= (rep.decodes > 0) + 2 * (rep.chunks > 0)
    for one in range(r, end):
        rep, at = s.replicas[one], (one - r) * group.counts
        p.sums[2 * (one - r)], p.sums[2 * (one - r) + 1] = rep.decodes, rep.near_growth
        if rep.decodes + rep.chunks > 0:
            put(p, at, rep.new + rep.decodes, rep.decodes, rep.chunks, rep.new, rep.context)
            put_attended(p, at + 6, rep.keys, rep.pairs, rep.attended)
            if rep.window > 0:
                put_attended(p, at + 9, rep.near_pairs, rep.near_keys, rep.near_attended)
            most = max(most, rep.decodes)
            continue
        prompt = bits == 2  # what has nothing to run brings a token: of a prompt where all others prefill
        put(p, at, 1, 1 - prompt, prompt, prompt, 0)
        for place in range(at + 6, at + group.counts, 3):
            put_attended(p, place, prompt, prompt, 1 - prompt)
    return OF_GRAPH if bits == 1 and most <= group.graph_most else kind_of(bits)


def add_up_tokens(p: Any, at: int, size: int, each: int) -> None:
    """Add up the tokens of all replicas of a block of counts."""
    total = most = 0
    for one in range(size):
        tokens = p.counts[at + one * each]
        total += tokens
        most = max(most, tokens)
    p.counts[at + size * each], p.counts[at + size * each + 1] = total, most


def pad(p: Any, kind: int, size: int, halves: bool) -> None:
    """Let all replicas have the tokens that a captured graph computes: those of the one with most."""
    group, most = p.groups[kind], 0
    each, block = group.counts, size * group.counts + OF_ALL
    for one in range(size):
        most = max(most, p.counts[one * each])
    most = p.padded[group.first_padded + most]
    for one in range(size):
        p.counts[one * each] = most
        if halves:
            p.counts[block + one * each], p.counts[2 * block + one * each] = most // 2, most - most // 2


def count_group(s: Any, p: Any, r: int, kind: int) -> int:
    """Fill in the counts of the step that a group has decided, or of the first one of a run; return its table."""
    group, size = p.groups[kind], s.replicas[r].group_size
    block, each = size * group.counts + OF_ALL, group.counts
    whole = count_whole(s, p, r, kind)
    found = count_halves(s, p, r, kind) if group.halves else 0
    if whole == OF_GRAPH:
        if group.pads:
            pad(p, kind, size, found > 0)
        found = GRAPH_OF_HALVES if found > 0 else 0
    for at in range(3 if found > 0 else 1):
        add_up_tokens(p, at * block, size, each)
    return group.first_pass + (found if found > 0 else whole)


def add_steps(s: Any, p: Any, r: int, kind: int, number: int, steps: int) -> None:
    """Let decodes attend to what they do so many steps later."""
    group, size = p.groups[kind], s.replicas[r].group_size
    halves = number - group.first_pass >= OF_HALVES
    block = size * group.counts + OF_ALL
    for slot in range(2 * size if halves else size):
        at = slot * group.counts + (block + OF_ALL * (slot >= size) if halves else 0)
        p.counts[at + ATTENDED] += steps * p.sums[2 * slot]
        if s.replicas[r].window > 0:
            p.counts[at + NEAR] += steps * p.sums[2 * slot + 1]


def price_group(s: Any, p: Any, r: int, until: int, enough: int) -> int:
    """Price further steps of a group, as ``core.steps.extend`` does of a replica; return 0, or what to ask for."""
    clock, flight, pending, kind = s.clock[0], s.flights[r][0], s.pending[r], p.of_stage[r][0]
    number, steps, end = count_group(s, p, r, kind), flight.steps, flight.end
    asked = add_parts(p, number)
    if asked:
        return asked
    table, begun, classes = p.pass_tables[number], steps, kind * p.whole[0].classes
    width, last = table.attends + 1, steps
    if steps > 0:
        add_steps(s, p, r, kind, number, steps)
    while steps < flight.limit and (end < until or steps < enough):
        if steps > last:
            add_steps(s, p, r, kind, number, 1)
            last = steps
        asked = walk_pass(p, number, kind, clock.answered)
        if asked:
            if steps == begun:
                return asked
            break
        clock.answered = 0
        took = p.cost[kind][0]
        if took >= NEVER - end:
            return TOO_LATE
        for core in range(table.attends):
            pending[steps * width + core] = p.varying[classes + core]
        pending[steps * width + table.attends] = took
        end += took
        steps += 1
    flight.steps, flight.end, flight.width, flight.row, flight.found = steps, end, width, number, table.parts
    for place in range(table.parts):
        pending[len(pending) - table.parts + place] = p.found[table.first_part + place]
    return 0


def price_asked(s: Any, r: int, until: int, enough: int) -> int:
    """Do the same where each step is asked for: what was answered is pending already."""
    clock, flight, pending = s.clock[0], s.flights[r][0], s.pending[r]
    steps, end, begun = flight.steps, flight.end, flight.steps
    while steps < flight.limit and (end < until or steps < enough) and clock.answered > 0:
        took = pending[(steps + 1) * flight.width - 1]
        if took >= NEVER - end:
            return TOO_LATE
        clock.answered -= 1
        end += took
        steps += 1
    clock.answered, flight.steps, flight.end = 0, steps, end
    return ASK_STEP if steps == begun else 0
