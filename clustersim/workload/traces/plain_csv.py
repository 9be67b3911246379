"""CSV traces: an instant, a prompt length and an output length per line, under usual names or under given ones.

Usual names of instants are ``arrival_s``, ``arrived_at_s``, ``timestamp_s`` … (table below; also ``_ms``, ``_us``,
``_ns``), and the same without a unit where the cells are dates with times. What logs and other traces call a column is
known, too, however it is written (``completion_tokens``, ``completionTokens``), where no column has a usual name; what
may count letters or seconds (``prompt_length``, ``latency``) is not. ``priority`` (lower numbers go first) and
``cancel_after_s`` (also ``_ms`` …; how long after its arrival the client gives a request up, an empty cell for never)
may be there, and ``session_id`` (any text; requests with one text are turns of one session, an empty cell is of none),
and ``error`` or ``success`` (see ``failed``; the lengths of a request that failed may be empty).
Further columns are allowed and not read, but for names that are almost one of these two: what somebody
wrote down about clients must not be passed over in silence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Final, Literal

import numpy as np

from clustersim.clock import NS_PER_MS, NS_PER_S, NS_PER_US
from clustersim.errors import InputError, Problem
from clustersim.values import dataclass
from clustersim.workload.traces.cells import (
    TOKENS_EXPECTED,
    ParseCells,
    is_stamp,
    parse_instants,
    parse_or_never,
    parse_sessions,
    parse_tokens,
    parse_whole,
    stamps_like,
)
from clustersim.workload.traces.csv_columns import (
    CsvColumn,
    empty_cells,
    first_cell,
    header_names,
    missing_column,
    read_columns,
)
from clustersim.workload.traces.failed import ERRORS, SUCCESSES, parse_errors, parse_successes
from clustersim.workload.traces.text import TraceColumns, TraceText

Unit = Literal["s", "ms", "us", "ns", "iso"]
"""What the numbers of a column of instants count; ``iso``: they are dates with times."""

UNITS: Final[dict[Unit, tuple[str, int]]] = {
    "s": ("seconds", NS_PER_S), "ms": ("milliseconds", NS_PER_MS), "us": ("microseconds", NS_PER_US),
    "ns": ("nanoseconds", 1),
}  # fmt: skip
"""What instants that are numbers count, in words, and in nanoseconds."""
UNIT_UNSAID: Final = "does not say what its numbers count; add workload.trace.columns.unit: s, ms, us or ns"
_STEMS: Final = ("arrival", "arrived_at", "timestamp", "arrival_time", "arrived")
_REQUIRED: Final = ("arrival", "prompt_tokens", "output_tokens")
_PRIORITY: Final = "priority"
_FAILURES: Final[dict[str, ParseCells]] = {"error": parse_errors, "success": parse_successes}
_SESSIONS: Final = ("session_id", "Session ID")
_CANCELS: Final = tuple(f"cancel_after_{unit}" for unit in UNITS)
NAMES: Final = (
    (*(f"{stem}_{unit}" for unit in UNITS for stem in _STEMS), *_STEMS),
    ("prompt_tokens", "input_tokens", "served_prompt_tokens"),
    ("output_tokens", "generated_tokens", "served_output_tokens"),
)
"""Usual names of the instant, of the prompt length and of the output length; a file has exactly one of each."""
_STAMPS: Final = ("created", "created_at", "start_time", "sent_at")
_ALSO: Final = (
    (*_STEMS, *_STAMPS, *(f"{stem}_{unit}" for unit in UNITS for stem in (*_STEMS, *_STAMPS))),
    (
        *NAMES[1], "num_prompt_tokens", "num_input_tokens", "num_prefill_tokens", "prefill_tokens", "context_tokens",
        "request_tokens", "input_toks", "input_len", "input_length", "isl",
    ),
    (
        *NAMES[2], "completion_tokens", "num_output_tokens", "num_completion_tokens", "num_generated_tokens",
        "num_decode_tokens", "decode_tokens", "response_tokens", "output_toks", "output_len", "output_length", "osl",
    ),
)  # fmt: skip
"""What others call these columns, in any case and with anything between the words: OpenAI's API (``created``,
``completion_tokens``), Azure (``ContextTokens``), BurstGPT (``Response tokens``), Mooncake (``input_length``), Vidur
(``num_prefill_tokens``), LLMServingSim (``input_toks``), vLLM's and SGLang's benchmarks (``input_len``)."""
_BARE: Final = {"created": "s"}
"""What instants without a unit in their name count: OpenAI's ``created`` is in Unix seconds (its API reference)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumns:
    """What the columns of a trace are called, where they have no usual names.

    Parameters
    ----------
    arrival, prompt_tokens, output_tokens, priority, cancel_after, hash_ids, error, success : str or None
        Names in the header, or keys of JSON lines, by path (``usage.prompt_tokens``); None looks for the usual ones.
    unit : str or None
        Of the instants and of ``cancel_after``: ``s``, ``ms``, ``us``, ``ns``, or ``iso`` for dates with times. None
        takes it from the end of the name, such as ``_ms``, or from the cells where they are dates.
    """

    arrival: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    priority: str | None = None
    cancel_after: str | None = None
    hash_ids: str | None = None
    error: str | None = None
    success: str | None = None
    unit: Unit | None = None

    @property
    def required(self) -> tuple[str | None, str | None, str | None]:
        """What the columns that every trace has are called."""
        return self.arrival, self.prompt_tokens, self.output_tokens


