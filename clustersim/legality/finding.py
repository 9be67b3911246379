"""What a rule concludes: how much it looked at, and the places where it is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np


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


def judged(
    looked_at: int, broken: Any, where: Callable[[int], str], message: Callable[[int], str], fix: str
) -> Finding:
    """Return a finding with one fault for all places where ``broken`` is true, told by the first.

    Parameters
    ----------
    looked_at : int
    broken : bool array
        For each thing looked at.
    where, message : callable
        Position in ``broken`` → where that is; what is wrong there.
    fix : str
        What would be legal.
    """
    places = np.flatnonzero(broken)
    if not len(places):
        return Finding(looked_at=int(looked_at))
    first = int(places[0])
    told = message(first) + and_more(len(places) - 1)
    return Finding(looked_at=int(looked_at), faults=(Fault(where=where(first), message=told, fix=fix),))


def and_more(places: int) -> str:
    """Return what is said of so many more places behind the message about the first one."""
    return f" (and so at {places:,} more {'place' if places == 1 else 'places'})" if places else ""
