"""What will happen when: a heap by instant, then kind, then number, so that the order at one instant is data.

An event that no longer counts is known by its version: it stays until it comes up.
"""

from __future__ import annotations

from typing import Any, Final

KIND_BITS: Final = 59
VERSION_BITS: Final = 26
VERSIONS: Final = (1 << VERSION_BITS) - 1
NUMBERS: Final = (1 << (KIND_BITS - VERSION_BITS)) - 1


def expect(s: Any, time: int, kind: int, number: int, version: int) -> None:
    """Let something happen at an instant."""
    clock, times, whats = s.clock[0], s.times, s.whats
    what = kind << KIND_BITS | number << VERSION_BITS | version
    at = clock.events
    clock.events += 1
    while at > 0:
        above = (at - 1) >> 1
        if times[above] < time or (times[above] == time and whats[above] <= what):
            break
        times[at], whats[at] = times[above], whats[above]
        at = above
    times[at], whats[at] = time, what


def drop_first(s: Any) -> None:
    """Forget the first event."""
    clock, times, whats = s.clock[0], s.times, s.whats
    clock.events -= 1
    size, at = clock.events, 0
    time, what = times[size], whats[size]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            times[other] < times[below] or (times[other] == times[below] and whats[other] < whats[below])
        ):
            below = other
        if time < times[below] or (time == times[below] and what <= whats[below]):
            break
        times[at], whats[at] = times[below], whats[below]
        at = below
    times[at], whats[at] = time, what


def first_kind(s: Any) -> int:
    """Return the kind of the first event."""
    return s.whats[0] >> KIND_BITS


def first_number(s: Any) -> int:
    """Return the number of what the first event is about."""
    return s.whats[0] >> VERSION_BITS & NUMBERS


def first_version(s: Any) -> int:
    """Return its version."""
    return s.whats[0] & VERSIONS
