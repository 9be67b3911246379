"""Those that wait at a replica: a heap by rank, then request, of which any can leave."""

from __future__ import annotations

from typing import Any


def comes_before(s: Any, one: int, other: int) -> bool:
    """Whether a sequence comes before another in the order of the queue."""
    mine, theirs = s.sequences[one], s.sequences[other]
    if mine.rank != theirs.rank:
        return mine.rank < theirs.rank
    if mine.then != theirs.then:
        return mine.then < theirs.then
    return mine.request < theirs.request


def push(s: Any, r: int, one: int) -> None:
    """Let a sequence wait."""
    rep, queue = s.replicas[r], s.queues[r]
    rep.waiting += 1
    _rise(s, queue, rep.waiting - 1, one)


def pop(s: Any, r: int) -> int:
    """Take the first."""
    found = s.queues[r][0]
    remove(s, r, found)
    return found


def remove(s: Any, r: int, one: int) -> None:
    """Take a sequence out of the queue."""
    rep, queue = s.replicas[r], s.queues[r]
    rep.waiting -= 1
    at, last = s.sequences[one].place, queue[rep.waiting]
    if at == rep.waiting:
        return
    if at > 0 and comes_before(s, last, queue[(at - 1) >> 1]):
        _rise(s, queue, at, last)
    else:
        _sink(s, queue, at, last, rep.waiting)


def drop(items: Any, size: int, one: int) -> None:
    """Take a number out of a list of so many, which keeps its order."""
    at = 0
    while items[at] != one:
        at += 1
    while at + 1 < size:
        items[at] = items[at + 1]
        at += 1


def _rise(s: Any, queue: Any, at: int, one: int) -> None:
    while at > 0:
        above = (at - 1) >> 1
        if not comes_before(s, one, queue[above]):
            break
        queue[at] = queue[above]
        s.sequences[queue[at]].place = at
        at = above
    queue[at] = one
    s.sequences[one].place = at


def _sink(s: Any, queue: Any, at: int, one: int, size: int) -> None:
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and comes_before(s, queue[below + 1], queue[below]):
            below += 1
        if not comes_before(s, queue[below], one):
            break
        queue[at] = queue[below]
        s.sequences[queue[at]].place = at
        at = below
    queue[at] = one
    s.sequences[one].place = at


def displace(clock: Any, seq: Any, why: int) -> None:
    """Let a sequence be without a replica."""
    seq.displaced = why
    clock.displaced_from = min(clock.displaced_from, seq.request)
    clock.displaced_to = max(clock.displaced_to, seq.request)
