"""What a server logged: the requests that it was sent, and how long they took.

Read are

- JSON lines with a request each: ``input_toks``, ``output_toks``, ``arrival_time`` (s) and the stamps ``queued_ts``,
  ``first_token_ts``, ``last_token_ts`` (s, of one clock; ``scheduled_ts`` if there is one). TTFT counts from
  ``queued_ts``: what is in front of the engine is not in such a log.
- CSV with a request each: ``arrival_s``, ``prompt_tokens``, ``output_tokens``, ``ttft_ms``, ``tpot_ms``.
- the JSON result of ``vllm bench serve`` (``--save-result``), with or without the lists of ``--save-detailed``. Its
  clients are outside the server. Without lists the lengths are those of the scenario, or the mean ones of the log.

Prompts are not in logs: what a prefix cache saved is not told apart from a fast prefill.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim import inputs
from clustersim.clock import NS_PER_S, FloatArray
from clustersim.errors import InputError, Problem, alike_column, unreadable
from clustersim.scenario.scenario import Scenario
from clustersim.values import dataclass
from clustersim.workload.arrivals import AllAtOnce, Arrivals, ClosedLoop, Gamma, Poisson
from clustersim.workload.draws import DrawnWorkload, generate
from clustersim.workload.lengths import Fixed
from clustersim.workload.requests import Requests
from clustersim.workload.trace_csv import parted_by

_STAMPS: Final = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
_CELLS: Final = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms")
_RESULT: Final = (
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "request_rate",
    "mean_ttft_ms",
    "mean_tpot_ms",
)
_FIGURES: Final = {
    "ttft mean": "mean_ttft_ms",
    "tpot mean": "mean_tpot_ms",
    "ttft p50": "median_ttft_ms",
    "tpot p50": "median_tpot_ms",
}
_MOST_PROBLEMS: Final = 20
_FEWEST_REQUESTS: Final = 20
_MOST_REQUESTS: Final = 10_000
"""Of a log: it is simulated some thirty times, and what it tells of a few constants does not grow any more."""
_OWN: Final = "clustersim"
"""Backend of results that ``--vllm-json`` wrote: its clients are at the replicas, behind any front end."""
_TOTALS: Final = {"prompt_tokens": "total_input_tokens", "output_tokens": "total_output_tokens"}
_LENGTHS_APART: Final = 0.2
"""Of mean lengths (assumed): of twenty requests drawn from 0 to twice the mean it varies by 13 %."""
_LONGEST_HEADER: Final = 10_000
_LONGEST_S: Final = 3.2e7
"""A year: a log over a longer time counts in another unit."""
_LEAST_JUMP_S: Final = 1.0
"""By which stamps may go back in order of arrival: requests pass each other on the way to the engine."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerLog:
    """One run of a server.

    Parameters
    ----------
    name : str
        Of its file.
    requests : Requests
        What it was sent.
    ttft_ms, tpot_ms : FloatArray or None, shape (n,)
        By request, in order of arrival, NaN where there is none; None where the log has only figures of all.
    figures : mapping
        Milliseconds by ``ttft mean`` and the like, where there are no lists.
    admitted_s, ended_s, queued_s : FloatArray or None, shape (n,)
        Instants of one clock at which the engine had a request, took it up, and was done with it.
    has_front_end : bool
        Whether times are those of clients, outside the server.
    notes : tuple of str
        What a reader must know of how it was read.
    digest : str
        Of the text: two logs with one are the same.
    """

    name: str
    requests: Requests
    ttft_ms: FloatArray | None = None
    tpot_ms: FloatArray | None = None
    figures: Mapping[str, float]
    queued_s: FloatArray | None = None
    admitted_s: FloatArray | None = None
    ended_s: FloatArray | None = None
    has_front_end: bool = False
    notes: tuple[str, ...] = ()
    digest: str = ""


def read_log(path: Path, scenario: Scenario) -> ServerLog:
    """Read a log; ``scenario`` says what a result without lists does not.

    Raises
    ------
    InputError
        When it is none of these, lacks columns, or has values that can't be used, by line.
    """
    text = inputs.read_text(path, most=inputs.TEXT_BYTES)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return replace(_read(path, text, scenario), digest=digest)


