"""Figures as plotly's own objects, which refuse what plotly's reference does not have."""

from __future__ import annotations

import plotly.graph_objects as go

from clustersim.report.figures.figure import Figure


def checked(figure: Figure | None) -> go.Figure:
    """Return a figure as plotly reads it; raises ValueError where it has a key or a value that plotly does not know."""
    assert figure is not None
    return go.Figure({"data": figure.data, "layout": figure.layout})
