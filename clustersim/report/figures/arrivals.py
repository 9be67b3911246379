"""The figure of requests over time: TTFT and TPOT by arrival, and how many came, went, and met their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_MS, NS_PER_S, FloatArray, Int64Array
from clustersim.column import by_parts, is_one, parts
from clustersim.report.figures.bins import time_edges, weights_between
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.series import TIME_TITLE
from clustersim.report.figures.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PINK,
    TARGET,
    YELLOW,
    axis_name,
    faded,
    held,
    stacked,
)
from clustersim.report.metrics.latencies import Columns, of_each, tpot_ns, ttft_ns, within_targets
from clustersim.report.words.service import met_words

PER_BIN: Final = 20
"""Requests in a bin of a rate, on average: fewer would show chance rather than change."""

FAR: Final = 1.5
"""A target above so many times the highest value is not drawn as a line."""
_MARKED: Final = ((50, BLUE), (90, GREEN), (99, ORANGE))


def requests_figure(
    requests: Columns, limits_ns: Mapping[str, float], bins: int, max_points: int, height: int
) -> Figure:
    """Draw TTFT and TPOT by arrival (each request, or percentiles per bin of time) and requests per second."""
    figure = Figure(layout=stacked(["TTFT (s)", "TPOT (ms)", "requests per second"], TIME_TITLE, height))
    arrived, ends = requests["arrived_ns"].astype(np.int64, copy=False), _present(requests["finished_ns"])
    last = max(int(one.max(initial=0)) for one in (arrived, ends)) if len(arrived) + len(ends) else 1
    figure.update_layout(hovermode="closest", xaxis={"range": [0, 1.005 * last / NS_PER_S]})
    for row, (name, per_request, unit, scale, colour) in enumerate(
        (("ttft", ttft_ns, "s", NS_PER_S, BLUE), ("tpot", tpot_ns, "ms", NS_PER_MS, GREEN))
    ):
        values = of_each("float64", requests, lambda mine: per_request(mine) / scale)  # noqa: B023
        known = ~np.isnan(values)
        if int(known.sum()) <= max_points:
            _add_points(figure, requests, known, values, name.upper(), unit, row, colour)
        else:
            some = slice(None) if known.all() else known
            _add_percentiles(figure, arrived[some], values[some], time_edges(0, last, bins), name.upper(), unit, row)
        if name in limits_ns:
            highest = float(np.max(values, initial=0.0, where=known))
            _add_target(figure, limits_ns[name] / scale, highest, unit, axis_name("y", row))
    edges = time_edges(0, last, min(bins, max(10, len(arrived) // PER_BIN)))
    _add_rate(figure, "arrived", arrived, edges, YELLOW)
    _add_rate(figure, "finished", ends, edges, PINK)
    if limits_ns:
        good = within_targets(requests, limits_ns)
        _add_rate(figure, f"{met_words(limits_ns)} (by end)", _present(requests["finished_ns"][good]), edges, GREEN)
    for outcome, colour in (("rejected", TARGET), ("cancelled", MUTED), ("lost", INK)):
        told = np.asarray(requests["outcome"])
        if is_one(told) and told[0] != outcome:
            continue
        some = arrived[told == outcome]
        if len(some):
            _add_rate(figure, f"{outcome} (by arrival)", some, edges, colour)
    return figure


def _add_target(figure: Figure, value: float, highest: float, unit: str, axis: str) -> None:
    """Draw a target as a line; one far above the highest value is told in words, since its line would squeeze these."""
    line, far = {"color": TARGET, "width": 1.4, "dash": "dash"}, value > FAR * highest > 0
    if not far:
        figure.add_shape(type="line", xref="paper", x0=0, x1=1, yref=axis, y0=value, y1=value, line=line)
    figure.add_annotation(
        xref="paper", x=1, xanchor="right", yref=f"{axis} domain" if far else axis, y=1 if far else value,
        yanchor="bottom", text=f"target {value:,.4g} {unit} ↑" if far else "target",
        showarrow=False, font={"size": 10, "color": TARGET},
    )  # fmt: skip


def binned_percentiles(
    bin_of: npt.NDArray[Any], values: FloatArray, bins: int, percents: tuple[int, ...]
) -> FloatArray:
    """Return percentiles (numpy's linear method) of the values in each bin; NaN where a bin has none.

    Returns
    -------
    float array, shape (len(percents), bins)
    """
    ordered = values[np.argsort(bin_of, kind="stable")]
    count = sum((np.bincount(bin_of[some], minlength=bins) for some in parts(len(bin_of), 8)), np.zeros(bins, np.int64))
    first = np.cumsum(count) - count
    for begin, many in zip(first.tolist(), count.tolist(), strict=True):  # all at once takes four times as long
        ordered[begin : begin + many].sort()
    result = np.full((len(percents), bins), np.nan)
    some = count > 0
    for row, percent in enumerate(percents):
        position = (count[some] - 1) * (percent / 100)
        below = np.floor(position).astype(np.int64)
        low = ordered[first[some] + below]
        high = ordered[first[some] + np.minimum(below + 1, count[some] - 1)]
        result[row, some] = low + (high - low) * (position - below)
    return result


def _add_points(
    figure: Figure, requests: Columns, known: npt.NDArray[np.bool_], values: FloatArray,
    name: str, unit: str, row: int, colour: str,
) -> None:  # fmt: skip
    names = ("request", "prompt_tokens", "output_tokens")
    sizes = np.stack([requests[column][known] for column in names], axis=1)
    figure.add_scatter(
        x=(requests["arrived_ns"][known] / NS_PER_S).astype(np.float32),
        y=values[known].astype(np.float32),
        yaxis=axis_name("y", row),
        mode="markers",
        name=f"{name} of a request",
        marker={"size": 5, "color": faded(colour, 0.55)},
        customdata=sizes.astype(np.int32),
        hovertemplate="request %{customdata[0]}: %{customdata[1]:,} prompt tokens, "
        f"%{{customdata[2]:,}} asked<br>arrived at %{{x:.3f}} s, {name} %{{y:.4~g}} {unit}<extra></extra>",
    )


def _add_percentiles(
    figure: Figure, arrived: Int64Array, values: FloatArray, edges: Int64Array, name: str, unit: str, row: int
) -> None:
    to = np.min_scalar_type(len(edges))  # of 16 bits are put in order without comparing
    bin_of = by_parts(to, len(arrived), lambda some: _bins(edges, arrived[some]).astype(to))
    marks = binned_percentiles(bin_of, values, len(edges) - 1, tuple(percent for percent, _ in _MARKED))
    for (percent, colour), line in zip(_MARKED, marks, strict=True):
        figure.add_scatter(
            x=(edges / NS_PER_S).astype(np.float32),
            y=held(line),
            yaxis=axis_name("y", row),
            mode="lines",
            name=f"{name} p{percent}",
            legendgroup=f"p{percent}",
            line={"shape": "hv", "width": 1.5, "color": colour},
            hovertemplate=f"arrived from %{{x:.3f}} s: {name} p{percent} %{{y:.4~g}} {unit}<extra></extra>",
        )


def _bins(edges: Int64Array, at_ns: Int64Array) -> Int64Array:
    return np.clip(np.searchsorted(edges, at_ns, side="right") - 1, 0, len(edges) - 2)


def _add_rate(figure: Figure, name: str, at_ns: Int64Array, edges: Int64Array, colour: str) -> None:
    counts = weights_between(edges, at_ns)
    figure.add_scatter(
        x=(edges / NS_PER_S).astype(np.float32),
        y=held(counts / (np.diff(edges) / NS_PER_S)),
        yaxis="y3",
        mode="lines",
        name=f"{name} per second",
        line={"shape": "hv", "width": 1.5, "color": colour},
        hovertemplate=f"%{{y:.3~g}} {name} per second from %{{x:.3f}} s<extra></extra>",
    )


def _present(column: npt.NDArray[Any]) -> Int64Array:
    some = column if column.dtype.kind == "i" else column[~np.isnan(column)]
    return some.astype(np.int64, copy=False)
