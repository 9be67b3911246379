"""What a scheduler decides for one step, as a value, and the facts that go with it."""

from __future__ import annotations

from collections.abc import Callable
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

Fact = tuple[int, int, int, int, int]
"""(time in ns, kind, request, tokens, K/V blocks in use in all pools of the replica right after it).

Tokens: those of the prompt when it arrives or is rejected, those known when it is admitted, those of them that it takes
over from the prefix cache (reused, right after admitted), those generated when it is preempted or finishes. Blocks of
one sequence follow from its computed tokens.
"""


class Decision(NamedTuple):
    """The sequences of one step; one is made of every step, and a tuple takes a third of the time of a dataclass.

    Parameters
    ----------
    decodes : tuple of Sequence
        One new token each.
    prefills : tuple of (Sequence, int)
        Sequences in prefill and how many tokens of each.
    steady : bool
        Whether the same decision would be taken again until a sequence finishes, a block is missing or one arrives.
    evicted : tuple of Sequence
        Who gave their K/V blocks up for it.
    """

    decodes: tuple[Sequence, ...]
    prefills: tuple[tuple[Sequence, int], ...]
    steady: bool = False
    evicted: tuple[Sequence, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the step would carry nothing."""
        return not self.decodes and not self.prefills

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return len(self.decodes) + sum(count for _, count in self.prefills)


def _stays(now: int, sequence: Sequence) -> bool:
    del now, sequence
    return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Swap:
    """A copy of all blocks of a sequence that begins now, out to the host or back in, and what accounts for its end.

    ``copied`` is called with the instant and the sequence, and says whether that leaves with it, since it was given up.
    """

    sequence: Sequence
    out: bool
    blocks: int
    copied: Callable[[int, Sequence], bool] = _stays


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
