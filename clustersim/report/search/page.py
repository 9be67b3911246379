"""The page of a search, in one HTML file that opens from disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.report.figures.layout import read_layout
from clustersim.report.points_page import points_page
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
    plans = searched.plans
    return points_page(
        searched.name,
        searched.subtitle,
        layout,
        FIGURES,
        lambda panel, place: PANELS[panel.figure](searched, panel, place),
        commands=[one.command for one in plans],
        words=[one.words for one in plans],
    )
