"""Batch sizes for which an engine has captured a graph: a step computes what the next larger one does."""

from __future__ import annotations

from typing import Any, Final

from clustersim.errors import InputError, Problem
from clustersim.values import dataclass

MOST_TOKENS: Final = 1_000_000_000
MOST_BY: Final = 65_536
"""Of sizes of captured batches (assumed: engines capture up to 8192 tokens)."""
"""Largest step that a captured graph is for (assumed)."""
_EXPECTED: Final = "expected sizes that grow, such as [1, 2, 4, {by: 8, upto: 256}, {by: 16}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes up to ``upto``: the multiples of ``by``, or a lone one, which is a multiple of itself.

    ``upto`` is None of the last ones, which end where captured graphs do.
    """

    by: int
    upto: int | None


def padded(sizes: tuple[Sizes, ...], tokens: int, most: int) -> int:
    """Return the size that a step of some tokens, at most ``most``, is padded to; without sizes it is not.

    Examples
    --------
    >>> padded((Sizes(by=1, upto=2), Sizes(by=4, upto=4), Sizes(by=8, upto=None)), 9, 256)
    16
    """
    for some in sizes:
        size = -(-tokens // some.by) * some.by
        if some.upto is None or size <= some.upto:
            return min(size, most)
    return most if sizes else tokens


def sizes_from(value: object) -> tuple[Sizes, ...]:
    """Read ``graph_sizes`` of an engine: numbers, then ``{by: 8, upto: 256}`` for the multiples of 8 up to there.

    Raises
    ------
    ValueError
        Unless sizes grow, the last of them without end or not.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{_EXPECTED}, but found {value!r}")
    found: list[Sizes] = []
    problems = []
    for place, one in enumerate(value):
        last = found[-1].upto if found else 0
        by: Any = one
        upto: Any = one
        if isinstance(one, dict):
            by, upto = one.get("by"), one.get("upto")
        known = not isinstance(one, dict) or set(one) <= {"by", "upto"}
        if isinstance(by, int) and by > MOST_BY:
            message = f"expected a size of a captured batch up to {MOST_BY:,}, but found {one!r}"
            problems.append(Problem(message=message, path=f"[{place}]"))
        elif not known or not _counts(by) or (upto is not None and not _counts(upto)):
            problems.append(Problem(message=f"{_EXPECTED}, but found {one!r}", path=f"[{place}]"))
        elif last is None or (upto is not None and upto <= last):
            problems.append(Problem(message=f"{_EXPECTED}, but {one!r} comes too late", path=f"[{place}]"))
        else:
            found.append(Sizes(by=by, upto=upto))
    if problems:
        raise InputError(problems)
    return tuple(found)


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_TOKENS
