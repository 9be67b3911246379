"""``clustersim accuracy``: how far predictions are from measured serving figures."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from clustersim import catalog
from clustersim.accuracy.compare import compare
from clustersim.accuracy.document import document, picture
from clustersim.accuracy.result import Result, read_results, result_of, written
from clustersim.accuracy.row import Row, read_rows
from clustersim.accuracy.score import Scoreboard, reasons, scoreboard
from clustersim.accuracy.tables import charts, headline, plain, profiles, summary_table, tables
from clustersim.cli.options import Whole, Written
from clustersim.cli.tables import print_json, print_table
from clustersim.errors import InputError, Problem
from clustersim.files import written_whole
from clustersim.report.score_page import score_page
from clustersim.units import plural

RECORDED: Final = ("scenarios/accuracy", "results", ".csv")
_MOST_WORKERS: Final = 64


@click.command()
@click.argument("table", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the scores as one JSON object.")
@click.option("-o", "--output", type=Written("folder"), help="Folder for the page, the document and the results.")
@click.option("--traces", type=click.Path(path_type=Path), help="Folder of recorded requests [the one above TABLE's].")
@click.option("--only", metavar="REGEX", help="Only figures whose id matches.")
@click.option("--workers", type=Whole(1, _MOST_WORKERS), default=2, show_default=True, help="Processes.")
def accuracy(
    table: Path | None, as_json: bool, output: Path | None, traces: Path | None, only: str | None, workers: int
) -> None:
    """Compare predictions with the measured figures in TABLE, a CSV with one figure per row.

    Columns: id, family, hardware, num_gpus, model, precision, framework, parallel, workload, metric, value, unit,
    source and note; docs/guide/accuracy.md says what may stand in them. Each row is turned
    into a scenario and simulated; one that can't be expressed counts as an error of 100 %. Without TABLE nothing is
    simulated: the results that ship are shown.

    With -o, writes accuracy.html (predicted against measured), accuracy.md, accuracy.svg and results.csv.
    """
    if table is None:
        results = read_results(catalog.path_of(*RECORDED))
    else:
        results = _simulated(read_rows(table), traces or _beside(table), only, workers)
    if only is not None and table is None:
        results = tuple(result for result in results if _pattern(only).search(result.id))
    if not results:
        raise InputError(Problem(message=f"no figure has an id that matches {only!r}", file="--only"))
    board = scoreboard(results)
    if output is not None:
        write(board, output, table)
    if as_json:
        print_json(plain(board, recorded=table is None))
        return
    if table is None:
        click.echo("results that ship; name a table to simulate its rows")
    summary = summary_table(board)
    print_table(summary.columns, summary.rows, numbers_from=summary.numbers_from)
    click.echo(headline(board))
    click.echo(summary.caption)
    for (engine, profile), count in profiles(board.results).items():
        click.echo(f"{engine} is simulated as {profile} ({plural(count, 'figure')})")
    if table is not None:
        for (family, reason), ids in reasons(board.results).items():
            more = ", …" if len(ids) > 1 else ""
            click.echo(f"not expressed: {len(ids)} of {family} ({ids[0]}{more}): {reason}")
    if output is not None:
        click.echo(f"wrote {output / 'accuracy.html'}")


def write(board: Scoreboard, folder: Path, table: Path | None) -> None:
    """Write page, document, picture and results of a table into a folder; each is complete or as it was."""
    page = score_page("Accuracy", headline(board), charts(board), tables(board))
    texts = {
        "accuracy.html": page,
        "accuracy.md": document(board, None if table is None else table.name),
        "accuracy.svg": picture(board),
        "results.csv": written(board.results),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with written_whole(folder / name) as beside:
            beside.write_text(text, encoding="utf-8", newline="")


def _beside(table: Path) -> Path:
    """Return the folder above that of a table; of one right below a root, the table's own, which ends."""
    folder = table.resolve().parent
    return folder if folder.parent == folder.parent.parent else folder.parent


def _simulated(rows: Sequence[Row], traces: Path, only: str | None, workers: int) -> tuple[Result, ...]:
    """Return the results of some rows, in the order of the table."""
    chosen = [row for row in rows if only is None or _pattern(only).search(row.id)]
    points = []
    for point in compare(chosen, traces, workers=workers):
        points.append(point)
        if sys.stderr.isatty():
            print(f"\r{len(points)} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    found = {point.row: point for point in points}
    return tuple(result_of(found[row]) for row in chosen)


def _pattern(only: str) -> re.Pattern[str]:
    try:
        return re.compile(only)
    except re.error as error:
        message = f"found {only!r}; expected a regular expression: {error}"
        raise InputError(Problem(message=message, file="--only")) from None
