"""What a scheduler decides for one step, as a value, and the facts that go with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from clustersim.values import dataclass
from tests.oracle.serving.sequence import Sequence

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
