"""Who is in the next step: decodes and chunks of prompts, who is admitted, and who is preempted.

- ``continuous``: prefill first, whole prompts (Yu et al., "Orca", OSDI 2022; vLLM before v1). A prompt longer than the
  token budget is prefilled alone, in chunks of the budget.
- ``static``: what waits becomes a batch, and nothing joins it until all of it has finished (serving before continuous
  batching; Orca, section 3.1, names its cost). A member's place and all the blocks that it will ever need are set aside
  when the batch is made up. A sequence that has finished leaves.
- ``chunked_prefill``: decode first, then the rest of the token budget with prompt chunks (Agrawal et al.,
  "Sarathi-Serve", OSDI 2024; vLLM v1).

Each decision looks at everybody who runs. The sequence that came last is preempted: it gives its blocks back and later
recomputes its tokens (recomputation, Kwon et al., "PagedAttention", SOSP 2023, section 4.5), but where the host has
room for them (``core.swapping``).
"""

from __future__ import annotations

from typing import Any

from clustersim.core.prefix_cache import cached_blocks, count_free, count_shared, owner_with_most, release, take_over
from clustersim.core.progress import blocks_of, emptiest, free_of, lend, most_blocks, promise
from clustersim.core.queue import comes_before, drop, pop, push
from clustersim.core.record import close_episode, note
from clustersim.core.state import ADMITTED, BEFORE_ALL, KEPT, NEVER, NOT_POOLED, PREEMPTED, REUSED
from clustersim.core.swapping import swap_in, swap_out


def leave(s: Any, r: int, one: int) -> None:
    """Take a sequence from those that run, and its blocks back; where prefixes are cached these are released before."""
    rep, seq = s.replicas[r], s.sequences[one]
    drop(s.order[r], rep.running, one)
    rep.running -= 1
    promise(s, r, one, -most_blocks(rep, seq))
    lend(s, r, one, -seq.blocks)


def preempt(s: Any, r: int, one: int) -> None:
    """Let a sequence wait again, without blocks, or leave for the host."""
    rep, seq, blocks = s.replicas[r], s.sequences[one], s.sequences[one].blocks
    rep.prefilling -= 1 - seq.decodes
    if rep.caching:
        release(s, r, one)
    leave(s, r, one)
    seq.preemptions += 1
    rep.evicted += 1
    if seq.computed > 0 and blocks <= s.owners[rep.first_owner + seq.owner].host:
        close_episode(s, r, one)
        swap_out(s, r, one, blocks)
        return
    seq.computed = seq.decodes = 0
    push(s, r, one)
    note(s, r, PREEMPTED, seq.request, seq.generated, rep.blocks - rep.free)


def last_behind(s: Any, r: int, one: int) -> int:
    """Return who comes last behind a sequence and can give blocks of the same owner, −1 where nobody does.

    Behind it are those that were admitted later, or that have a higher rank where the queue is ranked.
    """
    rep, order = s.replicas[r], s.order[r]
    found, place = -1, rep.running - 1
    while place >= 0 and (rep.ranked or order[place] != one):
        other = order[place]
        seq = s.sequences[other]
        if seq.blocks > 0 and seq.busy == 0 and seq.owner == s.sequences[one].owner:
            if not rep.ranked:
                return other
            if comes_before(s, one, other) and (found < 0 or comes_before(s, found, other)):
                found = other
        place -= 1
    return found


def grow(s: Any, r: int, one: int, tokens: int) -> bool:
    """Take the blocks that so many tokens need, from those behind it if need be; return whether it has them.

    Where they have to be copied out first, it waits for that, and until then nobody after it takes free ones.
    """
    rep, seq = s.replicas[r], s.sequences[one]
    missing = blocks_of(rep, tokens) - seq.blocks
    if missing > 0 and s.owners[rep.first_owner + seq.owner].short:
        return False
    while missing > free_of(s, r, seq.owner):
        own = s.owners[rep.first_owner + seq.owner]
        if own.coming > 0 and missing <= free_of(s, r, seq.owner) + own.coming:
            own.short = 1
            return False
        victim = last_behind(s, r, one)
        if victim < 0:
            return False
        preempt(s, r, victim)
    if missing > 0:
        lend(s, r, one, missing)
    return True


def is_last(s: Any, r: int, one: int) -> bool:
    """Whether somebody comes before a sequence, and nobody of the same owner behind it."""
    rep, order = s.replicas[r], s.order[r]
    before, met = 0, False
    for place in range(rep.running):
        other = order[place]
        if other == one:
            met = True
        elif comes_before(s, one, other) if rep.ranked else met:
            if s.sequences[other].owner == s.sequences[one].owner:
                return False
        else:
            before += 1
    return before > 0


