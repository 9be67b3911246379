"""Swaps: when a sequence was swapped out and back, which copies did it, and what it held.

::

    decodes ──┐ copies to the host │   at rest    │ copies back ┌── decodes
              leaves_at        out_at          in_at         back_at

``swapped_out`` says when its device blocks came free, ``swapped_in`` when others were taken; copies are rows of
``moves`` with a host at one end. A sequence that is preempted meanwhile (its replica failed) has lost its copy; what
had been copied out by then belongs to no swap.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import PREEMPTED, SWAPPED_IN, SWAPPED_OUT
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.residency import Residency
from clustersim.timeline.tables import HOST, Table
from clustersim.values import dataclass


@dataclass(slots=True, kw_only=True)
class Swap:
    """One time in host memory.

    Parameters
    ----------
    request, replica : int
    out_at, in_at : int
        Instants of the facts; −1 for one that lacks.
    told : tuple of int
        Tokens that these facts name, −1 where one lacks.
    held : int
        Entries that the sequence had, as they follow from its steps.
    lost_at : int
        When the sequence was preempted while it was there, or first after it; −1 if never.
    since : int
        When it was preempted last before it was; −1 if never.
    out, back : list of int
        Rows of its copies.
    """

    request: int
    replica: int
    out_at: int = -1
    in_at: int = -1
    told: tuple[int, int] = (-1, -1)
    held: int = 0
    lost_at: int = -1
    since: int = -1
    out: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)


def held_at(pieces: Pieces, request: int, time: int) -> int:
    """Return the entries that a sequence had from the pieces that had ended at an instant."""
    low = int(np.searchsorted(pieces.request, request))
    high = int(np.searchsorted(pieces.request, request, side="right"))
    ended = np.flatnonzero(pieces.end[low:high] <= time)
    if not len(ended):
        return 0
    last = low + int(ended[-1])
    return int(pieces.computed[last] + pieces.count[last])


def swaps_of(residency: Residency, moves: Table | None, pieces: Pieces) -> list[Swap]:
    """Return all swaps, by request and time; a fact that does not follow its counterpart has a swap of its own."""
    facts = residency.facts
    out, back, gone = (facts["kind"] == kind for kind in (SWAPPED_OUT, SWAPPED_IN, PREEMPTED))
    begins = out | (back & ~at_rest(residency))
    if not begins.any():
        return []
    time = np.append(facts["time_ns"], -1)
    value = np.append(facts["value"], -1) if "value" in facts else np.full(len(time), -1)
    back_at, lost, since = residency.after(out | back | gone), residency.after(gone), residency.before(gone)
    owner = np.append(residency.before(begins), -1)
    found: list[Swap] = []
    for row in residency.among(begins).tolist():
        request, at = int(facts["request"][row]), int(time[row])
        left, came = (row, back_at[row]) if out[row] else (-1, row)
        came = came if back[came] else -1
        found.append(Swap(
            request=request, replica=int(facts["replica"][row]), out_at=int(time[left]), in_at=int(time[came]),
            told=(int(value[left]), int(value[came])), held=held_at(pieces, request, at),
            lost_at=int(time[lost[row]]) if owner[lost[row]] == row else -1, since=int(time[since[row]]),
        ))  # fmt: skip
    if moves is not None:
        _attach(found, moves)
    return found


def at_rest(residency: Residency) -> BoolArray:
    """Return which facts find their request in host memory: swapped out last, and not back nor preempted since."""
    kind = residency.facts["kind"]
    if not (kind == SWAPPED_OUT).any():
        return np.zeros(len(kind), bool)
    last = residency.before(np.isin(kind, (SWAPPED_OUT, SWAPPED_IN, PREEMPTED)))
    found: BoolArray = (last >= 0) & (kind[last] == SWAPPED_OUT)
    return found


def _attach(swaps: list[Swap], moves: Table) -> None:
    """Give each swap its copies: those out that ended by its first fact, and those back that began with its second."""
    out = np.flatnonzero(moves["to_rank"] == HOST)
    back = np.flatnonzero(moves["from_rank"] == HOST)
    by_out, by_back = (_by_request(moves, rows) for rows in (out, back))
    starts, ends = moves["start_ns"], moves["end_ns"]
    last = {swap.request: swap for swap in swaps}
    for swap, following in zip(swaps, [*swaps[1:], None], strict=True):
        mine = by_out.get(swap.request, [])
        swap.out = [row for row in mine if ends[row] <= swap.out_at and starts[row] >= swap.since]
        by_out[swap.request] = [row for row in mine if ends[row] > swap.out_at]
        if swap.in_at < 0:
            continue
        until = following.out_at if following is not None and last[swap.request] is not swap else -1
        swap.back = [
            row
            for row in by_back.get(swap.request, [])
            if starts[row] >= swap.in_at and (until < 0 or starts[row] < until)
        ]


def _by_request(moves: Table, rows: Int64Array) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(int(moves["request"][row]), []).append(row)
    return found
