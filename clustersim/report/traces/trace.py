"""Writes the spans of a run as a trace that people open in a trace viewer."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.files import written_whole
from clustersim.report.metrics.latencies import Columns
from clustersim.report.traces.chrome import write_chrome
from clustersim.report.traces.flows import Flows
from clustersim.report.traces.perfetto import write_perfetto
from clustersim.report.traces.spans import SpanPieces
from clustersim.report.traces.tracks import Tracks, counters_of

WRITERS: Final = {".pftrace": write_perfetto, ".json": write_chrome}
"""Suffix (to which ``.gz`` may be added) → writer."""
SPAN_BYTES: Final = {".pftrace": 91, ".json": 150, ".pftrace.gz": 13, ".json.gz": 16}
"""About what a span takes in a file, measured on the quickstart."""


def write_trace(path: Path, pieces: SpanPieces, devices: Sequence[str], steps: Sequence[Columns] = ()) -> int:
    """Write a trace, piece by piece; the file is complete or absent, and the same for the same input.

    Parameters
    ----------
    path : Path
        ``NAME.pftrace`` for Perfetto's own format, ``NAME.json`` for Chrome's; with ``.gz`` it is compressed.
        Both open at https://ui.perfetto.dev, the latter also at chrome://tracing.
    pieces : SpanPieces
        What to show: one process per device, one thread per stream, a flow from each send to its receive.
    devices : sequence of str
        The device's name of each global rank.
    steps : sequence of Columns, optional
        Tables of steps; those in the window of the spans give each replica the counters whose columns a table has.

    Returns
    -------
    int
        How many spans it has.

    Raises
    ------
    InputError
        For a suffix that no writer knows.
    """
    writer = WRITERS[suffix_of(path)]
    counters = tuple(counter for rows in steps for counter in counters_of(rows, *pieces.window))
    tracks = Tracks(devices, 1 + max((counter.replica for counter in counters), default=-1))
    flows = Flows(pieces.transfers)
    with written_whole(path) as beside, beside.open("wb") as plain:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=plain, mtime=0) as packed:
                writer(packed, pieces, flows, tracks, counters)
        else:
            writer(plain, pieces, flows, tracks, counters)
    return tracks.num_spans


def span_bytes(path: Path) -> float:
    """Return about how many bytes a span takes in a trace of this name.

    Raises
    ------
    InputError
        For a suffix that no writer knows.
    """
    return SPAN_BYTES[suffix_of(path) + (".gz" if path.suffix == ".gz" else "")]


def suffix_of(path: Path) -> str:
    """Return the suffix that says the format, ``.gz`` left out.

    Raises
    ------
    InputError
        Where no writer knows it.
    """
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if suffix not in WRITERS:
        choices = [*WRITERS, *(f"{known}.gz" for known in WRITERS)]
        guess = did_you_mean(suffix, choices)
        raise InputError(Problem(path=str(path), message=f"unknown trace format {suffix!r}{guess}"))
    return suffix
