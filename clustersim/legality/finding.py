"""What a rule concludes: how much it looked at, and the places where it is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A breach: its first place, the witness in one sentence, what would be legal, and, of a graph, the node."""

    where: str
    message: str
    fix: str
    node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How much one rule looked at, what it found, and what of the rule it could not look at, and why."""

    looked_at: int
    faults: tuple[Fault, ...] = ()
    lacks: tuple[str, ...] = ()


NOTHING: Final = Finding(looked_at=0)


def merged(*findings: Finding) -> Finding:
    """Return several findings of one rule as one."""
    return Finding(
        looked_at=sum(finding.looked_at for finding in findings),
        faults=tuple(fault for finding in findings for fault in finding.faults),
        lacks=tuple(dict.fromkeys(word for finding in findings for word in finding.lacks)),
    )


def lacking(what: str) -> Finding:
    """Return that a record can't tell a part of a rule.

    Parameters
    ----------
    what : str
        The part, and what was not recorded: ``the load of links (no flows were recorded)``.
    """
    return Finding(looked_at=0, lacks=(what,))


class Row:
    """A row of a table in a template: ``{step.start}`` is a cell of it, and ``{step}`` says where it is."""

    __slots__ = ("_at", "_table")

    def __init__(self, table: Any, at: int) -> None:
        self._table, self._at = table, at

    def __getattr__(self, name: str) -> Any:
        return _value(self._table[name] if isinstance(self._table, Mapping) else getattr(self._table, name), self._at)

    def __str__(self) -> str:
        return str(self._table.where(self._at))


class Rows:
    """Rows of a table, or values of a column, that a message looks up where something is broken, and only there.

    Parameters
    ----------
    table : object, mapping or sequence
        What has columns by name, and says with ``where`` where a row is; or one column.
    positions : sequence of int
        ``Rows(table, at, of)`` has at ``i`` row ``at[of[i]]`` of the table.
    """

    __slots__ = ("_positions", "_table")

    def __init__(self, table: Any, *positions: Any) -> None:
        self._table, self._positions = table, positions

    def __getitem__(self, at: int) -> Any:
        for positions in reversed(self._positions):
            at = int(positions[at])
        return self._table[at] if isinstance(self._table, Sequence | np.ndarray) else Row(self._table, at)


def _value(column: Any, at: int) -> Any:
    """Return what a column has at a position: a sequence by number, a function by call, anything else as it is."""
    if callable(column):
        return column(at)
    return column[at] if isinstance(column, Sequence | np.ndarray | Rows) and not isinstance(column, str) else column


class _Fields:
    """The fields of a template at one position: columns by name, then those of the row that it speaks of."""

    def __init__(self, columns: Mapping[str, Any], row: Row | None, at: int) -> None:
        self._columns, self._row, self._at = columns, row, at

    def __getitem__(self, name: str) -> Any:
        if name in self._columns:
            return _value(self._columns[name], self._at)
        return self._at if name == "at" else getattr(self._row, name)


Told = str | Rows | Callable[[int], str]
"""A template, as ``str.format`` reads it; rows of such, by position; or what makes the text from a position."""


class FindingOfParts:
    """A finding on many places, made part by part: what it takes stays small, however many there are.

    Parameters
    ----------
    fix : str
        What would be legal.
    """

    def __init__(self, fix: str) -> None:
        self._fix = fix
        self._looked_at = self._broken = 0
        self._first: tuple[str, str] | None = None

    def look(self, looked_at: int, broken: Any, where: Told, message: Told, /, **columns: Any) -> None:
        """Look at one more part; parameters are those of :func:`judged`."""
        self._looked_at += int(looked_at)
        many = int(np.count_nonzero(broken))
        self._broken += many
        if self._first is None and many:
            first = int(np.argmax(broken))
            place = where[first] if isinstance(where, Rows) else where
            fields = _Fields(columns, place if isinstance(place, Row) else None, first)
            self._first = _told(place, fields, first), _told(message, fields, first)

    @property
    def finding(self) -> Finding:
        """One fault for all broken places, told by the first."""
        if self._first is None:
            return Finding(looked_at=self._looked_at)
        where, message = self._first
        fault = Fault(where=where, message=message + and_more(self._broken - 1), fix=self._fix)
        return Finding(looked_at=self._looked_at, faults=(fault,))


def judged(looked_at: int, broken: Any, where: Told, message: Told, fix: str, /, **columns: Any) -> Finding:
    """Return a finding with one fault for all places where ``broken`` is true, told by the first.

    Parameters
    ----------
    looked_at : int
    broken : bool array
        For each thing looked at.
    where, message : str, Rows or callable
        Where that is, and what is wrong there: templates, ``starts at {start:,} ns, before {other.name}``, over
        ``columns``, the position in ``broken`` as ``{at}`` and, where ``where`` is rows of a table, its columns.
    fix : str
        What would be legal.
    **columns
        What templates name: sequences and :class:`Rows` by position in ``broken``, functions of that position, and
        what is the same everywhere. They are looked up at the first broken place alone.
    """
    judging = FindingOfParts(fix)
    judging.look(looked_at, broken, where, message, **columns)
    return judging.finding


def _told(told: Row | Told, fields: _Fields, at: int) -> str:
    text = told[at] if isinstance(told, Rows) else told(at) if callable(told) else told
    return text.format_map(fields) if isinstance(text, str) and not callable(told) else str(text)


def and_more(places: int) -> str:
    """Return what is said of so many more places behind the message about the first one."""
    return f" (and so at {places:,} more {'place' if places == 1 else 'places'})" if places else ""
