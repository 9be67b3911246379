"""Azure LLM inference traces of 2023 and 2024: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and …2024.md (CC-BY-4.0). Stamps
with 0 to 9 fraction digits (2023: 7), with or without an offset such as ``+00:00``; none goes
through a float.
Further columns are allowed and not read (the trace of 2025 has ``NumImages``; images are not modelled).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S, Int64Array
from clustersim.workload.cells import parse_tokens
from clustersim.workload.trace_csv import CsvColumn, header_names, read_columns
from clustersim.workload.trace_text import TraceColumns, TraceText

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP: Final = re.compile(
    r"[ \t]*([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?[ \t]*"
)
_EXPECTED: Final = "a time such as 2023-11-16 18:17:03.9799600"
_LAST_SECOND: Final = 9_000_000_000
"""In the year 2255: int64 nanoseconds since 1970 end in 2262."""


def matched_share(first_line: str) -> float:
    """Return which share of the columns the header has."""
    header = header_names(first_line)
    return sum(name in header for name in COLUMNS) / len(COLUMNS)


def read(file: TraceText) -> TraceColumns:
    """Read an Azure trace; see :func:`clustersim.workload.trace_csv.read_columns` for the errors."""
    parsers = (parse_stamps, parse_tokens, parse_tokens)
    columns = [CsvColumn(name=name, parse=parse) for name, parse in zip(COLUMNS, parsers, strict=True)]
    stamps_ns, prompt_tokens, output_tokens = read_columns(file, columns)
    return TraceColumns(stamps_ns=stamps_ns, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def parse_stamps(cells: Sequence[str]) -> Int64Array:
    """Read dates with times as exact nanoseconds since 1970 (UTC where no offset is written)."""
    found = [match.groups() for match in map(_STAMP.fullmatch, cells) if match is not None]
    if len(found) < len(cells):
        raise ValueError(_EXPECTED)
    try:
        dates = np.array([date for date, _, _ in found], dtype="datetime64[s]")
    except ValueError:
        raise ValueError(_EXPECTED) from None
    offsets = {offset: _offset_s(offset) for _, _, offset in found}
    seconds = dates.astype(np.int64) - np.array([offsets[offset] for _, _, offset in found], dtype=np.int64)
    if seconds.size and not 0 <= int(seconds.min()) <= int(seconds.max()) <= _LAST_SECOND:
        raise ValueError(f"{_EXPECTED}, from 1970 to 2255")
    fractions = np.array([int((digits or "0").ljust(9, "0")) for _, digits, _ in found], dtype=np.int64)
    return seconds * NS_PER_S + fractions


def _offset_s(offset: str | None) -> int:
    if offset is None or offset == "Z":
        return 0
    sign = -1 if offset[0] == "-" else 1
    return sign * (int(offset[1:3]) * 3600 + int(offset[4:6]) * 60)
