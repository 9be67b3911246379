"""The figures of a search's page: one function each, and the options that a layout may give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from clustersim.report.figures.figure import Figure
from clustersim.report.figures.layout import PIXELS, Known, Panel, up_to
from clustersim.report.figures.panels import Drawn
from clustersim.report.figures.style import template
from clustersim.report.points_page import cells, points_table
from clustersim.report.search.searched import Plan, Searched

FIGURES: Final[Known] = {
    "certificate": {},
    "front": {"height": (420, PIXELS)},
    "cost": {"height": (380, PIXELS)},
    "bounds": {"height": (460, PIXELS), "max_points": (4000, up_to(100_000))},
    "plans": {"rows": (1000, up_to(100_000))},
}
"""Figure → option → (default, check)."""
_COLOURS: Final = {
    "best": "#D55E00",
    "tie": "#E69F00",
    "simulated": "#0072B2",
    "screened": "#56B4E9",
    "open": "#CC79A7",
    "pruned": "#999999",
    "failed": "#000000",
}
_SHORT: Final = ", of all but finalists in short runs, which flatter"
_OF_THE_BEST: Final = "their shares of the best are that in runs as short, and at most at length"
_CLICK: Final = " Click a point for the command that simulates it."


def _points(
    figure: Figure, searched: Searched, chosen: Sequence[int], x: Callable[[Plan], Any], y: Callable[[Plan], Any]
) -> None:
    for fate, colour in _COLOURS.items():
        mine = [at for at in chosen if searched.plans[at].fate == fate]
        if mine:
            plans = [searched.plans[at] for at in mine]
            figure.add_scatter(
                x=[x(plan) for plan in plans], y=[y(plan) for plan in plans], mode="markers", name=fate,
                marker={"color": colour, "size": 11 if fate in ("best", "tie") else 7},
                customdata=[at + 1 for at in mine],
                text=[escape(f"{plan.words}: {plan.why}" if plan.why else plan.words) for plan in plans],
                hovertemplate="%{text}<br>%{x:,.4~r} · %{y:,.4~r}<extra></extra>",
            )  # fmt: skip


def _drawn(figure: Figure, panel: Panel, identity: str, title: str, caption: str, x: str, y: str) -> Drawn:
    figure.update_layout(
        template=template(), height=panel.options["height"], hovermode="closest",
        xaxis={"title": {"text": x}, "rangemode": "tozero"}, yaxis={"title": {"text": y}, "rangemode": "tozero"},
    )  # fmt: skip
    return Drawn(
        title=title, caption=caption + _CLICK, figure=figure, then=f'.then(() => clustersimPoints("{identity}"))'
    )


def _front(searched: Searched, panel: Panel, identity: str) -> Drawn:
    """Tokens per second and device against those of a user, of all simulated plans at their capacity."""
    chosen = [at for at, plan in enumerate(searched.plans) if plan.tokens_per_device is not None]
    figure = Figure()
    figure.add_scatter(
        x=[right for _, right, _ in searched.front], y=[high for high, _, _ in searched.front], name="front",
        mode="lines+markers", line={"color": "#D55E00", "dash": "dot", "width": 1.5},
        marker={"symbol": "circle-open", "size": 9}, text=[escape(words) for _, _, words in searched.front],
        hovertemplate="%{text}<br>%{x:,.4~r} · %{y:,.4~r}<extra></extra>",
    )  # fmt: skip
    _points(figure, searched, chosen, lambda plan: plan.tokens_per_user, lambda plan: plan.tokens_per_device)
    circles = (
        ", whose circles are runs of their own, at lower rates, too, many short or of one replica that stands for all "
        "(hover tells which): their scenarios are beside this page"
    )
    return _drawn(
        figure, panel, identity, "Tokens of a device against those of a user",
        f"Each simulated plan at {searched.at}; none of its runs lies above and to the right of the dotted line"
        f"{'' if searched.is_fixed else circles}.",
        "output tokens/s that a user gets", "output tokens/s per device",
    )  # fmt: skip


def _cost(searched: Searched, panel: Panel, identity: str) -> Drawn:
    """What a plan takes against the requests that it serves."""
    priced = all(plan.usd_per_hour is not None for plan in searched.plans)
    fixed = searched.is_fixed
    chosen = [
        at for at, plan in enumerate(searched.plans) if (plan.reached if fixed else plan.requests_per_s) is not None
    ]
    figure = Figure()
    _points(
        figure, searched, chosen, lambda plan: plan.usd_per_hour if priced else plan.devices,
        lambda plan: plan.reached if fixed else plan.requests_per_s,
    )  # fmt: skip
    drawn = _drawn(
        figure, panel, identity, "What a plan takes, and what it reaches" if fixed else
        "What a plan takes, and what it serves",
        f"Each simulated plan at {searched.at}." if fixed else
        f"The highest rate at which enough requests meet their targets{_SHORT}.",
        "USD/h" if priced else "devices", searched.unit if fixed else "requests/s",
    )  # fmt: skip
    if not priced and max((searched.plans[at].devices for at in chosen), default=0) < 10:
        figure.update_layout(xaxis={"dtick": 1})  # there is no half of a device
    return drawn


def _bounds(searched: Searched, panel: Panel, identity: str) -> Drawn | None:
    """What is proven to be the most that a plan reaches against what it reached; None at one rate for all."""
    if searched.is_fixed:
        return None
    bounded = [at for at, plan in enumerate(searched.plans) if plan.bound is not None]
    chosen = bounded[: panel.options["max_points"]]
    figure = Figure()
    best = searched.plans[0].reached or 0.0
    most = max((searched.plans[at].bound or 0.0 for at in chosen), default=best)
    figure.add_scatter(
        x=[0.0, most], y=[0.0, most], mode="lines", name="bound", hoverinfo="skip",
        line={"color": "#999999", "width": 1},
    )  # fmt: skip
    _points(figure, searched, chosen, lambda plan: plan.bound, lambda plan: plan.reached or 0.0)
    figure.add_shape(
        type="line", xref="x", yref="y domain", x0=best, x1=best, y0=0, y1=1, line={"color": "#D55E00", "dash": "dash"}
    )
    few = f" {len(chosen):,} of {len(bounded):,} are drawn." if len(chosen) < len(bounded) else ""
    return _drawn(
        figure, panel, identity, "Bounds against what was reached",
        f"Left of the dashed line no plan can beat the best one. None lies above the grey line: that would break its "
        f"bound. At 0: not simulated, or screened.{few}",
        f"bound, {searched.unit}", f"reached, {searched.unit}",
    )  # fmt: skip


def _certificate(searched: Searched, panel: Panel, identity: str) -> Drawn:
    """What the answer rests on."""
    del panel, identity
    items = "".join(f"<li>{escape(text)}</li>" for text in searched.certificate)
    return Drawn(title="What the answer rests on", caption=searched.plans[0].words, html=f"<ul>{items}</ul>")


def _plans(searched: Searched, panel: Panel, identity: str) -> Drawn:
    """All plans in a table, with why each lost."""
    del identity
    rows = [
        cells((
            plan.words, plan.fate, plan.why, _reached(plan), _shown(plan.bound), str(plan.devices),
            str(plan.stands_for), plan.launches_for or "–",
        ))
        for plan in searched.plans[: panel.options["rows"]]
    ]  # fmt: skip
    return points_table(
        "Why each of the others lost",
        f"{'' if searched.is_fixed else f'What is reached is the highest rate{_SHORT}; {_OF_THE_BEST}. '}"
        "Click a row for the command that simulates it.",
        ("plan", "", "why not", f"reached, {searched.unit}", "bound", "devices", "stands for", "started by"),
        rows,
        len(searched.plans),
        kind="reasons",
    )


def _reached(plan: Plan) -> str:
    return f"{'short runs: ' * (plan.at_length is False)}{_shown(plan.reached)}"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


PANELS: Final[Mapping[str, Callable[[Searched, Panel, str], Drawn | None]]] = {
    "certificate": _certificate,
    "front": _front,
    "cost": _cost,
    "bounds": _bounds,
    "plans": _plans,
}
"""Figure → what draws it."""
