"""How a notebook shows a result: a line, a table of latencies, and how they are distributed.

The picture is SVG in the colours of whoever shows it: it needs no script, no network, and works in light and in dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.report.metrics.latencies import Weighted, latencies_ns, weighted_percentile
from clustersim.report.words.headline import latency_table
from clustersim.report.words.run import remarks, setup_words
from clustersim.units import format_seconds

if TYPE_CHECKING:
    from clustersim.library.result import Result

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 350, 150, 40, 22, 20
_PERCENTS: Final = np.linspace(0, 100, 101)
_SHOWN: Final = {"ttft": "time to first token", "tpot": "time per output token"}
_MARKED: Final = (50, 99)


def result_html(result: Result) -> str:
    """Return what a notebook shows of a result."""
    name, verdict = escape(result.scenario.name), escape(result.verdict.verdict.replace("_", " "))
    if result.ran is None:
        from clustersim.library.result import violation_lines

        lines = "\n".join(violation_lines(result.scenario, result.verdict))
        return f"<b>{name}</b>: {verdict}, so it was not simulated<pre>{escape(lines)}</pre>"
    ran, summary = result.ran, result.summary
    found = latencies_ns(ran.columns, ran.token_gaps)
    said = "".join(f"<li>{escape(text)}</li>" for text in remarks(summary, ran.columns, ran.step_rows.rows))
    said += "".join(f"<li>expect: {escape(text)}</li>" for text in result.failures)
    counts = summary["requests"]
    return (
        f"<b>{name}</b>: {verdict}; {counts['finished']:,} of {counts['arrived']:,} requests finished<br>"
        f"<small>{escape(setup_words(summary))}</small>{latency_table(summary, found)}{_curves(found)}"
        + (f"<ul>{said}</ul>" if said else "")
    )


def _curves(found: Mapping[str, Weighted]) -> str:
    """Draw the share of requests within a latency, side by side."""
    drawn = [_curve(name, *found[name]) for name in _SHOWN if name in found and len(found[name][0])]
    return f'<div style="display:flex;flex-wrap:wrap;gap:1em">{"".join(drawn)}</div>'


def _curve(name: str, values: np.ndarray, weights: np.ndarray) -> str:
    points = weighted_percentile(values, weights, _PERCENTS)
    most = float(points[-1]) or 1.0
    wide, high = _WIDTH - _LEFT - 10, _HEIGHT - _TOP - _BOTTOM

    def place(value: float, percent: float) -> tuple[float, float]:
        return _LEFT + wide * value / most, _TOP + high * (1 - percent / 100)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points.tolist(), _PERCENTS.tolist()))
    marks = "".join(_mark(*place(float(points[percent]), percent), percent, points[percent]) for percent in _MARKED)
    right, floor = _LEFT + wide, _TOP + high
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" font-size="11" '
        f'fill="currentColor" font-family="sans-serif"><title>{name.upper()} of finished requests</title>'
        f'<text x="{_LEFT}" y="13">{name.upper()}: {_SHOWN[name]}</text>'
        f'<path d="M{_LEFT},{_TOP}V{floor}H{right}" fill="none" stroke="currentColor" opacity="0.4"/>'
        f'<text x="{_LEFT - 4}" y="{_TOP + 4}" text-anchor="end">100%</text>'
        f'<text x="{_LEFT - 4}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{right}" y="{floor + 14}" text-anchor="end">{format_seconds(most / NS_PER_S)}</text>'
        f'<polyline points="{line}" fill="none" stroke="#2a78d6" stroke-width="2"/>{marks}</svg>'
    )


def _mark(x: float, y: float, percent: int, value: float) -> str:
    anchor, gap = ("start", 6) if x < _WIDTH * 0.6 else ("end", -6)
    words = f"p{percent} {format_seconds(float(value) / NS_PER_S)}"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#2a78d6"/>'
        f'<text x="{x + gap:.1f}" y="{y + 13:.1f}" text-anchor="{anchor}">{words}</text>'
    )
