"""In which order waiting sequences are taken up, and how long one may overtake another.

Each sequence has a rank that never changes, so that preemption and skipping cannot disturb the order: its arrival,
put off by what it costs. ::

    arrival           rank = arrival
    priority          rank = arrival + patience × priority        (lower numbers go first, as in vLLM)
    shortest_prompt   rank = arrival + patience × prompt tokens

The lowest rank goes first. Nobody starves: a sequence is overtaken only by those that arrive at most patience ×
(its own number − theirs) after it. Without limit to the patience the number decides before the arrival does; then
a stream of urgent requests keeps the others waiting for as long as it lasts, which is what strict priorities mean.
"""

from __future__ import annotations

from typing import Final, Literal

from clustersim.values import dataclass

OrderName = Literal["arrival", "priority", "shortest_prompt"]

DEFAULT_PATIENCE_NS: Final = {"arrival": 0, "priority": 10_000_000_000, "shortest_prompt": 10_000_000}
"""What a level of priority, or a token of the prompt, is worth by default: 10 s and 10 ms (assumed)."""

UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How waiting sequences are ranked.

    Parameters
    ----------
    by : str
        ``arrival``, ``priority`` or ``shortest_prompt``.
    patience_ns : int
        What one level of priority or one token of the prompt is worth in waiting; ``UNLIMITED``: more than any wait.
    """

    by: OrderName = "arrival"
    patience_ns: int = 0
