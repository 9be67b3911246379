"""Lanes: what every stream of every device did, over the whole run and down to one operator.

A browser draws a few thousand of plotly's bars well and a hundred thousand never. So plotly draws the axes alone; the
folded timeline travels in the page (:mod:`clustersim.report.folded`), and ``page/lanes.js`` unfolds what is in view and
draws it on a canvas beneath them: operators, layers, steps, or the share of time busy, whichever can be told apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from clustersim.report.figures.style import template

ROW_PIXELS: Final = 22
"""Height of a row where the figure's height allows it."""
VIEWS: Final = {"run": "whole run", "second": "busiest second", "step": "busiest step", "layer": "one layer of it"}
"""What a button shows, and its words."""


def lanes_figure(whole: Mapping[str, Any], height: int) -> go.Figure:
    """Return the axes of the lanes: seconds of the run across, one row per stream of a device, rank 0 on top."""
    rows = len(whole["rows"])
    return go.Figure(
        layout={
            "template": template(),
            "height": int(np.clip(rows * ROW_PIXELS + 110, 220, height)),
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "dragmode": "zoom",
            "hovermode": False,
            "modebar": {"remove": ["zoom", "pan", "zoomin", "zoomout", "autoscale", "resetscale", "toimage"]},
            "margin": {"l": _label_pixels(whole), "r": 20, "t": 8, "b": 44},
            "xaxis": {"range": [0, whole["end"] / 1e9], "tickmode": "array", "showgrid": False, "automargin": False},
            "yaxis": {
                "range": [rows - 0.5, -0.5],
                "tickmode": "array",
                "showgrid": False,
                "ticks": "",
                "automargin": False,
            },
        }
    )


def lanes_html(whole: Mapping[str, Any], identity: str) -> str:
    """Return the buttons of the lanes, what tells of the view, and the folded timeline as data."""
    buttons = "".join(
        f'<button type="button" data-lanes="{identity}" data-view="{view}">{words}</button>'
        for view, words in VIEWS.items()
    )
    data = json.dumps(whole, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return (
        f'<div class="zoom">{buttons}<span class="view" id="{identity}-note"></span></div>'
        f'<div class="legend" id="{identity}-legend"></div>'
        f'<script type="application/json" id="{identity}-data">{data}</script>'
    )


def _label_pixels(whole: Mapping[str, Any]) -> int:
    """Return the width of the longest name of a row, about."""
    names = (len(whole["devices"][rank]) + 1 + len(whole["streams"][stream]) for rank, stream in whole["rows"])
    return min(260, 14 + round(6.4 * max(names)))
