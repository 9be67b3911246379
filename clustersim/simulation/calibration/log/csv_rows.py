"""CSV with a request each, as clients measured it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from clustersim.errors import InputError, Problem, alike_column
from clustersim.inputs import number_of
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.calibration.log.requests import (
    MOST_PROBLEMS,
    columns,
    numbers,
    per_token,
    repeated,
    requests_of,
    wrong_tokens,
)
from clustersim.simulation.calibration.log.server_log import ServerLog
from clustersim.workload.traces.csv_columns import parted_by

_CELLS: Final = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms")
_LONGEST_HEADER: Final = 10_000


def of_cells(path: Path, text: str, scenario: Scenario) -> ServerLog:
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=parted_by(text[:_LONGEST_HEADER].partition("\n")[0])
    )
    header = [name.strip() for name in reader.fieldnames or ()]
    absent = [name for name in _CELLS if name not in header]
    if absent:
        spare = [name for name in header if name not in _CELLS]
        messages = [f"no column {name!r}{alike_column(name, spare)}" for name in absent]
        raise InputError(Problem(file=str(path), line=1, message=message) for message in messages)
    rows: list[tuple[float, ...]] = []
    problems: list[Problem] = []
    for line in _lines(path, reader):
        cells = {str(key).strip(): cell if number_of(cell) is None else number_of(cell) for key, cell in line.items()}
        if cells.get("output_tokens") == 1.0 and cells.get("tpot_ms") in ("", None):
            cells["tpot_ms"] = 0.0  # there is none
        values, mistakes = numbers(cells, _CELLS)
        mistakes = mistakes or wrong_tokens(values[1:3], _CELLS[1:3], scenario)
        problems += [Problem(file=str(path), line=reader.line_num, message=mistake) for mistake in mistakes]
        if len(problems) >= MOST_PROBLEMS:
            break
        rows.append((*values, reader.line_num))
    problems += repeated(path, rows, _CELLS[0]) if not problems else []
    falls = [place for place in range(1, len(rows)) if rows[place][0] < rows[place - 1][0]]
    (arrived, prompt, output, ttft, tpot, line_of), notes = columns(path, rows, problems, by=0)
    if falls:
        at, back = int(rows[falls[0]][-1]), rows[falls[0] - 1][0] - rows[falls[0]][0]
        many = f" ({len(falls):,} lines do)" if len(falls) > 1 else ""
        notes = (*notes, f"{path}:{at}: arrival_s goes back by {back:.4g} s{many}; taken in order of arrival")
    return ServerLog(
        name=path.name,
        requests=requests_of(path, arrived, prompt, output),
        ttft_ms=ttft,
        tpot_ms=per_token(path, line_of, output, tpot),
        figures={},
        has_front_end=True,
        notes=notes,
    )


def _lines(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[str, Any]]:
    try:
        yield from reader
    except csv.Error as error:
        raise InputError(Problem(file=str(path), line=reader.line_num + 1, message=f"not CSV: {error}")) from None
