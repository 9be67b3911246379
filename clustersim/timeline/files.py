"""The folded timeline on disk: Parquet tables and the templates as JSON, in a folder ``timeline/``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem
from clustersim.timeline.head import FORMAT, HEAD, MOST, POOL, Head
from clustersim.timeline.parquet import read_columns, write_table
from clustersim.timeline.soundness import refuse_unsound
from clustersim.timeline.stretch import Irregular, Stretch
from clustersim.timeline.tables import TABLES, VECTORS
from clustersim.timeline.timeline import Timeline

_IRREGULAR = "time_ns"


def save_timeline(timeline: Timeline, folder: Path) -> None:
    """Write a timeline into an existing folder."""
    for name in TABLES:
        write_table(folder / f"{name}.parquet", getattr(timeline, name))
    for name in VECTORS:
        write_table(folder / f"{name}.parquet", {name: getattr(timeline, name)})
    irregular = [
        found.pairs.ravel() if isinstance(found, Stretch) else np.concatenate(found) for found in timeline.irregular
    ]
    flat = np.concatenate(irregular).astype(np.int64) if irregular else np.empty(0, np.int64)
    write_table(folder / "irregular.parquet", {_IRREGULAR: flat})
    head = {
        "format": FORMAT,
        "templates": [template.as_mapping() for template in timeline.templates],
        "pools": [[getattr(pool, name) for name in POOL] for pool in timeline.layout.pools],
        "column_sets": [list(columns) for columns in timeline.column_sets],
        "irregular_sizes": [
            -(len(values) // 2) if isinstance(found, Stretch) else len(values) // 2
            for found, values in zip(timeline.irregular, irregular, strict=True)
        ],
        "digest": timeline.digest,
        "num_spans": timeline.num_spans,
        "num_steps": timeline.num_steps,
    }
    (folder / HEAD).write_text(json.dumps(head), encoding="utf-8")


def load_timeline(run_dir: Path) -> Timeline:
    """Read the timeline of a run directory.

    Raises
    ------
    InputError
        When the folder holds no readable timeline, or one that can't be: it names file, column, row, what was found
        and what was expected.
    """
    folder = run_dir / "timeline"
    if not (folder / HEAD).is_file():
        message = (
            f"holds no readable timeline ({HEAD} is missing); expected a run directory that `clustersim run` wrote"
        )
        raise InputError(Problem(file=str(run_dir), message=message))
    head = Head(folder)
    tables: dict[str, Any] = {name: read_columns(folder / f"{name}.parquet", types) for name, types in TABLES.items()}
    vectors: dict[str, Any] = {
        name: read_columns(folder / f"{name}.parquet", {name: "int64"})[name] for name in VECTORS
    }
    file = folder / "irregular.parquet"
    timeline = Timeline(
        templates=head.templates,
        layout=head.layout,
        column_sets=head.column_sets,
        irregular=_irregular(file, read_columns(file, {_IRREGULAR: "int64"})[_IRREGULAR], head.irregular_sizes),
        told_digest=head.digest,
        num_spans=head.num_spans,
        num_steps=head.num_steps,
        **tables,
        **vectors,
    )
    refuse_unsound(timeline, folder)
    return timeline


def _irregular(file: Path, flat: Int64Array, sizes: list[int]) -> tuple[Irregular, ...]:
    """Return the times of irregular passes, which a file holds one after the other."""
    lengths = [2 * abs(size) for size in sizes]
    if sum(lengths) != len(flat):
        message = f"found {len(flat):,} rows; expected {sum(lengths):,}, as irregular_sizes in {HEAD} say"
        raise InputError(Problem(file=str(file), path=_IRREGULAR, message=message))
    odd = np.flatnonzero((flat < -MOST) | (flat > MOST))
    if len(odd):
        message = f"{flat[odd[0]]:,} in row {odd[0] + 1} can't be; expected {-MOST:,} to {MOST:,}"
        raise InputError(Problem(file=str(file), path=_IRREGULAR, message=message))
    parts = np.split(flat, np.cumsum(lengths)[:-1]) if sizes else []
    return tuple(
        Stretch.of(part) if size < 0 else (part[:size], part[size:]) for size, part in zip(sizes, parts, strict=True)
    )


__all__ = ["load_timeline", "save_timeline", "write_table"]