def choose_decodes(s: Any, r: int, base: int, budget: int) -> None:
    """Choose those that decode, in order of admission; with stages an even share, so that micro-batches are alike."""
    rep, order, batch = s.replicas[r], s.order[r], s.members[r]
    rep.attended, rep.left = 0, NEVER
    if rep.decodes_in_flight > 0 and rep.overlap == 0:
        return
    limit = min((rep.running - rep.prefilling + rep.stages - 1) // rep.stages, budget)
    sequences, ranked, size = s.sequences, rep.ranked, rep.block_tokens
    last, apart = rep.running, 1 if ranked or rep.owners > 1 else 0
    if apart:  # a preempted one leaves the order, perhaps before those that come later here
        order, last = s.ready, 0
        for at in range(rep.running):
            seq = sequences[s.order[r][at]]
            if seq.busy == 0 and seq.decodes:
                order[last] = s.order[r][at]
                last += 1
    at = seen = chosen = attended = 0
    left = NEVER
    while at < last and seen < limit and chosen < limit:
        one = order[at]
        seq = sequences[one]
        at += 1
        if seq.busy or seq.decodes == 0:
            seen += apart > ranked  # the place of one that was preempted for another stays empty
            continue
        if ranked == 0:  # else who lacks a block leaves its place in the step to those behind it
            seen += 1
        computed = seq.computed
        if computed >= seq.blocks * size:
            if not grow(s, r, one, computed + 1):
                last = last if apart else rep.running
                continue
            last = last if apart else rep.running
        seq.busy = 1
        batch[base + chosen] = one
        chosen += 1
        attended += computed + 1
        left = min(left, seq.output - seq.generated)
    rep.decodes, rep.attended, rep.left = chosen, attended, left


def choose_begun(s: Any, r: int, base: int, budget: int, limit: int) -> int:
    """Choose chunks of prompts that are begun; return the budget that is left, −1 where all owners lack blocks."""
    rep, order, ready, batch = s.replicas[r], s.order[r], s.ready, s.members[r]
    known, short = 0, False
    for at in range(rep.running):
        seq = s.sequences[order[at]]
        if seq.busy == 0 and seq.decodes == 0:
            ready[known] = order[at]
            known += 1
    for at in range(known):
        one = ready[at]
        seq = s.sequences[one]
        count = min(seq.prompt + seq.generated - seq.computed, budget, limit)
        if count == 0 or seq.blocks == 0:
            continue
        if grow(s, r, one, seq.computed + count):
            seq.busy, seq.taken = 1, count
            batch[base + rep.decodes + rep.chunks] = one
            rep.chunks += 1
            budget -= count
        elif rep.gives_up and rep.first_chunk and is_last(s, r, one):
            preempt(s, r, one)
        elif rep.owners > 1:
            s.owners[rep.first_owner + seq.owner].lacks = 1
        else:
            short = True
    return -1 if short else budget


def enter(s: Any, r: int, one: int, cached: int, blocks: int) -> None:
    """Let a sequence run that waited, with blocks that are cached, and so many others."""
    rep, seq = s.replicas[r], s.sequences[one]
    if cached > 0:
        take_over(s, r, one, cached)
    seq.blocks, seq.admitted = cached, 1
    lend(s, r, one, blocks)
    promise(s, r, one, most_blocks(rep, seq))
    s.order[r][rep.running] = one
    rep.running += 1
    rep.prefilling += 1 - seq.decodes
    note(s, r, ADMITTED, seq.request, seq.prompt + seq.generated, rep.blocks - rep.free)
    if rep.owners > 1:
        note(s, r, KEPT, seq.request, seq.owner, NOT_POOLED)
    if cached > 0:
        note(s, r, REUSED, seq.request, seq.computed, rep.blocks - rep.free)


def admit(s: Any, r: int, base: int, budget: int, limit: int) -> None:
    """Choose first chunks of those that wait, in their order, as long as there are places, tokens and blocks."""
    rep, batch = s.replicas[r], s.members[r]
    places = rep.max_requests - rep.away - rep.receiving if rep.swapped == 0 else 0
    while rep.waiting > 0 and budget > 0 and rep.running < places and rep.evicted == 0:
        one = s.queues[r][0]
        seq = s.sequences[one]
        if rep.static and seq.batch != rep.batch:
            break
        known = need = seq.prompt + seq.generated
        cached, taken, room, promised = 0, 0, rep.blocks, rep.promised
        if rep.owners > 1:
            if rep.static == 0:
                seq.owner = owner_with_most(s, r, seq.request, known) if rep.caching else emptiest(s, r)
            if s.owners[rep.first_owner + seq.owner].lacks:
                break
            room, promised = rep.blocks // rep.owners, s.owners[rep.first_owner + seq.owner].promised
        if rep.caching:
            cached = cached_blocks(s, r, seq.owner, seq.request, known, 0)
            taken = count_free(s, r, one, cached)
            need -= cached * rep.block_tokens
            if rep.keeps_room:
                room += cached - taken + count_shared(s, r, seq.owner)
        count = min(need, budget, limit)
        if rep.chunked == 0 and count < need and not (need > rep.max_tokens and rep.chunks == 0):
            break
        blocks, most = blocks_of(rep, count), most_blocks(rep, seq)
        if (blocks if rep.first_chunk else blocks_of(rep, need)) + taken > free_of(s, r, seq.owner):
            break
        if rep.keeps_room and promised + most > room:
            break
        pop(s, r)
        enter(s, r, one, cached, blocks)
        seq.busy, seq.taken = 1, count
        batch[base + rep.decodes + rep.chunks] = one
        rep.chunks += 1
        budget -= count


def make_up_batch(s: Any, r: int) -> None:
    """Let those that wait be the next static batch, in their order, as many as have a place and blocks to their end."""
    rep, first, members = s.replicas[r], s.replicas[r].first_owner, 0
    rep.batch += 1
    for owner in range(rep.owners):
        s.owners[first + owner].left = free_of(s, r, owner)
    while rep.waiting > 0 and members < rep.max_requests:
        seq = s.sequences[s.queues[r][0]]
        for owner in range(rep.owners):
            if owner == 0 or s.owners[first + owner].left > s.owners[first + seq.owner].left:
                seq.owner = owner
        if most_blocks(rep, seq) > s.owners[first + seq.owner].left:
            break
        s.owners[first + seq.owner].left -= most_blocks(rep, seq)
        s.ready[members] = pop(s, r)
        members += 1
    for place in range(members):
        seq = s.sequences[s.ready[place]]
        seq.batch = rep.batch
        if rep.ranked:  # else one that was at another replica, and came before them, goes before them
            seq.rank, seq.then = BEFORE_ALL, place
        push(s, r, s.ready[place])


def choose_prompts(s: Any, r: int, base: int, budget: int) -> None:
    """Choose chunks of prompts: of those that are begun, then of those that wait."""
    rep = s.replicas[r]
    limit = budget if rep.chunked == 0 else min(budget, rep.longest)
    for owner in range(rep.owners if rep.owners > 1 else 0):
        s.owners[rep.first_owner + owner].lacks = 0
    if rep.prefilling > 0:
        budget = choose_begun(s, r, base, budget, limit)
    if budget > 0:
        admit(s, r, base, budget, limit)


def schedule(s: Any, r: int, base: int) -> None:
    """Decide the next step, whose members are at ``base`` on."""
    rep = s.replicas[r]
    if rep.static and rep.running == 0 and rep.waiting > 0 and s.sequences[s.queues[r][0]].batch != rep.batch:
        make_up_batch(s, r)  # once more where one came that goes before its members
    while True:
        rep.decodes = rep.chunks = rep.evicted = rep.attended = 0
        for owner in range(rep.owners if rep.host_blocks > 0 else 0):
            s.owners[rep.first_owner + owner].short = 0
        if rep.chunked:
            choose_decodes(s, r, base, rep.max_tokens)
            if rep.evicted == 0:
                choose_prompts(s, r, base, rep.max_tokens - rep.decodes)
        else:
            choose_prompts(s, r, base, rep.max_tokens)
            if rep.chunks == 0:
                choose_decodes(s, r, base, rep.max_tokens)
        if rep.decodes + rep.chunks > 0 or rep.evicted == 0:
            break  # else those preempted may be all that there is to run
    if rep.swapped > 0:
        swap_in(s, r)
    rep.steady = rep.chunks + rep.evicted + rep.copies == 0 and rep.decodes == rep.running and rep.stages == 1
    if rep.caching and rep.static == 0 and rep.waiting > 0 and rep.running < rep.max_requests:
        rep.steady = False  # where decodes take blocks that it would take over, who waits needs fewer of them
    if rep.owners > 1 and rep.keeps_room and rep.static == 0 and rep.waiting > 0:
        rep.steady = False  # another owner may become the emptiest, with room for who waits
