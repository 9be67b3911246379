"""A command line as a shell reads it: words with their places, so that a message can point at one.

Understood are quotes, backslashes, continued lines, comments and what ends a command (``&&``, ``|``, a new line, …).
Redirections are dropped. Not done: expansion; a word with an unquoted ``$`` or a backquote says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from clustersim.errors import InputError, Problem
from clustersim.values import dataclass

_PIECE: Final = re.compile(
    r"""
      (?P<joined>\\\r?\n)
    | (?P<escaped>\\(?P<one>.))
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | (?P<open>['"\\])
    | (?P<comment>(?:(?<=\s)|^)\#[^\n]*)
    | (?P<redirect>[0-9]*(?:>>|>|<)(?:&[0-9])?)
    | (?P<end>&&|\|\||[;&|\n()])
    | (?P<space>[^\S\n]+)
    | (?P<plain>[^\s'"\\<>;&|()]+)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_EXPANDED: Final = re.compile(r"[$`]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command.

    Parameters
    ----------
    text : str
        Without quotes and backslashes.
    file : str
        What the command is called in messages.
    line, column : int
        Where it begins, from 1.
    expands : bool
        Whether a shell would put something else in its place.
    """

    text: str
    file: str = "command"
    line: int = 1
    column: int = 1
    expands: bool = False

    def problem(self, message: str) -> Problem:
        """Return a problem of this word."""
        return Problem(message=message, file=self.file, line=self.line, column=self.column, path=self.text)


def commands(text: str, file: str = "command") -> list[list[Word]]:
    """Split text into its commands, and these into words.

    Raises
    ------
    InputError
        When a quote is not closed, or a backslash ends the text.
    """
    found: list[list[Word]] = [[]]
    target = False  # of a redirection: the next word is a file
    for ends, word in _tokens(text, file):
        if ends:
            found.append([])
        elif word is None:
            target = True
        elif target:
            target = False
        else:
            found[-1].append(word)
    return [words for words in found if words]


def _tokens(text: str, file: str) -> Iterator[tuple[bool, Word | None]]:
    """Yield (True, None) where a command ends, (False, None) for a redirection and (False, word)."""
    parts: list[str] = []
    begin, expands, position = -1, False, 0
    while position <= len(text):
        piece = _PIECE.match(text, position)
        kind = piece.lastgroup if piece is not None else None
        kind = "escaped" if kind == "one" else kind
        if kind in ("escaped", "single", "double", "plain") and piece is not None:
            begin = position if begin < 0 else begin
            parts.append(_unquoted(kind, piece))
            expands = expands or (kind in ("double", "plain") and _EXPANDED.search(piece[0]) is not None)
        elif kind == "open":
            raise InputError(_word(text, position, file, "", False).problem(_unclosed(text[position])))
        elif kind != "joined" or begin < 0:
            if begin >= 0:
                yield False, _word(text, begin, file, "".join(parts), expands)
            parts, begin, expands = [], -1, False
            if kind in ("end", "redirect"):
                yield kind == "end", None
        if piece is None:
            return
        position = piece.end()


def _unquoted(kind: str, piece: re.Match[str]) -> str:
    if kind == "double":
        return re.sub(r"\\(\n)|\\([$`\"\\])", lambda found: found[2] or "", piece["double"])
    return str(piece["one"] if kind == "escaped" else piece[kind])


def _unclosed(character: str) -> str:
    return "a backslash with nothing behind it" if character == "\\" else f"the quote {character} is not closed"


def _word(text: str, begin: int, file: str, unquoted: str, expands: bool) -> Word:
    line = text.count("\n", 0, begin) + 1
    column = begin - (text.rfind("\n", 0, begin) + 1) + 1
    return Word(text=unquoted, file=file, line=line, column=column, expands=expands)
