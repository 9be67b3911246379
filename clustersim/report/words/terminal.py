"""What a run prints: the latencies, the rates, the verdict, and where the files are.

On a terminal it has colours; into a file or a pipe it is plain text of the same words. Numbers are those of
``summary.json``; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from clustersim.report.metrics.latencies import LATENCIES
from clustersim.report.metrics.priorities import priority_lines
from clustersim.report.words.causes import cause_lines
from clustersim.report.words.diagnosis import diagnoses
from clustersim.report.words.run import (
    fullest,
    legality_words,
    milliseconds,
    number,
    prefix_words,
    setup_words,
    share_words,
    target_lines,
)
from clustersim.report.words.service import service_lines
from clustersim.scenario.confidence import confidence_words
from clustersim.units import format_seconds, plural

if TYPE_CHECKING:
    from rich.table import Table

_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_PLAIN_WIDTH: Final = 110


def print_summary(
    summary: Mapping[str, Any],
    *,
    remarks: Sequence[str] = (),
    run_dir: Path | None = None,
    dashboard: Path | None = None,
    file: IO[str] | None = None,
) -> None:
    """Print what a run found.

    Parameters
    ----------
    summary : mapping
        The object of ``summary.json``.
    remarks : sequence of str
        What to be warned of (see :func:`clustersim.report.words.run.remarks`).
    run_dir, dashboard : Path, optional
        Where the run was written, and its HTML page.
    file : text file, optional
        Where to print; standard output by default.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, soft_wrap=True, no_color=True, width=_PLAIN_WIDTH)
    line = Text()
    line.append(str(summary.get("name") or "run"), style="bold")
    line.append(f"  {setup_words(summary)}", style="dim")
    console.print(line)
    console.print(_latencies(summary))
    for what, value in (*_facts(summary), *cause_lines(summary)):
        console.print(Text.assemble((f"{what:<12}", "dim"), value))
    for name, met, sentence in target_lines(summary):
        word, style = ("met", "green") if met else ("missed", "bold red")
        console.print(Text.assemble((f"{'target':<12}", "dim"), (word, style), f"  {name.upper()}: {sentence}"))
    console.print(Text.assemble((f"{'legality':<12}", "dim"), _verdict(summary)))
    if told := confidence_words(summary.get("confidence")):
        console.print(Text.assemble((f"{'confidence':<12}", "dim"), told))
    for remark in remarks:
        console.print(Text.assemble((f"{'note':<12}", "yellow"), remark))
    for what, path in (("run", run_dir), ("dashboard", dashboard)):
        if path is not None:
            console.print(Text.assemble((f"{what:<12}", "dim"), str(path)))
    causes = diagnoses(summary)
    for cause in causes:
        console.print(Text.assemble((f"{'cause':<12}", "bold yellow"), cause))
    if causes and run_dir is not None:
        console.print(Text.assemble((f"{'would help':<12}", "bold"), f"clustersim why {run_dir}"))


def _latencies(summary: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("latency (ms)", min_width=10)
    for statistic in _STATISTICS:
        table.add_column(statistic, justify="right", min_width=8)
    rows = {"ttft": "TTFT", "ttft_queueing": "· queueing", "ttft_prefill": "· prefill"}
    for name, label in (rows | {name: name.upper() for name in LATENCIES}).items():
        latency = summary.get(f"{name}_ms") or {}
        table.add_row(label, *(milliseconds(latency.get(key)) for key in _STATISTICS))
        if name == "ttft_prefill" and latency and (front_end := summary.get("front_end_ms")):
            table.add_row("· front end", *[milliseconds(front_end)] * len(_STATISTICS))
    return table


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts, rates = summary["requests"], summary["throughput"]
    makespan = summary.get("makespan_s")
    output, total, each = (
        number(rates[key]) for key in ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
    )
    lasted = f" in {format_seconds(makespan)}" if makespan is not None else ""
    facts = [
        ("requests", f"{counts['finished']:,} of {counts['arrived']:,} finished{lasted}"),
        ("throughput", f"{output} output tokens/s, {total} with prompts, {each} requests/s"),
    ]
    facts += priority_lines(summary)
    facts += [(what, words) for what, words in service_lines(summary) if words]
    held = [f"{name} {share_words(share)}".lstrip() for name, share in fullest(summary)]
    if held:
        facts.append(("K/V cache", f"{', '.join(held)} of a replica's blocks at most"))
    cache = prefix_words(summary)
    if cache is not None:
        facts.append(("prefixes", cache))
    size = f"{plural(summary['steps'], 'step')}, {plural(summary['spans'], 'operator')}"
    wall_s = summary.get("wall_s") or {}
    wall, whole = wall_s.get("simulate"), wall_s.get("total")
    took = f" in {format_seconds(wall)} of real time" if wall is not None else ""
    took += f", {format_seconds(whole)} for the whole command" if wall is not None and whole is not None else ""
    facts.append(("simulated", size + took))
    return facts


def _verdict(summary: Mapping[str, Any]) -> tuple[str, str]:
    word, text = legality_words(summary)
    return text, {"legal": "green", "partly": "yellow", "illegal": "bold red"}[word]
