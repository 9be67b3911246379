"""Preemption by swap: a victim's blocks are copied to host memory, and back before it goes on.

Kwon et al., "PagedAttention", SOSP 2023, section 4.5, and vLLM 0.6 (``vllm/core/scheduler.py``; general knowledge, not
re-fetched). A victim keeps what it has computed. ::

    running ── preempted ──► leaving ── copied out ──► at rest ── there is room ──► arriving ──► running
                             host blocks taken         blocks given back            blocks taken host blocks given back

- Nothing waits for a copy but who needs its blocks: the sequence for which a victim leaves, and the victim itself
  when it comes back. (vLLM 0.6 puts the copies before the step on the step's own stream, so that all wait.)
- What was swapped out comes back in the order of the queue, after those that run have their blocks and before any
  request is admitted; not in a decision that preempts. It needs room for its next token, and as long as others run
  one block in a hundred stays free, so that it isn't the next victim at once (vLLM's ``watermark``).
- Where the host has no room, the victim is recomputed.
- What is in host memory is lost when the replica fails, also where only one of its devices does: it is memory of the
  processes that serve (vLLM 0.6, ``vllm/worker/cache_engine.py``: each worker allocates its own), which end then.
  Copies under way are cut off.

A replica copies one sequence at a time in each direction, stage by stage, and nothing else is on the links between. So
when a copy ends is known as it is decided. Who is copied is ``busy``: given up meanwhile, it leaves when that ends.
"""

from __future__ import annotations

from typing import Any, Final

from clustersim.core.events import VERSIONS, expect
from clustersim.core.progress import blocks_of, free_of, most_blocks, promise, take_free
from clustersim.core.queue import comes_before, drop
from clustersim.core.record import log_copy, note
from clustersim.core.state import COPY_END, EVENTS, NEVER, SWAPPED_IN, SWAPPED_OUT

IN, OUT = 0, 1
LEAVING, AT_REST, ARRIVING = 1, 2, 3
"""Where a sequence is that neither runs nor waits to be admitted."""
SPARE: Final = 100
"""One in so many blocks stays free when a sequence comes back: vLLM's ``watermark`` of 0.01."""


def copy(s: Any, r: int, one: int, blocks: int, out: int) -> None:
    """Begin a copy now, or when those before it in its direction have ended, on each stage."""
    clock, rep, seq, ends = s.clock[0], s.replicas[r], s.sequences[one], s.copies_end[r]
    rep.copies += 1
    seq.copies = (seq.copies + 1) & VERSIONS
    seq.busy = 1
    s.sequence_of[seq.request] = one
    if rep.copies_by_events:
        log_copy(s, r, 0, one, out, blocks, clock.now, NEVER)
        expect(s, clock.now, EVENTS, 0, 0)
        return
    pool, last = s.pools[rep.pool], clock.now
    for stage in range(rep.stages):
        start, took = (
            max(clock.now, ends[(2 * stage + out) * rep.owners + seq.owner]),
            s.copies_ns[pool.copies_at + (2 * stage + out) * pool.copies_size + blocks],
        )
        end = start + took if took < NEVER - start else NEVER
        log_copy(s, r, stage, one, out, blocks, start, end)
        ends[(2 * stage + out) * rep.owners + seq.owner] = end
        last = max(last, end)
    expect(s, last, COPY_END, seq.request, seq.copies)


def swap_out(s: Any, r: int, one: int, blocks: int) -> None:
    """Let a victim leave for the host that has left those who run; its blocks are not free before it is copied."""
    rep, seq, swapped = s.replicas[r], s.sequences[one], s.swapped[r]
    own = s.owners[rep.first_owner + seq.owner]
    take_free(s, r, seq.owner, blocks)
    own.coming += blocks
    own.host -= blocks
    seq.away = LEAVING
    at = rep.swapped
    while at > 0 and comes_before(s, one, swapped[at - 1]):
        swapped[at] = swapped[at - 1]
        at -= 1
    swapped[at] = one
    rep.swapped += 1
    rep.away += 1
    copy(s, r, one, blocks, OUT)


def leave_swapped(s: Any, r: int, one: int) -> None:
    """Take a sequence from those that leave or are at rest."""
    rep = s.replicas[r]
    drop(s.swapped[r], rep.swapped, one)
    rep.swapped -= 1


def swap_in(s: Any, r: int) -> None:
    """Let come back whoever was swapped out and has room, in the order of the queue, once decodes have their blocks.

    Where all do and nothing is to run, the replica decides again: others may be admitted.
    """
    rep = s.replicas[r]
    if rep.evicted > 0 or (rep.chunks > 0 and rep.chunked == 0):
        return
    while rep.swapped > 0:  # for whom there are places: nobody was admitted meanwhile
        one = s.swapped[r][0]
        seq = s.sequences[one]
        spare = rep.blocks // rep.owners // SPARE if rep.running + rep.away > rep.swapped else 0
        if seq.away == LEAVING or s.owners[rep.first_owner + seq.owner].short:
            return
        if blocks_of(rep, seq.computed + 1) + spare > free_of(s, r, seq.owner):
            return
        leave_swapped(s, r, one)
        seq.away, seq.blocks = ARRIVING, blocks_of(rep, seq.computed)
        s.swapped[r][len(s.swapped[r]) - rep.away + rep.swapped] = one
        take_free(s, r, seq.owner, seq.blocks)
        copy(s, r, one, seq.blocks, IN)
        note(s, r, SWAPPED_IN, seq.request, seq.computed, rep.blocks - rep.free)
    rep.again = rep.decodes + rep.chunks == 0


def end_copy(s: Any, r: int, one: int) -> None:
    """Account for the end of a copy: the blocks at its source are free."""
    rep, seq = s.replicas[r], s.sequences[one]
    own = s.owners[rep.first_owner + seq.owner]
    rep.copies -= 1
    seq.busy = 0
    if seq.away == LEAVING:
        blocks = blocks_of(rep, seq.computed)
        seq.away = AT_REST
        take_free(s, r, seq.owner, -blocks)
        own.coming -= blocks
        note(s, r, SWAPPED_OUT, seq.request, seq.computed, rep.blocks - rep.free)
        return
    seq.away = 0
    at = len(s.swapped[r]) - 1
    while s.swapped[r][at] != one:
        at -= 1
    while at > len(s.swapped[r]) - rep.away + rep.swapped:
        s.swapped[r][at] = s.swapped[r][at - 1]
        at -= 1
    rep.away -= 1
    own.host += seq.blocks
    s.order[r][rep.running] = one
    rep.running += 1
    rep.prefilling += 1 - seq.decodes
    promise(s, r, one, most_blocks(rep, seq))


def give_up_swapped(s: Any, r: int, one: int) -> None:
    """Forget a sequence that is at rest."""
    rep, seq = s.replicas[r], s.sequences[one]
    leave_swapped(s, r, one)
    rep.away -= 1
    s.owners[rep.first_owner + seq.owner].host += blocks_of(rep, seq.computed)