def _read(path: Path, text: str, scenario: Scenario) -> ServerLog:
    if path.suffix == ".csv":
        return _of_cells(path, text, scenario)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(Problem(file=str(path), message=f"is empty; expected {_EXPECTED}"))
    first = _parsed(path, *lines[0]) if len(lines) > 1 and lines[0][1].rstrip().endswith("}") else None
    if isinstance(first, dict):
        return _of_stamps(path, ((number, _parsed(path, number, line)) for number, line in lines), scenario)
    result = _parsed(path, 1, text)
    if not isinstance(result, dict) or not inputs.recognised(result, (*_RESULT, *_STAMPS)):
        raise InputError(
            Problem(file=str(path), message=f"is no log that is known; expected {_EXPECTED}", quotes=False)
        )
    return _of_stamps(path, [(1, result)], scenario) if "input_toks" in result else _of_result(path, result, scenario)


_EXPECTED: Final = "JSON lines with a request each, CSV with a request each, or the JSON result of vllm bench serve"


def _parsed(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(file=str(path), line=line, message=f"not JSON: {unreadable(error)}")) from None


def _tokens(values: Sequence[float], names: Sequence[str], scenario: Scenario) -> list[str]:
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


def _of_stamps(path: Path, lines: Iterable[tuple[int, Any]], scenario: Scenario) -> ServerLog:
    rows: list[tuple[float, ...]] = []
    problems: list[Problem] = []
    line_by_name: dict[Any, int] = {}
    absent: set[str] = set()
    for number, line in lines:
        found = line if isinstance(line, dict) else {}
        values, mistakes = _numbers(found, _STAMPS)
        if not mistakes and not values[3] <= values[4] <= values[5]:
            mistakes = ["expected queued_ts ≤ first_token_ts ≤ last_token_ts"]
        mistakes = mistakes or _tokens(values[:2], _STAMPS[:2], scenario)
        name = found.get("request_id")
        if isinstance(name, str | int) and line_by_name.setdefault(name, number) != number:
            mistakes = [f"request_id: {name!r} stands in line {line_by_name[name]}, too; expected each request once"]
        fresh = [mistake for mistake in mistakes if mistake not in absent]
        absent |= {mistake for mistake in mistakes if ": is missing" in mistake}  # told once
        problems += [Problem(file=str(path), line=number, message=mistake) for mistake in fresh]
        if len(problems) >= _MOST_PROBLEMS:
            break
        scheduled = found.get("scheduled_ts")
        rows.append((*values, scheduled if isinstance(scheduled, int | float) else math.nan, number))
    known = [(row[2], *row[:2], *row[3:6], row[-1]) for row in rows] if not problems else []
    problems += _repeated(path, known, "arrival_time")
    (prompt, output, arrived, queued, first, last, scheduled_s, line_of), notes = _columns(path, rows, problems, by=2)
    falls = np.flatnonzero(np.diff(queued) < -_LEAST_JUMP_S)
    if len(falls):
        where, back = int(falls[0]) + 1, queued[falls[0]] - queued[falls[0] + 1]
        message = f"queued_ts: goes back by {back:.4g} s where arrival_time goes on; expected stamps of one clock"
        raise InputError(Problem(file=str(path), line=int(line_of[where]), message=message))
    gaps = np.maximum(output - 1.0, 1.0)
    return ServerLog(
        name=path.name,
        requests=_requests(path, arrived, prompt, output),
        ttft_ms=(first - queued) * 1e3,
        tpot_ms=_per_token(path, line_of, output, (last - first) / gaps * 1e3),
        figures={},
        queued_s=queued,
        admitted_s=None if np.isnan(scheduled_s).any() else scheduled_s,
        ended_s=last,
        notes=notes,
    )


