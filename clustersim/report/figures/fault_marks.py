"""When something failed or was slower: spans behind figures over time, and frames around the rows it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from html import escape
from typing import Any, Final

import numpy as np

from clustersim.report.figures.figure import Figure
from clustersim.report.figures.style import TARGET, faded
from clustersim.units import UnitError, parse
from clustersim.values import dataclass

MOST_LABELS: Final = 8
"""More faults than this are shaded without words: these would lie on each other."""
_LINE: Final = 12
"""Pixels of a line of words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMark:
    """What was wrong in [start, end), in seconds; an end of None is the end of the run.

    ``number`` is its place under ``faults``.
    """

    label: str
    start_s: float
    end_s: float | None
    number: int = field(default=0, compare=False)


def fault_marks(summary: Mapping[str, Any]) -> list[FaultMark]:
    """Return what a run's scenario declared under ``faults``, in order of time."""
    found = []
    for number, fault in enumerate(summary.get("scenario", {}).get("faults") or ()):
        until = fault.get("until")
        found.append(
            FaultMark(
                label=_label(fault),
                start_s=_seconds(fault["at"]),
                end_s=None if until is None else _seconds(until),
                number=number,
            )
        )
    return sorted(found, key=lambda mark: (mark.start_s, mark.label))


def add_fault_marks(figure: Figure, marks: list[FaultMark], end_s: float, *, above: bool = False) -> None:
    """Shade a figure whose x axis is the time since the start of a run, which ended at ``end_s``.

    Words are within it, or ``above`` it, a line for each fault.
    """
    shown = _in_time(marks, end_s)
    for number, (mark, until) in enumerate(shown):
        figure.add_shape(
            type="rect", xref="x", yref="paper", x0=mark.start_s, x1=until, y0=0, y1=1, layer="below",
            fillcolor=faded(TARGET, 0.07), line={"width": 1, "color": faded(TARGET, 0.35), "dash": "dot"},
        )  # fmt: skip
        if len(shown) <= MOST_LABELS:
            _add_words(figure, mark, yref="paper", y=1, yanchor="bottom" if above else "top",
                       yshift=number * _LINE * (1 if above else -1))  # fmt: skip
    if above and len(shown) <= MOST_LABELS:
        _make_room(figure, len(shown))


def add_fault_frames(
    figure: Figure, marks: list[FaultMark], end_s: float, rows_of: Callable[[int], Sequence[int]]
) -> None:
    """Frame the rows that each fault concerns, for as long as it lasts; what is in them keeps its colours.

    Parameters
    ----------
    figure : Figure
        Rows downwards, each from its number − 0.5 to its number + 0.5.
    marks : list of FaultMark
    end_s : float
        Where the run ends.
    rows_of : callable
        From the place of a fault under ``faults`` to its rows, in order; rows side by side have one frame.
    """
    words: dict[int, int] = {}
    shown = [(mark, until, rows_of(mark.number)) for mark, until in _in_time(marks, end_s)]
    for mark, until, rows in shown:
        blocks = np.split(np.asarray(rows), np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
        for block in blocks:
            figure.add_shape(
                type="rect", xref="x", yref="y", x0=mark.start_s, x1=until, y0=int(block[0]) - 0.5,
                y1=int(block[-1]) + 0.5, layer="below", line={"width": 1.5, "color": TARGET, "dash": "dot"},
            )  # fmt: skip
        if blocks and len(shown) <= MOST_LABELS:
            top = int(blocks[0][0])
            _add_words(figure, mark, yref="y", y=top - 0.5, yanchor="bottom", yshift=words.get(top, 0) * _LINE)
            words[top] = words.get(top, 0) + 1
    _make_room(figure, words.get(0, 0))


def _in_time(marks: list[FaultMark], end_s: float) -> list[tuple[FaultMark, float]]:
    """Return those that begin within the run, and until when they last in it."""
    return [(mark, end_s if mark.end_s is None else min(mark.end_s, end_s)) for mark in marks if mark.start_s < end_s]


def _add_words(figure: Figure, mark: FaultMark, **where: Any) -> None:
    figure.add_annotation(
        xref="x", x=mark.start_s, xanchor="left", xshift=2, text=escape(mark.label), showarrow=False,
        font={"size": 10, "color": TARGET}, bgcolor=faded("#ffffff", 0.8), borderpad=0, **where,
    )  # fmt: skip


def _make_room(figure: Figure, lines: int) -> None:
    """Make room above a figure for lines of words after the first, which its margin holds."""
    more = max(0, lines - 1) * _LINE
    if more:
        figure.update_layout(height=figure.height + more, margin={"t": figure.layout["margin"]["t"] + more})


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
