"""The figures of a sweep's page: one function each, and the options that a layout may give it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Final

from clustersim.errors import did_you_mean
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.layout import PIXELS, Known, Panel, up_to
from clustersim.report.figures.panels import Drawn
from clustersim.report.figures.style import COLOURS, TARGET, axis_name, log_ticks, template
from clustersim.report.points_page import cells, points_table
from clustersim.report.sweep.swept import Swept, is_better_low, leading, short
from clustersim.scenario.expect import NUMBER_KEYS

_MOST_LINES: Final = 12
_MOST_PARALLEL: Final = 3000
_SHADES: Final = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#e3d010")
"""Of Viridis, from worse to better."""
KEYS: Final = (*NUMBER_KEYS, "devices", "met.ttft", "met.tpot", "met.e2e")
_LATENCIES: Final = ("throughput.output_tokens_per_s", "ttft_ms.p99", "tpot_ms.p99", "goodput.share")


def _number(value: Any) -> tuple[Any, str | None]:
    if value in KEYS:
        return value, None
    return None, f"a summary has no number {value!r}{did_you_mean(str(value), KEYS)}"


def _numbers(value: Any) -> tuple[Any, str | None]:
    listed = value if isinstance(value, list) else [value]
    wrong = next((told for one in listed if (told := _number(one)[1])), None)
    return (tuple(listed), None) if listed and wrong is None else (None, wrong or "expected a list of numbers")


def _key(value: Any) -> tuple[Any, str | None]:
    return (value, None) if isinstance(value, str) else (None, f"expected a key that varies, or auto, not {value!r}")


FIGURES: Final[Known] = {
    "curve": {
        "height": (460, PIXELS),
        "x": (_LATENCIES[0], _number),
        "y": (_LATENCIES[1:3], _numbers),
        "along": ("auto", _key),
    },
    "heat_map": {
        "height": (460, PIXELS),
        "values": ((_LATENCIES[3], *_LATENCIES[:3]), _numbers),
        "x": ("auto", _key),
        "y": ("auto", _key),
    },
    "parallel": {"height": (420, PIXELS), "values": (_LATENCIES, _numbers)},
    "points": {"values": ((*_LATENCIES, "devices"), _numbers), "rows": (1000, up_to(100_000))},
}
"""Figure → option → (default, check)."""


_SERVED: Final = " Throughput counts until the last request has ended; keys of steady tell it while requests arrive."


def _curve(swept: Swept, panel: Panel, identity: str) -> Drawn | None:
    """Latency against throughput; None where fewer than two runs have numbers."""
    runs, options = swept.simulated, panel.options
    if len(runs) < 2:
        return None
    along = swept.along() if options["along"] == "auto" else _there(swept, options["along"])
    lines: dict[str, list[int]] = {}
    for run in runs:
        lines.setdefault(swept.words(run, () if along is None else (along,)), []).append(run)
    joined = along is not None and len(lines) <= _MOST_LINES
    figure = Figure()
    layout: dict[str, Any] = {"template": template(), "height": options["height"], "hovermode": "closest"}
    shown = options["y"]
    gap = 0.16 if len(shown) > 1 else 0.0
    each = (1 - gap * (len(shown) - 1)) / len(shown)
    for place, key in enumerate(shown):
        x, y = axis_name("x", place), axis_name("y", place)
        for number, (words, members) in enumerate(lines.items()):
            order = sorted(members, key=lambda run: _place(swept, run, along)) if joined else members
            figure.add_scatter(
                x=[swept.number(run, options["x"]) for run in order],
                y=[swept.number(run, key) for run in order],
                xaxis=x, yaxis=y, mode="lines+markers" if joined else "markers",
                name=words or swept.name, legendgroup=words, showlegend=joined and bool(words) and place == 0,
                line={"color": COLOURS[number % len(COLOURS)] if joined else None},
                marker={
                    "size": 7, "color": None if joined else "#0072B2",
                    "symbol": "square" if joined and number >= len(COLOURS) else "circle",
                },
                customdata=[run + 1 for run in order],
                text=[escape(swept.words(run)) for run in order],
                hovertemplate="%{text}<br>%{x:,.4~r} · %{y:,.4~r}<extra>point %{customdata}</extra>",
            )  # fmt: skip
        left = place * (each + gap)
        layout[axis_name("xaxis", place)] = {
            "domain": [left, left + each],
            "anchor": y,
            "title": {"text": options["x"]},
        }
        values = [swept.number(run, key) for run in runs if swept.number(run, key) > 0]
        wide = bool(values) and max(values) > 20 * min(values)
        layout[axis_name("yaxis", place)] = {
            "anchor": x, "title": {"text": key}, "type": "log" if wide else "linear", "rangemode": "tozero",
            **(log_ticks(min(values), max(values)) if wide else {}),
        }  # fmt: skip
        limit = swept.targets.get(key.partition("_")[0])
        if limit is not None and "_ms" in key:
            figure.add_shape(
                type="line", xref=f"{x} domain", yref=y, x0=0, x1=1, y0=limit, y1=limit,
                line={"color": TARGET, "dash": "dash", "width": 1.5},
            )  # fmt: skip
    figure.update_layout(layout)
    target = " Dashed red: the target." if "shapes" in figure.layout else ""
    moves = f"Along a line {short(along)} grows" if joined and along is not None else "Each point is a run"
    served = _SERVED if options["x"].startswith("throughput.") else ""
    return Drawn(
        title="Latency against throughput",
        caption=f"{moves}.{target}{served} Click a point for the command that simulates it again.",
        figure=figure,
        then=f'.then(() => clustersimPoints("{identity}"))',
    )


def _heat_map(swept: Swept, panel: Panel, identity: str) -> Drawn | None:
    """Two keys against each other; None where fewer vary."""
    wide, options = swept.wide(), panel.options
    if len(wide) < 2 or not swept.simulated:
        return None
    x = swept.along() or wide[-1] if options["x"] == "auto" else _there(swept, options["x"])
    y = next(key for key in wide if key != x) if options["y"] == "auto" else _there(swept, options["y"])
    if x is None or y is None or x == y:
        return None
    columns, lines, order = swept.varied[x], swept.varied[y], list(swept.varied)
    figure, buttons = Figure(), []
    values = swept.there(options["values"], swept.simulated)
    if not values:
        return None
    values = [key for key in values if len({swept.number(run, key) for run in swept.simulated}) > 1] or values
    for number, key in enumerate(values):
        sign = -1.0 if is_better_low(key) else 1.0
        best: dict[tuple[str, str], int] = {}
        for run in swept.simulated:
            cell = swept.chosen[run][order.index(y)], swept.chosen[run][order.index(x)]
            if not math.isnan(swept.number(run, key)) and (
                cell not in best or sign * swept.number(run, key) > sign * swept.number(best[cell], key)
            ):
                best[cell] = run
        cells = [[best.get((line, column)) for column in columns] for line in lines]
        figure.add_heatmap(
            x=list(columns), y=list(lines), visible=number == 0,
            z=[[None if run is None else swept.number(run, key) for run in line] for line in cells],
            text=[["" if run is None else _shown(swept.number(run, key), 3) for run in line] for line in cells],
            texttemplate="%{text}" if len(columns) * len(lines) <= 400 else None,
            customdata=[[None if run is None else run + 1 for run in line] for line in cells],
            hovertext=[["" if run is None else escape(swept.words(run)) for run in line] for line in cells],
            hovertemplate="%{hovertext}<br>%{z:,.4~r}<extra>point %{customdata}</extra>",
            hoverongaps=False, colorscale="Viridis", reversescale=sign < 0, xgap=1, ygap=1,
            colorbar={"title": {"text": key, "side": "right"}, "thickness": 14},
        )  # fmt: skip
        visible = [place == number for place in range(len(values))]
        buttons.append({"label": key, "method": "restyle", "args": ["visible", visible]})
    figure.update_layout(
        template=template(),
        height=options["height"],
        margin={"t": 50},
        xaxis={"title": {"text": x}, "type": "category", "showgrid": False},
        yaxis={"title": {"text": y}, "type": "category", "showgrid": False},
        updatemenus=[
            {"buttons": buttons, "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom", "showactive": True}
        ],
    )
    rest = [short(key) for key in wide if key not in (x, y)]
    more = f" A cell is the best over {', '.join(rest)}." if rest else ""
    places = {(run[order.index(y)], run[order.index(x)]) for run in swept.chosen}
    empty = "failed" if len(places) == len(columns) * len(lines) else "failed, or were not asked for"
    return Drawn(
        title="Two keys against each other",
        caption=f"Choose the number above, of those that differ; yellow is better. Empty cells {empty}.{more}",
        figure=figure,
        then=f'.then(() => clustersimPoints("{identity}"))',
    )


def _parallel(swept: Swept, panel: Panel, identity: str) -> Drawn | None:
    """All keys and some numbers side by side, a line per run; None where fewer than two keys vary."""
    wide, order, runs = swept.wide(), list(swept.varied), swept.simulated
    if len(wide) < 2 or len(runs) < 2:
        return None
    kept = runs[:: -(-len(runs) // _MOST_PARALLEL)]
    heights: list[list[float]] = []
    figure = Figure()
    notes: list[dict[str, Any]] = []
    numbers = swept.there(panel.options["values"], kept)
    for place, key in enumerate([*wide, *numbers]):
        if key in swept.varied and place < len(wide):
            values = list(swept.varied[key])
            heights.append(
                [_share(values.index(swept.chosen[run][order.index(key)]), 0, len(values) - 1) for run in kept]
            )
            ticks = [(_share(at, 0, len(values) - 1), value) for at, value in enumerate(values)]
            ticks = ticks[:: -(-len(ticks) // 8)]
        else:
            found = [swept.number(run, key) for run in kept]
            low, high = min(filter(math.isfinite, found)), max(filter(math.isfinite, found))
            heights.append([_share(one, low, high) for one in found])
            ticks = [(0.0, _shown(low)), (1.0, _shown(high))] if high > low else [(0.5, _shown(low))]
        notes.append(
            {
                "x": place,
                "y": 1.03,
                "text": escape(short(key) if place < len(wide) else key),
                "xanchor": "center",
                "name": "column",
                "yanchor": "bottom",
            }
        )
        notes += [
            {"x": place, "y": at, "text": escape(text[:20]), "xshift": 5, "xanchor": "left"} for at, text in ticks
        ]
        figure.add_shape(type="line", x0=place, x1=place, y0=0, y1=1, line={"color": "#8a97a3", "width": 1})
    count = len(heights)
    last = (numbers or wide)[-1]
    low_is_better = bool(numbers) and is_better_low(last)
    for shade, colour in enumerate(_SHADES):
        members = [one for one in range(len(kept)) if _shade(heights[-1][one], low_is_better) == shade]
        lines = [[*range(count), None] for _ in members]
        figure.add_scatter(
            x=[x for line in lines for x in line],
            y=[y for one in members for y in (*(column[one] for column in heights), None)],
            customdata=[kept[one] + 1 for one in members for _ in range(count + 1)],
            text=[escape(swept.words(kept[one])) for one in members for _ in range(count + 1)],
            hovertemplate="%{text}<extra>point %{customdata}</extra>",
            mode="lines+markers", line={"color": colour, "width": 1.3}, marker={"size": 4}, showlegend=False,
        )  # fmt: skip
    shown = {"showarrow": False, "font": {"size": 11}, "bgcolor": "rgba(255,255,255,0.75)", "yanchor": "middle"}
    figure.update_layout(
        template=template(),
        height=panel.options["height"],
        hovermode="closest",
        annotations=[shown | note for note in notes],
        xaxis={"visible": False, "range": [-0.15, count - 0.55]},
        yaxis={"visible": False, "range": [-0.06, 1.14]},
    )
    few = f" {len(kept):,} of {len(runs):,} runs are drawn." if len(kept) < len(runs) else ""
    yellow = "where it is better" if numbers else "at the top"
    return Drawn(
        title="All keys side by side",
        caption=f"A line is a run; its colour is {last}, yellow {yellow}. Click one for its command.{few}",
        figure=figure,
        then=f'.then(() => clustersimPoints("{identity}"))',
    )


def _share(value: float, low: float, high: float) -> float:
    """Return where a value lies between two others, 0 to 1."""
    return (value - low) / (high - low) if high > low else 0.5


def _shade(height: float, low_is_better: bool) -> int:
    shade = 0 if math.isnan(height) else min(len(_SHADES) - 1, int(height * len(_SHADES)))
    return len(_SHADES) - 1 - shade if low_is_better and not math.isnan(height) else shade


def _points(swept: Swept, panel: Panel, identity: str) -> Drawn:
    """All runs in a table, with the command that simulates each again."""
    del identity
    values, most = panel.options["values"], panel.options["rows"]
    rows = []
    for run in range(min(most, len(swept.chosen))):
        keys, bad = [str(run + 1), *swept.chosen[run]], _bad(swept.failed[run])
        if swept.numbers[run]:
            rows.append(cells([*keys, *(_shown(swept.number(run, key)) for key in values)]) + f"<td>{bad}</td>")
        else:
            rows.append(cells(keys) + f'<td colspan="{len(values) + 1}">{bad}</td>')
    return points_table(
        "Runs",
        "Click a row for the command that simulates it again.",
        ("point", *map(short, swept.varied), *values, ""),
        rows,
        len(swept.chosen),
    )


def _bad(reason: str | None) -> str:
    return "" if reason is None else f'<span class="reason">{escape(reason)}</span>'


def _shown(value: float, digits: int = 4) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def _place(swept: Swept, run: int, along: str | None) -> float:
    """Return where a run comes along a line: by its number, else by the order in which values are listed."""
    if along is None:
        return 0.0
    value = swept.chosen[run][list(swept.varied).index(along)]
    number = leading(value)
    return float(list(swept.varied[along]).index(value)) if math.isnan(number) else number


def _there(swept: Swept, key: str) -> str | None:
    """Return a key that a layout names, where it varies."""
    return key if key in swept.varied else None


PANELS: Final[Mapping[str, Callable[[Swept, Panel, str], Drawn | None]]] = {
    "curve": _curve,
    "heat_map": _heat_map,
    "parallel": _parallel,
    "points": _points,
}
"""Figure → what draws it; None where too little varies for it."""
