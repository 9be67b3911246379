"""Formats of recorded traces, and how the one of a file is found by its first line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from clustersim.errors import InputError
from clustersim.values import dataclass
from clustersim.workload.traces import guidellm, json_lines, plain_csv, prompt_parts, vllm_bench
from clustersim.workload.traces.csv_columns import header_names
from clustersim.workload.traces.json_records import RecordKeys
from clustersim.workload.traces.plain_csv import NamedColumns
from clustersim.workload.traces.text import TraceColumns, TraceText


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """How well the head of a file fits this format, and its reader.

    Parameters
    ----------
    matched_share : callable
        Returns which share of its columns, or keys, a head names, 0 to 1.
    read : callable
    options : tuple of str
        What the reader can be told beside the file.
    """

    matched_share: Callable[[str], float]
    read: Callable[..., TraceColumns]
    options: tuple[str, ...] = ()


def _jsonl(keys: RecordKeys) -> TraceFormat:
    return TraceFormat(
        matched_share=partial(json_lines.matched_share, keys=keys),
        read=partial(json_lines.read, keys=keys),
        options=("block_tokens",) if keys.hashes else (),
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
    "ragpulse": TraceFormat(matched_share=prompt_parts.matched_share, read=prompt_parts.read),
    "mooncake": _jsonl(json_lines.MOONCAKE),
    "bailian": _jsonl(json_lines.BAILIAN),
    "sharegpt": _jsonl(json_lines.SHAREGPT),
    "openai": _jsonl(json_lines.OPENAI),
    "aiperf": _jsonl(json_lines.AIPERF),
    "guidellm": TraceFormat(matched_share=guidellm.matched_share, read=guidellm.read, options=("benchmark",)),
    "vllm_bench": TraceFormat(matched_share=vllm_bench.matched_share, read=vllm_bench.read),
    "csv": TraceFormat(matched_share=plain_csv.matched_share, read=plain_csv.read),
}
_COVERS: Final = {"ragpulse": "csv", "bailian": "mooncake"}
"""Formats that have all columns, or keys, of another one, and more."""
_NAMED_COLUMNS: Final = "{arrival: NAME, prompt_tokens: NAME, output_tokens: NAME, unit: s}"
_NAME: Final = re.compile(r"[A-Za-z_][\w .()/#%-]{0,39}")
_MOST_NAMES: Final = 12


def format_of(named: str | None, columns: NamedColumns | None, file: TraceText) -> TraceFormat:
    """Return the format that is named, that has columns or keys of these names, or that fits.

    Raises
    ------
    InputError
        When none fits; a file that has nothing of the one that is named is not quoted.
    """
    if columns is not None:
        in_json = file.first_line.lstrip().startswith("{")
        return _jsonl(json_lines.keys_of(columns, file)) if in_json else named_format(columns)
    if named is None:
        return FORMATS[detect_format(file)]
    if not FORMATS[named].matched_share(file.head):
        message = f"its first line has no column and no key of the trace format {named}"
        raise InputError(replace(file.problem(message, line=1), quotes=False))
    return FORMATS[named]


def detect_format(file: TraceText) -> str:
    """Return the one format that fits the first line best.

    A line that names only some columns of a format still selects it: its reader can say what is missing.

    Raises
    ------
    InputError
        When no format fits, or more than one fits best.
    """
    shares = {name: entry.matched_share(file.head) for name, entry in FORMATS.items()}
    best = max(shares.values())
    fitting = [name for name, share in shares.items() if share == best]
    covered = [plain for name, plain in _COVERS.items() if name in fitting]
    if "csv" in fitting[1:] and not plain_csv.has_usual_names(file.first_line):
        covered.append("csv")  # the columns are as the other one calls them
    fitting = [name for name in fitting if name not in covered]
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