def _of_cells(path: Path, text: str, scenario: Scenario) -> ServerLog:
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
    for line in reader:
        cells = {str(key).strip(): cell if _float(cell) is None else _float(cell) for key, cell in line.items()}
        if cells.get("output_tokens") == 1.0 and cells.get("tpot_ms") in ("", None):
            cells["tpot_ms"] = 0.0  # there is none
        values, mistakes = _numbers(cells, _CELLS)
        mistakes = mistakes or _tokens(values[1:3], _CELLS[1:3], scenario)
        problems += [Problem(file=str(path), line=reader.line_num, message=mistake) for mistake in mistakes]
        if len(problems) >= _MOST_PROBLEMS:
            break
        rows.append((*values, reader.line_num))
    problems += _repeated(path, rows, _CELLS[0]) if not problems else []
    falls = [place for place in range(1, len(rows)) if rows[place][0] < rows[place - 1][0]]
    (arrived, prompt, output, ttft, tpot, line_of), notes = _columns(path, rows, problems, by=0)
    if falls:
        at, back = int(rows[falls[0]][-1]), rows[falls[0] - 1][0] - rows[falls[0]][0]
        many = f" ({len(falls):,} lines do)" if len(falls) > 1 else ""
        notes = (*notes, f"{path}:{at}: arrival_s goes back by {back:.4g} s{many}; taken in order of arrival")
    return ServerLog(
        name=path.name,
        requests=_requests(path, arrived, prompt, output),
        ttft_ms=ttft,
        tpot_ms=_per_token(path, line_of, output, tpot),
        figures={},
        has_front_end=True,
        notes=notes,
    )


def _repeated(path: Path, rows: Sequence[tuple[float, ...]], name: str) -> list[Problem]:
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


def _per_token(path: Path, line_of: FloatArray | None, output: FloatArray, tpot_ms: FloatArray) -> FloatArray:
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


def _of_result(path: Path, result: Mapping[str, Any], scenario: Scenario) -> ServerLog:
    _, mistakes = _numbers({**result, "request_rate": 1.0}, _RESULT)
    rate = _rate(result.get("request_rate"))
    if rate is None:
        mistakes.append(f"request_rate: found {result.get('request_rate')!r}; expected a rate above 0, or inf")
    count = result.get("completed")
    if "completed" in result and (not isinstance(count, int) or count < 1):
        mistakes = [one for one in mistakes if not one.startswith("completed")]
        mistakes.append(f"completed: found {count!r}; expected a whole number of requests above 0")
    concurrency = result.get("max_concurrency")
    if "max_concurrency" not in result:
        mistakes.append("max_concurrency: is missing; expected a whole number of clients, or null where none was given")
    if concurrency is not None and (not isinstance(concurrency, int) or concurrency < 1):
        mistakes.append(f"max_concurrency: found {concurrency!r}; expected a whole number above 0")
    mistakes = mistakes or _lists_wrong(result, scenario)
    if mistakes:
        raise InputError(Problem(file=str(path), path=mistake.partition(":")[0], message=mistake.partition(": ")[2])
                         for mistake in mistakes)  # fmt: skip
    count = int(result["completed"])
    arrivals = _arrivals(rate or math.inf, concurrency, result.get("burstiness"))
    drawn, notes = _drawn(path.name, result, arrivals, scenario)
    if result["total_output_tokens"] <= count:
        _per_token(path, None, np.ones(1), np.ones(1))
    outside = result.get("backend") != _OWN
    if not all(
        isinstance(result.get(name), list) and len(result[name]) == count for name in ("input_lens", "ttfts", "itls")
    ):
        figures = {
            name: float(result[key]) for name, key in _FIGURES.items() if isinstance(result.get(key), int | float)
        }
        return ServerLog(name=path.name, requests=drawn, figures=figures, has_front_end=outside, notes=notes)
    prompt, output = (np.asarray(result[name], np.float64) for name in ("input_lens", "output_lens"))
    starts = result.get("start_times")
    arrived = drawn.arrived_at_ns / NS_PER_S
    if concurrency is None and isinstance(starts, list) and len(starts) == count:
        arrived = np.asarray(starts, np.float64)
    order = np.argsort(arrived, kind="stable")
    return ServerLog(
        name=path.name,
        requests=_requests(path, arrived[order], prompt[order], output[order], concurrency),
        ttft_ms=np.asarray(result["ttfts"], np.float64)[order] * 1e3,
        tpot_ms=np.array([np.mean(gaps) * 1e3 if gaps else np.nan for gaps in result["itls"]])[order],
        figures={},
        has_front_end=outside,
    )


