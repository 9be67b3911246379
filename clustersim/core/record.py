"""What is logged: facts, chunks of prompts, episodes of decoding, reasons, and runs of steps."""

from __future__ import annotations

from typing import Any


def note(s: Any, r: int, kind: int, request: int, value: int, used: int) -> None:
    """Log a fact of this instant; what a user's scheduler chose need not be what it would choose again."""
    clock, facts = s.clock[0], s.facts
    at = clock.facts_at
    facts[at] = r
    facts[at + 1] = clock.now
    facts[at + 2] = kind
    facts[at + 3] = request
    facts[at + 4] = value
    facts[at + 5] = used
    clock.facts_at = at + 6
    s.replicas[r].standing = 0


def note_reason(s: Any, request: int, why: int, value: int) -> None:
    """Log why a request ended without an answer."""
    clock, reasons = s.clock[0], s.reasons
    at = clock.reasons_at
    reasons[at] = request
    reasons[at + 1] = why
    reasons[at + 2] = value
    clock.reasons_at = at + 3


def log_chunk(s: Any, r: int, step: int, one: int, sampled: int) -> None:
    """Log the chunk of a prompt that a step has computed, of a sequence as it was before."""
    clock, chunks, seq = s.clock[0], s.chunks, s.sequences[one]
    at = clock.chunks_at
    chunks[at] = r
    chunks[at + 1] = step
    chunks[at + 2] = seq.request
    chunks[at + 3] = seq.computed - seq.taken
    chunks[at + 4] = seq.taken
    chunks[at + 5] = sampled
    clock.chunks_at = at + 6


def close_episode(s: Any, r: int, one: int) -> None:
    """Log the decode steps that a sequence had in a row, if it had any."""
    clock, decodes, seq = s.clock[0], s.decodes, s.sequences[one]
    if seq.first_step >= 0 and seq.first_step <= seq.last_step:
        at = clock.decodes_at
        decodes[at] = r
        decodes[at + 1] = seq.slot
        decodes[at + 2] = seq.request
        decodes[at + 3] = seq.first_step
        decodes[at + 4] = seq.last_step
        clock.decodes_at = at + 5
    seq.first_step = -1


def log_copy(s: Any, r: int, stage: int, one: int, out: int, blocks: int, start: int, end: int) -> None:
    """Log the copy of a sequence's blocks between a stage and its hosts, which begins now or later.

    It has not happened where the replica fails before its end.
    """
    clock, copies, seq = s.clock[0], s.copies, s.sequences[one]
    at = clock.copies_at
    copies[at] = r
    copies[at + 1] = stage
    copies[at + 2] = seq.request
    copies[at + 3] = out
    copies[at + 4] = seq.computed
    copies[at + 5] = blocks
    copies[at + 6] = start
    copies[at + 7] = end
    copies[at + 8] = clock.now
    copies[at + 9] = seq.owner
    clock.copies_at = at + 10


def note_stretch(s: Any, n: Any, r: int, step: int, stage: int, instance: int, lost: int) -> None:
    """Log that an operator of a pass took longer than it costs."""
    clock, stretches = s.clock[0], n.stretches
    at = clock.stretches_at
    stretches[at] = r
    stretches[at + 1] = step
    stretches[at + 2] = stage
    stretches[at + 3] = instance
    stretches[at + 4] = lost
    clock.stretches_at = at + 5


def log_move(s: Any, h: Any, sender: int, move: Any) -> None:
    """Log the move of a shard of K/V, which ends now."""
    clock, logged, way = s.clock[0], h.moved, s.sequences[move.one]
    at = clock.moved_at
    logged[at] = way.request
    logged[at + 1] = sender
    logged[at + 2] = move.receiver
    logged[at + 3] = move.shard
    logged[at + 4] = move.layer
    logged[at + 5] = move.first
    logged[at + 6] = move.tokens
    logged[at + 7] = move.start
    logged[at + 8] = clock.now
    clock.moved_at = at + 9


def log_run(s: Any, r: int, k: int, steps: int, end: int) -> None:
    """Log the first steps of what is under way, of which the last one ended at an instant."""
    clock, rows, flight, rep = s.clock[0], s.rows, s.flights[r][k], s.replicas[r]
    at = clock.rows_at
    rows[at] = flight.start
    rows[at + 1] = flight.kind
    rows[at + 2] = flight.slot
    rows[at + 3] = flight.decodes + flight.chunks
    rows[at + 4] = flight.new
    rows[at + 5] = flight.decodes
    rows[at + 6] = flight.context
    rows[at + 7] = flight.waiting
    rows[at + 8] = flight.running
    rows[at + 9] = flight.used
    rows[at + 10] = steps
    rows[at + 11] = end
    rows[at + 12] = flight.row
    rows[at + 13] = r
    clock.rows_at = at + 14
    out, size, stages = clock.varying_at, steps * flight.width, rep.stages
    pending, first = s.pending[r], k * (len(s.pending[r]) // stages)
    for place in range(size):
        s.varying[out + place] = pending[first + place]
    for place in range(flight.found):
        s.varying[out + size + place] = pending[first + len(pending) // stages - flight.found + place]
    clock.varying_at = out + size + flight.found
    if stages > 1:
        row, most = at // 14, clock.most_stages
        for place in range(2 * stages):
            s.all_passes[row * 2 * most + place] = s.passes[r][k * 2 * stages + place]
        wide = 2 * clock.senders * (stages - 1)
        for place in range(wide):
            s.all_sends[row * 2 * clock.senders * (most - 1) + place] = s.sends[r][k * wide + place]


def is_full(s: Any) -> bool:
    """Whether the logs may lack room for what one event brings."""
    clock = s.clock[0]
    return (
        clock.rows_at > clock.rows_room
        or clock.varying_at > clock.varying_room
        or clock.chunks_at > clock.chunks_room
        or clock.decodes_at > clock.decodes_room
        or clock.facts_at > clock.facts_room
        or clock.reasons_at > clock.reasons_room
        or clock.copies_at > clock.copies_room
        or clock.stretches_at > clock.stretches_room
        or clock.moved_at > clock.moved_room
    )
