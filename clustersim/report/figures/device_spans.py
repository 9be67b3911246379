"""Device lanes: what every stream of every device did in a window, at every level of detail.

A browser draws a few thousand bars well and a hundred thousand never. So the spans travel as a compressed
table inside the page, and ``page/lanes.js`` draws what is in view: real bars when they are few, the busy
fraction of each stream in bins of time when they are many. Nothing is sampled: zooming in shows every span,
exactly.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_MS, Int64Array
from clustersim.report.metrics.latencies import Columns
from clustersim.report.traces.spans import FAMILIES, SpansLike, family_of, lanes
from clustersim.timeline.spans import STREAMS
from clustersim.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A range of time that a button of the figure shows, in ns from the start of the window."""

    label: str
    start_ns: int
    end_ns: int


def busy_window(steps: Columns, count: int) -> tuple[int, int]:
    """Return the window ``(start_ns, end_ns)`` of about ``count`` steps around the step with the most tokens.

    It starts one step earlier, on the same replica, so that the change of the batch is seen.

    Parameters
    ----------
    steps : Columns
        The table of steps, in order of (replica, step); a row of ``count`` equal steps is taken as that many steps of
        equal length.
    count : int
        How many steps, at least 1.
    """
    if not len(steps["start_ns"]):
        return 0, 0
    row = busiest(steps)
    mine = np.flatnonzero(steps["replica"] == steps["replica"][row])
    mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
    at = int(np.flatnonzero(mine == row)[0])
    start, end, number = (steps[name][mine] for name in ("start_ns", "end_ns", "count"))
    length = (end - start) // np.maximum(number, 1)
    before = at > 0 and count > 1
    window_start = min(start[at], end[at - 1] - length[at - 1]) if before else start[at]
    ends, left = [], count - int(before)
    for row in range(at, len(mine)):
        taken = min(left, int(number[row]))
        ends.append(int(start[row] + taken * length[row]))
        left -= taken
        if left == 0:
            break
    return int(window_start), max(ends)


