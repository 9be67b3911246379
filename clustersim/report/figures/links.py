"""Links as lanes: the axes of the figure; what was in flight on them is drawn beneath, as that of devices is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clustersim.report.figures.devices import ROW_PIXELS, row_axes
from clustersim.report.figures.figure import Figure


def link_lanes_figure(load: Mapping[str, Any], end_ns: int, height: int) -> Figure:
    """Return the axes of the lanes of links: seconds of the run across, a row per tier of each node."""
    names = [name for name, _, _ in load["lanes"]]
    return row_axes(end_ns, len(names), max(map(len, names)), int(np.clip(len(names) * ROW_PIXELS + 90, 150, height)))


def fault_lanes(whole: Mapping[str, Any]) -> list[list[int]]:
    """Return the lanes of the links that each fault names."""
    lanes = [links for _, links, _ in whole["link_load"]["lanes"]]
    return [[lane for lane, links in enumerate(lanes) if set(links) & set(some)] for _, some in whole["faults"]]


def link_lanes_html(identity: str) -> str:
    """Return room for what tells of the view."""
    return (
        f'<div class="zoom"><span class="view" id="{identity}-note"></span></div>'
        f'<div class="legend" id="{identity}-legend"></div>'
    )
