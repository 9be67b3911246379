"""The head of a dashboard: what was simulated, the numbers that decide, and what to be careful about."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from clustersim.clock import NS_PER_MS
from clustersim.report.metrics.experts import balance_words
from clustersim.report.metrics.latencies import (
    LATENCIES,
    Columns,
    Weighted,
    attainment,
    targets_ns,
)
from clustersim.report.metrics.priorities import priority_table
from clustersim.report.metrics.service import goodput
from clustersim.report.words.diagnosis import diagnoses
from clustersim.report.words.run import configuration, fullest, milliseconds, number, remarks, share_words, target_lines
from clustersim.report.words.service import met_words, share_or_dash
from clustersim.scenario.confidence import confidence_words
from clustersim.units import format_seconds, format_share

_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_NOTE: Final = (
    "TTFT: arrival to first token. TPOT: mean time per further token of a request. ITL: every gap between "
    "two tokens. E2E: arrival to last token. Finished requests only."
)
_TARGET_NOTE: Final = " A target is met when p99 is within it."


def headline_html(summary: Mapping[str, Any], requests: Columns, steps: Columns, found: Mapping[str, Weighted]) -> str:
    """Return tiles, the table of latencies, the configuration and the remarks, as HTML.

    Parameters
    ----------
    summary : mapping
        The object of ``summary.json``.
    requests, steps : Columns
        The tables of the run.
    found : mapping
        Latency name → (values in ns, weights).
    """
    return (
        f"{_tiles(summary, requests)}"
        f'<div class="tables"><div class="table-card">{latency_table(summary, found)}{priority_table(summary)}</div>'
        f'<div class="table-card">{_configuration(summary)}</div></div>'
        f"{_remarks([*(f'Cause: {line}.' for line in diagnoses(summary)), *remarks(summary, requests, steps)])}"
    )


def _tiles(summary: Mapping[str, Any], requests: Columns) -> str:
    counts, rates = summary["requests"], summary["throughput"]
    limits = targets_ns(summary.get("targets"))
    total, finished = number(rates["total_tokens_per_s"]), f"{counts['finished']:,} of {counts['arrived']:,}"
    tiles = [
        ("output tokens / s", number(rates["output_tokens_per_s"]), f"{total} with prompts"),
        ("requests / s", number(rates["requests_per_s"], 3), f"{finished} finished"),
    ]
    if limits:
        good = goodput(requests, limits) or {}
        met = good.get("share")
        share = "–" if met is None else format_share(met)
        tiles.append(("goodput, requests / s", number(good.get("requests_per_s"), 3), f"{share} {met_words(limits)}"))
    for name in ("ttft", "tpot", "e2e"):
        latency = summary.get(f"{name}_ms")
        if latency:
            p50, p99 = (format_seconds(latency[key] / 1e3) for key in ("p50", "p99"))
            tiles.append((f"{name.upper()}, median", p50, f"p99 {p99}"))
    held = fullest(summary)
    if held:
        name, peak = max(held, key=lambda one: one[1])
        others = "".join(f"; {other} {share_words(share)}" for other, share in held if other != name)
        whose = f"of a {name} replica's blocks" if name else "of a replica's blocks"
        tiles.append(("K/V cache, peak", share_words(peak), f"{whose}{others}"))
    cache = summary.get("prefix_cache") or {}
    if cache.get("hit_rate") is not None:
        tiles.append(("prefix cache, hit rate", share_words(cache["hit_rate"]), "of prompt tokens"))
    used = summary.get("utilisation")
    if used:
        rest = f"MBU {share_or_dash(used['mbu'])}, computing {share_words(used['compute'])} of the time"
        tiles.append(("MFU", share_or_dash(used["mfu"]), rest))
        exposed = share_words(used["exposed_communication"])
        tiles.append(("exposed communication", exposed, f"of the time; bubble {share_words(used['bubble'])}"))
    uneven = summary.get("experts")
    if uneven and balance_words(uneven):
        most = uneven["imbalance"]
        tiles.append(
            ("most visited EP rank", f"{most['mean']:.2f} ×", f"the mean; at most {most['max']:.2f} × in a layer")
        )
    makespan = summary.get("makespan_s")
    lasted = "–" if makespan is None else format_seconds(makespan)
    tiles.append(("makespan", lasted, "first arrival to last token"))
    return f'<div class="tiles" style="--columns:{-(-len(tiles) // 2)}">{"".join(_tile(*tile) for tile in tiles)}</div>'


def _tile(what: str, value: str, more: str) -> str:
    unbroken = escape(what).replace(" / ", "&nbsp;/&nbsp;")
    return (
        f'<div class="tile"><div class="what">{unbroken}</div><div class="value">{escape(value)}</div>'
        f'<div class="more">{escape(more)}</div></div>'
    )


def latency_table(summary: Mapping[str, Any], found: Mapping[str, Weighted]) -> str:
    """Return the statistics of every latency, with its target where there is one, as an HTML table."""
    limits = targets_ns(summary.get("targets"))
    verdicts = {name: met for name, met, _ in target_lines(summary)}
    head = "".join(f"<th>{name}</th>" for name in _STATISTICS)
    head += "<th>target</th><th>within it</th><th>verdict</th>" if limits else ""
    rows = []
    for name, meaning in LATENCIES.items():
        latency = summary.get(f"{name}_ms")
        if latency is None and name not in limits:
            continue
        cells = "".join(f"<td>{milliseconds((latency or {}).get(key))}</td>" for key in _STATISTICS)
        if limits:
            cells += _target_cells(name, limits, verdicts, found)
        rows.append(f'<tr><th scope="row"><abbr title="{meaning}">{name.upper()}</abbr></th>{cells}</tr>')
    return (
        f"<h3>Latencies (ms)</h3><table{' class=judged' if limits else ''}><thead><tr><th></th>{head}</tr></thead>"
        f'<tbody>{"".join(rows)}</tbody></table><p class="note">{_NOTE}{_TARGET_NOTE if limits else ""}</p>'
    )


def _target_cells(
    name: str, limits: Mapping[str, float], verdicts: Mapping[str, bool], found: Mapping[str, Weighted]
) -> str:
    if name not in limits:
        return "<td></td><td></td><td></td>"
    share = format_share(attainment(*found[name], limits[name])) if name in found else "–"
    verdict = '<td class="met">met</td>' if verdicts[name] else '<td class="missed">missed</td>'
    return f"<td>{milliseconds(limits[name] / NS_PER_MS)}</td><td>{share}</td>{verdict}"


def _configuration(summary: Mapping[str, Any]) -> str:
    pairs = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in configuration(summary)
    )
    told = confidence_words(summary.get("confidence"))
    note = f'<p class="note">Confidence: {escape(told)}.</p>' if told else ""
    return f'<h3>What was simulated</h3><dl class="pairs">{pairs}</dl>{note}'


def _remarks(found: list[str]) -> str:
    if not found:
        return ""
    return f'<ul class="remarks">{"".join(f"<li>{escape(text)}</li>" for text in found)}</ul>'
