"""Which tokens of a prompt chunk each SP rank takes, and how many (query, key) pairs that makes."""

from __future__ import annotations

from itertools import pairwise

from clustersim.plan.parallel import SequencePartition

Segment = tuple[int, int]
"""Half-open range of token positions."""


def _even(count: int, parts: int) -> list[Segment]:
    each, longer = divmod(count, parts)
    bounds = [part * each + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(bounds))


def segments(count: int, sp: int, partition: SequencePartition) -> list[tuple[Segment, ...]]:
    """Return the segments of ``count`` tokens that each SP rank takes.

    ``contiguous`` cuts into sp runs. ``zigzag`` cuts into 2·sp runs and gives rank r the runs r and 2·sp−1−r, so
    that causal attention costs every rank the same.

    Examples
    --------
    >>> segments(8, 2, "contiguous")
    [((0, 4),), ((4, 8),)]
    >>> segments(8, 2, "zigzag")
    [((0, 2), (6, 8)), ((2, 4), (4, 6))]
    """
    if partition == "contiguous":
        return [(part,) for part in _even(count, sp)]
    parts = _even(count, 2 * sp)
    return [(parts[rank], parts[2 * sp - 1 - rank]) for rank in range(sp)]


def causal_pairs(queries: Segment, keys: Segment, window: int | None = None) -> int:
    """Count pairs (q, k) with k ≤ q, q in ``queries`` and k in ``keys``; with a window also k > q − window.

    Examples
    --------
    >>> causal_pairs((0, 3), (0, 3))
    6
    >>> causal_pairs((2, 4), (0, 4), window=2)
    4
    """
    pairs = _clamped(queries, keys)
    if window is not None:
        pairs -= _clamped((queries[0] - window, queries[1] - window), keys)
    return pairs


def _clamped(queries: Segment, keys: Segment) -> int:
    """Sum over q of the number of keys in [keys[0], min(q + 1, keys[1]))."""
    low, high = keys

    def up_to(u: int) -> int:
        if u <= low:
            return 0
        inside = min(u, high) - low
        return inside * (inside + 1) // 2 + max(0, u - high) * (high - low)

    return up_to(queries[1]) - up_to(queries[0])
