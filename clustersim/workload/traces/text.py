"""The text of a recorded trace, and what is wrong with it: the first 20 problems and how many more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clustersim import inputs
from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem
from clustersim.units import plural
from clustersim.values import dataclass

MAX_PROBLEMS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceText:
    """A trace file that could be read as UTF-8 text; ``name`` is the path as the user gave it."""

    name: str
    text: str

    @property
    def first_line(self) -> str:
        """The first line without its end; empty when the file is."""
        return re.split("[\r\n]", self.text[:100_000], maxsplit=1)[0]

    @property
    def head(self) -> str:
        """The first line, or, where that is only a bracket, as much of an object over many lines."""
        line = self.first_line
        return line if line.strip() not in ("{", "[") else " ".join(self.text[:100_000].split())

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of a place in the text, from 1."""
        return self.text.count("\n", 0, offset) + 1, offset - self.text.rfind("\n", 0, offset)

    def problem(self, message: str, *, line: int | None = None, column: int | None = None) -> Problem:
        """Return a problem at a place of this file (counted from 1)."""
        return Problem(message=message, file=self.name, line=line, column=column)

    def error(self, problems: Sequence[Problem], total: int) -> InputError:
        """Return the error for ``total`` problems, of which ``problems`` are the first in the file."""
        shown = list(problems[:MAX_PROBLEMS])
        if total > len(shown):
            shown.append(Problem(message=f"and {plural(total - len(shown), 'more problem')}", file=self.name))
        return InputError(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """What a reader found, in the order of the file; ``stamps_ns`` count from any origin."""

    stamps_ns: Int64Array
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    prefix_hashes: tuple[Int64Array, ...] | None = None
    hash_block_tokens: int | None = None
    priorities: Int64Array | None = None
    cancel_after_ns: Int64Array | None = None
    sessions: Int64Array | None = None


def read_text(path: Path) -> TraceText:
    """Read a trace file as UTF-8 (a byte order mark is allowed).

    Raises
    ------
    InputError
        When it is no regular file, is too large, cannot be read, is empty or is not UTF-8 text.
    """
    name = str(path)
    text = inputs.read_text(path, most=inputs.TEXT_BYTES, name=name)
    if not text.strip():
        raise InputError(Problem(message="the file is empty; expected a trace", file=name))
    return TraceText(name=name, text=text)


def shorten(text: str, limit: int = 60) -> str:
    """Return ``text``, cut to ``limit`` characters for a message."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
