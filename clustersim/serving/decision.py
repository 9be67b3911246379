"""What a step carries, what is copied beside it, and the facts that are recorded."""

from __future__ import annotations

from typing import Final, NamedTuple

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.serving.sequence import Sequence
from clustersim.values import dataclass

FACT_KINDS: Final = (
    "arrived", "rejected", "admitted", "preempted", "finished", "reused", "swapped_out", "swapped_in", "cancelled",
    "lost", "handed_over", "received",
)  # fmt: skip
(
    ARRIVED, REJECTED, ADMITTED, PREEMPTED, FINISHED, REUSED, SWAPPED_OUT, SWAPPED_IN, CANCELLED,
    LOST, HANDED_OVER, RECEIVED,
) = range(len(FACT_KINDS))  # fmt: skip


class Decision(NamedTuple):
    """The sequences of one step.

    Parameters
    ----------
    decodes : tuple of Sequence
        One new token each.
    prefills : tuple of (Sequence, int)
        Sequences in prefill and how many tokens of each.
    """

    decodes: tuple[Sequence, ...]
    prefills: tuple[tuple[Sequence, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Swap:
    """A copy of all blocks of a sequence that begins now, out to the host or back in."""

    sequence: Sequence
    out: bool
    blocks: int


def batch_of(decision: Decision, owners: int, windows: tuple[int, ...]) -> StepBatch:
    """Return the numbers of a decision that the step graph is a function of.

    Parameters
    ----------
    decision : Decision
    owners : int
        SP coordinates that keep sequences.
    windows : tuple of int
        Sliding windows of the model.
    """
    windowed = {window: [0] * owners for window in windows}
    if owners == 1 and not windows:
        counts = [len(decision.decodes)]
        keys = [sum([sequence.computed for sequence in decision.decodes]) + counts[0]]
    else:
        counts, keys = [0] * owners, [0] * owners
        for sequence in decision.decodes:
            attended = sequence.computed + 1
            counts[sequence.owner] += 1
            keys[sequence.owner] += attended
            for window, sums in windowed.items():
                sums[sequence.owner] += min(attended, window)
    return StepBatch(
        chunks=tuple(
            Chunk(request=s.request, start=s.computed, count=count, owner=s.owner) for s, count in decision.prefills
        ),
        decode_sequences=tuple(counts),
        decode_keys=tuple(keys),
        windowed_keys={window: tuple(sums) for window, sums in windowed.items()},
    )