def _lists_wrong(result: Mapping[str, Any], scenario: Scenario) -> list[str]:
    """Return what is wrong with the lists of ``--save-detailed``, by name and place."""
    for name in ("ttfts", "start_times", "input_lens", "output_lens"):
        for place, value in enumerate(_listed(result, name)):
            if _numbers({name: value}, (name,))[1]:
                return [f"{name}[{place}]: found {value!r}; expected a number"]
    for place, gaps in enumerate(_listed(result, "itls")):
        if not isinstance(gaps, list) or any(_numbers({"itls": gap}, ("itls",))[1] for gap in gaps):
            return [f"itls[{place}]: expected a list of seconds"]
    for place, lengths in enumerate(zip(_listed(result, "input_lens"), _listed(result, "output_lens"), strict=False)):
        if wrong := _tokens(lengths, (f"input_lens[{place}]", f"output_lens[{place}]"), scenario):
            return wrong
    return []


def _listed(result: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = result.get(name)
    return value if isinstance(value, list) else ()


def _arrivals(rate: float, concurrency: int | None, burstiness: object) -> Arrivals:
    if concurrency is not None:
        return ClosedLoop(concurrency=concurrency)
    if math.isinf(rate):
        return AllAtOnce()
    if isinstance(burstiness, int | float) and burstiness > 0 and burstiness != 1:
        return Gamma(rate_per_s=rate, cv=1.0 / math.sqrt(burstiness), rescale=True)
    return Poisson(rate_per_s=rate, rescale=True)


def _drawn(
    name: str, result: Mapping[str, Any], arrivals: Arrivals, scenario: Scenario
) -> tuple[Requests, tuple[str, ...]]:
    """Return the requests of a result without lists, and what is to say of them.

    Lengths are those that the scenario draws where their means are the log's, give or take; else the mean ones.
    """
    count = int(result["completed"])
    mean = {key: max(1, round(result[total] / count)) for key, total in _TOTALS.items()}
    prompt, output = (Fixed(tokens=tokens) for tokens in mean.values())
    workload = DrawnWorkload(arrivals=arrivals, requests=count, prompt_tokens=prompt, output_tokens=output)
    told: list[str] = []
    if isinstance(scenario.workload, DrawnWorkload):
        own = replace(
            workload, prompt_tokens=scenario.workload.prompt_tokens, output_tokens=scenario.workload.output_tokens
        )
        requests = generate(own, np.random.SeedSequence(scenario.seed))
        for key, tokens in mean.items():
            found = float(getattr(requests, key).mean())
            if abs(found / tokens - 1.0) >= _LENGTHS_APART:
                told.append(f"{key}: {found:,.0f} in the mean as the scenario draws them, {tokens:,} in the log")
        if not told:
            return requests, ()
        told = [f"{name}: {'; '.join(told)}: requests of the log's mean lengths are taken"]
    return generate(workload, np.random.SeedSequence(scenario.seed)), tuple(told)


def _rate(value: object) -> float | None:
    number = _float(value)
    return number if number is not None and number > 0 else None


def _numbers(found: Mapping[str, Any], names: Sequence[str]) -> tuple[tuple[float, ...], list[str]]:
    """Return the values of these names, and what is wrong with them."""
    values, mistakes = [], []
    for name in names:
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            told = f"found {value!r}; expected a number" if name in found else "is missing"
            hint = "" if name in found else alike_column(name, [key for key in found if key not in names])
            mistakes.append(f"{name}: {told}{hint}")
        else:
            values.append(float(value))
    return tuple(values), mistakes


def _float(value: object) -> float | None:
    try:
        return float(value) if str(value).isascii() else None  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _columns(
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
    span = float(np.ptp(columns[by]))
    if span > _LONGEST_S:
        message = f"requests arrive over {span:.3g} s, more than a year; expected seconds (are these ns or us?)"
        raise InputError(Problem(file=str(path), line=int(columns[-1][int(columns[by].argmax())]), message=message))
    chosen = np.argsort(columns[by], kind="stable")[:_MOST_REQUESTS]
    told = f"{path}: of its {len(rows):,} requests the first {_MOST_REQUESTS:,} in order of arrival are taken"
    return np.asarray(columns[:, chosen]), (told,) if len(rows) > _MOST_REQUESTS else ()


def _requests(
    path: Path, arrived_s: FloatArray, prompt: FloatArray, output: FloatArray, concurrency: int | None = None
) -> Requests:
    since = np.rint((arrived_s - arrived_s[0]) * NS_PER_S).astype(np.int64)
    return Requests(
        arrived_at_ns=since,
        prompt_tokens=prompt.astype(np.int64),
        output_tokens=output.astype(np.int64),
        concurrency=concurrency,
        source=path.name,
    )
