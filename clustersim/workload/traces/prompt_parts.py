"""RAGPulse traces: requests of a retrieval-augmented service, whose prompts are lists of parts that others have, too.

Columns as published (flashserve/RAGPulse, one week of a service): an instant, both lengths, a session, and for each
kind of part the ids that the prompt has of it, parted by blanks. A prompt is its parts in the order of :data:`KINDS`.
The trace does not say how long a part is: parts of a kind are taken as equally long, by least squares over the prompts
of the file (assumed), and whatever a prompt has beyond its parts belongs to its last one. Two prompts share a prefix
as far as their parts are the same.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError
from clustersim.workload.prefix_hashes import HashRows, hash_rows
from clustersim.workload.traces import plain_csv
from clustersim.workload.traces.csv_columns import header_names, missing_column, parted_by
from clustersim.workload.traces.text import TraceColumns, TraceText, shorten

KINDS: Final = ("sys_prompt_ids", "passage_ids", "history_ids", "web_ids", "user_ids")
"""Kinds of parts in the order in which a prompt has them."""
_ALIKE: Final = ((0, 4), (1,), (2,), (3,))
"""Kinds whose parts get one length: all prompts have as many of the first and the last, so nothing tells them apart."""
BLOCK_TOKENS: Final = 16
"""Tokens of a hashed block: parts are whole blocks."""
_LONGEST: Final = 1 << 20
"""More blocks than any prompt has."""


def matched_share(first_line: str) -> float:
    """Return which share of the columns beside the parts the header names; 0 with parts of one kind at most."""
    header = header_names(first_line)
    return plain_csv.matched_share(first_line) if sum(kind in header for kind in KINDS) > 1 else 0.0


def read(file: TraceText) -> TraceColumns:
    """Read a trace with its parts.

    Raises
    ------
    InputError
        When the header or a cell is wrong, with line and column; see ``plain_csv.read``.
    """
    header = header_names(file.first_line)
    if absent := [kind for kind in KINDS if kind not in header]:
        raise InputError(missing_column(file, kind, header) for kind in absent)
    plain = plain_csv.read(file)
    parts = _parts(file, header)
    return replace(plain, prefix_hashes=_rows(parts, plain.prompt_tokens), hash_block_tokens=BLOCK_TOKENS)


Parts = list[list[list[int]]]
"""Request → kind → ids."""


def _parts(file: TraceText, header: Sequence[str]) -> Parts:
    places = [header.index(kind) for kind in KINDS]
    found, problems = [], []
    reader = csv.reader(io.StringIO(file.text.rstrip("\r\n"), newline=""), delimiter=parted_by(file.first_line))
    next(reader)
    for row in reader:
        cells = [row[place].split() for place in places]
        found.append([[int(word) for word in cell if _is_id(word)] for cell in cells])
        for place, cell in zip(places, cells, strict=True):
            wrong = next((word for word in cell if not _is_id(word)), None)
            if wrong is not None:
                column = 1 + sum(len(one) + 1 for one in row[:place])
                message = f"{header[place]}: found {shorten(wrong)!r}; expected ids of parts, such as '8302 14332'"
                problems.append(file.problem(message, line=reader.line_num, column=column))
    if problems:
        raise file.error(problems, len(problems))
    return found


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 9


def _rows(parts: Parts, prompt_tokens: Int64Array) -> HashRows:
    """Return the hashes of the full blocks of each prompt."""
    blocks = _blocks_of_parts(parts, prompt_tokens)
    numbers: dict[tuple[int, int], int] = {}
    flat: list[Int64Array] = []
    sizes: list[int] = []
    for prompt, tokens in zip(parts, prompt_tokens.tolist(), strict=True):
        listed = [(kind, one) for kind, ids in enumerate(prompt) for one in ids] or [(len(KINDS), len(sizes))]
        first = [numbers.setdefault(part, len(numbers)) * _LONGEST for part in listed]
        ends = np.minimum(np.cumsum([0, *(blocks[kind] for kind, _ in listed[:-1])]), tokens // BLOCK_TOKENS)
        lengths = np.diff(ends, append=tokens // BLOCK_TOKENS)
        flat.append(np.repeat(first - ends, lengths) + np.arange(tokens // BLOCK_TOKENS))
        sizes.append(tokens // BLOCK_TOKENS)
    return hash_rows(np.concatenate([np.empty(0, np.int64), *flat]), sizes)


def _blocks_of_parts(parts: Parts, prompt_tokens: Int64Array) -> list[int]:
    """Return how many blocks a part of each kind has, and of the kind that stands for none."""
    counts = [[sum(len(prompt[kind]) for kind in kinds) for kinds in _ALIKE] for prompt in parts]
    lengths = _least_squares(counts, prompt_tokens.tolist())
    found = [0] * (len(KINDS) + 1)
    for kinds, tokens in zip(_ALIKE, lengths, strict=True):
        for kind in kinds:
            found[kind] = max(0, round(tokens / BLOCK_TOKENS))
    return found


def _least_squares(counts: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[Fraction]:
    """Solve the normal equations exactly; where they don't tell kinds apart, all parts are equally long."""
    table, wide = np.array(counts, object), len(_ALIKE)
    used = [kind for kind in range(wide) if any(row[kind] for row in counts)]
    square = [[Fraction(int(table[:, one] @ table[:, other])) for other in used] for one in used]
    right = [Fraction(int(table[:, one] @ np.array(tokens, object))) for one in used]
    solved = _solve(square, right)
    if solved is None:
        return [Fraction(sum(tokens), max(1, sum(chain.from_iterable(counts))))] * wide
    return [solved[used.index(kind)] if kind in used else Fraction(0) for kind in range(wide)]


def _solve(square: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """Solve a system by elimination; None where it is singular."""
    rows = [[*row, value] for row, value in zip(square, right, strict=True)]
    for at in range(len(rows)):
        pivot = next((row for row in rows[at:] if row[at]), None)
        if pivot is None:
            return None
        rows.remove(pivot)
        rows.insert(at, [value / pivot[at] for value in pivot])
        for other, row in enumerate(rows):
            if other != at and row[at]:
                rows[other] = [value - row[at] * mine for value, mine in zip(row, rows[at], strict=True)]
    return [row[-1] for row in rows]
