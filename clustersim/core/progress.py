"""How far a sequence has come, and how many blocks that takes."""

from __future__ import annotations

from typing import Any


def decodes_next(seq: Any) -> bool:
    """Whether the next step of a sequence is a decode step."""
    return seq.generated > 0 and seq.prompt + seq.generated == seq.computed + 1


def blocks_of(rep: Any, tokens: int) -> int:
    """Return how many blocks hold so many tokens."""
    return (tokens + rep.block_tokens - 1) // rep.block_tokens


def free_of(s: Any, r: int, owner: int) -> int:
    """Return how many blocks are free of those that an owner has."""
    rep = s.replicas[r]
    return rep.free if rep.owners == 1 else s.owners[rep.first_owner + owner].free


def lend(s: Any, r: int, one: int, blocks: int) -> None:
    """Give a sequence blocks of its owner's pool; take them back where that is below 0."""
    rep, seq = s.replicas[r], s.sequences[one]
    rep.free -= blocks
    seq.blocks += blocks
    if rep.owners > 1:
        s.owners[rep.first_owner + seq.owner].free -= blocks


def take_free(s: Any, r: int, owner: int, blocks: int) -> None:
    """Take blocks of an owner's pool that no sequence holds; give them back where that is below 0."""
    rep = s.replicas[r]
    rep.free -= blocks
    if rep.owners > 1:
        s.owners[rep.first_owner + owner].free -= blocks


def promise(s: Any, r: int, one: int, blocks: int) -> None:
    """Note that a sequence may come to hold blocks, or does not any more."""
    rep = s.replicas[r]
    rep.promised += blocks
    if rep.owners > 1:
        s.owners[rep.first_owner + s.sequences[one].owner].promised += blocks


def emptiest(s: Any, r: int) -> int:
    """Return the owner with most free blocks, the first among equals."""
    rep, found = s.replicas[r], 0
    for owner in range(1, rep.owners):
        if s.owners[rep.first_owner + owner].free > s.owners[rep.first_owner + found].free:
            found = owner
    return found


def most_blocks(rep: Any, seq: Any) -> int:
    """Return how many blocks a sequence holds at its end: the K/V of its last token is not computed."""
    return blocks_of(rep, seq.prompt + max(seq.output - 1, 0))