USUAL: Final = NamedColumns()


def matched_share(first_line: str, named: NamedColumns = USUAL) -> float:
    """Return which share of the three columns the header has."""
    header = header_names(first_line)
    wanted = zip(named.required, NAMES, _ALSO, strict=True)
    return sum(bool(_present(header, *names)) for names in wanted) / len(NAMES)


def has_usual_names(first_line: str) -> bool:
    """Tell whether the header has all columns under their usual names, and not only under what others call them."""
    header = header_names(first_line)
    return all(any(name in header for name in names) for names in NAMES)


def _present(header: Sequence[str], given: str | None, names: Sequence[str], also: Sequence[str] = ()) -> list[str]:
    """Return the columns of a header that have the name that is given, a usual name, or else one that others have."""
    found = [name for name in ((given,) if given is not None else names) if name in header]
    if found or given is not None:
        return found
    others = set(map(_letters, also))
    return [name for name in header if _letters(name) in others]


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def read(file: TraceText, named: NamedColumns = USUAL) -> TraceColumns:
    """Read a CSV trace; see :func:`clustersim.workload.traces.csv_columns.read_columns` for the errors."""
    header = header_names(file.first_line)
    wanted = list(zip(_REQUIRED, named.required, NAMES, _ALSO, strict=True))

    def found_of(spare: Sequence[str]) -> list[str | Problem | None]:
        return [_one(file, header, given, names, also=also, key=key, spare=spare) for key, given, names, also in wanted]

    taken = found_of(header)
    chosen = found_of([name for name in header if name not in taken])
    more = {
        "cancel": _one(file, header, named.cancel_after, _CANCELS, needed=False),
        "priority": _one(file, header, named.priority, (_PRIORITY,), needed=False),
        "session": _one(file, header, None, _SESSIONS, needed=False),
        "error": _one(file, header, named.error, ERRORS, also=ERRORS, needed=False),
        "success": _one(file, header, named.success, SUCCESSES, also=SUCCESSES, needed=False),
    }
    problems = [found for found in (*chosen, *more.values()) if isinstance(found, Problem)]
    if named.hash_ids is not None:
        problems.append(file.problem("workload.trace.columns.hash_ids is read from JSON lines only", line=1))
    if not problems and named == USUAL:
        problems = _almost(file, header)
    if problems:
        raise InputError(problems)
    instant, *lengths = map(str, chosen)
    names = {name: str(column) for name, column in more.items() if column}
    parse = parse_or_never(parse_tokens) if names.keys() & _FAILURES else parse_tokens
    parsers = {"priority": parse_whole("a priority"), "session": parse_sessions} | _FAILURES
    if "cancel" in names:
        parsers["cancel"] = parse_or_never(_durations(file, names["cancel"], named))
    columns = [
        CsvColumn(name=instant, parse=_instants(file, instant, named)),
        *(CsvColumn(name=length, parse=parse) for length in lengths),
        *(CsvColumn(name=column, parse=parsers[name]) for name, column in names.items()),
    ]
    stamps_ns, prompt_tokens, output_tokens, *others = read_columns(file, columns)
    found = dict(zip(names, others, strict=True))
    failed = np.zeros(len(stamps_ns), bool)
    for name in names.keys() & _FAILURES:
        failed |= found[name] > 0
    said = zip(lengths, (prompt_tokens, output_tokens), strict=True)
    unsaid = [(length, ~failed & (tokens < 0)) for length, tokens in said]
    if any(rows.any() for _, rows in unsaid):
        raise empty_cells(file, unsaid, TOKENS_EXPECTED)
    return TraceColumns(
        stamps_ns=stamps_ns,
        prompt_tokens=np.maximum(prompt_tokens, 0),
        output_tokens=np.where(failed, 0, output_tokens),
        cancel_after_ns=found.get("cancel"),
        priorities=found.get("priority"),
        sessions=found.get("session"),
    )


