"""Lanes: what every stream of every device did, over the whole run and down to one operator.

A browser draws a few thousand of plotly's bars well and a hundred thousand never. So plotly draws the axes alone; the
folded timeline travels in the page (:mod:`clustersim.report.folded`), and ``page/lanes.js`` unfolds what is in view and
draws it on a canvas beneath them: operators, layers, steps, or the share of time busy, whichever can be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.style import template

ROW_PIXELS: Final = 22
"""Height of a row where the figure's height allows it."""
VIEWS: Final = {"run": "whole run", "second": "busiest second", "step": "busiest step", "layer": "one layer of it"}
"""What a button shows, and its words."""


def lanes_figure(whole: Mapping[str, Any], height: int) -> Figure:
    """Return the axes of the lanes: seconds of the run across, one row per stream of a device, rank 0 on top."""
    names = (len(whole["devices"][rank]) + 1 + len(whole["streams"][stream]) for rank, stream in whole["rows"])
    rows = len(whole["rows"])
    return row_axes(whole["end"], rows, max(names), int(np.clip(rows * ROW_PIXELS + 110, 220, height)))


def fault_rows(whole: Mapping[str, Any]) -> list[list[int]]:
    """Return the rows of the devices that each fault names."""
    devices = [whole["devices"][rank] for rank, _ in whole["rows"]]
    return [[row for row, device in enumerate(devices) if device in some] for some, _ in whole["faults"]]


def row_axes(end_ns: int, rows: int, letters: int, height: int) -> Figure:
    """Return axes for rows over the time of a run, beneath which a canvas is drawn.

    Parameters
    ----------
    end_ns : int
        Where the run ends.
    rows : int
    letters : int
        Of the longest name of a row.
    height : int
        Pixels of the figure.
    """
    # To measure which labels reach over the figure's edge would take plotly half of a zoom.
    shared = {"tickmode": "array", "showgrid": False, "automargin": False, "ticklabeloverflow": "allow"}
    return Figure(
        layout={
            "template": template(),
            "height": height,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "dragmode": "zoom",
            "hovermode": False,
            "modebar": {"remove": ["zoom", "pan", "zoomin", "zoomout", "autoscale", "resetscale", "toimage"]},
            "margin": {"l": min(260, 14 + round(6.4 * letters)), "r": 20, "t": 18, "b": 44},
            "xaxis": {"range": [0, end_ns / NS_PER_S], **shared},
            "yaxis": {"range": [rows - 0.5, -0.5], "ticks": "", **shared},
        }
    )  # fmt: skip


def lanes_html(identity: str) -> str:
    """Return the buttons of the lanes, and room for what tells of the view."""
    buttons = "".join(
        f'<button type="button" data-lanes="{identity}" data-view="{view}">{words}</button>'
        for view, words in VIEWS.items()
    )
    return (
        f'<div class="zoom">{buttons}<span class="view" id="{identity}-note"></span></div>'
        f'<div class="legend" id="{identity}-legend"></div>'
    )
