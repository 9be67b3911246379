"""What another recorder took, put behind what this one has: as if this one had recorded it."""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.record import Recorder
from clustersim.timeline.tables import Table, Tables


def absorb(recorder: Recorder, tables: Tables) -> None:
    """Append tables of a recorder with the same templates.

    Rows of durations that both have become one, and new ones are numbered in order of first use.

    Parameters
    ----------
    recorder : Recorder
    tables : Tables
    """
    passes = _wide(tables.passes)
    passes["row"] = _row_numbers(recorder, tables)[passes["row"]]
    passes["varying_at"] += recorder.varying.extend(tables.varying)
    for name, first in (
        ("starts_at", recorder.starts.extend(tables.starts)),
        ("irregular", len(recorder.irregular)),
    ):
        passes[name][passes[name] >= 0] += first
    recorder.irregular.extend(tables.irregular)
    transfers = _wide(tables.transfers)
    transfers["at"] += recorder.transfer_times.extend(tables.transfer_times)
    recorder.transfer_bytes.extend(tables.transfer_bytes)
    recorder.passes.extend_columns(**passes)
    recorder.transfers.extend_columns(**transfers)
    recorder.steps.extend_columns(**tables.steps)
    recorder.chunks.extend_columns(**tables.chunks)
    recorder.decodes.extend_columns(**tables.decodes)
    recorder.facts.extend_columns(**tables.facts)
    recorder.moves.extend_columns(**tables.moves)
    recorder.owners.extend_columns(**tables.owners)


def _row_numbers(recorder: Recorder, tables: Tables) -> Int64Array:
    rows = tables.rows
    begins = rows["at"].tolist()
    ends = [*begins[1:], len(tables.row_values)][: len(begins)]
    numbers = [
        recorder.row(template, tables.row_values[begin:end], tables.column_sets[columns])
        for template, begin, end, columns in zip(
            rows["template"].tolist(), begins, ends, rows["columns"].tolist(), strict=True
        )
    ]
    return np.array(numbers, np.int64)


def _wide(table: Table) -> dict[str, Any]:
    return {name: values.astype(np.int64) for name, values in table.items()}