def _one(
    file: TraceText,
    header: Sequence[str],
    given: str | None,
    names: Sequence[str],
    *,
    also: Sequence[str] = (),
    key: str = "",
    needed: bool = True,
    spare: Sequence[str] | None = None,
) -> str | Problem | None:
    """Return the one of these names that the header has, or the one that is given; or what is wrong.

    What is missing is guessed among the ``spare`` columns, by default all.
    """
    present = _present(header, given, names, also)
    if len(present) > 1:
        return file.problem(f"columns {' and '.join(present)} mean the same; expected one of them", line=1)
    if present or (given is None and not needed):
        return present[0] if present else None
    lacking = missing_column(file, names[0] if given is None else given, header, spare, named=given is not None)
    if given is not None or not key:
        return lacking
    return replace(lacking, message=f"{lacking.message}; or name it with workload.trace.columns.{key}")


def _instants(file: TraceText, name: str, named: NamedColumns) -> ParseCells:
    """Return what reads a column of instants: as its unit says, as its name ends, or as its cells look."""
    first = first_cell(file, name)
    if named.unit == "iso" or (named.unit is None and is_stamp(first)):
        return stamps_like(first)
    return parse_instants(*UNITS[named.unit or _ending(file, name)])


def _durations(file: TraceText, name: str, named: NamedColumns) -> ParseCells:
    said = named.unit if named.cancel_after and named.unit != "iso" else None
    return parse_instants(*UNITS[said or _ending(file, name)])


def ending(name: str) -> Unit | None:
    """Return the unit that a name says, such as ``_ms`` at its end, or None."""
    last = _BARE.get(_letters(name), re.split(r"[\W_]|(?<=[a-z])(?=[A-Z])", name)[-1].lower())
    return next((unit for unit in UNITS if unit == last), None)


def _ending(file: TraceText, name: str) -> Unit:
    """Return the unit that a name ends in.

    Raises
    ------
    InputError
        When it ends in none.
    """
    if (found := ending(name)) is not None:
        return found
    raise InputError(file.problem(f"column {name!r} {UNIT_UNSAID}", line=1))


def _almost(file: TraceText, header: Sequence[str]) -> list[Problem]:
    """Return a problem for each column that is not read but seems to tell of clients."""
    known = [_PRIORITY, *_CANCELS]
    found = []
    for name in header:
        word = name.lower()
        guesses = [_CANCELS[0]] if word.startswith(("cancel", "timeout")) else get_close_matches(word, known, 1, 0.75)
        if guesses and name not in known:
            message = f"column {name!r} is not read; did you mean {guesses[0]!r}? Rename it, or leave it out"
            found.append(file.problem(message, line=1))
    return found
