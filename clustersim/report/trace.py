"""Writes the spans of a run as a trace that people open in a trace viewer."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.files import written_whole
from clustersim.report.chrome import write_chrome
from clustersim.report.metrics import Columns
from clustersim.report.perfetto import write_perfetto
from clustersim.report.spans import SpansLike
from clustersim.report.tracks import counters_of, tracks_of

WRITERS: Final = {".pftrace": write_perfetto, ".json": write_chrome}
"""Suffix (to which ``.gz`` may be added) → writer."""


def write_trace(path: Path, spans: SpansLike, devices: Sequence[str], steps: Sequence[Columns] = ()) -> None:
    """Write a trace; the file is complete or absent, and the same for the same input.

    Parameters
    ----------
    path : Path
        ``NAME.pftrace`` for Perfetto's own format, ``NAME.json`` for Chrome's; with ``.gz`` it is compressed.
        Both open at https://ui.perfetto.dev, the latter also at chrome://tracing.
    spans : SpansLike
        What to show: one process per device, one thread per stream, a flow from each send to its receive.
    devices : sequence of str
        The device's name of each global rank.
    steps : sequence of Columns, optional
        Tables of steps; those in the window of the spans give each replica the counters whose columns a table has.

    Raises
    ------
    InputError
        For a suffix that no writer knows.
    """
    writer = WRITERS[_suffix(path)]
    tracks = tracks_of(spans, devices)
    window = (int(spans.start_ns.min()), int(spans.end_ns.max())) if len(spans.start_ns) else (0, 0)
    counters = tuple(counter for rows in steps for counter in counters_of(rows, *window))
    with written_whole(path) as beside, beside.open("wb") as plain:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=plain, mtime=0) as packed:
                writer(packed, spans, tracks, counters)
        else:
            writer(plain, spans, tracks, counters)


def _suffix(path: Path) -> str:
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if suffix not in WRITERS:
        choices = [*WRITERS, *(f"{known}.gz" for known in WRITERS)]
        guess = did_you_mean(suffix, choices)
        raise InputError(Problem(path=str(path), message=f"unknown trace format {suffix!r}{guess}"))
    return suffix
