"""JSONL traces, one object per line, that name the blocks of each prompt by hashes: Mooncake and ShareGPT.

Sources: github.com/kvcache-ai/Mooncake, FAST25-release/traces (Apache-2.0; a last, partial block has a hash);
ShareGPT as LLMServingSim records it (github.com/casys-kaist/LLMServingSim, MIT; only full blocks have one).
Further keys are allowed and not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_MS, NS_PER_S, NS_PER_US
from clustersim.errors import InputError, Problem, nearest, rename, unreadable
from clustersim.values import dataclass
from clustersim.workload.limits import MAX_NS, MAX_TOKENS
from clustersim.workload.prefix_hashes import hash_rows
from clustersim.workload.traces.cells import exact_ns
from clustersim.workload.traces.plain_csv import NamedColumns
from clustersim.workload.traces.text import MAX_PROBLEMS, TraceColumns, TraceText, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlKeys:
    """The keys of one format; ``ns_per_unit`` is the unit of its instants."""

    instant: str
    unit: str
    ns_per_unit: int
    prompt: str
    output: str
    hashes: str = ""
    hash_block_tokens: int = 0

    @property
    def required(self) -> tuple[str, str, str]:
        """The keys without which a line is no request."""
        return self.instant, self.prompt, self.output


_UNITS: Final = {
    "s": ("seconds", NS_PER_S), "ms": ("milliseconds", NS_PER_MS), "us": ("microseconds", NS_PER_US),
    "ns": ("nanoseconds", 1),
}  # fmt: skip
MOONCAKE: Final = JsonlKeys(
    instant="timestamp",
    unit="milliseconds",
    ns_per_unit=NS_PER_MS,
    prompt="input_length",
    output="output_length",
    hashes="hash_ids",
    hash_block_tokens=512,
)
SHAREGPT: Final = JsonlKeys(
    instant="arrival_time_ns",
    unit="nanoseconds",
    ns_per_unit=1,
    prompt="input_toks",
    output="output_toks",
    hashes="hash_ids_16",
    hash_block_tokens=16,
)


def keys_of(columns: NamedColumns, file: TraceText) -> JsonlKeys:
    """Return the keys of a file of JSON lines that are named; prefix hashes have no names of their own.

    Raises
    ------
    InputError
        When a key or the unit is not said, or one is named that lines can't have.
    """
    unit = columns.unit
    problems = [
        file.problem(f"add workload.trace.columns.{name}: in JSON lines each key is named", line=1)
        for name in ("arrival", "prompt_tokens", "output_tokens")
        if getattr(columns, name) is None
    ]
    if unit is None or unit == "iso":
        problems.append(file.problem("add workload.trace.columns.unit: in JSON lines it is s, ms, us or ns", line=1))
    problems += [
        file.problem(f"workload.trace.columns.{name} is read from CSV files only", line=1)
        for name in ("priority", "cancel_after")
        if getattr(columns, name) is not None
    ]
    if problems or unit is None or unit == "iso":
        raise InputError(problems)
    words, ns = _UNITS[unit]
    instant, prompt, output = map(str, columns.required)
    return JsonlKeys(instant=instant, unit=words, ns_per_unit=ns, prompt=prompt, output=output)


def matched_share(first_line: str, keys: JsonlKeys) -> float:
    """Return which share of the required keys the first line names."""
    if not first_line.lstrip().startswith("{"):
        return 0.0
    return sum(f'"{key}"' in first_line for key in keys.required) / len(keys.required)


def read(file: TraceText, keys: JsonlKeys) -> TraceColumns:
    """Read a JSONL trace.

    Raises
    ------
    InputError
        Naming the lines that are no request of this format.
    """
    lines = file.text.rstrip().split("\n")
    stamps, prompts, outputs = [], [], []
    hashes: list[list[int]] = []
    problems: list[Problem] = []
    total = 0
    hashed: bool | None = None
    for number, line in enumerate(lines, start=1):
        record, complaints = _record(line)
        if record is not None:
            hashed = bool(keys.hashes) and keys.hashes in record if hashed is None else hashed
            complaints = list(_complaints(record, keys, hashed=hashed))
        total += len(complaints)
        if complaints:
            problems += _located(file, number, line, complaints) if len(problems) < MAX_PROBLEMS else []
        elif not total and record is not None:
            stamps.append(exact_ns(Decimal(record[keys.instant]), keys.ns_per_unit))
            prompts.append(record[keys.prompt])
            outputs.append(record[keys.output])
            hashes.append(record[keys.hashes] if hashed else [])
    if total:
        raise file.error(problems, total)
    flat_hashes = np.array([value for row in hashes for value in row], dtype=np.int64)
    return TraceColumns(
        stamps_ns=np.array(stamps, dtype=np.int64),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        prefix_hashes=hash_rows(flat_hashes, list(map(len, hashes))) if hashed else None,
        hash_block_tokens=keys.hash_block_tokens if hashed else None,
    )


Complaint = tuple[str, str]
"""Key ("" for the line as such), message."""


def _record(line: str) -> tuple[dict[str, Any] | None, list[Complaint]]:
    if not line.strip():
        return None, [("", "empty line; expected a JSON object")]
    try:
        record = json.loads(line, parse_float=_decimal, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        place = f" (column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        return None, [("", f"cannot be read as JSON: {unreadable(error)}{place}; expected an object")]
    if not isinstance(record, dict):
        return None, [("", f"found {shorten(line.strip())}; expected a JSON object")]
    return record, []


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.60} is there twice")
    return found


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"the exponent of {shorten(text)} is out of range") from None


def _complaints(record: Mapping[str, Any], keys: JsonlKeys, *, hashed: bool) -> Iterator[Complaint]:
    for key in keys.required:
        if key not in record:
            guess = nearest(key, list(record))
            yield "", f"no key {key!r}" + (rename(key, guess) if guess else "")
        elif key == keys.instant:
            if not _is_instant(record[key], keys.ns_per_unit):
                last = f"{MAX_NS // keys.ns_per_unit:.3g}"
                yield key, f"found {_json(record[key])}; expected {keys.unit} as a number from 0 to {last}"
        elif not _is_whole(record[key], MAX_TOKENS):
            expected = f"a whole number of tokens from 0 to {MAX_TOKENS}"
            yield key, f"found {_json(record[key])}; expected {expected}"
    if keys.hashes:
        yield from _hash_complaints(record, keys, hashed=hashed)


def _hash_complaints(record: Mapping[str, Any], keys: JsonlKeys, *, hashed: bool) -> Iterator[Complaint]:
    if (keys.hashes in record) != hashed:
        found, others = ("no", "have") if hashed else ("a", "lack")
        yield "", f"{found} key {keys.hashes!r}; the lines before {others} one"
    if keys.hashes not in record:
        return
    hashes, tokens = record[keys.hashes], record.get(keys.prompt)
    if not isinstance(hashes, list) or not all(_is_whole(value, MAX_NS) for value in hashes):
        yield keys.hashes, f"found {shorten(_json(hashes))}; expected a list of whole numbers"
    elif _is_whole(tokens, MAX_TOKENS):
        blocks = -(-tokens // keys.hash_block_tokens)  # type: ignore[operator]
        if len(hashes) > blocks:
            expected = f"at most {blocks} for {tokens} tokens in blocks of {keys.hash_block_tokens}"
            yield keys.hashes, f"found {len(hashes)} hashes; expected {expected}"


def _is_whole(value: object, high: int) -> bool:
    return type(value) is int and 0 <= value <= high


def _is_instant(value: object, ns_per_unit: int) -> bool:
    if type(value) is int:
        return 0 <= value <= MAX_NS // ns_per_unit
    return isinstance(value, Decimal) and 0 <= value <= MAX_NS // ns_per_unit


def _json(value: object) -> str:
    return shorten(json.dumps(value, default=str, ensure_ascii=False))


def _located(file: TraceText, number: int, line: str, complaints: list[Complaint]) -> list[Problem]:
    problems = []
    for key, message in complaints:
        at = line.find(f'"{key}"') if key else -1
        column = at + 1 if at >= 0 else None
        problems.append(Problem(message=message, file=file.name, line=number, column=column, path=key))
    return problems
