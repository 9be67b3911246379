"""``python -m clustersim.accuracy CSV [--traces DIR] [--json FILE] …``: compare a table of points."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from clustersim.accuracy.compare import compare
from clustersim.accuracy.row import COLUMNS, read_rows
from clustersim.accuracy.table import plain, text
from clustersim.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0, or 2 for unusable input."""
    parser = argparse.ArgumentParser(prog="python -m clustersim.accuracy", description=__doc__)
    parser.add_argument("csv", type=Path, help="table of measured points")
    parser.add_argument(
        "--traces", type=Path, help="folder with the recorded requests; by default the one above the table's"
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write every point to FILE, or print it in place of the table",
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="only points whose id matches")
    parser.add_argument("--by", default="family", metavar="COLUMNS", help="columns to group by, with commas")
    parser.add_argument("--workers", type=int, default=1, help="processes that simulate")
    chosen = parser.parse_args(arguments)
    columns = chosen.by.split(",")
    if unknown := [name for name in columns if name not in COLUMNS]:
        parser.error(f"no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    try:
        rows = [row for row in read_rows(chosen.csv) if re.search(chosen.only, row.id)]
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    traces = chosen.traces or chosen.csv.resolve().parent.parent
    points = []
    for point in compare(rows, traces, workers=chosen.workers):
        points.append(point)
        if sys.stderr.isatty():
            print(f"\r{len(points)} of {len(rows)}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    found = json.dumps(plain(points), indent=1)
    if chosen.json == "-":
        print(found)
        return 0
    print(text(points, columns) if points else "no point matches")
    if chosen.json:
        Path(chosen.json).write_text(found + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
