"""The folded timeline on disk: Parquet tables and the templates as JSON, in a folder ``timeline/``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem
from clustersim.graph.template import template_from
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.tables import TABLES, VECTORS
from clustersim.timeline.timeline import Timeline

_FORMAT = 2


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
    write_table(folder / "irregular.parquet", {"time_ns": flat})
    head = {
        "format": _FORMAT,
        "templates": [template.as_mapping() for template in timeline.templates],
        "sp_tp": list(timeline.sp_tp),
        "stages": timeline.stages,
        "column_sets": [list(columns) for columns in timeline.column_sets],
        "irregular_sizes": [
            -(len(values) // 2) if isinstance(found, Stretch) else len(values) // 2
            for found, values in zip(timeline.irregular, irregular, strict=True)
        ],
        "digest": timeline.digest,
        "num_spans": timeline.num_spans,
        "num_steps": timeline.num_steps,
    }
    (folder / "templates.json").write_text(json.dumps(head), encoding="utf-8")


def load_timeline(run_dir: Path) -> Timeline:
    """Read the timeline of a run directory.

    Raises
    ------
    InputError
        When the folder holds no readable timeline.
    """
    folder = run_dir / "timeline"
    try:
        head = json.loads((folder / "templates.json").read_text(encoding="utf-8"))
        if head.get("format") != _FORMAT:
            found = head.get("format")
            message = f"was written in format {found}, this version reads {_FORMAT}; run the scenario again"
            raise InputError(Problem(file=str(folder / "templates.json"), message=message))
        tables: dict[str, Any] = {name: read_table(folder / f"{name}.parquet") for name in TABLES}
        vectors: dict[str, Any] = {name: read_table(folder / f"{name}.parquet")[name] for name in VECTORS}
        irregular = read_table(folder / "irregular.parquet")["time_ns"]
    except (OSError, ValueError, KeyError) as error:
        message = f"holds no readable timeline ({error}); expected a run directory that `clustersim run` wrote"
        raise InputError(Problem(file=str(run_dir), message=message)) from None
    return Timeline(
        templates=tuple(template_from(values) for values in head["templates"]),
        sp_tp=tuple(head["sp_tp"]),
        stages=head["stages"],
        column_sets=tuple(tuple(columns) for columns in head["column_sets"]),
        irregular=tuple(
            Stretch.of(part) if size < 0 else (part[:size], part[size:])
            for size, part in zip(
                head["irregular_sizes"],
                _split(irregular, [2 * abs(size) for size in head["irregular_sizes"]]),
                strict=True,
            )
        ),
        digest=head["digest"],
        num_spans=head["num_spans"],
        num_steps=head["num_steps"],
        **tables,
        **vectors,
    )


def _split(flat: Int64Array, sizes: list[int]) -> list[Int64Array]:
    return np.split(flat, np.cumsum(sizes)[:-1]) if sizes else []


def write_table(path: Path, columns: Any) -> None:
    """Write named arrays as Parquet (zstd); an array of objects is a column of text, null where it holds None."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(values: Any) -> Any:  # the type is that of the column, not that of what happens to be in it
        return pa.array(values, pa.string() if values.dtype.hasobject else None)

    table = pa.table({name: column(values) for name, values in columns.items()})
    integers = [name for name in columns if pa.types.is_integer(table.schema.field(name).type)]
    pq.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=[name for name in columns if name not in integers],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED") or None,
    )


def read_table(path: Path) -> dict[str, Any]:
    """Read a Parquet file as named numpy arrays; nulls become NaN in numbers and None in text."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}
