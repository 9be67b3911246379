"""How much is drawn at random: a quarter of what a change needs, all of it with ``pytest --long=1``, at night more.

``tests/conftest.py`` sets the factor before it loads any module of tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")
PLAIN: Final = 1 / 4
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


def times(few: int) -> int:
    """Return how many of something to try where ``few`` are enough for whoever changes what is tested."""
    return math.ceil(few * factor)


def examples(few: int, *, sieved: bool = False) -> settings:
    """Return the settings of a law that draws ``few`` examples; ``sieved`` where it throws most of its draws away."""
    return settings(max_examples=times(few), **({"suppress_health_check": list(HealthCheck)} if sieved else {}))


def some(every: Sequence[T]) -> Sequence[T]:
    """Return a part of what a law holds for, one in four but at least one, and all of it with ``--long=1``."""
    return every[:: max(1, round(1 / factor))]


def is_long() -> bool:
    """Return whether everything is to be tried of what a sample is taken from."""
    return factor > 1
