"""From a run and a panel's options to what the page shows: one function per figure that a layout may name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from clustersim.clock import NS_PER_S
from clustersim.report.figures.arrivals import requests_figure
from clustersim.report.figures.causes import causes_figure
from clustersim.report.figures.devices import fault_rows, lanes_figure, lanes_html
from clustersim.report.figures.distributions import latencies_figure
from clustersim.report.figures.fault_marks import add_fault_frames, add_fault_marks, fault_marks
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.layout import Panel
from clustersim.report.figures.links import fault_lanes, link_lanes_figure, link_lanes_html
from clustersim.report.figures.request_rows import rows_figure, rows_html
from clustersim.report.figures.series import batch_figure, kv_figure
from clustersim.report.figures.topology import topology_drawing, topology_figure, topology_html
from clustersim.report.figures.use import use_figure
from clustersim.report.folded.asked import Asked
from clustersim.report.folded.packed import MOST
from clustersim.report.metrics.latencies import Columns, Weighted
from clustersim.report.traces.busiest import busiest
from clustersim.report.words.faults import is_blamed, share_of_faults
from clustersim.report.words.headline import headline_html
from clustersim.values import dataclass

_CAUSES: Final = (
    "Shares of each latency, of all requests together and of the slowest 1 % by it. They add up to the nanosecond, and "
    "requests.parquet has them request by request. TPOT is the time after the first token."
)
_NO_LINKS: Final = "No link was used, or what links carried was not added up for this plan."


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a panel may draw from; ``whole`` is :func:`clustersim.report.folded.whole.whole_run`'s."""

    summary: Mapping[str, Any]
    requests: Columns
    steps: Columns
    kv_rows: Columns
    whole: Mapping[str, Any] | None
    wanted: Asked
    latencies: Mapping[str, Weighted]
    limits_ns: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A panel ready for the page.

    ``then`` is JavaScript that follows ``Plotly.newPlot(…)``; a ``bare`` panel has no frame, title or
    caption.
    """

    title: str = ""
    caption: str = ""
    html: str = ""
    figure: Figure | None = None
    then: str = ""
    bare: bool = False


def _headline(run: Run, panel: Panel, identity: str) -> Drawn:
    return Drawn(html=headline_html(run.summary, run.requests, run.steps, run.latencies), bare=True)


def _causes(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "What requests waited for, and what they got"
    causes = {name: found for name, found in (run.summary.get("causes") or {}).items() if found}
    if not causes:
        return Drawn(title=title, html=_empty("No request finished."))
    blamed = by_faults(run.summary)
    return Drawn(
        title=title,
        caption=_CAUSES + (" Hatched: the share of p99 that is gone without faults." if blamed else ""),
        figure=causes_figure(causes, panel.options["height"], blamed),
    )


def by_faults(summary: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return of each latency that faults are to blame for which share of p99 is gone without them, and p99 in ms."""
    some = [name for name in ("ttft", "tpot") if is_blamed(summary, name)]
    return {name: (share_of_faults(summary, name) or 0.0, summary[f"{name}_ms"]["p99"]) for name in some}


