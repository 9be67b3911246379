"""JSON lines with a request each, which have the stamps of one clock of the server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.errors import InputError, Problem
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.calibration.log.requests import (
    MOST_PROBLEMS,
    columns,
    is_number,
    numbers,
    per_token,
    repeated,
    requests_of,
    wrong_tokens,
)
from clustersim.simulation.calibration.log.server_log import ServerLog

STAMPS: Final = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
_LEAST_JUMP_S: Final = 1.0
"""By which stamps may go back in order of arrival: requests pass each other on the way to the engine."""


def of_stamps(path: Path, lines: Iterable[tuple[int, Any]], scenario: Scenario) -> ServerLog:
    rows: list[tuple[float, ...]] = []
    problems: list[Problem] = []
    line_by_name: dict[Any, int] = {}
    absent: set[str] = set()
    for number, line in lines:
        found = line if isinstance(line, dict) else {}
        values, mistakes = numbers(found, STAMPS)
        if not mistakes and not values[3] <= values[4] <= values[5]:
            mistakes = ["expected queued_ts ≤ first_token_ts ≤ last_token_ts"]
        mistakes = mistakes or wrong_tokens(values[:2], STAMPS[:2], scenario)
        name = found.get("request_id")
        if isinstance(name, str | int) and line_by_name.setdefault(name, number) != number:
            mistakes = [f"request_id: {name!r} stands in line {line_by_name[name]}, too; expected each request once"]
        fresh = [mistake for mistake in mistakes if mistake not in absent]
        absent |= {mistake for mistake in mistakes if ": is missing" in mistake}  # told once
        problems += [Problem(file=str(path), line=number, message=mistake) for mistake in fresh]
        if len(problems) >= MOST_PROBLEMS:
            break
        scheduled = found.get("scheduled_ts")
        rows.append((*values, scheduled if is_number(scheduled) else math.nan, number))
    known = [(row[2], *row[:2], *row[3:6], row[-1]) for row in rows] if not problems else []
    problems += repeated(path, known, "arrival_time")
    (prompt, output, arrived, queued, first, last, scheduled_s, line_of), notes = columns(path, rows, problems, by=2)
    falls = np.flatnonzero(np.diff(queued) < -_LEAST_JUMP_S)
    if len(falls):
        where, back = int(falls[0]) + 1, queued[falls[0]] - queued[falls[0] + 1]
        message = f"queued_ts: goes back by {back:.4g} s where arrival_time goes on; expected stamps of one clock"
        raise InputError(Problem(file=str(path), line=int(line_of[where]), message=message))
    gaps = np.maximum(output - 1.0, 1.0)
    return ServerLog(
        name=path.name,
        requests=requests_of(path, arrived, prompt, output),
        ttft_ms=(first - queued) * 1e3,
        tpot_ms=per_token(path, line_of, output, (last - first) / gaps * 1e3),
        figures={},
        queued_s=queued,
        admitted_s=None if np.isnan(scheduled_s).any() else scheduled_s,
        ended_s=last,
        notes=notes,
    )
