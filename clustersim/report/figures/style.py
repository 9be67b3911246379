"""How figures look: one template, one set of colours, one configuration of plotly.js for all of them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
INK: Final = "#1b2733"
MUTED: Final = "#5b6b7b"
GRID: Final = "#e6ebf0"
BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"
GREEN: Final = "#009E73"
PINK: Final = "#CC79A7"
YELLOW: Final = "#E69F00"
TARGET: Final = "#B3261E"
COLOURS: Final = (BLUE, ORANGE, GREEN, PINK, YELLOW, "#56B4E9", "#595959")
"""Of lines, in order."""

CONFIG: Final[dict[str, Any]] = {
    "displaylogo": False,
    "showSendToCloud": False,  # plotly's "Share chart…" button, which sends the data away
    "plotlyServerURL": "",
    "responsive": True,
    "displayModeBar": "hover",
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d"],
    "toImageButtonOptions": {"format": "png", "scale": 2},
}
"""Options of plotly.js 4 (``src/plot_api/plot_config.js``): nothing in it leads to another host."""


@cache
def template() -> dict[str, Any]:
    """Return the template of every figure: white, quiet grid, the page's own font."""
    axis = {
        "gridcolor": GRID,
        "linecolor": "#b8c4cf",
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": "#b8c4cf",
        "ticklen": 4,
        "title": {"font": {"size": 12, "color": MUTED}, "standoff": 8},
        "tickfont": {"size": 11, "color": MUTED},
        "automargin": True,
        "separatethousands": True,
    }
    return {
        "layout": {
            "font": {"family": FONT, "color": INK, "size": 12},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "margin": {"l": 64, "r": 20, "t": 28, "b": 44},
            "xaxis": axis,
            "yaxis": axis,
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.02,
                "yanchor": "bottom",
                "font": {"size": 12},
                "maxheight": 1,
            },
            "hoverlabel": {"font": {"size": 12}, "align": "left"},
            "colorway": COLOURS,
        }
    }


def faded(colour: str, opacity: float) -> str:
    """Return ``#rrggbb`` as ``rgba(…)`` with the given opacity, 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def held(values: FloatArray) -> npt.NDArray[np.float32]:
    """Return a value per bin as one per edge: a line that steps at the edges then draws the last bin too."""
    return np.append(values, values[-1:]).astype(np.float32)


def stacked(titles: list[str], x_title: str, height: int) -> dict[str, Any]:
    """Return the layout of charts above each other that share one time axis; ``titles`` name their y axes."""
    gap = 0.07
    each = (1 - gap * (len(titles) - 1)) / len(titles)
    layout: dict[str, Any] = {
        "template": template(),
        "height": height,
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "xaxis": {
            "title": {"text": x_title},
            "anchor": axis_name("y", len(titles) - 1),
            "hoverformat": ".3~f",
        },
    }
    for index, title in enumerate(titles):
        top = 1 - index * (each + gap)
        layout[axis_name("yaxis", index)] = {
            "domain": [max(0.0, top - each), top],
            "title": {"text": title},
            "rangemode": "tozero",
        }
    return layout


def axis_name(prefix: str, index: int) -> str:
    """Return plotly's name of the axis with that index, counted from 0: ``y``, ``y2``, ``y3``."""
    return prefix if index == 0 else f"{prefix}{index + 1}"


_FEWEST_TICKS: Final = 3
"""That tell how an axis goes."""


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Return ticks at 1, 2 and 5 times the powers of ten: the powers alone where many show, steps where few do."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1, 2, 5) if len(decades) <= 5 else (1,)
    ticks = [step * 10.0**power for power in decades for step in steps]
    if high > low and len([tick for tick in ticks if low <= tick <= high]) < _FEWEST_TICKS:
        most = (high - low) / _FEWEST_TICKS
        unit = 10.0 ** np.floor(np.log10(most))
        step = max(one * unit for one in (1, 2, 5) if one * unit <= most)
        ticks = [step * number for number in range(int(low // step), int(high // step) + 2) if number > 0]
    return {"tickvals": ticks, "ticktext": [f"{tick:,.10g}" for tick in ticks]}
