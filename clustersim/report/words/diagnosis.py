"""Why a percentile is bad, in one line: the cause that most of it went to, and the key that decides about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clustersim.report.words.run import share_words, target_lines
from clustersim.units import format_seconds

MOST: Final = 0.5
"""Share of a latency from which on a cause is what there is to say."""
STAND_OUT: Final = 2.0
"""So many times the median p99 is at least, unless a target is missed or most of all requests' time went so."""
WORK: Final = ("compute", "front_end")
"""Causes that are what was asked for, and no reason to complain."""

WORDS: Final = {
    "batch_wait": "waiting for a place in the batch",
    "blocks_wait": "waiting for K/V blocks",
    "budget_wait": "waiting for the token budget",
    "choice_wait": "waiting for the scheduler's choice",
    "step_wait": "waiting for a step under way",
    "stage_wait": "waiting for a stage",
    "replica_wait": "waiting for a dead replica",
    "hand_over": "waiting to be handed over",
    "transfer": "waiting for a transfer",
    "preempted": "preemption and recomputation",
    "interference": "prompts of other requests",
    "communication": "exposed communication",
    "host": "host time",
    "bubble": "bubble",
    "compute": "compute",
    "front_end": "the front end",
}
"""Cause in ``summary.json`` → how it is called in sentences, figures and tables."""


def diagnosis(summary: Mapping[str, Any]) -> str | None:
    """Return the line, None where no cause stands out.

    Of TTFT and TPOT that one whose target is missed, else that of which one cause has the larger share: of the slowest
    requests, or of all.

    Parameters
    ----------
    summary : mapping
        The object of ``summary.json``.
    """
    missed = {name for name, met, _ in target_lines(summary) if not met}
    found = []
    for name in ("ttft", "tpot"):
        causes, latency = (summary.get("causes") or {}).get(name), summary.get(f"{name}_ms")
        if not causes or not latency:
            continue
        stands_out = name in missed or latency["p99"] >= STAND_OUT * latency["p50"]
        for statistic, which in (("p99", "slowest"), ("mean", "mean")):
            cause, share = max(causes[which].items(), key=lambda one: one[1], default=("compute", 0.0))
            alike = cause in causes["mean"] and causes["mean"][cause] >= MOST
            if cause not in WORK and share >= MOST and (stands_out or alike):
                found.append((name in missed, statistic == "p99", share, name, statistic, cause))
    if not found:
        return None
    _, _, share, name, statistic, cause = max(found)
    value = format_seconds(summary[f"{name}_ms"][statistic] / 1e3)
    return f"{statistic} {name.upper()} {value}: {share_words(share)} {WORDS[cause]}{_because(cause, summary)}"


def _because(cause: str, summary: Mapping[str, Any]) -> str:
    """Return what decides about a cause, and what tells that it does."""
    serving = (summary.get("scenario") or {}).get("serving") or {}
    held = summary.get("kv_occupancy")
    full = f" while K/V is {share_words(held['max'])} full at most" if held else ""
    if cause == "batch_wait":
        if serving.get("scheduler") == "static":
            return f" (serving.scheduler is static){full}"
        return _key(serving, "max_batch_requests") + full
    if cause == "budget_wait":
        return _key(serving, "max_batch_tokens") + full
    if cause in ("blocks_wait", "preempted"):
        return f" ({summary['kv_blocks']:,} K/V blocks a replica)" if summary.get("kv_blocks") else ""
    if cause == "interference":
        return " in the same steps" + _key(serving, "max_batch_tokens")
    if cause in ("communication", "transfer"):
        return _busiest(summary.get("links") or {})
    return ""


def _busiest(links: Mapping[str, Any]) -> str:
    weak, busiest = links.get("weakened") or [], links.get("busiest") or []
    if weak:
        worst = max(weak, key=lambda one: float(one["utilisation"]))
        return f"; {worst['link']} has {share_words(worst['capacity'])} of its capacity, by faults"
    if not busiest:
        return ""
    return f"; the busiest link is {busiest[0]['link']}, {share_words(busiest[0]['utilisation'])} used"


def _key(serving: Mapping[str, Any], key: str) -> str:
    """Return a limit of the replicas where requests arrive, and the key that says it."""
    if key in serving:
        return f" ({serving[key]} = serving.{key})"
    own = serving.get("prefill") or {}
    return f" ({own[key]} = serving.prefill.{key})" if key in own else ""
