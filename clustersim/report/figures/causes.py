"""The figure of what latencies went to: a bar of shares for the mean, and one for the slowest requests, of each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from clustersim.report.figures.figure import Figure
from clustersim.report.figures.style import BLUE, GREEN, ORANGE, PINK, TARGET, YELLOW, template
from clustersim.report.words.diagnosis import WORDS

COLOURS: Final = {
    "front_end": "#c7ced6",
    "batch_wait": ORANGE,
    "blocks_wait": "#B3261E",
    "budget_wait": "#F0B37E",
    "choice_wait": "#8C564B",
    "step_wait": "#9AA5B1",
    "stage_wait": "#6B7785",
    "replica_wait": "#1b2733",
    "hand_over": "#B39DDB",
    "transfer": "#7E57C2",
    "preempted": PINK,
    "interference": "#56B4E9",
    "communication": GREEN,
    "host": YELLOW,
    "bubble": "#D9DFE5",
    "compute": BLUE,
}
"""Cause in ``summary.json`` → its colour: what was waited for is warm or grey, what was got blue and green."""
FAULTS: Final = "faults"
_ROWS: Final = (("mean", "all requests"), ("slowest", "slowest 1%"))


def causes_figure(causes: Mapping[str, Any], height: int, by_faults: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw which share of each latency each cause has.

    Parameters
    ----------
    causes : mapping
        ``causes`` of ``summary.json``.
    height : int
        Pixels.
    by_faults : mapping
        Latency that faults are to blame for → share of its p99 that is gone without them, and p99 in ms.
    """
    rows = [
        (f"{name.upper()}, {words}", found[which], found[f"{which}_ms"])
        for name, found in causes.items()
        if found
        for which, words in _ROWS
    ]
    rows = [(f"{name.upper()}, p99", {FAULTS: share}, p99) for name, (share, p99) in by_faults.items()] + rows
    figure = Figure(
        layout={
            "template": template(),
            "height": height,
            "barmode": "stack",
            "hovermode": "closest",
            "xaxis": {"range": [0, 1], "tickformat": ".0%", "title": {"text": "share of the latency"}},
            "yaxis": {"autorange": "reversed", "type": "category"},
            "legend": {"traceorder": "normal"},
        }
    )
    words = {FAULTS: "faults: gone without them", **WORDS}
    for cause, colour in {FAULTS: TARGET, **COLOURS}.items():
        if any(shares.get(cause) for _, shares, _ in rows):
            figure.add_bar(
                orientation="h",
                y=[label for label, _, _ in rows],
                x=[shares.get(cause, 0.0) for _, shares, _ in rows],
                customdata=[shares.get(cause, 0.0) * whole for _, shares, whole in rows],
                name=escape(words[cause]),
                marker={"color": colour, "pattern": {"shape": "/" * (cause == FAULTS)}},
                hovertemplate=f"%{{y}}: %{{x:.1%}} {escape(words[cause])}, %{{customdata:,.2f}} ms<extra></extra>",
            )
    return figure
