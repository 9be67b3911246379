"""The figure of device lanes: axes, buttons and the script that fills it with what is in view."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from clustersim.clock import NS_PER_MS, NS_PER_S
from clustersim.report.figures.device_spans import LaneTable, View, views
from clustersim.report.figures.style import GRID, template
from clustersim.report.traces.spans import SpansLike

ROW_PIXELS: Final = 22
"""Height of a row where the figure's height allows it."""

TELLABLE: Final = 1000
"""So many bars are not only drawn, but also told apart by a reader (judged by eye, 1400 pixels wide)."""


def lanes_figure(table: LaneTable, first: View, height: int) -> go.Figure:
    """Return the empty frame of the lanes: time across, one row per stream of a device, rank 0 on top."""
    rows = len(table.labels)
    boundaries = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": row - 0.5, "y1": row - 0.5,
         "line": {"color": GRID, "width": 1}, "layer": "below"}
        for row in table.device_rows[1:]
    ]  # fmt: skip
    return go.Figure(
        layout={
            "template": template(),
            "height": int(np.clip(rows * ROW_PIXELS + 110, 220, height)),
            "barmode": "overlay",
            "bargap": 0.1,
            "hovermode": "closest",
            "dragmode": "zoom",
            "shapes": boundaries if rows <= 200 else [],
            "xaxis": {
                "range": [first.start_ns / NS_PER_MS, first.end_ns / NS_PER_MS],
                "title": {"text": "time since the start of this window (ms)"},
                "showgrid": True,
            },
            "yaxis": {"range": [rows - 0.5, -0.5], "showgrid": False, "ticks": "", "tickmode": "array"},
        }
    )


def first_view(spans: SpansLike, table: LaneTable, max_bars: int) -> View:
    """Return what is shown first: the widest view whose bars can still be told apart, else the narrowest."""
    shown = views(spans, table)
    start, end = spans.start_ns[: len(table.order)], spans.end_ns[: len(table.order)]
    origin = table.window_ns[0]
    for view in shown:
        within = (end > origin + view.start_ns) & (start < origin + view.end_ns)
        if int(within.sum()) <= min(max_bars, TELLABLE):
            return view
    return shown[-1]


def lanes_caption(table: LaneTable, world: int) -> str:
    """Say what the window is, and what of it is left out; ``world`` is the number of ranks that there are."""
    start, end = table.window_ns
    text = (
        f"From {start / NS_PER_S:.6f} s to {end / NS_PER_S:.6f} s of the run: one row per stream of a device, "
        "one bar per operator, coloured by kind."
    )
    shown = len(table.device_rows)
    if shown < world:
        text += f" {shown:,} of {world:,} devices are shown."
    if table.left_out:
        text += f" {table.left_out:,} later operators of the window asked for are left out."
    return text
