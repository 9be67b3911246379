"""Why a percentile is bad, in a line: the cause that most of it went to, and the key that decides about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clustersim.report.words.faults import and_then, fault_words, is_blamed, little_by_faults, share_of_faults
from clustersim.report.words.run import fullest, share_words, target_lines
from clustersim.units import format_seconds

MOST: Final = 0.5
"""Share of a latency from which on a cause is what there is to say."""
STAND_OUT: Final = 2.0
"""So many times the median p99 is at least, unless a target is missed or most of all requests' time went so."""
SHOWN: Final = 3
LEAST: Final = 0.02
"""Share of a latency from which on a cause is named."""
WORK: Final = ("compute", "front_end")
"""Causes that are what was asked for, and no reason to complain."""

_POOLS: Final = ("prefill", "decode")
MEMORY: Final = "more memory_utilization, more devices or another plan is needed: memory holds"
LEFT_OUT: Final = "without the key there are as many as memory holds,"

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


def diagnoses(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for TTFT and for TPOT where their target is missed and one cause stands out.

    Faults come first where the same requests without them show that they are the reason
    (:func:`clustersim.report.words.faults.blamed`): what requests waited for follows from them then. Without targets,
    one line of that of the two of which one cause has the larger share: of the slowest requests, or of all. Nothing
    where every target is met.

    Parameters
    ----------
    summary : mapping
        The object of ``summary.json``.
    """
    verdicts = {name: met for name, met, _ in target_lines(summary)}
    found: dict[str, list[tuple[bool, float, str, str]]] = {}
    by_faults: dict[str, str] = {}
    for name in ("ttft", "tpot"):
        causes, latency = (summary.get("causes") or {}).get(name), summary.get(f"{name}_ms")
        missed = verdicts.get(name) is False
        if not causes or not latency or (verdicts and not missed):
            continue
        if is_blamed(summary, name):
            by_faults[name] = f"{fault_words(summary, name)}; {and_then(summary, name)}: {_largest(causes['slowest'])}"
            continue
        stands_out = missed or latency["p99"] >= STAND_OUT * latency["p50"]
        for statistic, which in (("p99", "slowest"), ("mean", "mean")):
            cause, share = max(causes[which].items(), key=lambda one: one[1], default=("compute", 0.0))
            alike = cause in causes["mean"] and causes["mean"][cause] >= MOST
            if cause not in WORK and share >= MOST and (stands_out or alike):
                found.setdefault(name, []).append((statistic == "p99", share, statistic, cause))
    most = {name: max(some) for name, some in found.items()}
    if not verdicts and by_faults:
        name = max(by_faults, key=lambda one: share_of_faults(summary, one) or 0.0)
        by_faults, most = {name: by_faults[name]}, {}
    elif not verdicts and most:
        name = max(most, key=lambda one: most[one])
        most = {name: most[name]}
    lines = by_faults | {
        name: f"{statistic} {name.upper()} {format_seconds(summary[f'{name}_ms'][statistic] / 1e3)}: "
        f"{share_words(share)} {WORDS[cause]}{_because(cause, summary)}{little_by_faults(summary, name)}"
        for name, (_, share, statistic, cause) in most.items()
    }
    return [lines[name] for name in ("ttft", "tpot") if name in lines]


def _largest(shares: Mapping[str, float]) -> str:
    """Return the largest shares of the time of the slowest requests."""
    ranked = sorted(((share, cause) for cause, share in shares.items()), reverse=True)[:SHOWN]
    return ", ".join(f"{share_words(share)} {WORDS[cause]}" for share, cause in ranked if share >= LEAST)


def _because(cause: str, summary: Mapping[str, Any]) -> str:
    """Return what decides about a cause, and what tells that it does."""
    serving = (summary.get("scenario") or {}).get("serving") or {}
    full = ""
    for name, share in fullest(summary)[:1]:
        full = f" while K/V of a {f'{name} ' if name else ''}replica is {share_words(share)} full at most"
    if cause == "batch_wait":
        if serving.get("scheduler") == "static":
            return f" (serving.scheduler is static){full}"
        return _batch(serving, summary) + full + _network(summary)
    if cause == "budget_wait":
        return _key(serving, "max_batch_tokens") + full + _network(summary)
    if cause in ("blocks_wait", "preempted"):
        return _blocks(serving, summary)
    if cause == "interference":
        return " in the same steps" + _key(serving, "max_batch_tokens") + _network(summary)
    if cause in ("communication", "transfer"):
        return _busiest(summary.get("links") or {})
    return ""


def _batch(serving: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the cap on the batch, and with which nobody waits for a place: it was replayed."""
    key, enough = _key(serving, "max_batch_requests"), summary.get("enough_batch")
    if not enough or not key:
        return key
    name = key[2:-1].split(" = ")[-1]
    return f"{key[:-1]}; with {name}={enough['max_batch_requests']} nobody waits for one: {_p99(enough)})"


def _p99(latencies: Mapping[str, Any]) -> str:
    """Return p99 of TTFT and of TPOT in words."""
    return ", ".join(
        f"p99 {name.upper()} is {format_seconds(latencies[f'{name}_ms']['p99'] / 1e3)}"
        for name in ("ttft", "tpot")
        if latencies[f"{name}_ms"]
    )


def _blocks(serving: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return how many K/V blocks there are, by which key, and with how many nobody waits: these were replayed."""
    blocks, enough = summary.get("kv_blocks"), summary.get("enough_blocks")
    said = bool(serving.get("kv_blocks")) or any((serving.get(pool) or {}).get("kv_blocks") for pool in _POOLS)
    if not blocks and not said:
        return ""
    key = _key(serving, "kv_blocks")[2:-1] if said else f"{blocks:,} blocks a replica, by serving.memory_utilization"
    if not enough:
        return f" ({key})" if key else ""
    many = enough["kv_blocks"]
    named = zip(_POOLS, many, strict=True) if len(many) > 1 else [("", many[0])]
    told = " and ".join(f"serving.{f'{pool}.' if pool else ''}kv_blocks={some}" for pool, some in named)
    room = enough["memory_blocks"]
    more = any(some > most for some, most in zip(many, room, strict=True))
    lead = MEMORY if more else LEFT_OUT if said else ""
    held = f"; {lead} {' and '.join(f'{most:,}' for most in room)}" if lead else ""
    return f" ({key + '; ' if key else ''}with {told} nobody waits for them: {_p99(enough)}{held})"


def _network(summary: Mapping[str, Any]) -> str:
    """Return that devices wait for links more than they compute, where that is what makes steps long."""
    used = summary.get("utilisation") or {}
    exposed = used.get("exposed_communication") or 0.0
    if exposed <= (used.get("compute") or 0.0):
        return ""
    return f"; devices are {share_words(exposed)} in exposed communication{_busiest(summary.get('links') or {})}"


def _busiest(links: Mapping[str, Any]) -> str:
    weak, busiest = links.get("weakened") or [], links.get("busiest") or []
    if weak:
        worst = max(weak, key=lambda one: float(one["utilisation"]))
        return f"; {worst['link']} had {share_words(worst['capacity'])} of its capacity in the mean, by faults"
    if not busiest:
        return ""
    return f"; the busiest link is {busiest[0]['link']}, {share_words(busiest[0]['utilisation'])} used"


def _key(serving: Mapping[str, Any], key: str) -> str:
    """Return a limit of the replicas where requests arrive, and the key that says it."""
    if key in serving:
        return f" ({serving[key]} = serving.{key})"
    own = serving.get("prefill") or {}
    return f" ({own[key]} = serving.prefill.{key})" if key in own else ""
