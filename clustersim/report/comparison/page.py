"""The page that compares runs: one HTML file, which opens from disk and asks no host for anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clustersim.report.comparison.comparison import Comparison
from clustersim.report.comparison.panels import FIGURES, PANELS
from clustersim.report.dashboard import page, section
from clustersim.report.figures.layout import read_layout
from clustersim.units import plural


def comparison_html(found: Sequence[Comparison], layout: Mapping[str, Any]) -> str:
    """Return the page of one run beside others.

    Parameters
    ----------
    found : sequence of Comparison
        All of the same first run.
    layout : mapping
        A parsed dashboard file, such as ``dashboards/compare.yaml``.

    Raises
    ------
    InputError
        For an unknown figure or option.
    """
    checked = read_layout(layout, FIGURES)
    sections = [
        section(panel, PANELS[panel.figure](found, panel), f"figure-{index}")
        for index, panel in enumerate(checked.panels)
    ]
    names = [found[0].a.name, *(one.b.name for one in found)]
    counts = [plural(len(one.scenario), "difference") for one in found]
    each = [f"{count} of {one.b.name}" for count, one in zip(counts, found, strict=True)]
    setup = f"{found[0].a.scenario.name}: {', '.join(each) if len(found) > 1 else counts[0]} in the scenario"
    footer = f"{checked.title} · clustersim. Drag in a figure to zoom in, double-click to zoom out."
    return page(" against ".join(names), setup, sections, footer=footer)
