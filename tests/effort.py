"""How much is drawn at random: a sixteenth of what a change needs, all of it with ``pytest --long=1``, at night more.

``tests/conftest.py`` sets the factor before it loads any module of tests.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
PLAIN: Final = 1 / 16
"""Of a plain ``pytest``, which everybody waits for: the mutations that it must catch don't depend on it."""
factor: float = PLAIN


def set_factor(times: float) -> None:
    """Take ``times`` as many examples from now on, the same ones in every run and on slow machines too."""
    global factor
    factor = times
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile(
        "clustersim", max_examples=math.ceil(factor * 50), deadline=None, derandomize=True, print_blob=True,
        suppress_health_check=slow,
    )  # fmt: skip
    settings.load_profile("clustersim")
    # Otherwise hypothesis parses 900 modules in each process, to draw their constants: other ones after each change.
    providers.is_local_module_file = lambda _: False


def times(few: int) -> int:
    """Return how many of something to try where ``few`` are enough for whoever changes what is tested."""
    return math.ceil(few * factor)


def examples(few: int, *, sieved: bool = False) -> settings:
    """Return the settings of a law that draws ``few`` examples; ``sieved`` where it throws most of its draws away."""
    return settings(max_examples=times(few), **({"suppress_health_check": list(HealthCheck)} if sieved else {}))


def some(every: Sequence[T]) -> Sequence[T]:
    """Return a part of what a law holds for, one in eight but at least one, and all of it with ``--long=1``."""
    return every[:: 1 if is_whole() else 8]


def each_in_one(found: Mapping[str, Iterable[K]]) -> dict[str, list[K]]:
    """Return of each case what no case before it has, and with ``--long=1`` all that it has."""
    seen: set[K] = set()
    tried: dict[str, list[K]] = {}
    for case, kinds in found.items():
        tried[case] = [kind for kind in kinds if kind not in seen]
        seen |= set() if is_whole() else set(kinds)
    return tried


def crossed(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return so many cases of a product that each two values of two axes meet, and with ``--long=1`` all of them."""
    every = list(product(*axes))
    if is_whole():
        return every
    places = list(product(*(range(len(axis)) for axis in axes)))
    pairs = [frozenset(combinations(enumerate(place), 2)) for place in places]
    missing, found = frozenset[Any]().union(*pairs), []
    while missing:
        best = max(range(len(every)), key=lambda at: len(pairs[at] & missing))
        missing -= pairs[best]
        found.append(every[best])
    return found


def dealt(rows: Iterable[K], columns: Sequence[T]) -> list[tuple[K, T]]:
    """Return each row with one of the columns, which take turns, and with ``--long=1`` with all of them."""
    if is_whole():
        return list(product(rows, columns))
    return [(row, columns[at % len(columns)]) for at, row in enumerate(rows)]


def is_whole() -> bool:
    """Return whether all is tried that a change of what is tested needs."""
    return factor >= 1


def is_long() -> bool:
    """Return whether everything is to be tried of what a sample is taken from."""
    return factor > 1
