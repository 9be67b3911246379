"""The figure of latency distributions: a histogram each, the share at or below, percentiles, target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray
from clustersim.column import is_one
from clustersim.report.figures.bins import weights_between
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.style import BLUE, INK, MUTED, TARGET, axis_name, faded, log_ticks, template
from clustersim.report.metrics.latencies import LATENCIES, Weighted, weighted_percentile
from clustersim.values import dataclass

_UNITS: Final = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
_MARKED: Final = (50, 90, 99)
_CURVE: Final = np.concatenate([np.linspace(0, 99, 199), np.linspace(99.05, 100, 20)])
_BINS: Final = 60
_FAR: Final = 2.5
"""A target beyond so many times the largest value is named, not drawn."""


Marks = dict[str, list[dict[str, Any]]]
"""Shapes and annotations of a layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Share of values per bin (sums to 1), with ``len(edges) == len(share) + 1``."""

    edges: FloatArray
    share: FloatArray


def histogram(values: npt.NDArray[Any], weights: npt.NDArray[Any], *, log: bool, bins: int = _BINS) -> Histogram:
    """Count weighted values in equal bins of the value, or of its logarithm.

    The bins span the values exactly; equal values get one narrow bin around them.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        half = abs(low) * 0.02 or 0.5
        edges = np.array([low - half, low + half])
    elif log and low > 0:
        edges = np.geomspace(low, high, bins + 1)
    else:
        edges = np.linspace(low, high, bins + 1)
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    counts = weights_between(edges, values, None if is_one(weights) and weights[0] == 1 else weights)
    return Histogram(edges=edges, share=counts / counts.sum())


