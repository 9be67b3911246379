"""What the figures of a sweep are drawn from: keys that vary, and a row of numbers per run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clustersim.values import dataclass

_LOADS: Final = ("rate", "rate_scale", "concurrency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A sweep, as plain data.

    Parameters
    ----------
    name : str
    varied : mapping
        Key that varies → its values, as they are written.
    numbers : sequence of mappings
        Of each run, by dotted key of the summary; empty where it failed.
    chosen : sequence of tuple of str
        The values of each run, in order of the keys that vary.
    failed : sequence of str or None
    commands : sequence of str
        What simulates each run again.
    targets : mapping
        Latency in lower case → its target in ms.
    """

    name: str
    varied: Mapping[str, Sequence[str]]
    numbers: Sequence[Mapping[str, Any]]
    chosen: Sequence[Sequence[str]]
    failed: Sequence[str | None]
    commands: Sequence[str]
    targets: Mapping[str, float]

    @property
    def simulated(self) -> list[int]:
        """Runs that have numbers."""
        return [run for run, numbers in enumerate(self.numbers) if numbers]

    def number(self, run: int, key: str) -> float:
        """Return a number of a run; NaN where it has none."""
        value = self.numbers[run].get(key)
        return math.nan if value is None else float(value)

    def there(self, keys: Sequence[str], runs: Sequence[int]) -> list[str]:
        """Return those numbers that one of some runs has."""
        return [key for key in keys if any(not math.isnan(self.number(run, key)) for run in runs)]

    def words(self, run: int, without: Sequence[str] = ()) -> str:
        """Return what a run has in place of the others: ``tp 4, rate 2/s``."""
        told = zip(self.varied, self.chosen[run], strict=True)
        return ", ".join(f"{short(key)} {value}" for key, value in told if key not in without)

    def wide(self) -> list[str]:
        """Return the keys with more than one value."""
        return [key for key, values in self.varied.items() if len(values) > 1]

    def along(self) -> str | None:
        """Return the key that moves along a line: a rate, else the last one whose values are numbers."""
        wide = self.wide()
        loads = [key for key in wide if key.rpartition(".")[2] in _LOADS]
        return next(
            iter([*loads, *(key for key in reversed(wide) if not math.isnan(leading(self.varied[key][0])))]), None
        )


def short(key: str) -> str:
    """Return the last word of a dotted key."""
    return key.rpartition(".")[2]


def leading(text: str) -> float:
    """Return the number that a value begins with; NaN where it does not."""
    head = ""
    for sign in text.strip():
        if not (sign.isdecimal() or sign in "+-.eE"):
            break
        head += sign
    try:
        return float(head)
    except ValueError:
        return math.nan


_LOST: Final = ("rejected", "unfinished", "cancelled", "lost")


def is_better_low(key: str) -> bool:
    """Whether less of a number is better: of latencies, times, energy, money, devices and what is lost or idle."""
    first, last = key.partition(".")[0], key.rpartition(".")[2]
    return (
        (first.endswith(("_ms", "_s")) and "per_s" not in first)
        or first in ("energy", "cost", "devices", "preemptions", "steps")
        or last in _LOST
        or last.startswith(("bubble", "exposed", "idle"))
    )