def busy_ranks(steps: Columns, world: int, most: int) -> range:
    """Return the global ranks to show of a large cluster: those from the replica of the busiest step on.

    Parameters
    ----------
    steps : Columns
        The table of steps.
    world : int
        How many ranks there are, those of a replica next to each other.
    most : int
        How many ranks to show at most; all where there are no more.
    """
    if world <= most or not len(steps["start_ns"]):
        return range(min(world, most))
    replica = int(steps["replica"][busiest(steps)])
    replicas = int(steps["replica"].max()) + 1
    first = min(replica * (world // replicas), world - most)
    return range(first, first + most)


def busiest(steps: Columns) -> int:
    """Return the row of the step with the most tokens, the first one of equals."""
    tokens = (steps["prefill_tokens"] + steps["decode_tokens"]).astype(np.int64)
    return int(np.lexsort((steps["start_ns"], -tokens))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTable:
    """Spans as rows of lanes, ready for the page.

    ``order`` lists the spans row by row, each row by start; row ``i`` owns ``order[offsets[i]:offsets[i +
    1]]``. ``labels`` and ``devices`` name each row, ``device_rows`` lists the first row of every device.
    """

    window_ns: tuple[int, int]
    labels: tuple[str, ...]
    devices: tuple[str, ...]
    device_rows: tuple[int, ...]
    offsets: Int64Array
    order: Int64Array
    left_out: int


def lane_table(spans: SpansLike, devices: Sequence[str], max_spans: int) -> LaneTable:
    """Sort spans into lanes: one row per stream of a device, ranks from top to bottom.

    Parameters
    ----------
    spans : SpansLike
        The spans of a window.
    devices : sequence of str
        The device's name of each global rank.
    max_spans : int
        Later spans than this many are left out (the window becomes shorter; ``left_out`` says how many).
    """
    kept = min(len(spans.start_ns), max_spans)
    start, end = spans.start_ns[:kept], spans.end_ns[:kept]
    stream_row = spans.rank[:kept].astype(np.int64) * len(STREAMS) + spans.stream[:kept]
    row = stream_row * (kept + 1) + lanes(start, end, stream_row)
    order = np.lexsort((end, start, row))
    distinct, first = np.unique(row[order], return_index=True)
    ranks, streams = np.divmod(distinct // (kept + 1), len(STREAMS))
    labels = tuple(
        f"{devices[rank]} {STREAMS[stream]}" + (f" {lane + 1}" if lane else "")
        for rank, stream, lane in zip(ranks, streams, distinct % (kept + 1), strict=True)
    )
    window = (int(start.min()), int(end.max())) if kept else (0, 0)
    return LaneTable(
        window_ns=window,
        labels=labels,
        devices=tuple(devices[rank] for rank in ranks),
        device_rows=tuple(int(at) for at in np.flatnonzero(np.diff(ranks, prepend=-1))),
        offsets=np.append(first, kept).astype(np.int64),
        order=order.astype(np.int64),
        left_out=len(spans.start_ns) - kept,
    )


def views(spans: SpansLike, table: LaneTable) -> tuple[View, ...]:
    """Return the ranges that the figure's buttons show: everything, one step, one layer of it."""
    if not len(table.order):
        return ()
    start, end = spans.start_ns[: len(table.order)], spans.end_ns[: len(table.order)]
    origin, window_end = table.window_ns
    found = [_view("whole window", 0, window_end - origin)]
    at = int(np.searchsorted(start, (origin + window_end) // 2))
    at = min(at, len(start) - 1)
    in_steps = np.flatnonzero(spans.step[: len(start)] >= 0)  # others are moves of K/V
    if len(in_steps):
        at = int(in_steps[min(int(np.searchsorted(in_steps, at)), len(in_steps) - 1)])
    chosen = (spans.step[: len(start)] == spans.step[at]) & (spans.replica[: len(start)] == spans.replica[at])
    found.append(_view("one step", int(start[chosen].min()) - origin, int(end[chosen].max()) - origin))
    layers = spans.layer[: len(start)]
    in_layers = chosen & (layers >= 0) & (spans.stage[: len(start)] == spans.stage[at])
    if in_layers.any():
        middle = int(np.median(layers[in_layers]))
        for label, last in (("four layers", middle + 3), ("one layer", middle)):
            shown = in_layers & (layers >= middle) & (layers <= last)
            found.append(_view(label, int(start[shown].min()) - origin, int(end[shown].max()) - origin))
    return tuple(found)


def _view(label: str, start_ns: int, end_ns: int) -> View:
    return View(label=f"{label} ({format_seconds((end_ns - start_ns) / 1e9)})", start_ns=start_ns, end_ns=end_ns)


def pack(spans: SpansLike, table: LaneTable) -> dict[str, Any]:
    """Return the spans as plain data for the page: texts, and every column as compressed base64.

    A column of non-negative integers is cut into planes of its 1st, 2nd, … byte (only as many as its largest
    value needs); the planes of all columns are joined and compressed by zlib, which ``DecompressionStream``
    reads. ``wait`` is the time from the start of the row's previous span (for its first one, of the window),
    ns.
    """
    order = table.order
    start = spans.start_ns[order]
    wait = np.diff(start, prepend=table.window_ns[0])
    heads = table.offsets[:-1]
    wait[heads] = start[heads] - table.window_ns[0]
    step_base = int(spans.step[order].min()) if len(order) else 0
    columns: dict[str, npt.NDArray[Any]] = {
        "wait": wait,
        "duration": spans.end_ns[order] - start,
        "name": spans.name[order],
        "op": spans.op[order],
        "layer": spans.layer[order].astype(np.int64) + 1,  # none is -1
        "step": spans.step[order].astype(np.int64) - step_base,
        "stage": spans.stage[order],
    }
    widths = {name: _byte_width(column) for name, column in columns.items()}
    planes = b"".join(_planes(column, widths[name]) for name, column in columns.items())
    families = list(FAMILIES)
    return {
        "count": len(order),
        "window_ms": (table.window_ns[1] - table.window_ns[0]) / NS_PER_MS,
        "rows": list(table.labels),
        "devices": list(table.devices),
        "device_rows": list(table.device_rows),
        "offsets": table.offsets.tolist(),
        "columns": [[name, width] for name, width in widths.items()],
        "names": list(spans.names),
        "ops": list(spans.ops),
        "families": families,
        "colours": list(FAMILIES.values()),
        "family_of_op": [families.index(family_of(op)) for op in spans.ops],
        "step_base": step_base,
        "data": base64.b64encode(zlib.compress(planes, 9)).decode("ascii"),
    }


def _byte_width(column: npt.NDArray[Any]) -> int:
    """How many bytes the largest value needs: 1 to 6 (2⁴⁸ ns are 78 hours, and a JavaScript number is exact
    to 2⁵³)."""
    return max(1, (int(column.max()).bit_length() + 7) // 8) if len(column) else 1


def _planes(column: npt.NDArray[Any], width: int) -> bytes:
    octets = np.ascontiguousarray(column, dtype="<i8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(octets[:, :width].T).tobytes()