def latencies_figure(found: Mapping[str, Weighted], limits_ns: Mapping[str, float], scale: str, height: int) -> Figure:
    """Draw one chart per latency, two beside each other.

    Parameters
    ----------
    found : mapping
        Latency name → (values in ns, weights), as :func:`clustersim.report.metrics.latencies.latencies_ns` gives.
    limits_ns : mapping
        Latency name → target in ns; a dashed line where there is one.
    scale : {"auto", "linear", "log"}
        Scale of the latency axis; ``auto`` is logarithmic where the largest value is 20 times the median.
    height : int
        Pixels of the whole figure.
    """
    columns = min(2, len(found))
    rows = -(-len(found) // max(columns, 1))
    figure = Figure(
        layout={
            "template": template(),
            "height": height if rows > 1 else height // 2 + 20,
            "showlegend": False,
            "margin": {"r": 64},
            "hovermode": "closest",
        }
    )
    marks: Marks = {"shapes": [], "annotations": []}
    axes: dict[str, Any] = {}
    domains: dict[str, Any] = {}
    for index, (name, (values, weights)) in enumerate(found.items()):
        row, column = divmod(index, columns)
        _add_chart(figure, marks, axes, index, name, (values, weights), limit_ns=limits_ns.get(name), scale=scale)
        gap_x, gap_y = 0.16, 0.2
        width, tall = (1 - gap_x * (columns - 1)) / columns, (1 - gap_y * (rows - 1)) / rows
        left, top = column * (width + gap_x), 1 - row * (tall + gap_y)
        domains[axis_name("xaxis", index)] = {"domain": [left, left + width]}
        domains[axis_name("yaxis", 2 * index)] = {"domain": [max(0.0, top - tall), top]}
        if column == 0:
            axes[axis_name("yaxis", 2 * index)]["title"] = {"text": "share per bin"}
        if column == columns - 1 or index == len(found) - 1:
            axes[axis_name("yaxis", 2 * index + 1)]["title"] = {"text": "share at most this"}
    figure.update_layout(marks if found else {}, axes, domains)
    return figure


def _add_chart(
    figure: Figure, marks_of_all: Marks, axes: dict[str, Any], index: int, name: str, weighted: Weighted,
    *, limit_ns: float | None, scale: str,
) -> None:  # fmt: skip
    """Add the histogram and the curve of a chart to a figure, and its marks and axes to those of all."""
    values, weights = weighted
    percentiles = weighted_percentile(values, weights, (*_MARKED, *_CURVE))
    marks = percentiles[: len(_MARKED)]
    unit, factor = next((pair for pair in _UNITS if marks[0] >= pair[1]), _UNITS[-1])
    values, marks, curve = values / factor, marks / factor, percentiles[len(_MARKED) :] / factor
    skewed = values.min() > 0 and values.max() > 20 * marks[0]
    log = values.min() > 0 and (scale == "log" or (scale == "auto" and bool(skewed)))
    x, y, y_right = axis_name("x", index), axis_name("y", 2 * index), axis_name("y", 2 * index + 1)
    bins = histogram(values, weights, log=log)
    figure.add_scatter(
        x=np.append(bins.edges, bins.edges[-1]).astype(np.float32),
        y=np.concatenate([bins.share, bins.share[-1:], [0.0]]).astype(np.float32),
        line={"shape": "hv", "width": 1, "color": BLUE},
        fill="tozeroy",
        fillcolor=faded(BLUE, 0.25),
        mode="lines",
        xaxis=x,
        yaxis=y,
        hovertemplate=f"from %{{x:.4~g}} {unit}: %{{y:.2%}}<extra></extra>",
    )
    figure.add_scatter(
        x=curve.astype(np.float32),
        y=(_CURVE / 100).astype(np.float32),
        line={"width": 1.8, "color": INK},
        mode="lines",
        xaxis=x,
        yaxis=y_right,
        hovertemplate=f"%{{y:.1%}} take at most %{{x:.4~g}} {unit}<extra></extra>",
    )
    for level, (percent, mark) in enumerate(zip(_MARKED, marks, strict=True)):
        text, height = f"p{percent}", 1 - 0.09 * level
        _mark(marks_of_all, (x, y), float(mark), text, log=log, colour=MUTED, dash="dot", level=height)
    if limit_ns is not None:
        _mark_target(marks_of_all, (x, y), limit_ns / factor, unit, log=log, largest=float(values.max()))
    axes.update(
        {
            axis_name("xaxis", index): {
                "anchor": y,
                "type": "log" if log else "linear",
                "title": {"text": f"{name.upper()}, {LATENCIES[name]} ({unit})"},
                **(log_ticks(float(values.min()), float(values.max())) if log else {}),
            },
            axis_name("yaxis", 2 * index): {"anchor": x, "tickformat": ".2~%", "rangemode": "tozero"},
            axis_name("yaxis", 2 * index + 1): {
                "anchor": x, "overlaying": y, "side": "right", "range": [0, 1.01],
                "tickvals": [0, 0.25, 0.5, 0.75, 1], "tickformat": ".0%", "showgrid": False},
        }
    )  # fmt: skip


def _mark_target(marks: Marks, axes: tuple[str, str], limit: float, unit: str, *, log: bool, largest: float) -> None:
    """Draw the target, or say where it lies when drawing it would squeeze the values into a corner."""
    if limit <= _FAR * largest:
        _mark(marks, axes, limit, "target", log=log, colour=TARGET, dash="dash", level=0.7)
        return
    annotation = {
        "xref": f"{axes[0]} domain", "yref": f"{axes[1]} domain", "x": 1, "y": 0.72, "xanchor": "right",
        "yanchor": "top", "text": f"target {limit:,.10g} {unit} →", "showarrow": False,
        "font": {"size": 10, "color": TARGET},
    }  # fmt: skip
    marks["annotations"].append(annotation)


def _mark(
    marks: Marks, axes: tuple[str, str], at: float, text: str,
    *, log: bool, colour: str, dash: str, level: float,
) -> None:  # fmt: skip
    """Draw a vertical line with a label at that height (0 to 1) of the chart."""
    x, y = axes
    line = {"color": colour, "width": 1.4 if dash == "dash" else 1, "dash": dash}
    ends = {"x0": at, "x1": at, "y0": 0, "y1": 1}
    marks["shapes"].append({"type": "line", "xref": x, "yref": f"{y} domain", **ends, "line": line})
    annotation = {
        "xref": x, "yref": f"{y} domain", "x": np.log10(at) if log else at, "y": level, "text": text,
        "showarrow": False, "xanchor": "left", "xshift": 2, "yanchor": "top", "font": {"size": 10, "color": colour},
        "bgcolor": "rgba(255,255,255,0.8)", "borderpad": 0,
    }  # fmt: skip
    marks["annotations"].append(annotation)
