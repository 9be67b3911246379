"""How far a sequence has come, and how many blocks that takes."""

from __future__ import annotations

from typing import Any


def decodes_next(seq: Any) -> bool:
    """Whether the next step of a sequence is a decode step."""
    return seq.generated > 0 and seq.prompt + seq.generated == seq.computed + 1


def blocks_of(rep: Any, tokens: int) -> int:
    """Return how many blocks hold so many tokens."""
    return (tokens + rep.block_tokens - 1) // rep.block_tokens


def most_blocks(rep: Any, seq: Any) -> int:
    """Return how many blocks a sequence holds at its end: the K/V of its last token is not computed."""
    return blocks_of(rep, seq.prompt + max(seq.output - 1, 0))
