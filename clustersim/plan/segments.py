"""Which tokens of a prompt chunk each SP rank takes, and how many (query, key) pairs that makes."""

from __future__ import annotations

from itertools import pairwise

from clustersim.plan.parallel import SequencePartition

Segment = tuple[int, int] | tuple[int, int, int]
"""Token positions as ``range`` takes them: the first one, the end (excluded), and of stripes the step."""


def _even(count: int, parts: int) -> list[Segment]:
    each, longer = divmod(count, parts)
    bounds = [part * each + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(bounds))


def segments(count: int, sp: int, partition: SequencePartition) -> list[tuple[Segment, ...]]:
    """Return the segments of ``count`` tokens that each SP rank takes.

    ``contiguous`` cuts into sp runs. ``zigzag`` cuts into 2·sp runs and gives rank r the runs r and 2·sp−1−r, so
    that causal attention costs every rank the same. ``striped`` deals single tokens out in turn, token i to rank i
    mod sp, so that each step of a ring costs every rank nearly the same (Brandon et al., "Striped Attention", 2023,
    arXiv:2311.09431, section 3).

    Examples
    --------
    >>> segments(8, 2, "contiguous")
    [((0, 4),), ((4, 8),)]
    >>> segments(8, 2, "zigzag")
    [((0, 2), (6, 8)), ((2, 4), (4, 6))]
    >>> segments(8, 2, "striped")
    [((0, 8, 2),), ((1, 8, 2),)]
    """
    if partition == "contiguous":
        return [(part,) for part in _even(count, sp)]
    if partition == "striped":
        return [((rank, count, sp),) for rank in range(sp)]
    parts = _even(count, 2 * sp)
    return [(parts[rank], parts[2 * sp - 1 - rank]) for rank in range(sp)]


def causal_pairs(queries: Segment, keys: Segment, window: int | None = None) -> int:
    """Count pairs (q, k) with k ≤ q, q in ``queries`` and k in ``keys``; with a window also k > q − window.

    The step of ``keys`` is 1, or that of ``queries``.

    Examples
    --------
    >>> causal_pairs((0, 3), (0, 3))
    6
    >>> causal_pairs((2, 4), (0, 4), window=2)
    4
    >>> causal_pairs((1, 8, 2), (0, 8, 2))  # 1 attends to 0, 3 to 0 and 2 …
    10
    """
    asking, asked = range(*queries), range(*keys)
    pairs = _up_to(asking, asked, 0)
    return pairs if window is None else pairs - _up_to(asking, asked, window)


def _up_to(queries: range, keys: range, back: int) -> int:
    """Sum over q of the number of keys up to q − ``back``.

    It grows with each query by the same number of keys, from 0 to all of them.
    """
    many, most = len(queries), len(keys)
    if not many or not most:
        return 0
    more = queries.step // keys.step
    first = (queries.start - back - keys.start) // keys.step + 1
    none = min(max(-first // more + 1, 0), many)
    some = min(max(-((first - most) // more), none), many)
    return (some - none) * first + more * (some * (some - 1) - none * (none - 1)) // 2 + (many - some) * most


def later(tokens: Segment, by: int) -> Segment:
    """Return the positions that are ``by`` behind some."""
    run = range(*tokens)
    return run.start + by, run.stop + by, run.step


def count_between(tokens: Segment, low: int, high: int) -> int:
    """Count those of some tokens that are at ``low`` or behind it, and before ``high``."""
    run = range(*tokens)
    below, up_to = (-((run.start - bound) // run.step) for bound in (low, high))
    return max(0, min(up_to, len(run)) - max(below, 0))
