"""The page of a scoreboard: predicted against measured, and tables below; opens without a network, light or dark.

Each quantity has a chart of its own, with both axes logarithmic: what lies on the line was predicted as measured, and
the band is 20 % to either side. Colours are families.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from clustersim.report.dashboard import page
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.style import CONFIG, axis_name, template
from clustersim.report.page_files import asset
from clustersim.values import dataclass

COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F", "#B3261E", "#5B8C2A",
    "#A6761D", "#1B9E9E",
)  # fmt: skip
"""Of families in order; then from the start. Legible on white and on black."""
BAND: Final = 1.2
_SHAPES: Final = ("circle", "square", "diamond", "cross", "triangle-up", "x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One figure in a chart: its family, the two values, and what a reader sees when pointing at it."""

    family: str
    measured: float
    predicted: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts; columns from ``numbers_from`` on are aligned to the right."""

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers_from: int


def score_page(title: str, subtitle: str, charts: Mapping[str, Sequence[Dot]], tables: Sequence[Table]) -> str:
    """Return the page.

    Parameters
    ----------
    title, subtitle : str
    charts : mapping
        Dots by the title of the axes, such as ``"TTFT, ms"``.
    tables : sequence of Table
    """
    shown = {name: dots for name, dots in charts.items() if dots}
    plot = ""
    if shown:
        figure = scatter(shown)
        plot = (
            f'<section><h2>Predicted against measured</h2><p class="caption">On the line: as measured. The band is '
            f"{BAND - 1:.0%} to either side. Point at a dot to see what it is; click a family to hide it.</p>"
            f'<div id="scatter" style="height:{figure.height}px"></div><script>'
            f'clustersimFigure("scatter", Object.assign({figure.to_json()}, '
            f"{{config: {json.dumps(CONFIG)}}}));</script></section>"
        )
    sections = [plot, *map(_section, tables)]
    return page(title, subtitle, sections, footer=f"{title} · clustersim", style=asset("score.css"))


def scatter(charts: Mapping[str, Sequence[Dot]]) -> Figure:
    """Return one figure with a chart per quantity, two in a row."""
    names, lines = list(charts), -(-len(charts) // 2)
    families = list(dict.fromkeys(dot.family for dots in charts.values() for dot in dots))
    families.sort(key=lambda family: [int(part) if part.isdecimal() else 0 for part in re.findall(r"\d+", family)[:1]])
    figure = Figure()
    layout: dict[str, Any] = {"template": template(), "height": 60 + 400 * lines, "hovermode": "closest"}
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"}
    named: set[str] = set()
    for index, name in enumerate(names):
        x, y = axis_name("x", index), axis_name("y", index)
        across, down = (([0.0, 0.44], [0.56, 1.0])[index % 2] if len(names) > 1 else [0.0, 1.0]), index // 2
        gap = 0.18 / lines
        domain = [1 - (down + 1) / lines + (gap if down + 1 < lines else 0.0), 1 - down / lines - gap / 4]
        values = [value for dot in charts[name] for value in (dot.measured, dot.predicted)]
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
        ends = (10.0**low, 10.0**high)
        for factor, dash in ((1.0, "solid"), (BAND, "dot"), (1 / BAND, "dot")):
            figure.add_scatter(
                x=ends, y=[end * factor for end in ends], xaxis=x, yaxis=y, mode="lines", hoverinfo="skip",
                line={"color": "#8a97a3", "width": 1, "dash": dash}, showlegend=False,
            )  # fmt: skip
        for place, family in enumerate(families):
            dots = [dot for dot in charts[name] if dot.family == family]
            if dots:
                figure.add_scatter(
                    x=[dot.measured for dot in dots], y=[dot.predicted for dot in dots], xaxis=x, yaxis=y,
                    text=[escape(dot.words) for dot in dots], mode="markers", name=family, legendgroup=family,
                    showlegend=family not in named,
                    hovertemplate="%{text}<br>measured %{x:.4g}, predicted %{y:.4g}<extra></extra>",
                    marker={"color": COLOURS[place % len(COLOURS)], "size": 7, "opacity": 0.75,
                            "symbol": _SHAPES[place % len(_SHAPES)]},
                )  # fmt: skip
                named.add(family)
        axis: dict[str, Any] = {"type": "log", "exponentformat": "SI", "dtick": 1, "range": [low, high]}
        layout[axis_name("xaxis", index)] = axis | {
            "domain": across,
            "anchor": y,
            "title": {"text": f"{name}, measured"},
        }
        side = {"domain": domain, "anchor": x} | ({} if index % 2 else {"title": {"text": "predicted"}})
        layout[axis_name("yaxis", index)] = axis | side
    figure.update_layout(layout)
    return figure


def _section(table: Table) -> str:
    def cells(texts: Sequence[str], tag: str) -> str:
        kinds = ("text" if place < table.numbers_from else "number" for place in range(len(texts)))
        inside = zip(texts, kinds, strict=True)
        return "".join(f'<{tag} class="{kind}">{escape(text)}</{tag}>' for text, kind in inside)

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    return (
        f'<section class="table"><h2>{escape(table.title)}</h2><p class="caption">{escape(table.caption)}</p>'
        f"<table><thead><tr>{cells(table.columns, 'th')}</tr></thead><tbody>{body}</tbody></table></section>"
    )
