"""The figures of a page that compares runs: the first with each of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import fsum
from typing import Final

import numpy as np

from clustersim.report.comparison.comparison import Comparison
from clustersim.report.comparison.entries import Entry
from clustersim.report.comparison.text import basis, number, scenario_rows, signed
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.layout import PIXELS, Known, Panel, one_of, some_of, up_to
from clustersim.report.figures.panels import Drawn
from clustersim.report.figures.style import COLOURS, axis_name, log_ticks, template
from clustersim.report.metrics.latencies import LATENCIES, latencies_ns, weighted_percentile
from clustersim.units import plural

SHARES: Final = np.concatenate([np.linspace(0, 99, 100), np.linspace(99.1, 100, 10)])

FIGURES: Final[Known] = {
    "differences": {"max_rows": (40, up_to(100_000))},
    "causes": {"height": (620, PIXELS), "max_causes": (24, up_to(200))},
    "distributions": {
        "height": (420, PIXELS),
        "metrics": (("ttft", "tpot", "e2e"), some_of("ttft", "tpot", "e2e")),
        "scale": ("log", one_of("linear", "log")),
    },
    "by_request": {"height": (420, PIXELS), "max_points": (4000, up_to(100_000))},
    "figures": {"max_rows": (400, up_to(100_000))},
}
"""Figure → option → (default, check)."""


def _entries(found: Sequence[Comparison]) -> list[Entry]:
    return [found[0].a, *(one.b for one in found)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first, *others = map(escape, columns)
    head = f'<th style="text-align:left">{first}</th>' + "".join(f"<th>{name}</th>" for name in others)
    lines = [(_breaking(row[0]), "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])) for row in rows]
    body = "".join(f"<tr><th>{name}</th>{cells}</tr>" for name, cells in lines)
    table = f'<table class="narrow"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div style="overflow-x:auto">{table}</div>'


def _breaking(name: str) -> str:
    """Return a name that a narrow page may break behind its dots and underscores."""
    return escape(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _differences(found: Sequence[Comparison], panel: Panel) -> Drawn:
    most = panel.options["max_rows"]
    html = ""
    for one in found:
        rows = scenario_rows(one)
        left = f'<p class="note">{len(rows) - most} more.</p>' if len(rows) > most else ""
        none = f'<p class="empty">{escape(one.a.name)} and {escape(one.b.name)}: no difference.</p>'
        html += _table(("path", one.a.name, one.b.name), rows[:most]) + left if rows else none
    return Drawn(title="What differs in the scenarios", html=html)


def _figures(found: Sequence[Comparison], panel: Panel) -> Drawn:
    html = ""
    for one in found:
        rows = [(name, number(a), number(b), signed(a, b)) for name, a, b in one.metrics[: panel.options["max_rows"]]]
        html += _table(("figure", one.a.name, one.b.name, "difference"), rows)
    return Drawn(title="Every figure of the summaries", html=html)


def _causes(found: Sequence[Comparison], panel: Panel) -> Drawn:
    figure = Figure(
        layout={"template": template(), "height": panel.options["height"], "barmode": "group", "bargap": 0.25}
    )
    largest: dict[str, float] = {}
    for cause in (cause for one in found for cause in one.causes if cause.a_ns or cause.b_ns):
        largest[cause.cause] = max(largest.get(cause.cause, 0.0), abs(cause.difference_ms))
    names = sorted(largest, key=lambda name: -largest[name])[: panel.options["max_causes"]]
    for at, one in enumerate(found, 1):
        by_name = {cause.cause: cause for cause in one.causes}
        mine = [by_name.get(name) for name in names]
        figure.add_bar(
            orientation="h",
            y=names,
            x=[0.0 if cause is None else cause.difference_ms for cause in mine],
            customdata=[("", 0.0, 0.0) if c is None else (c.kind, c.a_ms, c.b_ms) for c in mine],
            name=f"{one.b.name} less {one.a.name}",
            marker={"color": COLOURS[at % len(COLOURS)]},
            hovertemplate="%{y} (%{customdata[0]})<br>%{customdata[1]:,.3f} → %{customdata[2]:,.3f} ms"
            "<br>%{x:+,.3f} ms<extra></extra>",
        )
    zero = {"zeroline": True, "zerolinecolor": "#5b6b7b"}
    figure.update_layout(
        xaxis={"title": {"text": "difference, ms per request"}, **zero}, yaxis={"autorange": "reversed"},
        showlegend=len(found) > 1,
    )  # fmt: skip
    told = [f"{basis(one)}{_not_drawn(one, names)}" for one in found]
    return Drawn(title="Where the difference comes from", caption=" ".join(told), figure=figure)


def _not_drawn(found: Comparison, names: Sequence[str]) -> str:
    """Say what causes come to that have no bar; nothing where each has one."""
    rest = [one for one in found.causes if one.cause not in names and (one.a_ns or one.b_ns)]
    total = fsum(one.difference_ms for one in rest)
    return f" Not drawn: {plural(len(rest), 'other')}, {round(total, 3) + 0.0:+,.3f} ms." if rest else ""


def _distributions(found: Sequence[Comparison], panel: Panel) -> Drawn:
    metrics = panel.options["metrics"]
    figure = Figure(layout={"template": template(), "height": panel.options["height"]})
    for at, name in enumerate(metrics):
        x, y = axis_name("x", at), axis_name("y", at)
        gap, each = 0.07, (1 - 0.07 * (len(metrics) - 1)) / len(metrics)
        left = at * (each + gap)
        scale = {"type": panel.options["scale"], "title": {"text": f"{LATENCIES[name]}, ms"}, "anchor": y}
        side = {"range": [0, 100], "anchor": x} | ({"title": {"text": "% at or below"}} if not at else {})
        figure.update_layout(
            {f"xaxis{x[1:]}": scale | {"domain": [left, min(1.0, left + each)]}, f"yaxis{y[1:]}": side}
        )
        lines = [_curve(entry, name) for entry in _entries(found)]
        ends = [line[at] for line in lines for at in (0, -1) if line]
        if panel.options["scale"] == "log" and ends and min(ends) > 0:
            figure.update_layout({f"xaxis{x[1:]}": log_ticks(min(ends), max(ends))})
        for number_of, (entry, values) in enumerate(zip(_entries(found), lines, strict=True)):
            if values:
                figure.add_scatter(
                    x=values,
                    y=SHARES,
                    xaxis=x,
                    yaxis=y,
                    name=entry.name,
                    mode="lines",
                    showlegend=not at,
                    legendgroup=entry.name,
                    line={"color": COLOURS[number_of % len(COLOURS)]},
                )
    return Drawn(
        title="Distributions", caption="Share of requests at or below a latency, one line per run.", figure=figure
    )


def _curve(entry: Entry, name: str) -> list[float]:
    """Return the percentiles of a latency, ms; nothing where no request has it."""
    latencies = latencies_ns(entry.requests, None)
    if name not in latencies:
        return []
    return [float(weighted_percentile(*latencies[name], float(share))) / 1e6 for share in SHARES]


def _by_request(found: Sequence[Comparison], panel: Panel) -> Drawn:
    title = "Request by request"
    same = [(at, one) for at, one in enumerate(found, 1) if one.same_requests and len(one.compared)]
    if not same:
        return Drawn(title=title, html='<p class="empty">The workloads differ: no request is compared with itself.</p>')
    figure = Figure(layout={"template": template(), "height": panel.options["height"]})
    most = panel.options["max_points"]
    caption = "How much longer each request took, by when it arrived."
    for at, one in same:
        chosen = np.unique(np.linspace(0, len(one.compared) - 1, min(most, len(one.compared))).astype(np.int64))
        if len(chosen) < len(one.compared):
            caption = f"How much longer requests took, by when they arrived; {len(chosen):,} of {len(one.compared):,}."
        requests = one.compared[chosen]
        figure.add_scatter(
            x=np.asarray(one.a.requests["arrived_ns"])[one.a.rows_of(requests)] / 1e9,
            y=one.difference_ns[chosen] / 1e6,
            customdata=requests,
            mode="markers",
            marker={"size": 4, "opacity": 0.6, "color": COLOURS[at % len(COLOURS)]},
            name=f"{one.b.name} less {one.a.name}",
            hovertemplate="request %{customdata}<br>arrived %{x:.3f} s<br>%{y:+,.3f} ms<extra></extra>",
        )
    figure.update_layout(
        xaxis={"title": {"text": "arrival, s"}},
        yaxis={"title": {"text": "end to end, ms more"}, "zeroline": True, "zerolinecolor": "#5b6b7b"},
        showlegend=len(same) > 1,
    )
    return Drawn(title=title, caption=caption, figure=figure)


PANELS: Final[Mapping[str, Callable[[Sequence[Comparison], Panel], Drawn]]] = {
    "differences": _differences,
    "causes": _causes,
    "distributions": _distributions,
    "by_request": _by_request,
    "figures": _figures,
}
"""Figure → the function that draws it; the keys are those of :data:`FIGURES`."""
