"""The page of a search, in one HTML file that opens from disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clustersim.report.dashboard import asset, page, section
from clustersim.report.figures.layout import read_layout
from clustersim.report.search.figures import FIGURES, PANELS
from clustersim.report.search.searched import Searched


def check_layout(layout: Mapping[str, Any]) -> None:
    """Check a search's layout before anything is simulated.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    read_layout(layout, FIGURES)


def search_html(searched: Searched, layout: Mapping[str, Any]) -> str:
    """Return the page of a search.

    Parameters
    ----------
    searched : Searched
    layout : mapping
        A parsed dashboard file, such as ``dashboards/search.yaml``.
    """
    checked = read_layout(layout, FIGURES)
    sections = [
        section(panel, PANELS[panel.figure](searched, panel, f"figure-{number}"), f"figure-{number}")
        for number, panel in enumerate(checked.panels)
    ]
    plans = searched.plans
    data = json.dumps({"commands": [one.command for one in plans], "words": [one.words for one in plans]})
    data = data.replace("<", "\\u003c")
    return page(
        searched.name,
        searched.subtitle,
        sections,
        footer=f"{checked.title} · clustersim. Drag in a figure to zoom in, double-click to zoom out.",
        style=asset("sweep.css"),
        script=f"const SWEPT = {data};\n{asset('sweep.js')}",
    )
