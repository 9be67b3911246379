"""What a summary measures of users, devices, energy and cost, in a few lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.report.metrics.experts import balance_words
from clustersim.report.words.run import number, share_words
from clustersim.units import format_share, plural


def service_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (what, words) pairs; words are empty where nothing is known."""
    return [
        ("per user", _users(summary.get("user_tokens_per_s"))),
        ("goodput", _goodput(summary.get("goodput"), summary.get("targets") or {})),
        ("devices", _devices(summary.get("utilisation"))),
        *_pools(summary.get("utilisation")),
        ("experts", balance_words(summary.get("experts"))),
        ("links", _links(summary.get("links"))),
        ("energy", _energy(summary.get("energy"))),
        ("cost", _cost(summary.get("cost"))),
    ]


def share_or_dash(share: float | None) -> str:
    """Write a share in percent, or a dash where it is not known."""
    return "–" if share is None else share_words(share)


def _users(rates: Mapping[str, float] | None) -> str:
    if not rates:
        return ""
    return f"{number(rates['p50'], 3)} output tokens/s in the median, nine in ten at least {number(rates['p10'], 3)}"


def _goodput(good: Mapping[str, Any] | None, targets: Mapping[str, Any]) -> str:
    if not good or good["share"] is None:
        return ""
    return f"{number(good['requests_per_s'])} requests/s, {format_share(good['share'])} of all, {met_words(targets)}"


def met_words(targets: Mapping[str, Any]) -> str:
    """Say what requests that count as goodput met: gaps are pooled over requests, so that none has an ITL."""
    asked = [name for name, limit in targets.items() if limit is not None]
    if "itl" not in asked:
        return "met every target"
    return "met every target but ITL's" if len(asked) > 1 else "finished (a request has no ITL of its own)"


def _devices(found: Mapping[str, Any] | None) -> str:
    if not found:
        return ""
    parts = [
        f"MFU {share_or_dash(found['mfu'])}",
        f"MBU {share_or_dash(found['mbu'])}",
        f"{share_words(found['compute'])} of the time computing",
    ]
    if found["communication"]:
        parts.append(f"{share_words(found['exposed_communication'])} in exposed communication")
    if found["bubble"] > 0:
        parts.append(f"bubble {share_words(found['bubble'])}")
    return ", ".join(parts)


def _pools(found: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    return [(f"· {name}", _devices(used)) for name, used in (found or {}).get("pools", {}).items()]


def _links(found: Mapping[str, Any] | None) -> str:
    if not found or not found["busiest"]:
        return ""
    link, weak = found["busiest"][0], found.get("weakened") or []
    words = f"busiest {share_words(link['utilisation'])} used ({link['link']})"
    if weak:
        worst = max(weak, key=lambda one: float(one["utilisation"]))
        capacity, used = share_words(worst["capacity"]), share_words(worst["utilisation"])
        left = f"had {capacity} of its capacity in the mean, {used} of that used"
        words += f"; {plural(len(weak), 'link')} weakened by faults ({worst['link']} {left})"
    return words


def _energy(found: Mapping[str, Any] | None) -> str:
    if not found or found["joules_per_output_token"] is None:
        return ""
    idle = f"; idle power assumed {number(found['idle_device_w'], 3)} W" if found["idle_assumed"] else ""
    mean = f"{number(found['mean_device_w'], 3)} W per device"
    return f"{number(found['joules_per_output_token'], 3)} J per generated token ({mean}{idle})"


def _cost(found: Mapping[str, Any] | None) -> str:
    if not found or found["usd_per_million_output_tokens"] is None:
        return ""
    return f"{number(found['usd_per_million_output_tokens'], 3)} USD per million generated tokens"
