"""Requests as rows: the axes of the figure, how its rows are ordered, and the field that finds any of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.report.figures.devices import ROW_PIXELS, row_axes
from clustersim.report.figures.figure import Figure

ORDERS: Final = {"e2e": "end-to-end latency", "ttft": "TTFT", "tpot": "TPOT", "preemptions": "preemptions"}
"""By what the slowest are found → its words."""
_LETTERS: Final = len("request 1234567")


def rows_figure(end_ns: int, rows: int, height: int) -> Figure:
    """Return the axes of so many requests: seconds of the run across, one row per request."""
    return row_axes(end_ns, rows, _LETTERS, int(np.clip(rows * ROW_PIXELS + 110, 220, height)))


def rows_html(identity: str) -> str:
    """Return the fields of the figure, and room for what tells of the view."""
    options = "".join(f'<option value="{name}">{words}</option>' for name, words in ORDERS.items())
    return (
        f'<div class="zoom"><label>slowest by <select id="{identity}-by">{options}</select></label>'
        f'<label>find request <input id="{identity}-find" type="number" min="0" step="1"></label>'
        f'<span class="view" id="{identity}-note"></span></div><div class="legend" id="{identity}-legend"></div>'
    )
