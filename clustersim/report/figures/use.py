"""The figure of what devices and links were used for: shares of the time by stage, and the busiest links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any, Final

from clustersim.report.figures.figure import Figure
from clustersim.report.figures.style import BLUE, GREEN, GRID, INK, ORANGE, TARGET, YELLOW, faded, template

_PARTS: Final = (
    ("compute", "computing", BLUE),
    ("exposed_communication", "communicating, nothing else", GREEN),
    ("host", "engine (scheduling, sampling)", YELLOW),
)
"""Share of a stage's row → what it is called, its colour. They exclude each other; what is left is idle."""
_LINKS_FROM: Final = 0.62
"""Where the chart of links begins, as a share of the width."""


def use_figure(utilisation: Mapping[str, Any], links: Mapping[str, Any] | None, height: int) -> Figure:
    """Draw what the devices of each stage did with the time, and how much of the busiest links was used.

    Parameters
    ----------
    utilisation, links : mapping
        Of ``summary.json``; without ``links`` the devices have all of the width.
    height : int
        Pixels.
    """
    rows = utilisation["stages"]
    names = [stage_name(row, len(rows) > 1) for row in rows]
    figure = Figure(
        layout={
            "template": template(),
            "height": height,
            "barmode": "stack",
            "hovermode": "closest",
            "xaxis": {"range": [0, 1], "tickformat": ".0%", "title": {"text": "share of the time, mean of devices"}},
            "yaxis": {"autorange": "reversed", "type": "category"},
        }
    )
    for part, word, colour in _PARTS:
        _add_bars(figure, names, [row[part] for row in rows], word, colour)
    idle = [max(0.0, 1 - math.fsum(row[part] for part, _, _ in _PARTS)) for row in rows]
    _add_bars(figure, names, idle, "idle", GRID)
    busiest = (links or {}).get("busiest")
    if busiest:
        _add_links(figure, busiest, {one["link"]: one["capacity"] for one in (links or {}).get("weakened") or ()})
        figure.update_layout(xaxis={"domain": [0, _LINKS_FROM - 0.16]})
    return figure


def stage_name(row: Mapping[str, Any], several: bool) -> str:
    """Return the words for a stage, by pool where there are pools."""
    return " ".join([str(row.get("pool", "")), f"stage {row['stage']}" if several else "all devices"]).strip()


def _add_bars(figure: Figure, names: list[str], shares: list[float], word: str, colour: str) -> None:
    figure.add_bar(
            orientation="h", y=names, x=shares, name=word, marker={"color": colour},
            hovertemplate=f"%{{y}}: {escape(word)} %{{x:.2%}} of the time<extra></extra>",
        )  # fmt: skip


def _add_links(figure: Figure, busiest: list[Mapping[str, Any]], weak: Mapping[str, float]) -> None:
    """Add the busiest links; in red those that faults weakened: link → the share of its capacity that was left."""
    names = [escape(link["link"]) for link in busiest]
    left = [f", {weak[link['link']]:.0%} left" if link["link"] in weak else "" for link in busiest]
    figure.add_bar(
            orientation="h", y=names, text=[name + some for name, some in zip(names, left, strict=True)],
            textposition="inside", insidetextanchor="start", textangle=0, constraintext="none",
            insidetextfont={"color": INK, "size": 11}, cliponaxis=False,
            x=[link["utilisation"] for link in busiest],
            customdata=[[escape(link["tier"]), link["bytes"], some] for link, some in zip(busiest, left, strict=True)],
            xaxis="x2", yaxis="y2", showlegend=False,
            marker={"color": [faded(TARGET if some else ORANGE, 0.45) for some in left]},
            hovertemplate="%{y} (%{customdata[0]}%{customdata[2]}): %{x:.2%} of its capacity, "
            "%{customdata[1]:.3~s}B with the protocol's share<extra></extra>",
        )  # fmt: skip
    top = max(link["utilisation"] for link in busiest)
    figure.update_layout(
        xaxis2={
            "domain": [_LINKS_FROM, 1], "anchor": "y2", "range": [0, min(1.0, 1.25 * top)], "tickformat": ".3~%",
            "title": {"text": "capacity used, busiest links"},
        },
        yaxis2={"anchor": "x2", "autorange": "reversed", "type": "category", "ticks": "", "showticklabels": False},
    )  # fmt: skip
