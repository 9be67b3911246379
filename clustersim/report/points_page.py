"""What pages of many runs share: a page whose points tell the commands that simulate them, and a table of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from clustersim.report.dashboard import page, section
from clustersim.report.figures.layout import Panel, read_layout
from clustersim.report.figures.panels import Drawn
from clustersim.report.page_files import asset

Draw = Callable[[Panel, str], Drawn | None]
"""Draws a panel in the element of this id; None where there is nothing to draw."""


def points_page(
    name: str,
    subtitle: str,
    layout: Mapping[str, Any],
    figures: Mapping[str, Any],
    draw: Draw,
    *,
    commands: Sequence[str],
    words: Sequence[str],
) -> str:
    """Return a page of many runs.

    Parameters
    ----------
    name, subtitle : str
        Its head.
    layout : mapping
        A parsed dashboard file.
    figures : mapping
        The figures that such a layout may name, with their options.
    draw : callable
    commands, words : sequence of str
        Of each point: what simulates it, and what it is.
    """
    checked = read_layout(layout, figures)
    drawn = [(panel, f"figure-{number}") for number, panel in enumerate(checked.panels)]
    sections = [section(panel, one, place) for panel, place in drawn if (one := draw(panel, place)) is not None]
    data = json.dumps({"commands": list(commands), "words": list(words)}).replace("<", "\\u003c")
    return page(
        name,
        subtitle,
        sections,
        footer=f"{checked.title} · clustersim. Drag in a figure to zoom in, double-click to zoom out.",
        style=asset("sweep.css"),
        script=f"const SWEPT = {data};\n{asset('sweep.js')}",
    )


def cells(texts: Sequence[str]) -> str:
    """Return texts as cells of a table."""
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def points_table(
    title: str, caption: str, head: Sequence[str], rows: Sequence[str], count: int, kind: str = ""
) -> Drawn:
    """Return a table whose rows are points.

    Parameters
    ----------
    title, caption : str
    head : sequence of str
    rows : sequence of str
        The cells of the first points, as HTML.
    count : int
        How many points there are.
    kind : str
        Class of the table: ``reasons``, whose first three columns are words.
    """
    names = "".join(f"<th>{escape(text)}</th>" for text in head)
    lines = "".join(
        f'<tr id="point-{number}" data-point="{number}" tabindex="0">{row}</tr>' for number, row in enumerate(rows, 1)
    )
    rest = f" The first {len(rows):,} of {count:,}; all are in points.parquet." if len(rows) < count else ""
    return Drawn(
        title=title,
        caption=caption + rest,
        html=f'<div class="runs"><table class="{kind}"><thead><tr>{names}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>",
    )
