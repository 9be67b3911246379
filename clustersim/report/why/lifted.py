"""What lifting limits gave, as plain data: figures of the scenario as it is, and of each variant beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from clustersim.clock import NS_PER_MS

METRICS: Final = {
    "ttft_ms.p50": ("TTFT p50 ms", -1),
    "ttft_ms.p99": ("TTFT p99 ms", -1),
    "tpot_ms.p50": ("TPOT p50 ms", -1),
    "tpot_ms.p99": ("TPOT p99 ms", -1),
    "throughput.output_tokens_per_s": ("output tokens/s", 1),
    "goodput.requests_per_s": ("goodput /s", 1),
}
"""Key of a summary → what it is called, and whether more of it is better (1) or less (−1)."""
_LEAST: Final = 1e-6
"""Relative; what is nothing any more counts as so much, so that its logarithm is a number."""
ROOT: Final = 0.5
"""Share of the best gain (as logarithms) from which on that without faults comes first."""
BINDS: Final = 0.005
"""Relative gain in any metric from which on a limit binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """A limit, and what came out without it.

    Parameters
    ----------
    limit, key : str
    metrics : mapping
        Key of ``METRICS`` → value, None where it is not defined.
    gains : mapping
        Key → by how much better it is than the baseline, relative to that; below 0 where it is worse.
    why_not : str
        Why there is nothing; empty otherwise.
    suffices : str
        How much of it would do, in words; empty where that is not known.
    """

    limit: str
    key: str
    metrics: Mapping[str, float | None]
    gains: Mapping[str, float]
    why_not: str = ""
    suffices: str = ""

    @property
    def best(self) -> float:
        """The largest gain, as the logarithm of how many times better a figure is: a half is as much as a double."""
        times = (1.0 / (1.0 - gain) if METRICS[name][1] < 0 else 1.0 + gain for name, gain in self.gains.items())
        return max((math.log(one) for one in times if one > 0.0), default=0.0)

    @property
    def binds(self) -> bool:
        """Whether anything gets better without the limit."""
        return self.best >= BINDS


def lifted(
    limit: str, key: str, row: Mapping[str, Any], baseline: Mapping[str, Any], why_not: str = "", suffices: str = ""
) -> Lifted:
    """Return what a variant came to beside the scenario as it is."""
    reason = why_not or row["failed"] or ""
    metrics = {} if reason else {name: row["numbers"].get(name) for name in METRICS}
    gains = {}
    for name, value in metrics.items():
        before, (_, better) = baseline["numbers"].get(name), METRICS[name]
        if before and value is not None:
            gains[name] = min(better * (value - before) / before, 1.0 - _LEAST if better < 0 else math.inf)
    return Lifted(limit=limit, key=key, metrics=metrics, gains=gains, why_not=reason, suffices=suffices)


def misses(name: str, value: float | None, limits_ns: Mapping[str, float]) -> bool:
    """Return whether a metric is a latency's p99 above its target.

    Parameters
    ----------
    name : str
        Key of ``METRICS``.
    value : float or None
    limits_ns : mapping
        Latency → target.
    """
    latency, _, statistic = name.partition("_ms.")
    limit = limits_ns.get(latency) if statistic == "p99" else None
    return limit is not None and (value is None or value * NS_PER_MS > limit)


def ranked(found: Sequence[Lifted]) -> list[Lifted]:
    """Return limits by their largest gain, the largest first; those that can't be lifted last.

    Faults come before all where they are ``ROOT`` of what the best one gives: they are what is broken, and a network
    that is a thousand times as fast hides them, too.
    """
    most = max((one.best for one in found if not one.why_not), default=0.0)
    return sorted(
        found,
        key=lambda one: (bool(one.why_not), one.key != "faults" or one.best < max(ROOT * most, BINDS), -one.best),
    )
