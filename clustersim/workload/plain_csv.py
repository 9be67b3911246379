"""Plain CSV traces: an instant, a prompt length and an output length per line, under usual names.

Instants are ``arrival_s``, ``arrived_at_s``, ``timestamp_s`` … (table below; also ``_ms``, ``_us``, ``_ns``).
``priority`` (lower numbers go first) and ``cancel_after_s`` (also ``_ms`` …; how long after its arrival the client
gives a request up, an empty cell for never) may be there. Further columns are allowed and not read, but for names that
are almost one of these two: what somebody wrote down about clients must not be passed over in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from clustersim.clock import NS_PER_MS, NS_PER_S, NS_PER_US
from clustersim.errors import InputError, Problem
from clustersim.workload.cells import parse_instants, parse_or_never, parse_tokens, parse_whole
from clustersim.workload.trace_csv import CsvColumn, header_names, missing_column, read_columns
from clustersim.workload.trace_text import TraceColumns, TraceText

_UNITS: Final = {
    "s": ("seconds", NS_PER_S),
    "ms": ("milliseconds", NS_PER_MS),
    "us": ("microseconds", NS_PER_US),
    "ns": ("nanoseconds", 1),
}
_INSTANTS: Final = {
    f"{stem}_{unit}": parse_instants(*_UNITS[unit])
    for unit in _UNITS
    for stem in ("arrival", "arrived_at", "timestamp", "arrival_time", "arrived")
}
_PRIORITY: Final = "priority"
_CANCELS: Final = {f"cancel_after_{unit}": parse_or_never(parse_instants(*_UNITS[unit])) for unit in _UNITS}
_CANCEL: Final = next(iter(_CANCELS))
NAMES: Final = (
    tuple(_INSTANTS),
    ("prompt_tokens", "input_tokens", "served_prompt_tokens"),
    ("output_tokens", "generated_tokens", "served_output_tokens"),
)
"""Names of the instant, of the prompt length and of the output length; a file has exactly one of each."""


def matched_share(first_line: str) -> float:
    """Return which share of the three columns the header has under some name."""
    header = header_names(first_line)
    return sum(any(name in header for name in names) for names in NAMES) / len(NAMES)


def read(file: TraceText) -> TraceColumns:
    """Read a plain CSV trace; see :func:`clustersim.workload.trace_csv.read_columns` for the errors."""
    instant, prompt, output = _chosen_names(file)
    columns = [
        CsvColumn(name=instant, parse=_INSTANTS[instant]),
        CsvColumn(name=prompt, parse=parse_tokens),
        CsvColumn(name=output, parse=parse_tokens),
    ]
    header = header_names(file.first_line)
    cancels = [name for name in _CANCELS if name in header]
    if len(cancels) > 1:
        message = f"columns {' and '.join(cancels)} mean the same; expected one of them"
        raise InputError(file.problem(message, line=1))
    if problems := _almost(file, header):
        raise InputError(problems)
    optional = [CsvColumn(name=name, parse=_CANCELS[name]) for name in cancels]
    if _PRIORITY in header:
        optional.append(CsvColumn(name=_PRIORITY, parse=parse_whole("a priority")))
    stamps_ns, prompt_tokens, output_tokens, *more = read_columns(file, [*columns, *optional])
    return TraceColumns(
        stamps_ns=stamps_ns,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cancel_after_ns=more[0] if cancels else None,
        priorities=more[-1] if _PRIORITY in header else None,
    )


def _almost(file: TraceText, header: Sequence[str]) -> list[Problem]:
    """Return a problem for each column that is not read but seems to tell of clients."""
    known = [_PRIORITY, *_CANCELS]
    found = []
    for name in header:
        word = name.lower()
        guesses = [_CANCEL] if word.startswith(("cancel", "timeout")) else get_close_matches(word, known, 1, 0.75)
        if guesses and name not in known:
            message = f"column {name!r} is not read; did you mean {guesses[0]!r}? Rename it, or leave it out"
            found.append(file.problem(message, line=1))
    return found


def _chosen_names(file: TraceText) -> list[str]:
    header = header_names(file.first_line)
    chosen, problems = [], []
    for names in NAMES:
        present = [name for name in names if name in header]
        chosen += present[:1]
        if not present:
            problems.append(missing_column(file, names[0], header))
        elif len(present) > 1:
            message = f"columns {' and '.join(present)} mean the same; expected one of them"
            problems.append(file.problem(message, line=1))
    if problems:
        raise InputError(problems)
    return chosen
