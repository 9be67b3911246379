"""Everything that clustersim raises on purpose, and the problems of an input as plain data.

::

    ClustersimError
    ├── InputError          the user's input cannot be used; carries every problem found (exit status 2)
    │   ├── LimitError      runs would take longer together than they may: no one of them is to blame
    │   └── UnreachedError  it can be used, and nothing reaches the targets that it asks for (exit status 1)
    ├── IllegalPlanError    the input is readable, but breaks legality rules (exit status 1)
    ├── IllegalDecisionError  a user's scheduler or router decided what a rule forbids (exit status 1)
    └── BrokenLawError      a law of the simulation broke: a defect of clustersim or of a user's scheduler
        └── StallError      the simulation cannot go on, and says who waits for whom
"""

from __future__ import annotations

import difflib
import json
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final

from clustersim.values import dataclass

ENDING: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a program to end."""


class TerminatedError(BaseException):
    """Somebody asked this program to end; not an :class:`Exception`, as ``KeyboardInterrupt`` is none.

    Parameters
    ----------
    number : int
        Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number
        """Exit status, as shells have it."""


class ClustersimError(Exception):
    """Base of every error that clustersim raises on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with an input.

    Parameters
    ----------
    message : str
        What was found, and what would do.
    file : str or None
        The file (or ``--set #2`` for a command line override); ``None`` when the input has no file.
    line, column : int or None
        Position in the file, counted from 1.
    path : str
        Dotted path of the value, such as ``plan.tp``; empty when there is none.
    quotes : bool
        Whether the line may be shown: not of a file that can't be recognised as what it should be.
    """

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str = ""
    quotes: bool = True

    def __str__(self) -> str:
        place = [str(part) for part in (self.file, self.line, self.column) if part is not None]
        head = ":".join(place)
        return ": ".join(part for part in (head, self.path, self.message) if part)


class InputError(ClustersimError):
    """The user's input cannot be used; ``problems`` holds every mistake that was found, in order."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)  # copies, among them SimPy's and those that are unpickled, are made of these

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class LimitError(InputError):
    """Runs would take longer together than they may; whoever passes over a run that can't be made, not over this."""


class UnreachedError(InputError):
    """No plan, size or rate lets the share of requests meet its targets that is asked for; the best is told."""


class IllegalPlanError(ClustersimError):
    """The plan breaks legality rules; the message lists every violation."""


class IllegalDecisionError(ClustersimError):
    """A user's scheduler or router decided what a rule forbids; the message names who, when and the rule."""


class BrokenLawError(ClustersimError):
    """A law that the simulation promises did not hold; the message tells the story."""


class StallError(BrokenLawError):
    """Nothing can happen any more although requests are unfinished; the message says who waits for whom."""


