"""A user's own scheduler: the core stops where it is to be asked, and carries out what it chose.

What may be chosen is checked before that (``serving.custom``), and the answer put here: of the replica how many are
preempted (``evicted``), decode and compute chunks of prompts, and in ``choice`` who does, one kind behind the other;
tokens of chunks are ``taken``. Those that run take blocks before those that wait.
"""

from __future__ import annotations

from typing import Any

from clustersim.core.progress import blocks_of
from clustersim.core.queue import remove
from clustersim.core.scheduler import enter, preempt
from clustersim.core.state import ASK_BATCH, NEVER


def consult(s: Any, r: int, base: int) -> int:
    """Decide the next step as a user's scheduler does; return 0, or ``ASK_BATCH``.

    Those that decode again are not asked for, as long as all have the block of their next token. Who only preempts is
    asked again: there is room now. Nobody is asked when all requests have ended.
    """
    rep = s.replicas[r]
    if s.clock[0].ended == s.clock[0].total:
        rep.decodes = rep.chunks = 0
        return 0
    if rep.has_chosen == 0:
        if rep.standing > 0 and entering(s, r) <= rep.free:
            rep.evicted = rep.chunks = 0
            decode(s, r, 0, rep.standing, s.members[r], 0)
            rep.steady = 1
            return 0
        return ASK_BATCH
    carry_out(s, r, base)
    rep.steady = rep.standing > 0 and rep.evicted == 0
    return ASK_BATCH if rep.evicted > 0 and rep.decodes + rep.chunks == 0 else 0


def entering(s: Any, r: int) -> int:
    """Return how many of those that decode again enter a block with their next token."""
    rep, batch, sequences, found = s.replicas[r], s.members[r], s.sequences, 0
    size = rep.block_tokens
    for place in range(rep.standing):
        seq = sequences[batch[place]]
        if seq.computed >= seq.blocks * size:
            found += 1
    return found


def decode(s: Any, r: int, base: int, count: int, who: Any, first: int) -> None:
    """Let so many of a list decode in the step, for each of which there is a block."""
    rep, batch, sequences = s.replicas[r], s.members[r], s.sequences
    size, attended, left = rep.block_tokens, count, NEVER
    for place in range(count):
        one = who[first + place]
        batch[base + place] = one
        seq = sequences[one]
        if seq.computed >= seq.blocks * size:
            seq.blocks += 1
            rep.free -= 1
        seq.busy = 1
        attended += seq.computed
        left = min(left, seq.output - seq.generated)
    rep.decodes, rep.attended, rep.left = count, attended, left


def carry_out(s: Any, r: int, base: int) -> None:
    """Let what was chosen be the next step."""
    rep, choice, batch = s.replicas[r], s.choice, s.members[r]
    victims, decodes, chunks, again = rep.evicted, rep.decodes, rep.chunks, rep.steady
    rep.has_chosen = rep.evicted = rep.chunks = 0
    for place in range(victims):
        preempt(s, r, choice[place])
    decode(s, r, base, decodes, choice, victims)
    for place in range(victims + decodes, victims + decodes + chunks):
        one = choice[place]
        seq = s.sequences[one]
        blocks = blocks_of(rep, seq.computed + seq.taken)
        if seq.blocks == 0:
            remove(s, r, one)
            enter(s, r, one, 0, blocks)
        elif blocks > seq.blocks:
            rep.free -= blocks - seq.blocks
            seq.blocks = blocks
        seq.busy = 1
        batch[base + decodes + rep.chunks] = one
        rep.chunks += 1
    rep.standing = decodes if again and rep.stages == 1 and chunks == 0 else 0
