"""One HTML file that shows a run: opens from disk, asks no host for anything, the same for the same run.

The page forbids itself every connection (a Content-Security-Policy of ``default-src 'none'``), so that
neither plotly.js nor a text inside the data could make one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from clustersim.files import written_whole
from clustersim.memory import let_go
from clustersim.report.figures.layout import Panel, read_layout
from clustersim.report.figures.panels import PANELS, Drawn, Run
from clustersim.report.figures.style import CONFIG
from clustersim.report.folded.asked import EVERYTHING, Asked
from clustersim.report.metrics.latencies import Columns, Weighted, latencies_ns, targets_ns
from clustersim.report.page_files import THEME_BUTTON, asset, script_inside, with_script_beside, write_script
from clustersim.report.words.asked import asked_html
from clustersim.report.words.run import legality_words, setup_words

_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:; base-uri 'none'; form-action 'none'"
)

_SCRIPTS: Final = (
    "packed.js", "folded.js", "levels.js", "hover.js", "linked.js", "time_figure.js", "lanes.js", "links.js",
    "link_lanes.js", "topology.js", "requests.js", "request_rows.js",
)  # fmt: skip


def dashboard_html(
    summary: Mapping[str, Any],
    requests: Columns,
    steps: Columns,
    whole: Mapping[str, Any] | None,
    layout: Mapping[str, Any],
    *,
    token_gaps: Weighted | None = None,
    kv_rows: Columns | None = None,
    wanted: Asked = EVERYTHING,
    judged: Callable[[], Mapping[str, Any]] | None = None,
) -> str:
    """Return the dashboard of a run as one HTML page.

    Parameters
    ----------
    summary : mapping
        The object of ``summary.json``.
    requests, steps : Columns
        The tables ``requests.parquet`` and ``steps.parquet`` as arrays; a null is NaN.
    whole : mapping or None
        The folded timeline that ``device_lanes`` shows (:func:`clustersim.report.folded.whole.whole_run`); None when
        there is none to show.
    layout : mapping
        A parsed dashboard file, such as ``dashboards/overview.yaml``.
    token_gaps : (values in ns, weights), optional
        Gaps between tokens and how often each occurs; without them the ITL chart is left out.
    kv_rows : Columns, optional
        The steps in rows that each have one number of K/V blocks in use; those of ``steps`` by default.
    wanted : Asked
        What is shown first.
    judged : callable, optional
        Returns what the summary says of legality, which is asked last; by default the summary does.

    Raises
    ------
    InputError
        For an unknown figure or option, or a target that can't be read.
    """
    checked = read_layout(layout)
    run = Run(
        summary=summary,
        requests=requests,
        steps=steps,
        kv_rows=steps if kv_rows is None else kv_rows,
        whole=whole,
        wanted=wanted,
        latencies=latencies_ns(requests, token_gaps),
        limits_ns=targets_ns(summary.get("targets")),
    )
    panels = _in_order(checked.panels, wanted)
    sections = []
    for index, panel in enumerate(panels):
        let_go()
        sections.append(section(panel, PANELS[panel.figure](run, panel, f"figure-{index}"), f"figure-{index}"))
    if asked := asked_html(wanted, requests, {panel.figure: f"of-figure-{at}" for at, panel in enumerate(panels)}):
        sections.insert(0, f'<section class="bare">{asked}</section>')
    if whole is not None:
        sections.insert(0, data_script("run-data", whole))
    return page(
        str(summary.get("name") or "run"),
        setup_words(summary),
        sections,
        footer=f"{checked.title} · clustersim. Drag in a figure to zoom in, double-click to zoom out.",
        badge=_badge(summary if judged is None else judged()),
        script="".join(map(asset, _SCRIPTS)),
    )


def _in_order(panels: Sequence[Panel], wanted: Asked) -> list[Panel]:
    """Return the panels with what shows the request that is asked for behind the headline, or first."""
    first = ("headline", "request_rows") if wanted.request is not None else ()
    return sorted(panels, key=lambda panel: first.index(panel.figure) if panel.figure in first else len(first))


def write_dashboard(path: Path, html: str, above: int | None = None) -> None:
    """Write a dashboard to ``path``; the file is complete or absent.

    Parameters
    ----------
    path : Path
    html : str
    above : int or None
        Take plotly's script from the folder so many above that of the page, and write it there; None: hold it.
    """
    if above is not None:
        html = with_script_beside(html, above)
        write_script(path.resolve().parents[above])
    with written_whole(path) as beside:
        beside.write_text(html, encoding="utf-8")


def section(panel: Panel, drawn: Drawn, identity: str) -> str:
    """Return a panel as a section of a page."""
    if drawn.bare:
        return f'<section class="bare">{drawn.html}</section>'
    plot = ""
    if drawn.figure is not None:
        figure = drawn.figure.to_json()
        config = json.dumps(CONFIG)
        plot = (
            f'<div id="{identity}" style="height:{drawn.figure.height}px"></div>\n<script>'
            f'clustersimFigure("{identity}", Object.assign({figure}, {{config: {config}}})){drawn.then};'
            "</script>"
        )
    return (
        f'<section class="{panel.width}" id="of-{identity}"><h2>{escape(panel.title or drawn.title)}</h2>'
        f'<p class="caption">{escape(panel.caption or drawn.caption)}</p>{drawn.html}{plot}</section>'
    )


def data_script(identity: str, value: Any) -> str:
    """Return plain values as an element of a page from which a script reads them."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return f'<script type="application/json" id="{identity}">{text}</script>'


def page(
    name: str,
    subtitle: str,
    sections: Sequence[str],
    *,
    footer: str,
    badge: str = "",
    script: str = "",
    style: str = "",
) -> str:
    """Return a page that opens from disk and asks no host for anything.

    Parameters
    ----------
    name, subtitle, footer : str
        Plain text.
    sections : sequence of str
        HTML, in order.
    badge, script, style : str
        HTML behind the name; JavaScript and CSS of the page's own.
    """
    name, sections_html = escape(name), "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<script>
{asset("theme.js")}</script>
<title>{name} · clustersim</title>
<link rel="icon" href="data:,">
<style>
{asset("page.css")}{style}</style>
{script_inside()}
<script>
{script}</script>
</head>
<body>
<header>{THEME_BUTTON}<h1>{name}{badge}</h1><p>{escape(subtitle)}</p></header>
<main>
{sections_html}
</main>
<footer>{escape(footer)}</footer>
</body>
</html>
"""


def _badge(summary: Mapping[str, Any]) -> str:
    word, text = legality_words(summary)
    return f'<span class="badge {word}">{escape("illegal" if word == "illegal" else text)}</span>'
