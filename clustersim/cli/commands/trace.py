"""``clustersim trace``: write spans of a run for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import click

from clustersim.cli.limits import largest_size
from clustersim.cli.options import Choice, Whole, Written, instant
from clustersim.errors import InputError, Problem
from clustersim.limits import Limits
from clustersim.report.files.run_directory import RunDirectory, read_run, shown_rows
from clustersim.report.traces.busiest import busy_window
from clustersim.report.traces.trace import suffix_of, trace_bytes, write_trace
from clustersim.report.traces.whole import WholeRun
from clustersim.report.words.progress import Bar
from clustersim.timeline.window import Window

_FEWER: Final = {
    "run": " or requests and steps of the window alone (--around window)",
    "window": " or operators alone (--around nothing)",
    "nothing": "",
}


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--from", "begin", metavar="TIME", help="Start of the window, such as '1.5 s'.")
@click.option("--to", "end", metavar="TIME", help="End of the window.")
@click.option("--ranks", metavar="LIST", help="Ranks such as 0-7,12 [all].")
@click.option(
    "--steps",
    type=Whole(1, 1_000_000),
    default=50,
    show_default=True,
    help="Without a window: steps around the busiest instant.",
)
@click.option(
    "--slowest",
    type=Whole(0, 10_000),
    default=10,
    show_default=True,
    help="Requests with a row of their own; others share rows.",
)
@click.option(
    "--request",
    "asked",
    type=Whole(0),
    multiple=True,
    metavar="NUMBER",
    help="One with a row of its own, too; repeatable.",
)
@click.option(
    "--around",
    type=Choice(["run", "window", "nothing"]),
    default="run",
    show_default=True,
    help="Whose requests, steps and counters stand beside the operators.",
)
@click.option(
    "-o",
    "--output",
    type=Written(),
    help="NAME.pftrace or NAME.json, .gz compresses [RUN_DIR/trace.pftrace.gz].",
)
@largest_size
def trace(
    run_dir: Path,
    begin: str | None,
    end: str | None,
    ranks: str | None,
    steps: int,
    slowest: int,
    asked: tuple[int, ...],
    around: str,
    output: Path | None,
    max_size: float,
) -> None:
    """Write RUN_DIR as a trace for ui.perfetto.dev: requests, steps and counters of the run, operators of a window."""
    first = None if begin is None else instant(begin, "--from")
    if first is not None and first < 0:
        raise InputError(Problem(path="--from", message=f"the window starts at {begin}, but the run at 0 s"))
    last = None if end is None else instant(end, "--to")
    if last is not None and last <= (first or 0):
        message = f"the window ends at {end}, not after it starts, at {'0 s' if begin is None else begin}"
        raise InputError(Problem(path="--to", message=message))
    wanted = _ranks(ranks)
    target = output if output is not None else run_dir / "trace.pftrace.gz"
    suffix_of(target)
    if around == "nothing" and asked:
        raise InputError(Problem(path="--request", message="--around nothing shows no requests; drop one of both"))
    run = read_run(run_dir)
    devices = list(run.summary["devices"])
    last_rank = max((some[-1] for some in wanted or ()), default=0)
    if last_rank >= len(devices):
        raise InputError(Problem(path="--ranks", message=f"rank {last_rank} is not in 0 … {len(devices) - 1}"))
    chosen = None if wanted is None else list(chain.from_iterable(wanted))
    rows = shown_rows(run.step_rows, steps)
    if first is None and last is None and len(rows["start_ns"]):
        first, last = busy_window(rows, steps)
    window = (first or 0, run.timeline.end_ns + 1 if last is None else last)
    if begin is not None and window[0] > run.timeline.end_ns:
        message = f"the window starts at {begin}, but the run ends at {run.timeline.end_ns / 1e9:.6g} s"
        raise InputError(Problem(path="--from", message=message))
    pieces = Window(timeline=run.timeline, start_ns=window[0], end_ns=window[1], ranks=chosen)
    if not pieces.num_spans:
        message = f"no span in this window; the run goes from 0 to {run.timeline.end_ns / 1e9:.6g} s"
        raise InputError(Problem(path="--from", message=message))
    whole = _whole(run, window, around, slowest, asked)
    Limits(size_bytes=max_size).refuse(
        f"{target}: about {_told(pieces.num_spans, whole)}",
        f"choose a shorter window (--from, --to), fewer ranks (--ranks){_FEWER[around]}",
        size_bytes=trace_bytes(target, pieces, whole),
    )
    counters = whole.counters() if whole else ()
    total = pieces.num_spans + (whole.num_slices if whole else 0)
    with Bar("slices") as bar:
        count = write_trace(
            target, pieces, devices, counters, whole, lambda done: bar.show("writing", min(done, total), total)
        )
    times = f"{window[0] / 1e9:.6g} s to {window[1] / 1e9:.6g} s"
    click.echo(f"{target}: {_told(count, whole)}; spans from {times}")


def _told(spans: int, whole: WholeRun | None) -> str:
    more = f", {whole.num_steps:,} steps, {whole.num_requests:,} requests" if whole else ""
    return f"{spans:,} spans{more}"


def _whole(
    run: RunDirectory, window: tuple[int, int], around: str, slowest: int, asked: Sequence[int]
) -> WholeRun | None:
    if around == "nothing":
        return None
    return WholeRun(
        requests=run.requests,
        timeline=run.timeline,
        step_rows=run.step_rows,
        window=(0, run.timeline.end_ns + 1) if around == "run" else window,
        slowest=slowest,
        asked=asked,
        delivery=run.delivery,
    )


def _ranks(text: str | None) -> list[range] | None:
    if text is None:
        return None
    found: list[range] = []
    for part in text.split(","):
        low, dash, high = (word.strip() for word in part.partition("-"))
        if not part.isascii() or not low.isdecimal() or (dash and not high.isdecimal()) or int(high or low) < int(low):
            raise InputError(Problem(path="--ranks", message=f"{part!r} is no rank; expected a list such as 0-7,12"))
        found.append(range(int(low), int(high or low) + 1))
    return found