def unreadable(error: ValueError | RecursionError) -> str:
    """Say why JSON can't be read, in words that are not Python's."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"{error.msg[:1].lower()}{error.msg[1:]}" if isinstance(error, json.JSONDecodeError) else _digits(str(error))


def _digits(text: str) -> str:
    return "a number has thousands of digits" if "integer string conversion" in text else text


_ALIKE: Final = 0.75
"""Share of letters that two names have in common where one may be meant for the other though their suffixes differ."""
_AXES: Final = {"tensor": "tp", "pipeline": "pp", "data": "dp", "expert": "ep", "sequence": "sp", "context": "sp"}
"""What other programs call an axis of a plan, before ``_parallel_size`` or the like."""


def _close(word: str, known: list[str]) -> list[str]:
    """Return the choice with most letters of a word; with only half of them, one that begins alike."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return [
        one
        for one in found
        if difflib.get_close_matches(word, [one], cutoff=0.51)
        or one.startswith(word[: (min(len(word), len(one)) + 1) // 2])
    ]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is most like ``word``, or None when nothing is alike.

    A choice that goes on from the whole word comes first: ``rate`` means ``rate_scale``, not ``format``. Where letters
    say nothing, a choice that is a word of it counts (``tp_size``), and what other programs call an axis.

    Examples
    --------
    >>> [nearest(word, ("tp", "pp", "placement")) for word in ("place", "tp_size", "tensor_parallel_size")]
    ['placement', 'tp', 'tp']
    """
    known = list(choices)
    words = re.split(r"[\W_]+", word.lower())
    longer = [choice for choice in known if choice.startswith(f"{word}_")]
    axes = [_AXES[one] for one in words if "parallel" in words and _AXES.get(one) in known]
    found = longer or axes or _close(word, known) or _close(word.lower(), known)
    found = found or [choice for choice in known if choice in words]
    return found[0] if found else None


def alike_column(name: str, spare: Sequence[str]) -> str:
    """Return which column to rename into one that is missing, or which there are besides those that are known.

    A column of another meaning is no hint: what is not nearly the same is listed.

    Examples
    --------
    >>> alike_column("ttft_ms", ["ttft", "latency_ms"]), alike_column("ttft_ms", ["latency_ms"])
    ("; rename 'ttft' if that is it, in ms", "; besides known ones it has 'latency_ms'")
    """
    found = [one for one in spare if difflib.SequenceMatcher(None, name, one).ratio() > _ALIKE_COLUMN]
    if found:
        return rename(name, max(found, key=lambda one: difflib.SequenceMatcher(None, name, one).ratio()))
    return f"; besides known ones it has {', '.join(map(repr, spare[:_MOST_SPARE]))}" if spare else ""


def rename(name: str, other: str) -> str:
    """Return that a column of a file, or a key, must be called ``name``: the file is to change, not what is expected.

    Examples
    --------
    >>> rename("arrival_time", "arrival_time_ns"), rename("tokens", "token")
    ("; rename 'arrival_time_ns' if that is it, not in ns", "; rename 'token' if that is it")
    """
    unit, of_other = ([one for one in _UNITS if text.endswith(f"_{one}")] for text in (name, other))
    told = "" if unit == of_other else f", in {unit[0]}" if unit else f", not in {of_other[0]}"
    return f"; rename {other!r} if that is it{told}"


_UNITS: Final = ("ns", "us", "ms", "s")
_ALIKE_COLUMN: Final = 0.7
_MOST_SPARE: Final = 9


def _has_stem_of(name: str, other: str) -> bool:
    """Tell whether two file names are the same but for a few letters and the suffix."""
    first, second = (text.rpartition(".")[0] or text for text in (name, other))
    return difflib.SequenceMatcher(None, first, second).ratio() >= _ALIKE


def nearest_file(name: str, names: Iterable[str]) -> str | None:
    """Return the file that is called most like another one; an equal suffix alone is no likeness.

    Examples
    --------
    >>> nearest_file("nope.csv", ["f.csv"]), nearest_file("quikstart.yaml", ["quickstart.yaml"])
    (None, 'quickstart.yaml')
    """
    suffix = PurePath(name).suffix
    kinds = [other for other in names if PurePath(other).suffix == suffix or _has_stem_of(name, other)]
    known = {other: other.rpartition(".")[0] or other for other in kinds}
    found = nearest(name.rpartition(".")[0] or name, known.values())
    same = [other for other, stem in known.items() if stem == found]
    alike = difflib.get_close_matches(name, known, n=1, cutoff=0.8) or same
    return nearest(name, alike) or next(iter(alike), None)


def did_you_mean(word: str, choices: Sequence[str]) -> str:
    """Return ``; did you mean 'x'?``, or the list of choices when nothing is alike.

    Examples
    --------
    >>> did_you_mean("dgx-h10", ["dgx-h100", "tpu-v5p"])
    "; did you mean 'dgx-h100'?"
    """
    guess = nearest(word, choices)
    if guess is not None:
        return f"; did you mean {guess!r}?"
    return f"; known: {', '.join(sorted(choices))}" if choices else ""
