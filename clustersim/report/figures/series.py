"""Figures over time: the batch, the queue and the K/V cache, binned to the width of a screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S, Int64Array
from clustersim.report.figures.bins import Binned, bin_function, bin_intervals, time_edges
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.style import BLUE, GREEN, ORANGE, PINK, axis_name, faded, held, stacked
from clustersim.report.metrics.gauges import blocks_of_all, gauge
from clustersim.report.metrics.latencies import Columns

_POOL_COLOURS: Final = ((BLUE, ORANGE, GREEN, PINK), (GREEN, PINK, BLUE, ORANGE))
"""Of each pool: requests that run and that wait, tokens that are prefilled and decoded."""
TIME_TITLE: Final = "time since the start of the run (s)"


def batch_figure(steps: Columns, pools: Sequence[Mapping[str, Any]], bins: int, height: int) -> Figure:
    """Draw how many requests run and wait, and how many tokens a step prefills and decodes, pool by pool.

    ``pools`` are those of ``summary.json``, empty where there is one.
    """
    edges = run_edges(steps, bins)
    titles = ["requests", "prefill tokens<br>per step", "decode tokens<br>per step"]
    figure = Figure(layout=stacked(titles, TIME_TITLE, height))
    for (pool, mine), colours in zip(_by_pool(steps, pools), _POOL_COLOURS, strict=False):
        of = f"{pool}: " if pool else ""
        for name, colour in zip(("running", "waiting"), colours[:2], strict=True):
            series = bin_function(gauge(mine, name), edges)
            _add(figure, series, f"{of}{name}", row=0, colour=colour, form=",.1f")
        for row, (kind, colour) in enumerate(zip(("prefill", "decode"), colours[2:], strict=True), start=1):
            if pool and not mine[f"{kind}_tokens"].any():
                continue
            series = tokens_per_step(mine, f"{kind}_tokens", edges)
            _add(figure, series, f"{of}{kind} tokens", row=row, colour=colour, form=",.0f")
    return figure


def _by_pool(steps: Columns, pools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Columns]]:
    """Yield the name of each pool, and its steps; of the only one, which has no name, all."""
    first = 0
    for pool in pools:
        mine = (steps["replica"] >= first) & (steps["replica"] < first + pool["replicas"])
        yield pool["name"], {name: column[mine] for name, column in steps.items()}
        first += pool["replicas"]
    if not pools:
        yield "", steps


def tokens_per_step(steps: Columns, column: str, edges_ns: Int64Array) -> Binned:
    """Bin what a step carries: the mean weighs every step alike, however long it takes."""
    return bin_intervals(steps["start_ns"], steps["end_ns"], steps[column], edges_ns, steps["count"])


def kv_figure(steps: Columns, pools: Sequence[Mapping[str, Any]], bins: int, height: int) -> Figure:
    """Draw the share of all K/V cache blocks that is in use: over all replicas, or over those of each pool.

    ``pools`` are those of ``summary.json``, empty where there is one.
    """
    figure = Figure(layout=stacked(["K/V blocks in use"], TIME_TITLE, height))
    edges, highest = run_edges(steps, bins), 0.0
    for (pool, mine), colour in zip(_by_pool(steps, pools), (BLUE, ORANGE), strict=False):
        share = kv_share(mine, edges)
        _add(figure, share, pool or "in use", row=0, colour=colour, form=".1%", fill=True)
        highest = max(highest, float(np.nan_to_num(share.high).max()))
    top = 1.02 if highest > 0.35 else max(1.2 * highest, 0.01)
    figure.update_layout(showlegend=bool(pools), yaxis={"tickformat": ".2~%", "range": [0, top]})
    return figure


def kv_share(steps: Columns, edges_ns: Int64Array) -> Binned:
    """Bin the share, 0 to 1, of the K/V blocks of all replicas that is in use."""
    total = blocks_of_all(steps)
    used = bin_function(gauge(steps, "kv_blocks_used"), edges_ns)
    return used.scaled(1 / total if total else 0.0)


def run_edges(steps: Columns, bins: int) -> Int64Array:
    """Return the edges of bins from the start of a run to the end of its last step, ns."""
    end = int(steps["end_ns"].max()) if len(steps["end_ns"]) else 1
    return time_edges(0, end, bins)


def _add(figure: Figure, series: Binned, name: str, *, row: int, colour: str, form: str, fill: bool = False) -> None:
    """Add a series: its mean as a line, and a band behind it; the smallest and the largest value are told in words.

    Where no step ran the value is zero: nothing was there, and a band needs a value.
    """
    x = (series.edges_ns / NS_PER_S).astype(np.float32)
    low, mean, high, lower, upper = (
        held(np.nan_to_num(values)) for values in (series.low, series.mean, series.high, series.lower, series.upper)
    )
    shared: dict[str, Any] = {
        "x": x,
        "yaxis": axis_name("y", row),
        "mode": "lines",
        "legendgroup": name,
    }
    edge = {"width": 0, "shape": "hv", "color": colour}
    band = {**shared, "hoverinfo": "skip", "showlegend": False, "line": edge}
    if not np.array_equal(lower, upper):
        figure.add_scatter(y=lower, **band)
        figure.add_scatter(y=upper, fill="tonexty", fillcolor=faded(colour, 0.22), **band)
    figure.add_scatter(
        y=mean,
        name=name,
        line={"width": 1.6, "shape": "hv", "color": colour},
        fill="tozeroy" if fill else None,
        fillcolor=faded(colour, 0.12) if fill else None,
        customdata=np.stack([low, high], axis=1),
        hovertemplate=f"%{{y:{form}}} (%{{customdata[0]:{form}}} to %{{customdata[1]:{form}}})",
        **shared,
    )
