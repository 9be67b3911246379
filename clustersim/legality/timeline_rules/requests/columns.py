"""Whether what a history has are tables: the columns that rules rely on, whole numbers, one for each row.

Readers of files and replays make no others; a history need not come from either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from clustersim.legality.finding import Fault, Finding
from clustersim.legality.history import SPAN_COLUMNS, History
from clustersim.timeline.tables import TABLES, VECTORS

NEEDED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "steps": ("RUN-2", ("replica", "step", "count", "slot", "start_ns", "end_ns")),
    "chunks": ("KV-3", ("replica", "step", "request", "start", "count", "sampled")),
    "decodes": ("PH-2", ("replica", "slot", "request", "first_step", "last_step")),
    "facts": ("RUN-4", ("replica", "time_ns", "kind", "request")),
    "moves": ("DP-2", tuple(TABLES["moves"])),
    "routes": ("EP-2", ("replica", "step", "layer", "request", "token", "expert")),
    "held": ("KV-5", ("replica", "block", "request", "taken_ns", "freed_ns", "content")),
    "flows": ("RUN-3", ("link", "start_ns", "end_ns", "rate", "capacity")),
    "requests": ("RUN-4", ("prompt_tokens", "output_tokens")),
}
"""Table → the rule that needs it most, and columns that may not lack."""
FRACTIONS: Final = ("rate", "capacity")


def misshapen(history: History) -> Iterator[tuple[str, Finding]]:
    """Yield rule and fault of every table that is none."""
    for name, (rule, needed) in NEEDED.items():
        if (table := getattr(history, name)) is not None:
            yield from ((rule, found) for found in _of_table(name, table, needed))
    if history.spans is not None:
        yield from (("RUN-3", found) for found in _of_table("spans", history.spans.columns, SPAN_COLUMNS))
        for rows in history.spans.after or ():
            yield from (("RUN-3", found) for found in _of_table("spans, after", {"after": rows}, ()))
    if history.folded is not None:
        for name, columns in TABLES.items():
            table = getattr(history.folded, name)
            yield from (("RUN-2", found) for found in _of_table(f"timeline, {name}", table, tuple(columns)))
        for name in VECTORS:
            table = {name: getattr(history.folded, name)}
            yield from (("RUN-2", found) for found in _of_table("timeline", table, ()))


def _of_table(table: str, columns: Mapping[str, Any], needed: tuple[str, ...]) -> Iterator[Finding]:
    for name in needed:
        if name not in columns:
            yield _told(f"{table}, {name}", "lacks", "record it, or nothing of the table")
    rows = None
    for name, values in columns.items():
        where = f"{table}, {name}"
        found = np.asarray(values)
        rows = len(found) if rows is None and found.ndim == 1 else rows
        if found.ndim != 1 or len(found) != rows:
            yield _told(
                where, f"is of shape {found.shape}; expected ({rows},), as in the column before it", "fill rows"
            )
        elif not _counts(found, fractions=name in FRACTIONS):
            yield _told(where, f"is of {found.dtype}; expected whole numbers of 64 bits with a sign, or less", "count")


def _counts(values: Any, *, fractions: bool) -> bool:
    kind, size = values.dtype.kind, values.dtype.itemsize
    if fractions and kind == "f":
        return bool(np.isfinite(values).all())
    return kind in "ib" or (kind == "u" and size < 8)


def _told(where: str, message: str, fix: str) -> Finding:
    return Finding(looked_at=0, faults=(Fault(where=where, message=message, fix=fix),))
