"""What faults are to blame for, in words: by how much the same requests without them were better."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from typing import Any, Final

from clustersim.clock import NS_PER_MS
from clustersim.report.metrics.latencies import targets_ns
from clustersim.report.words.run import share_words
from clustersim.units import format_seconds, plural

LEADS: Final = 0.3
"""Share of p99 that is gone without faults from which on they come before all else."""
DECIDES: Final = 0.05
"""The same where a target is missed with them, and met without."""
SOME: Final = 0.1
"""Share of what all faults took from replicas from which on one of them is named."""


def share_of_faults(summary: Mapping[str, Any], name: str) -> float | None:
    """Return which share of p99 of a latency is gone without faults, below 0 where it is worse; None: not known."""
    latency, without = summary.get(f"{name}_ms"), (summary.get("without_faults") or {}).get(f"{name}_ms")
    return 1.0 - without["p99"] / latency["p99"] if latency and without and latency["p99"] else None


def is_blamed(summary: Mapping[str, Any], name: str) -> bool:
    """Return whether faults are the reason for p99 of a latency, as far as the same requests without them tell.

    They are where much of it is gone without them (``LEADS``), or some of it, by which a target is met.
    """
    share = share_of_faults(summary, name)
    if share is None:
        return False
    limit = targets_ns(summary.get("targets")).get(name)
    without = summary["without_faults"][f"{name}_ms"]["p99"] * NS_PER_MS
    decides = limit is not None and without <= limit < summary[f"{name}_ms"]["p99"] * NS_PER_MS
    return share >= (DECIDES if decides else LEADS)


def and_then(summary: Mapping[str, Any], name: str) -> str:
    """Return how the causes of a latency go on where faults are blamed: they follow only from what is much of it."""
    return "from which follows" if (share_of_faults(summary, name) or 0.0) >= LEADS else "as a whole it is"


def fault_words(summary: Mapping[str, Any], name: str) -> str:
    """Return which share of p99 faults are to blame for, which, and what it is without them."""
    share, told = share_of_faults(summary, name), summary["without_faults"]
    assert share is not None
    p99, without = (format_seconds(one[f"{name}_ms"]["p99"] / 1e3) for one in (summary, told))
    faults = [one for one in told["faults"] if one["lost_s"] > 0.0] or told["faults"]
    total = fsum(one["lost_s"] for one in faults)
    named = [one for one in faults if one["lost_s"] >= SOME * total][:2]
    words = " and ".join(map(_words, named))
    if others := len(told["faults"]) - len(named):
        words += f" and {plural(others, 'more fault')}"
    it = "it" if len(told["faults"]) == 1 else "them"
    longer = next((one["share"] for one in named if one["share"]), None)
    passes = f"; passes that it slows take {1.0 / (1.0 - longer):.3g} times as long" if longer else ""
    return f"p99 {name.upper()} {p99}: {share_words(share)} since {words}; without {it} {without}{passes}"


def _words(fault: Mapping[str, Any]) -> str:
    until = "" if fault["until_s"] is None else f" to {format_seconds(fault['until_s'])}"
    when = f", from {format_seconds(fault['at_s'])}{until}" if until or fault["at_s"] else ""
    return f"{fault['name']} {fault['what']} ({fault['key']}{when})"


def little_by_faults(summary: Mapping[str, Any], name: str) -> str:
    """Return what faults have to do with a latency whose reason they are not; nothing where that is not known."""
    share = share_of_faults(summary, name)
    if share is None:
        return ""
    without = format_seconds(summary["without_faults"][f"{name}_ms"]["p99"] / 1e3)
    how = "faults hardly matter" if share < DECIDES else f"{share_words(share)} of p99 by faults"
    return f"; {how}: {without} without them"
