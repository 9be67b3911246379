"""How much is drawn at random: what shows a mistake soon, and with ``pytest --long`` many times as much.

``tests/conftest.py`` sets the factor before it loads any module of tests.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

factor = 1


def set_factor(times: int) -> None:
    """Take ``times`` as many examples from now on, the same ones in every run and on slow machines too."""
    global factor
    factor = times
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile(
        "clustersim", max_examples=times * 50, deadline=None, derandomize=True, print_blob=True,
        suppress_health_check=slow,
    )  # fmt: skip
    settings.load_profile("clustersim")


def times(few: int) -> int:
    """Return how many of something to try where ``few`` are enough for a change."""
    return few * factor


def examples(few: int, *, sieved: bool = False) -> settings:
    """Return the settings of a law that draws ``few`` examples; ``sieved`` where it throws most of its draws away."""
    return settings(max_examples=times(few), **({"suppress_health_check": list(HealthCheck)} if sieved else {}))


def is_long() -> bool:
    """Return whether everything is to be tried of what a sample is taken from."""
    return factor > 1
