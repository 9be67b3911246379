"""The requests of a log: what is wrong with their numbers, and what of them is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray
from clustersim.errors import InputError, Problem, alike_column
from clustersim.scenario.scenario import Scenario
from clustersim.workload.requests import Requests

MOST_PROBLEMS: Final = 20
_FEWEST_REQUESTS: Final = 20
_MOST_REQUESTS: Final = 10_000
"""Of a log: it is simulated some thirty times, and what it tells of a few constants does not grow any more."""
MOST: Final = 1e15
"""Above any stamp, s, and any time, ms, of a server."""
_LONGEST_QUOTED: Final = 40
_LONGEST_S: Final = 3.2e7
"""A year: a log over a longer time counts in another unit."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value of a log is a number that any figure or instant of one can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST


def shown(value: object) -> str:
    """Return what is quoted of a value."""
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}…"


def numbers(found: Mapping[str, Any], names: Sequence[str]) -> tuple[tuple[float, ...], list[str]]:
    """Return the values of these names, and what is wrong with them."""
    values, mistakes = [], []
    for name in names:
        value = found.get(name)
        if not is_number(value):
            told = f"found {shown(value)}; expected a number up to {MOST:g}" if name in found else "is missing"
            hint = "" if name in found else alike_column(name, [key for key in found if key not in names])
            mistakes.append(f"{name}: {told}{hint}")
        else:
            values.append(float(value))
    return tuple(values), mistakes


def wrong_tokens(values: Sequence[float], names: Sequence[str], scenario: Scenario) -> list[str]:
    """Return what is wrong with prompt and output tokens."""
    mistakes = [f"{name}: found {value:g}; expected a whole number" for name, value in zip(names, values, strict=True)
                if value != int(value)]  # fmt: skip
    most, spec = scenario.model.max_positions, scenario.model.name
    if not mistakes and most is not None and values[0] + values[1] > most:
        told = f"{int(values[0]):,} prompt and {int(values[1]):,} output tokens"
        mistakes.append(f"{names[0]}: {told} are more than the {most:,} of {spec}'s longest sequence")
    if not mistakes and not values[0]:
        mistakes.append(f"{names[0]}: found 0; expected a whole number above 0")
    return mistakes


def repeated(path: Path, rows: Sequence[tuple[float, ...]], name: str) -> list[Problem]:
    """Return the line of the first request that stands twice: alike in all cells, its arrival like no other one's.

    Rows begin with the arrival, whose ``name`` is that of its column, and end with their line.
    """
    first_line: dict[tuple[float, ...], float] = {}
    again = [(first_line[row[:-1]], row) for row in rows if first_line.setdefault(row[:-1], row[-1]) != row[-1]]
    arrivals = Counter(cells[0] for cells in first_line)
    again = [(line, row) for line, row in again if arrivals[row[0]] == 1 and row[0] > rows[0][0]]
    if not again:
        return []
    many = f" ({len(again):,} lines are such)" if len(again) > 1 else ""
    message = f"{name}: the request of line {again[0][0]:.0f} stands here again{many}; expected each request once"
    return [Problem(file=str(path), line=int(again[0][1][-1]), message=message)]


def per_token(path: Path, line_of: FloatArray | None, output: FloatArray, tpot_ms: FloatArray) -> FloatArray:
    """Return TPOT of the requests that have any.

    Raises
    ------
    InputError
        When none has.
    """
    if np.all(output <= 1.0):
        message = "no request has more than one output token: times per output token can't be told"
        line = None if line_of is None else int(line_of.min())
        raise InputError(Problem(file=str(path), line=line, message=message))
    return np.where(output > 1.0, tpot_ms, np.nan)


def columns(
    path: Path, rows: Sequence[tuple[float, ...]], problems: list[Problem], *, by: int
) -> tuple[FloatArray, tuple[str, ...]]:
    """Return rows as columns, sorted by one of them and no more than can be simulated, and what is to say of it."""
    if not problems and len(rows) < _FEWEST_REQUESTS:
        problems.append(
            Problem(file=str(path), message=f"has {len(rows)} requests; expected {_FEWEST_REQUESTS} or more")
        )
    if problems:
        raise InputError(problems)
    columns = np.array(rows, dtype=np.float64).T
    _refuse_longer(path, columns[by], int(columns[-1][int(columns[by].argmax())]))
    chosen = np.argsort(columns[by], kind="stable")[:_MOST_REQUESTS]
    told = f"{path}: of its {len(rows):,} requests the first {_MOST_REQUESTS:,} in order of arrival are taken"
    return np.asarray(columns[:, chosen]), (told,) if len(rows) > _MOST_REQUESTS else ()


def _refuse_longer(path: Path, arrived_s: FloatArray, line: int | None = None) -> None:
    """Refuse arrivals over more than a year."""
    span = float(np.ptp(arrived_s))
    if span > _LONGEST_S:
        message = f"requests arrive over {span:.3g} s, more than a year; expected seconds (are these ns or us?)"
        raise InputError(Problem(file=str(path), line=line, message=message))


def requests_of(
    path: Path, arrived_s: FloatArray, prompt: FloatArray, output: FloatArray, concurrency: int | None = None
) -> Requests:
    _refuse_longer(path, arrived_s)
    since = np.rint((arrived_s - arrived_s[0]) * NS_PER_S).astype(np.int64)
    return Requests(
        arrived_at_ns=since,
        prompt_tokens=prompt.astype(np.int64),
        output_tokens=output.astype(np.int64),
        concurrency=concurrency,
        source=path.name,
    )
