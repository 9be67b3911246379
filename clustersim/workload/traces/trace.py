"""Read a recorded trace, cut and scale it.

Whatever the origin of a trace's clock, its first request arrives at 0. A trace that is not sorted is sorted;
requests with equal stamps keep the order of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.workload.limits import MAX_NS, MAX_SCALE, MIN_SCALE, check_between, check_whole, check_window
from clustersim.workload.requests import Requests, requests_in_order
from clustersim.workload.traces.formats import FORMATS, TraceFormat, format_of
from clustersim.workload.traces.plain_csv import NamedColumns
from clustersim.workload.traces.text import read_text

Turns = Literal["as_recorded", "wait"]


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
    block_tokens: int | None = None,
    benchmark: int | None = None,
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
    block_tokens : int or None
        Tokens that a hash of a prompt's blocks stands for; None: as many as in the format, 512 where keys are named.
    benchmark : int or None
        Which benchmark of a result that has several, from 1.
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
        found = None
        if columns is not None or format is None or format in FORMATS:
            chosen = format_of(format, columns, file)
            told = {"block_tokens": block_tokens, "benchmark": benchmark}
            problems += _spare_problems(told, chosen)
            found = chosen.read(file, **{option: told[option] for option in chosen.options})
    except InputError as error:
        problems += error.problems
    if problems or found is None:
        raise InputError(problems)
    if block_tokens is not None and found.prefix_hashes is None:
        raise InputError(Problem(path="block_tokens", message=f"{name} has no hashes of blocks; leave it out"))
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


def _spare_problems(told: Mapping[str, int | None], chosen: TraceFormat) -> list[Problem]:
    """Return a problem for each option of readers that is told, and that the one that was chosen doesn't have."""
    problems = []
    for option, value in told.items():
        if value is not None and option not in chosen.options:
            names = ", ".join(name for name, one in FORMATS.items() if option in one.options)
            message = f"is for the trace formats {names}; leave it out, or say which format"
            problems.append(Problem(path=option, message=message))
    return problems


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
