"""Who is told what a scheduler decided and what came of it, as it happens: numbers, to be kept in flat arrays."""

from __future__ import annotations

from typing import Protocol


class Log(Protocol):
    """Takes what is decided."""

    def chunk(self, step: int, request: int, start: int, count: int, sampled: int) -> None:
        """Take a prompt chunk that a step computed."""
        ...

    def decode(self, slot: int, request: int, first_step: int, last_step: int) -> None:
        """Take an episode of decoding."""
        ...

    def fact(self, time: int, kind: int, request: int, value: int, used: int) -> None:
        """Take a fact."""
        ...

    def kept(self, time: int, request: int, owner: int) -> None:
        """Take which SP rank keeps a request that was admitted."""
        ...
