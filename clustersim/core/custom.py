"""A user's own scheduler: the core stops where it is to be asked, and carries out what it chose.

What may be chosen is checked before that (``serving.custom``), and the answer put here: of the replica how many are
preempted (``evicted``), decode and compute chunks of prompts, and in ``choice`` who does, one kind behind the other;
tokens of chunks are ``taken``. Those that run take blocks before those that wait, for which they may be too few.
"""

from __future__ import annotations

from typing import Any

from clustersim.core.hand_overs import NOBODY
from clustersim.core.prefix_cache import cached_blocks, count_free, count_shared, owner_with_most
from clustersim.core.progress import blocks_of, emptiest, free_of, lend, most_blocks
from clustersim.core.queue import remove
from clustersim.core.scheduler import enter, preempt
from clustersim.core.state import ASK_BATCH, LACKS_BLOCKS, NEVER


def consult(s: Any, r: int, base: int) -> int:
    """Decide the next step as a user's scheduler does; return 0, or what is to be asked or said.

    Those that decode again are not asked for, as long as all have the block of their next token. Who only preempts is
    asked again: there is room now. Nobody is asked when all requests have ended.
    """
    rep = s.replicas[r]
    if s.clock[0].ended == s.clock[0].total:
        rep.decodes = rep.chunks = 0
        return 0
    if rep.has_chosen == 0:
        if rep.standing > 0 and has_room(s, r, s.members[r], 0, rep.standing, 0):
            rep.evicted = rep.chunks = 0
            decode(s, r, 0, rep.standing, s.members[r], 0)
            rep.steady = 1
            return 0
        return ask(s, r)
    if not carry_out(s, r, base):
        return LACKS_BLOCKS
    rep.steady = rep.standing > 0 and rep.evicted == 0
    return ask(s, r) if rep.evicted > 0 and rep.decodes + rep.chunks == 0 else 0


def has_room(s: Any, r: int, who: Any, first: int, decodes: int, chunks: int) -> bool:
    """Whether each owner has the blocks for the next token, or the chunk, of those of a list that run."""
    rep, sequences, size = s.replicas[r], s.sequences, s.replicas[r].block_tokens
    for owner in range(rep.owners):
        s.owners[rep.first_owner + owner].left = free_of(s, r, owner)
    for place in range(first, first + decodes):
        seq = sequences[who[place]]
        if seq.computed >= seq.blocks * size:
            s.owners[rep.first_owner + seq.owner].left -= 1
    for place in range(first + decodes, first + decodes + chunks):
        seq = sequences[who[place]]
        if seq.blocks > 0:
            s.owners[rep.first_owner + seq.owner].left -= max(blocks_of(rep, seq.computed + seq.taken) - seq.blocks, 0)
    least = 0
    for owner in range(rep.owners):
        least = min(least, s.owners[rep.first_owner + owner].left)
    return least == 0


def decode(s: Any, r: int, base: int, count: int, who: Any, first: int) -> None:
    """Let so many of a list decode in the step, for each of which there is a block."""
    rep, batch, sequences = s.replicas[r], s.members[r], s.sequences
    size, attended, left = rep.block_tokens, count, NEVER
    for place in range(count):
        one = who[first + place]
        batch[base + place] = one
        seq = sequences[one]
        if seq.computed >= seq.blocks * size:
            lend(s, r, one, 1)
        seq.busy = 1
        attended += seq.computed
        left = min(left, seq.output - seq.generated)
    rep.decodes, rep.attended, rep.left = count, attended, left


def ask(s: Any, r: int) -> int:
    """Return ``ASK_BATCH``, once it is known how many cached blocks those that wait would take over."""
    rep = s.replicas[r]
    for place in range(rep.waiting if rep.caching else 0):
        seq = s.sequences[s.queues[r][place]]
        known = seq.prompt + seq.generated
        owner = owner_with_most(s, r, seq.request, known) if rep.owners > 1 else 0
        seq.cached = cached_blocks(s, r, owner, seq.request, known, 0)
    return ASK_BATCH


def admit_chosen(s: Any, r: int, one: int) -> bool:
    """Admit a sequence that was chosen; return whether there are the blocks for that.

    What was chosen before it may have taken cached blocks that it was to take over.
    """
    rep, seq, cached, taken = s.replicas[r], s.sequences[one], 0, 0
    room, promised, known = rep.blocks, rep.promised, seq.prompt + seq.generated
    if rep.owners > 1:
        seq.owner = owner_with_most(s, r, seq.request, known) if rep.caching else emptiest(s, r)
        room, promised = rep.blocks // rep.owners, s.owners[rep.first_owner + seq.owner].promised
    if rep.caching:
        cached = cached_blocks(s, r, seq.owner, seq.request, known, 0)
        taken = count_free(s, r, one, cached)
        if rep.keeps_room:
            room += cached - taken + count_shared(s, r, seq.owner)
    blocks = blocks_of(rep, seq.taken)
    if blocks + taken > free_of(s, r, seq.owner) or (rep.keeps_room and promised + most_blocks(rep, seq) > room):
        return False
    remove(s, r, one)
    enter(s, r, one, cached, blocks)
    seq.cached = 0
    return True


def carry_out(s: Any, r: int, base: int) -> bool:
    """Let what was chosen be the next step; return whether there are all blocks for that."""
    rep, choice, batch = s.replicas[r], s.choice, s.members[r]
    victims, decodes, chunks, again = rep.evicted, rep.decodes, rep.chunks, rep.steady
    rep.has_chosen = rep.evicted = rep.chunks = 0
    for place in range(victims):
        preempt(s, r, choice[place])
    if not has_room(s, r, choice, victims, decodes, chunks):
        s.clock[0].chosen = NOBODY
        return False
    decode(s, r, base, decodes, choice, victims)
    for place in range(victims + decodes, victims + decodes + chunks):
        one = choice[place]
        seq = s.sequences[one]
        blocks = blocks_of(rep, seq.computed + seq.taken)
        if seq.blocks == 0:
            if not admit_chosen(s, r, one):
                s.clock[0].chosen = one
                return False
        elif blocks > seq.blocks:
            lend(s, r, one, blocks - seq.blocks)
        seq.busy = 1
        batch[base + decodes + rep.chunks] = one
        rep.chunks += 1
    rep.standing = decodes if again and rep.stages == 1 and chunks == 0 else 0
    return True
