"""What lifting limits gave, as plain data: figures of the scenario as it is, and of each variant beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from clustersim.clock import NS_PER_MS
from clustersim.values import dataclass

GOODPUT: Final = "goodput.requests_per_s"
FINISHED: Final = "requests.finished"
"""Latencies are those of requests that finish: where a limit keeps some from it, this tells what they hide."""
METRICS: Final = {
    "ttft_ms.p50": ("TTFT p50 ms", -1),
    "ttft_ms.p99": ("TTFT p99 ms", -1),
    "tpot_ms.p50": ("TPOT p50 ms", -1),
    "tpot_ms.p99": ("TPOT p99 ms", -1),
    "throughput.output_tokens_per_s": ("output tokens/s", 1),
    GOODPUT: ("goodput /s", 1),
    FINISHED: ("finished", 1),
}
"""Key of a summary → what it is called, and whether more of it is better (1) or less (−1)."""
_LEAST: Final = 1e-6
"""Relative; what is nothing any more counts as so much, so that its logarithm is a number."""
ROOT: Final = 0.5
"""Share of the best gain (as logarithms) from which on that without faults comes first."""
BINDS: Final = 0.005
"""Relative gain in any metric from which on a limit binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """How much of a limit is enough, by replays.

    Parameters
    ----------
    words : str
        The least value that is, such as ``--set plan.dp=3``; empty where none was found.
    changes : tuple of str
        ``PATH=VALUE`` each, by which a scenario has it; empty where no value of the scenario gives it.
    metrics : mapping
        Key of ``METRICS`` → value with it; empty where none was found.
    falls_short : str
        The largest value that was tried and is too little; empty where only the scenario's own is known to be.
    """

    words: str
    changes: tuple[str, ...] = ()
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    falls_short: str = ""


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
    name : str
        What ``why --only`` calls it; empty where it never can be lifted.
    enough : Enough or None
        How much of it is enough; None where nothing is said.
    """

    limit: str
    key: str
    metrics: Mapping[str, float | None]
    gains: Mapping[str, float]
    why_not: str = ""
    name: str = ""
    enough: Enough | None = None

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
    limit: str, key: str, row: Mapping[str, Any], baseline: Mapping[str, Any], name: str = "", why_not: str = ""
) -> Lifted:
    """Return what a variant came to beside the scenario as it is."""
    reason = why_not or row["failed"] or ""
    metrics = {} if reason else {metric: row["numbers"].get(metric) for metric in METRICS}
    gains = {}
    for metric, value in metrics.items():
        before, (_, better) = baseline["numbers"].get(metric), METRICS[metric]
        if before and value is not None:
            gains[metric] = min(better * (value - before) / before, 1.0 - _LEAST if better < 0 else math.inf)
        elif value and better > 0:  # out of nothing
            gains[metric] = 1.0 / _LEAST
    return Lifted(limit=limit, key=key, metrics=metrics, gains=gains, why_not=reason, name=name)


def met(numbers: Mapping[str, Any], limits_ns: Mapping[str, float]) -> bool:
    """Return whether the p99 of every latency that has a target is within it.

    Parameters
    ----------
    numbers : mapping
        Dotted key of a summary → value.
    limits_ns : mapping
        Latency → target.
    """
    p99 = {name: numbers.get(f"{name}_ms.p99") for name in limits_ns}
    return all(value is not None and value * NS_PER_MS <= limits_ns[name] for name, value in p99.items())


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
