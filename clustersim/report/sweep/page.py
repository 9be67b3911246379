"""The page of a sweep, in one HTML file that opens from disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clustersim.report.dashboard import asset, page, section
from clustersim.report.figures.layout import read_layout
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
    checked = read_layout(layout, FIGURES)
    drawn = [(panel, PANELS[panel.figure](swept, panel, f"figure-{n}"), n) for n, panel in enumerate(checked.panels)]
    failed = len(swept.chosen) - len(swept.simulated)
    varied = ", ".join(f"{short(key)} ({plural(len(values), 'value')})" for key, values in swept.varied.items())
    told = [swept.words(run) for run in range(len(swept.chosen))]
    data = json.dumps({"commands": list(swept.commands), "words": told}).replace("<", "\\u003c")
    return page(
        swept.name,
        f"{plural(len(swept.chosen), 'run')} over {varied}" + (f"; {failed:,} failed" if failed else ""),
        [section(panel, one, f"figure-{number}") for panel, one, number in drawn if one is not None],
        footer=f"{checked.title} · clustersim. Drag in a figure to zoom in, double-click to zoom out.",
        style=asset("sweep.css"),
        script=f"const SWEPT = {data};\n{asset('sweep.js')}",
    )