def _device_lanes(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "What every device did"
    if run.whole is None or not run.whole["rows"]:
        return Drawn(title=title, html=_empty(_nothing(run, "No operator ran.")))
    words = {"busiest": _busiest(run.steps), "view": run.wanted.view(run.whole["end"])}
    return Drawn(
        title=title,
        caption="The whole run, one row per stream of a device, down to each of its operators. Turn the wheel or drag "
        "to zoom in, double-click to see all of it; with the keyboard + and - zoom, arrows go on, 0 shows all. "
        f"Figures over time show the same window.{_left_out(run)}",
        html=lanes_html(identity),
        figure=_framed(run, lanes_figure(run.whole, panel.options["height"]), fault_rows(run.whole)),
        then=f'.then(() => clustersimLanes("{identity}", {json.dumps(words)}))',
    )


def _link_lanes(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "What every link carried"
    load = _load(run)
    if run.whole is None or load is None:
        return Drawn(title=title, html=_empty(_NO_LINKS))
    return Drawn(
        title=title,
        caption="The links that the run used, a row per tier of a node and one for what a fault weakens: the share of "
        "the capacity there is that is taken, and closer by each collective and transfer in flight, with its bytes. "
        "Bytes include the share of the protocol.",
        html=link_lanes_html(identity),
        figure=_framed(
            run,
            link_lanes_figure(load, run.whole["end"], panel.options["height"]),
            fault_lanes(run.whole),
        ),
        then=f'.then(() => clustersimLinkLanes("{identity}"))',
    )


def _topology(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "The cluster, and the load on its links"
    load = _load(run)
    if load is None:
        return Drawn(title=title, html=_empty(_NO_LINKS))
    drawing = topology_drawing(load)
    told = f"{json.dumps(drawing.edges)}, {json.dumps(drawing.failing)}"
    return Drawn(
        title=title,
        caption=f"{drawing.words} A link's colour is the share of its capacity that was taken in the window that lanes "
        "show, that of its busier direction. Tiers without traffic are left out.",
        html=topology_html(identity),
        figure=topology_figure(drawing, panel.options["height"]),
        then=f'.then(() => clustersimTopology("{identity}", {told}))',
    )


def _load(run: Run) -> Mapping[str, Any] | None:
    """Return what a page tells of links, where any were used."""
    load = None if run.whole is None else run.whole["link_load"]
    return load if load is not None and any(link[-1] for link in load["links"]) else None


def _nothing(run: Run, reason: str) -> str:
    """Say why there is nothing to show: a reason, or that a run is too long for numbers of a browser, or for a page."""
    if run.whole is not None or not len(run.steps["start_ns"]):
        return reason
    if int(run.steps["end_ns"].max()) >= MOST:
        return "It took more than 52 days, which a page can't tell to the nanosecond."
    size = f"{run.wanted.most_bytes / 1e6:g} MB"
    return (
        f"Its passes alone would take more than twice {size}, so that a page shows figures and no lanes; "
        "clustersim dashboard RUN --max-page SIZE makes one that holds them."
    )


def _left_out(run: Run) -> str:
    """Say what a page lacks that can't hold all."""
    if run.whole is None or run.whole["windows"] is None:
        return ""
    return (
        f" All operators would take more than {run.wanted.most_bytes / 1e6:g} MB: this page has all steps, and "
        "operators in the busiest second, around faults and the first tokens of the slowest requests; clustersim "
        "dashboard RUN --at TIME, --request N or --max-page SIZE makes another."
    )


def _request_rows(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "Requests, one by one"
    if run.whole is None or not len(run.requests["request"]):
        return Drawn(title=title, html=_empty(_nothing(run, "No request arrived.")))
    options, rows = panel.options, min(panel.options["rows"], len(run.requests["request"]))
    return Drawn(
        title=title,
        caption="What each request went through, those that took longest first. Click on a row, or on a point of the "
        "figure of requests over time, to see it and what the devices did meanwhile.",
        html=rows_html(identity),
        figure=_marked(run, rows_figure(run.whole["end"], rows, options["height"]), above=True),
        then=f'.then(() => clustersimRequests("{identity}", {rows}, {json.dumps(run.wanted.request)}))',
    )


def _busiest(steps: Columns) -> list[int]:
    """Return replica and number of the step with the most tokens."""
    row = busiest(steps)
    return [int(steps[name][row]) for name in ("replica", "step")]


def _batch(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "Batch and queue"
    if not len(run.steps["start_ns"]):
        return Drawn(title=title, html=_empty("No step ran."))
    pools = run.summary.get("pools") or ()
    whose = "all replicas of a pool" if pools else "all replicas"
    options = panel.options
    return Drawn(
        title=title,
        caption=f"Requests that run (in the batch) and wait (for room in it), over {whose}, and the "
        "tokens that a step carries. Lines are means; bands reach from the smallest to the largest value or, where "
        "many steps share a pixel, from the 5th to the 95th percentile.",
        figure=_marked(run, batch_figure(run.steps, pools, options["bins"], options["height"])),
        then=_linked(identity),
    )


def _kv_cache(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "K/V cache in use"
    if not len(run.steps["start_ns"]):
        return Drawn(title=title, html=_empty("No step ran."))
    pools = run.summary.get("pools") or ()
    whose = "all replicas of a pool" if pools else "all replicas"
    figure = kv_figure(run.kv_rows, pools, panel.options["bins"], panel.options["height"])
    return Drawn(
        title=title,
        caption=f"Share of the K/V cache blocks of {whose} that requests hold. Near 100 % requests wait for blocks, "
        "or are preempted.",
        figure=_marked(run, figure),
        then=_linked(identity),
    )


def _latencies(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "Latency distributions"
    found = {name: run.latencies[name] for name in panel.options["metrics"] if name in run.latencies}
    if not found:
        return Drawn(title=title, html=_empty("No finished request has one of these latencies."))
    return Drawn(
        title=title,
        caption="Blue: how the values are spread (left axis). Black: the share of values at or below (right "
        "axis). Dotted: percentiles. Dashed red: the target, which is met when p99 lies to its left.",
        figure=latencies_figure(found, run.limits_ns, panel.options["scale"], panel.options["height"]),
    )


def _requests(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "Requests over time"
    if not len(run.requests["arrived_ns"]):
        return Drawn(title=title, html=_empty("No request arrived."))
    return Drawn(
        title=title,
        caption="How long a request waited for its first token, and its mean time per further token, by when it "
        "arrived; a rising cloud means that the queue grows. Below: requests per second that arrive, that finish, and "
        "that finish within every target (goodput).",
        figure=_marked(
            run,
            requests_figure(
                run.requests,
                run.limits_ns,
                panel.options["bins"],
                panel.options["max_points"],
                panel.options["height"],
            ),
        ),
        then=_linked(identity),
    )


def _utilisation(run: Run, panel: Panel, identity: str) -> Drawn:
    title = "What devices and links were used for"
    used = run.summary.get("utilisation")
    if not used:
        return Drawn(title=title, html=_empty("No step ran, or what ranks did was not added up for this plan."))
    return Drawn(
        title=title,
        caption="Left: shares of the time from the first arrival to the last step. Right: how much of the capacity of "
        f"the busiest links was used{', of what faults left of it' if fault_marks(run.summary) else ''}.",
        figure=use_figure(used, run.summary.get("links"), panel.options["height"]),
    )


def _marked(run: Run, figure: Figure, *, above: bool = False) -> Figure:
    """Shade a figure over time where something was failing."""
    add_fault_marks(figure, fault_marks(run.summary), _end_s(run), above=above)
    return figure


def _framed(run: Run, figure: Figure, rows: Sequence[Sequence[int]]) -> Figure:
    """Frame what was failing of a figure of rows over time."""
    add_fault_frames(figure, fault_marks(run.summary), _end_s(run), rows.__getitem__)
    return figure


def _end_s(run: Run) -> float:
    ends = [run.steps["end_ns"], run.requests["arrived_ns"]]
    return max((int(column.max()) for column in ends if len(column)), default=0) / NS_PER_S


def _linked(identity: str) -> str:
    return f'.then(() => clustersimLinked("{identity}"))'


def _empty(reason: str) -> str:
    return f'<p class="empty">{escape(reason)}</p>'


PANELS: Final[Mapping[str, Callable[[Run, Panel, str], Drawn]]] = {
    "headline": _headline,
    "causes": _causes,
    "device_lanes": _device_lanes,
    "link_lanes": _link_lanes,
    "topology": _topology,
    "request_rows": _request_rows,
    "utilisation": _utilisation,
    "batch": _batch,
    "kv_cache": _kv_cache,
    "latencies": _latencies,
    "requests": _requests,
}
"""Figure → the function that draws it; the keys are those of :data:`clustersim.report.figures.layout.FIGURES`."""
