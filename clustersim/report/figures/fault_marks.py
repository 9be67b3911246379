"""When something failed or was slower, as shaded spans behind the figures over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import plotly.graph_objects as go

from clustersim.report.figures.style import TARGET, faded
from clustersim.units import UnitError, parse

MOST_LABELS: Final = 8
"""More faults than this are shaded without words: these would lie on each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMark:
    """What was wrong in [start, end), in seconds; an end of None is the end of the run."""

    label: str
    start_s: float
    end_s: float | None


def fault_marks(summary: Mapping[str, Any]) -> list[FaultMark]:
    """Return what a run's scenario declared under ``faults``, in order of time."""
    found = []
    for fault in summary.get("scenario", {}).get("faults") or ():
        until = fault.get("until")
        found.append(
            FaultMark(
                label=_label(fault),
                start_s=_seconds(fault["at"]),
                end_s=None if until is None else _seconds(until),
            )
        )
    return sorted(found, key=lambda mark: (mark.start_s, mark.label))


def add_fault_marks(
    figure: go.Figure, marks: list[FaultMark], end_s: float, *, above: bool = False, filled: bool = True
) -> None:
    """Shade a figure whose x axis is the time since the start of a run, which ended at ``end_s``.

    Words are within it, or ``above`` it, where they all have one line. What has a scale of colours is not ``filled``:
    it is framed, so that the colours stay those of the scale.
    """
    shown = [mark for mark in marks if mark.start_s < end_s]
    for number, mark in enumerate(shown):
        until = end_s if mark.end_s is None else min(mark.end_s, end_s)
        figure.add_shape(
            type="rect", xref="x", yref="paper", x0=mark.start_s, x1=until, y0=0, y1=1, layer="below",
            fillcolor=faded(TARGET, 0.07 if filled else 0.0),
            line={"width": 1, "color": faded(TARGET, 0.35), "dash": "dot"},
        )  # fmt: skip
        if len(shown) <= MOST_LABELS:
            figure.add_annotation(
                xref="x", yref="paper", x=mark.start_s, xanchor="left",
                y=1 if above else 1 - 0.05 * number, yanchor="bottom" if above else "top",
                text=escape(mark.label), showarrow=False, font={"size": 10, "color": TARGET}, xshift=2,
            )  # fmt: skip


def _seconds(written: Any) -> float:
    """Return an instant as a scenario writes it: a time with its unit, or 0."""
    try:
        return parse(written, "time")
    except UnitError:
        return float(written)


def _label(fault: Mapping[str, Any]) -> str:
    what = next(name for name in ("device", "node", "link") if fault.get(name) is not None)
    where = " – ".join(fault["link"]) if what == "link" else str(fault[what])
    if fault.get("slowdown"):
        return f"{what} {where} {fault['slowdown']:g} × slower"
    if fault.get("factor"):
        return f"{what} {where} at {fault['factor']:.0%}"
    return f"{what} {where} down"
