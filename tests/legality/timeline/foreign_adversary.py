"""An adversary of tables from elsewhere: one cell of one column is another, and they are read and judged.

Every column of every table, row by row: a number a little off, of another row, far off, or none; a word of another
row. ``python -m tests.legality.timeline.foreign_adversary`` counts by field what is found, refused and legal, and
:data:`UNSEEN` says of the latter why.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clustersim.errors import InputError
from clustersim.legality.audit import check_history
from clustersim.simulation.foreign.history import read_history
from tests.legality.timeline.foreign_tables import GIVEN, Rows, tables, written

UNSEEN: Final[dict[str, str]] = {
    "spans.id": "of an operator that none waits for",
    "spans.start_ns": "a rank enters a collective as soon as it is ready, and waits in it",
    "spans.rank": "a rank on which the same runs as well: no table says which layers a rank has",
    "spans.stream": "which stream an operator runs on is free, as long as it runs one at a time",
    "spans.module": "a word of the program that wrote it",
    "spans.name": "a word of the program that wrote it: rules that go by a name then look at others",
    "spans.op": "a word of the program that wrote it",
    "spans.layer": "of an operator whose name is of no layer, or none: rules that go by layers do not look at it",
    "spans.group": "none, of what is no collective",
    "spans.bytes": "of what is no send",
    "spans.cost_ns": "less than it took, or none: it is a lower bound",
    "spans.after": "less than it waits for, or something earlier: instants are those of before",
    "facts.time_ns": "a rejection, for which a request may wait",
    "facts.kind": "the number of the same word",
    "facts.used": "none, or what is taken or given back at that instant",
    "facts.reason": "another reason, or one for what needs none",
    "steps.start_ns": "of a step without spans",
    "steps.end_ns": "of a step without spans, whose request finishes later",
    "steps.kind": "the number of the same word",
    "requests.prompt_tokens": "of a request that is rejected",
    "requests.output_tokens": "of a request that is rejected",
    "requests.arrived_ns": "none",
    "requests.first_token_ns": "none",
    "requests.finished_ns": "none",
    "routes.selected": "none",
    "held.block": "another block that is free: which one it is matters to nobody",
    "held.taken_ns": "a block is taken before it is needed",
    "held.content": "of a block that nobody shares",
    "flows.link": "another link, that has room: no table says which way a transfer goes",
    "flows.start_ns": "the link has room",
    "flows.end_ns": "the link has room",
    "flows.rate": "less, or the link has room",
    "flows.capacity": "the same number, written otherwise",
}
"""Field → why some changes of it stay legal."""


@dataclass(frozen=True, slots=True)
class Change:
    """A cell of a table, counted from the first row that is no head, and what stands there instead."""

    table: str
    column: str
    row: int
    cell: str

    @property
    def field(self) -> str:
        return f"{self.table}.{self.column}"


def changes_of(whole: dict[str, Rows], most: int, draw: random.Random) -> Iterator[Change]:
    """Yield changes of every column, of up to ``most`` rows of each."""
    for table, (head, *rows) in whole.items():
        for at, column in enumerate(head):
            for row in sorted(draw.sample(range(len(rows)), min(most, len(rows)))):
                yield from (Change(table, column, row, cell) for cell in _instead(rows, row, at, draw))


def _instead(rows: Rows, row: int, at: int, draw: random.Random) -> list[str]:
    own = rows[row][at]
    found = sorted({other[at] for other in rows} - {own})
    found = draw.sample(found, min(2, len(found)))
    number = own.removeprefix("-")
    if number.isdigit():
        found += [str(int(own) + by) for by in (1, -1, 1000) if int(own) + by >= 0]
    elif own:
        found.append("other")
    return [*dict.fromkeys([*found, "", "0", "3"])][:6] if own else [*dict.fromkeys([*found, "0", "3"])]


def changed(whole: dict[str, Rows], change: Change) -> dict[str, Rows]:
    """Return tables with one cell changed."""
    rows = [list(row) for row in whole[change.table]]
    rows[change.row + 1][rows[0].index(change.column)] = change.cell
    return {**whole, change.table: rows}


def verdict_on(whole: dict[str, Rows], given: tuple[str, ...] = GIVEN) -> str:
    """Return ``found``, ``refused``, ``legal`` or ``defect``."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            history = read_history(written(Path(folder), whole), given)
            return "found" if check_history(history).violations else "legal"
        except InputError:
            return "refused"
        except Exception as error:  # what it is counts
            return f"defect {type(error).__name__}"


def main() -> None:
    """Count, and print what stays legal by field."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20, help="rows of each column")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    whole = tables()
    by_field: dict[str, Counter[str]] = {}
    legal: dict[str, list[Change]] = {}
    for change in changes_of(whole, chosen.rows, random.Random(chosen.seed)):
        cell = changed(whole, change)
        what = "same" if cell == whole else verdict_on(cell)
        by_field.setdefault(change.field, Counter())[what] += 1
        if what not in ("found", "refused", "same"):
            legal.setdefault(change.field, []).append(change)
    for field, counts in by_field.items():
        print(f"{field:24} {dict(counts)}")
        for change in legal.get(field, ())[:6]:
            print(f"    row {change.row}: {change.cell!r}")
    print(sum(by_field.values(), Counter()))


if __name__ == "__main__":
    main()
