"""Writes the spans of a run as a trace that people open in a trace viewer."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.files import written_whole
from clustersim.report.traces.chrome import write_chrome
from clustersim.report.traces.counters import Counter
from clustersim.report.traces.flows import Flows
from clustersim.report.traces.perfetto import write_perfetto
from clustersim.report.traces.slices import Around, Slices
from clustersim.report.traces.spans import SpanPieces
from clustersim.report.traces.tracks import Sink, Tracks
from clustersim.report.traces.whole import WholeRun
from clustersim.timeline.window import Window

WRITERS: Final = {".pftrace": write_perfetto, ".json": write_chrome}
"""Suffix (to which ``.gz`` may be added) → writer."""
SPAN_BYTES: Final = {".pftrace": 91, ".json": 150, ".pftrace.gz": 13, ".json.gz": 16}
"""About what a span takes in a file, measured on the quickstart."""
REQUEST_BYTES: Final = {".pftrace": 600, ".json": 1500, ".pftrace.gz": 100, ".json.gz": 120}
STEP_BYTES: Final = {".pftrace": 130, ".json": 260, ".pftrace.gz": 24, ".json.gz": 33}
"""Likewise of a request with its phases and chunks, and of a step with its counters."""


class _OperatorsAlone:
    """What is around the operators where only they are shown."""

    texts: Sequence[str] = ()
    arguments: Sequence[str] = ()

    def __iter__(self) -> Iterator[Slices]:
        return iter(())


def write_trace(
    path: Path,
    pieces: SpanPieces,
    devices: Sequence[str],
    counters: Sequence[Counter] = (),
    around: Around | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Write a trace, piece by piece; the file is complete or absent, and the same for the same input.

    Parameters
    ----------
    path : Path
        ``NAME.pftrace`` for Perfetto's own format, ``NAME.json`` for Chrome's; with ``.gz`` it is compressed.
        Both open at https://ui.perfetto.dev, the latter also at chrome://tracing.
    pieces : SpanPieces
        Operators to show: one process per device, one thread per stream, a flow from each send to its receive.
    devices : sequence of str
        The device's name of each global rank.
    counters : sequence of Counter, optional
    around : Around, optional
        Slices of requests and steps.
    progress : callable, optional
        Called with how many slices have been written.

    Returns
    -------
    int
        How many spans of operators it has.

    Raises
    ------
    InputError
        For a suffix that no writer knows.
    """
    writer = WRITERS[suffix_of(path)]
    tracks = Tracks(devices)
    flows = Flows(pieces.transfers)
    written = 0
    with written_whole(path) as beside, beside.open("wb") as plain, _packed(path, plain) as file:
        for count in writer(file, pieces, flows, tracks, counters, _OperatorsAlone() if around is None else around):
            written += count
            progress(written)
    return tracks.num_spans


@contextmanager
def _packed(path: Path, plain: BinaryIO) -> Iterator[Sink]:
    """Yield what is written to: the file, or what compresses on the way to it."""
    if path.suffix != ".gz":
        yield plain
        return
    with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=plain, mtime=0) as packed:
        yield packed


def trace_bytes(path: Path, pieces: Window, around: WholeRun | None) -> float:
    """Return about how many bytes a trace of this name takes.

    Raises
    ------
    InputError
        For a suffix that no writer knows.
    """
    suffix = suffix_of(path) + (".gz" if path.suffix == ".gz" else "")
    found = float(pieces.num_spans * SPAN_BYTES[suffix])
    if around is not None:
        found += around.num_requests * REQUEST_BYTES[suffix] + around.num_steps * STEP_BYTES[suffix]
    return found


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
