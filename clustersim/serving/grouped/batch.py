"""What one step carries, as the grouped scheduler decides it: a group that decodes, and prompt chunks."""

from __future__ import annotations

from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.sequence import Sequence

Chunks = list[tuple[Sequence, int]]
"""Sequences in prefill, and how many tokens of each."""


class Batch:
    """What a step carries.

    Attributes
    ----------
    group : DecodeGroup or None
        The sequences that decode.
    decodes : int
        How many.
    chunks : list of (Sequence, int)
        Prompt chunks.
    slot, step : int
        Slot of the decodes (−1 without) and number of the (first) step.
    previous : int
        The step that used the slot before: with it end the episodes of decoding that this batch continues.
    steady : bool
        Whether the same decision would be taken again until a sequence finishes, a block is missing or one arrives.
    """

    __slots__ = ("chunks", "decodes", "group", "previous", "slot", "steady", "step")

    def __init__(self, group: DecodeGroup | None, chunks: Chunks, step: int) -> None:
        self.group = group
        self.decodes = 0 if group is None else group.count
        self.chunks = chunks
        self.step = step
        self.slot = -1
        self.previous = -1
        self.steady = True
