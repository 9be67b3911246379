"""Recorded traces: find the format of a file, read it, cut and scale it.

Whatever the origin of a trace's clock, its first request arrives at 0. A trace that is not sorted is sorted;
requests with equal stamps keep the order of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.values import dataclass
from clustersim.workload import bench_json, plain_csv, trace_jsonl, trace_parts
from clustersim.workload.limits import MAX_NS, MAX_SCALE, MIN_SCALE, check_between, check_whole, check_window
from clustersim.workload.plain_csv import NamedColumns
from clustersim.workload.requests import Requests, requests_in_order
from clustersim.workload.trace_csv import header_names
from clustersim.workload.trace_text import TraceColumns, TraceText, read_text

Turns = Literal["as_recorded", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """How well a first line fits this format (share of its columns that it names, 0 to 1), and its reader."""

    matched_share: Callable[[str], float]
    read: Callable[[TraceText], TraceColumns]


def _jsonl(keys: trace_jsonl.JsonlKeys) -> TraceFormat:
    return TraceFormat(
        matched_share=partial(trace_jsonl.matched_share, keys=keys), read=partial(trace_jsonl.read, keys=keys)
    )


def named_format(columns: NamedColumns) -> TraceFormat:
    """Return the format of CSV files whose columns have these names."""
    return TraceFormat(
        matched_share=partial(plain_csv.matched_share, named=columns), read=partial(plain_csv.read, named=columns)
    )


AZURE: Final = NamedColumns(
    arrival="TIMESTAMP", prompt_tokens="ContextTokens", output_tokens="GeneratedTokens", unit="iso"
)
"""Azure LLM inference traces of 2023 to 2025: github.com/Azure/AzurePublicDataset (CC-BY-4.0)."""
BURSTGPT: Final = NamedColumns(
    arrival="Timestamp", prompt_tokens="Request tokens", output_tokens="Response tokens", unit="s"
)
"""Wang et al., "BurstGPT", arXiv:2401.17644. A request that failed there has no response tokens."""

FORMATS: Final[Mapping[str, TraceFormat]] = {
    "azure": named_format(AZURE),
    "burstgpt": named_format(BURSTGPT),
    "ragpulse": TraceFormat(matched_share=trace_parts.matched_share, read=trace_parts.read),
    "mooncake": _jsonl(trace_jsonl.MOONCAKE),
    "sharegpt": _jsonl(trace_jsonl.SHAREGPT),
    "vllm_bench": TraceFormat(matched_share=bench_json.matched_share, read=bench_json.read),
    "csv": TraceFormat(matched_share=plain_csv.matched_share, read=plain_csv.read),
}
_NAMED_COLUMNS: Final = "{arrival: NAME, prompt_tokens: NAME, output_tokens: NAME, unit: s}"
_NAME: Final = re.compile(r"[A-Za-z_][\w .()/#%-]{0,39}")
_MOST_NAMES: Final = 12


def read_trace(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002  (the word of the scenario file)
    requests: int | None = None,
    window_ns: tuple[int, int] | None = None,
    rate_scale: float = 1.0,
    repeat: bool | int = False,
    turns: Turns = "as_recorded",
    columns: NamedColumns | None = None,
) -> Requests:
    """Read a recorded trace.

    Parameters
    ----------
    path : Path
        The file.
    format : str or None
        A key of :data:`FORMATS`; None finds it by the first line.
    requests : int or None
        Keep the first so many (of the window, if there is one).
    window_ns : tuple of int or None
        Keep ``[from, to)`` after the first arrival, in recorded time; the first request kept arrives at 0.
    repeat : bool or int
        Play it, or so many of its first requests, again and again until there are ``requests``, which it needs; see
        :meth:`Requests.repeat_to`.
    turns : {"as_recorded", "wait"}
        Whether turns of a session arrive when they did, or each not before the one before it has ended.
    columns : NamedColumns or None
        What the columns of a CSV file, or the keys of a file of JSON lines, are called.
    rate_scale : float
        2.0 plays the trace at twice its rate; see :meth:`Requests.scaled` for the rounding.

    Raises
    ------
    InputError
        With every option that makes no sense, and the first 20 problems of the file by line.
    """
    name = str(path)
    problems = _option_problems(format, requests, window_ns, rate_scale)
    try:
        file = read_text(path)
        known = format if format in FORMATS else None
        found = None
        if columns is not None:
            found = _read_as(columns, file)
        elif known or not format:
            found = FORMATS[_fitting(known, file)].read(file)
    except InputError as error:
        problems += error.problems
    if problems or found is None:
        raise InputError(problems)
    waits = turns == "wait"
    if waits and found.sessions is None:
        message = f"{name} names no sessions whose turns could wait; expected a column session_id, or as_recorded"
        raise InputError(Problem(path="turns", message=message))
    recorded = requests_in_order(
        arrived_at_ns=found.stamps_ns,
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
        prefix_hashes=found.prefix_hashes,
        hash_block_tokens=found.hash_block_tokens,
        priorities=found.priorities,
        cancel_after_ns=found.cancel_after_ns,
        sessions=found.sessions if waits else None,
        source=name,
    )
    if window_ns is not None:
        recorded = _windowed(recorded, window_ns)
    if not isinstance(repeat, bool):
        recorded = recorded.take(repeat, "repeat")
    if requests is not None:
        recorded = recorded.repeat_to(requests) if repeat else recorded.take(requests)
    return recorded if rate_scale == 1 else recorded.scaled(rate_scale)


def _read_as(columns: NamedColumns, file: TraceText) -> TraceColumns:
    """Read a file whose columns, or keys, are named."""
    if not file.first_line.lstrip().startswith("{"):
        return plain_csv.read(file, columns)
    return trace_jsonl.read(file, trace_jsonl.keys_of(columns, file))


def _fitting(named: str | None, file: TraceText) -> str:
    """Return the format that is named, or that fits; a file that has nothing of it is not quoted."""
    if named is None:
        return detect_format(file)
    if not FORMATS[named].matched_share(file.first_line):
        message = f"its first line has no column and no key of the trace format {named}"
        raise InputError(replace(file.problem(message, line=1), quotes=False))
    return named


def detect_format(file: TraceText) -> str:
    """Return the one format that fits the first line best.

    A line that names only some columns of a format still selects it: its reader can say what is missing.

    Raises
    ------
    InputError
        When no format fits, or more than one fits best.
    """
    shares = {name: entry.matched_share(file.first_line) for name, entry in FORMATS.items()}
    best = max(shares.values())
    fitting = [name for name, share in shares.items() if share == best]
    if len(fitting) > 1 and (fitting == ["ragpulse", "csv"] or not plain_csv.has_usual_names(file.first_line)):
        fitting.remove("csv")  # the other one's columns, and more; or as the other one calls them
    if best == 0:
        message = f"unknown trace format: its first line has no column and no key of any; known: {', '.join(FORMATS)}; "
        message += f"or say what its columns are called: workload.trace.columns={_NAMED_COLUMNS}{_names_shown(file)}"
        raise InputError(replace(file.problem(message, line=1), quotes=False))
    if len(fitting) > 1:
        message = f"the first line fits the trace formats {' and '.join(fitting)}; say which with 'format'"
        raise InputError(file.problem(message, line=1))
    return fitting[0]


def _names_shown(file: TraceText) -> str:
    """Return what a file's columns or keys are called, where its suffix and its first line say that it has some."""
    line = file.first_line.strip()
    suffix = Path(file.name).suffix.lower()
    if suffix in (".csv", ".tsv"):
        names = header_names(line)
    elif suffix in (".json", ".jsonl") and line.startswith("{"):
        names = re.findall(r'"([^"]*)"\s*:', line)
    else:
        return ""
    if len(names) < 2 or not all(_NAME.fullmatch(name) for name in names):
        return ""
    more = ", …" if len(names) > _MOST_NAMES else ""
    return f"; it has {', '.join(map(repr, names[:_MOST_NAMES]))}{more}"


def _option_problems(
    format_name: str | None, requests: int | None, window_ns: tuple[int, int] | None, rate_scale: float
) -> list[Problem]:
    problems = []
    if format_name is not None and format_name not in FORMATS:
        hint = did_you_mean(format_name, list(FORMATS))
        problems.append(Problem(path="format", message=f"unknown trace format {format_name!r}{hint}"))
    if requests is not None:
        problems += check_whole("requests", requests, low=1, high=MAX_NS)
    if window_ns is not None:
        problems += check_window(*window_ns)
    return problems + check_between("rate_scale", rate_scale, MIN_SCALE, MAX_SCALE)


def _windowed(recorded: Requests, window_ns: tuple[int, int]) -> Requests:
    kept = recorded.window(*window_ns)
    if not len(kept):
        start, end = window_ns
        message = (
            f"no request arrives in [{start / 1e9:g} s, {end / 1e9:g} s) of {recorded.source}, "
            f"whose last one arrives at {recorded.span_ns / 1e9:g} s"
        )
        raise InputError(Problem(path="window", message=message))
    return kept
