"""Who asks for moves of K/V that are on links without events, and waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class TransferOwner(Protocol):
    """Who asks for moves, and waits for their ends and for layers."""

    @property
    def asked(self) -> int:
        """How many moves have been asked for."""

    def goes_on_alike(self, layer: int, following: int) -> bool:
        """Whether what leaves with two layers is alike."""

    def repeat(self, on_layer: Any, moves: Sequence[tuple[Any, int]], layers: Sequence[int], later: int) -> None:
        """Take note of moves (and their ends) that happen again with each of some layers, so much later each time."""

    @property
    def is_due(self) -> bool:
        """Whether something is to be settled at this instant."""

    def settle(self) -> None:
        """Settle it now."""

    def settle_in_turn(self) -> None:
        """Settle it when it has its turn at this instant."""
