"""The page of a sweep, in one HTML file that opens from disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.report.figures.layout import read_layout
from clustersim.report.points_page import points_page
from clustersim.report.sweep.figures import FIGURES, PANELS
from clustersim.report.sweep.swept import Swept, short
from clustersim.units import plural


def check_layout(layout: Mapping[str, Any]) -> None:
    """Check a sweep's layout before anything is simulated.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    read_layout(layout, FIGURES)


def sweep_html(swept: Swept, layout: Mapping[str, Any]) -> str:
    """Return the page of a sweep.

    Parameters
    ----------
    swept : Swept
    layout : mapping
        A parsed dashboard file, such as ``dashboards/sweep.yaml``.
    """
    failed = len(swept.chosen) - len(swept.simulated)
    varied = ", ".join(f"{short(key)} ({plural(len(values), 'value')})" for key, values in swept.varied.items())
    return points_page(
        swept.name,
        f"{plural(len(swept.chosen), 'run')} over {varied}" + (f"; {failed:,} failed" if failed else ""),
        layout,
        FIGURES,
        lambda panel, place: PANELS[panel.figure](swept, panel, place),
        commands=swept.commands,
        words=[swept.words(run) for run in range(len(swept.chosen))],
    )
