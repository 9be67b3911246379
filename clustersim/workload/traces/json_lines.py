"""Traces of JSON lines, an object per request: what their formats call their keys, and the reader of all.

Sources: github.com/kvcache-ai/Mooncake, FAST25-release/traces (Apache-2.0; a last, partial block has a hash);
github.com/alibaba-edu/qwen-bailian-usagetraces-anon (the same keys, with seconds and blocks of 16 tokens);
ShareGPT as LLMServingSim records it (github.com/casys-kaist/LLMServingSim, MIT; only full blocks have one);
AIPerf's ``profile_export.jsonl`` (docs.nvidia.com/aiperf; instants of the client's clock); answers of OpenAI's API
(platform.openai.com/docs/api-reference: ``created`` and ``created_at`` are Unix seconds), as they are, under
``response`` or as the batch API writes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from clustersim.errors import InputError, Problem
from clustersim.workload.traces.failed import ERRORS, SUCCESSES
from clustersim.workload.traces.json_records import Complaint, RecordKeys, RecordReader
from clustersim.workload.traces.json_text import json_words, offset_of, parsed, steps_to
from clustersim.workload.traces.plain_csv import NamedColumns
from clustersim.workload.traces.text import MAX_PROBLEMS, TraceColumns, TraceText

MOONCAKE: Final = RecordKeys(
    arrival=("timestamp",), unit="ms", prompt=("input_length",), output=("output_length",), hashes="hash_ids",
    block_tokens=512,
)  # fmt: skip
BAILIAN: Final = replace(MOONCAKE, unit="s", block_tokens=16, marks=("chat_id", "parent_chat_id"))
SHAREGPT: Final = RecordKeys(
    arrival=("arrival_time_ns",), unit="ns", prompt=("input_toks",), output=("output_toks",), hashes="hash_ids_16",
    block_tokens=16,
)  # fmt: skip
AIPERF: Final = RecordKeys(
    arrival=("metadata.request_start_ns",),
    unit="ns",
    prompt=("metrics.input_sequence_length.value", "metrics.error_isl.value"),
    output=("metrics.output_sequence_length.value",),
    error=("error", "metadata.was_cancelled"),
    marks=("metadata", "metrics"),
)
_WRAPS: Final = ("", "response.", "response.body.")
_CREATED: Final = tuple(f"{wrap}{key}" for wrap in _WRAPS for key in ("created", "created_at"))
OPENAI: Final = RecordKeys(
    arrival=(*_CREATED, "timestamp", "time", "start_time"),
    seconds=_CREATED,
    prompt=tuple(f"{wrap}usage.{key}" for wrap in _WRAPS for key in ("prompt_tokens", "input_tokens")),
    output=tuple(f"{wrap}usage.{key}" for wrap in _WRAPS for key in ("completion_tokens", "output_tokens")),
    error=tuple(f"{wrap}error" for wrap in _WRAPS),
    marks=("usage",),
)
_UNLIKELY: Final = 0.1
"""How well a format fits, of what it would, whose marks a line lacks."""


def keys_of(columns: NamedColumns, file: TraceText) -> RecordKeys:
    """Return the keys of a file of JSON lines that are named; ``hash_ids`` are found under this name, too.

    Raises
    ------
    InputError
        When a key is not said, or one is named that lines can't have.
    """
    problems = [
        file.problem(f"add workload.trace.columns.{name}: in JSON lines each key is named", line=1)
        for name in ("arrival", "prompt_tokens", "output_tokens")
        if getattr(columns, name) is None
    ]
    problems += [
        file.problem(f"workload.trace.columns.{name} is read from CSV files only", line=1)
        for name in ("priority", "cancel_after")
        if getattr(columns, name) is not None
    ]
    if problems:
        raise InputError(problems)
    arrival, prompt, output = ((str(name),) for name in columns.required)
    return RecordKeys(
        arrival=arrival,
        unit=columns.unit,
        prompt=prompt,
        output=output,
        hashes=columns.hash_ids or MOONCAKE.hashes,
        block_tokens=MOONCAKE.block_tokens,
        exact=True,
        error=(columns.error,) if columns.error else ERRORS,
        success=(columns.success,) if columns.success else SUCCESSES,
        wanted=tuple(filter(None, (columns.hash_ids, columns.error, columns.success))),
    )


def matched_share(head: str, keys: RecordKeys) -> float:
    """Return which share of the required keys the head of a file names; little of it where it lacks the marks."""
    if not head.lstrip().startswith("{"):
        return 0.0

    def has(path: str) -> bool:
        return all(f'"{part}"' in head for part in path.split("."))

    required = (keys.arrival, keys.prompt, keys.output)
    share = sum(any(map(has, names)) for names in required) / len(required)
    return share if all(map(has, keys.marks)) else share * _UNLIKELY


def read(file: TraceText, keys: RecordKeys, *, block_tokens: int | None = None) -> TraceColumns:
    """Read a trace of JSON lines.

    Parameters
    ----------
    file : TraceText
    keys : RecordKeys
    block_tokens : int, optional
        Tokens of a hashed block, where they are not those of the format.

    Raises
    ------
    InputError
        Naming the lines that are no request of this format.
    """
    if block_tokens is not None:
        keys = replace(keys, block_tokens=block_tokens, exact=False)
    reader = RecordReader(keys)
    problems: list[Problem] = []
    total = 0
    lines = file.text.rstrip().split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = _record(file, number, line)
            found = _located(file, number, line, record, reader.read(record))
        except InputError as error:
            found = list(error.problems)
        total += len(found)
        problems += found[: MAX_PROBLEMS - len(problems)]
    if not total and (sparse := reader.uncovered()):
        number, complaint = sparse
        line = lines[number - 1]
        problems = _located(file, number, line, _record(file, number, line), [complaint])
        total = 1
    lacking = [file.problem(f"no line has a key {key!r}", line=1) for key in sorted(reader.lacking)]
    if lacking or total:
        raise file.error(lacking + problems, total + len(lacking))
    return reader.columns()


def _record(file: TraceText, number: int, line: str) -> dict[str, Any]:
    if not line.strip():
        raise InputError(file.problem("empty line; expected a JSON object", line=number))
    record = parsed(file, line, "an object", line=number)
    if not isinstance(record, dict):
        raise InputError(file.problem(f"found {json_words(record)}; expected a JSON object", line=number))
    return record


def _located(
    file: TraceText, number: int, line: str, record: dict[str, Any], complaints: list[Complaint]
) -> list[Problem]:
    problems = []
    for key, message in complaints:
        at = offset_of(line, steps_to(record, key)) if key else None
        column = None if at is None else at + 1
        problems.append(Problem(message=message, file=file.name, line=number, column=column, path=key))
    return problems
