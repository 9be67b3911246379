"""The page of ``clustersim why``: a tornado of gains, and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from clustersim.clock import NS_PER_S
from clustersim.report.dashboard import page, section
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.layout import PIXELS, Known, Panel, read_layout, some_of
from clustersim.report.figures.panels import Drawn
from clustersim.report.figures.style import template
from clustersim.report.why.lifted import METRICS, Lifted, misses
from clustersim.units import format_seconds

FIGURES: Final[Known] = {
    "tornado": {
        "height": (420, PIXELS),
        "metrics": (("ttft_ms.p99", "tpot_ms.p99", "throughput.output_tokens_per_s"), some_of(*METRICS)),
    },
    "lifted": {},
}
"""Figure → option → (default, check)."""
_LEFT: Final = 'style="text-align:left"'


def check_layout(layout: Mapping[str, Any]) -> None:
    """Check a layout before anything is simulated.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    read_layout(layout, FIGURES)


def why_html(
    name: str,
    baseline: Mapping[str, float | None],
    found: Sequence[Lifted],
    layout: Mapping[str, Any],
    targets: Mapping[str, float],
) -> str:
    """Return the page.

    Parameters
    ----------
    name : str
        Of the scenario.
    baseline : mapping
        Its metrics as it is.
    found : sequence of Lifted
        Ranked.
    layout : mapping
        A parsed dashboard file, such as ``dashboards/why.yaml``.
    targets : mapping
        Latency → target in ns; what misses one is marked.
    """
    checked = read_layout(layout, FIGURES)
    sections = [
        section(panel, _PANELS[panel.figure](baseline, found, panel, targets), f"figure-{number}")
        for number, panel in enumerate(checked.panels)
    ]
    footer = f"{checked.title} · clustersim. Drag in a figure to zoom in, double-click to zoom out."
    return page(name, "what each limit costs: the same requests with one lifted at a time", sections, footer=footer)


def _tornado(
    baseline: Mapping[str, float | None], found: Sequence[Lifted], panel: Panel, targets: Mapping[str, float]
) -> Drawn:
    del targets
    title, some = "What would help", [one for one in found if not one.why_not]
    figure = Figure(
        layout={
            "template": template(),
            "height": panel.options["height"],
            "barmode": "group",
            "xaxis": {"tickformat": "+.0%", "title": {"text": "better (right) or worse (left) than as it is"},
                      "zeroline": True, "zerolinecolor": "#5b6b7b"},
            "yaxis": {"autorange": "reversed", "type": "category"},
        }
    )  # fmt: skip
    for name in panel.options["metrics"]:
        values = [one.metrics.get(name) for one in some]
        if any(value is not None for value in values):
            figure.add_bar(
                orientation="h",
                y=[escape(one.limit) for one in some],
                x=[one.gains.get(name, 0.0) for one in some],
                customdata=[[baseline.get(name), value] for value in values],
                name=escape(METRICS[name][0]),
                hovertemplate="%{y}: " + escape(METRICS[name][0]) + " %{customdata[0]:,.4~g} → %{customdata[1]:,.4~g}"
                " (%{x:+.1%})<extra></extra>",
            )
    order = "The limit that helps most is on top."
    if some and some[0].best < max(one.best for one in some):
        order = "Faults are on top, since they are what is broken; below, the limit that helps most comes first."
    caption = f"Each bar is a run of its own, exact as any other. {order}"
    return Drawn(title=title, caption=caption, figure=figure)


def _table(
    baseline: Mapping[str, float | None], found: Sequence[Lifted], panel: Panel, targets: Mapping[str, float]
) -> Drawn:
    del panel
    head = f"<th {_LEFT}>limit</th>"
    head += "".join(f"<th>{escape(words)}</th>" for words, _ in METRICS.values())
    rows = [_row("as it is", "", baseline, "", targets)]
    for one in found:
        key = "; ".join(filter(None, (one.key, enough_words(one, targets))))
        rows.append(_row(one.limit, key, one.metrics, one.why_not, targets))
    table = f'<table class="narrow"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    caption = "A limit that can't be lifted here says why."
    if targets:
        limits = ", ".join(f"{name.upper()} {format_seconds(limit / NS_PER_S)}" for name, limit in targets.items())
        caption += f" Red: misses its target (p99 of {limits})."
    return Drawn(title="Figures", caption=caption, html=f'<div style="overflow-x:auto">{table}</div>')


def _row(limit: str, key: str, metrics: Mapping[str, float | None], why_not: str, targets: Mapping[str, float]) -> str:
    if why_not:
        cells = f'<td class="reason" colspan="{len(METRICS)}" {_LEFT}>{escape(why_not)}</td>'
    else:
        marks = {name: ' class="missed"' * misses(name, metrics.get(name), targets) for name in METRICS}
        cells = "".join(f"<td{marks[name]}>{shown(metrics.get(name))}</td>" for name in METRICS)
    return f"<tr><th {_LEFT}>{escape(limit)}<small>{escape(key)}</small></th>{cells}</tr>"


def enough_words(one: Lifted, targets: Mapping[str, float]) -> str:
    """Return how much of a limit is enough, with the figures that were simulated; nothing where that is not known."""
    much = one.enough
    if much is None:
        return ""
    if not much.words:
        return f"{much.falls_short} is not enough"
    named = {f"{latency}_ms.p99" for latency in targets} & set(METRICS) or {"ttft_ms.p99", "tpot_ms.p99"}
    p99 = ", ".join(
        f"{METRICS[name][0].removesuffix(' ms')} {shown(much.metrics.get(name))} ms"
        for name in METRICS
        if name in named
    )
    least = f"; {much.falls_short} is not enough" if much.falls_short else ""
    return f"{much.words}: {p99}{least}"


def shown(value: float | None) -> str:
    """Return a metric for a table."""
    if value is None:
        return "–"
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


_PANELS: Final[
    dict[str, Callable[[Mapping[str, float | None], Sequence[Lifted], Panel, Mapping[str, float]], Drawn]]
] = {
    "tornado": _tornado,
    "lifted": _table,
}
