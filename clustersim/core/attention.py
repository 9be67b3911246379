"""Nanoseconds of attention: what :mod:`clustersim.cost.scalar` says, to the same bit."""

from __future__ import annotations

import math
from typing import Any, Final

from clustersim.compiled import Record, rare

UNKNOWN: Final = -1
ROOM: Final = 1e-6
"""``cost.curves``' room at the ends of curves."""
CURVE: Final = 4096.0
"""``cost.curves``': places one curve behind another."""


class Terms(Record):
    """The constants of a class of attention: those of ``cost.scalar.DecodeTerms`` and ``PrefillTerms``.

    ``prefills`` says which; ``instances`` how many a pass has; ``near`` whether it attends within the window.
    ``curves`` counts measured curves, whose numbers are at ``curves_at`` on; ``known`` says whether they were measured
    at these fixed keys; ``outside`` counts durations that lay outside of them.
    """

    floats = (
        "heads", "dims", "operand_bytes", "kv_heads", "flops", "read", "flop_rate", "byte_rate", "floor_s", "head_s",
        "hidden_head_s", "ramp", "twice", "ends", "fixed", "serial_s", "key_s",
    )  # fmt: skip
    __slots__ = (*floats, "most", "prefills", "instances", "near", "curves", "curves_at", "points", "known", "outside")


def octave(value: float) -> float:
    """Return ``cost.curves.octave``."""
    mantissa, exponent = math.frexp(max(value, 2.0**-60))
    return exponent - 2.0 + 2.0 * mantissa


def first_from(numbers: Any, at: int, low: int, high: int, sought: float) -> int:
    """Return the first place in [low, high) of the ascending numbers behind ``at`` that is not below ``sought``."""
    while low < high:
        middle = (low + high) // 2
        if numbers[at + middle] < sought:
            low = middle + 1
        else:
            high = middle
    return low


def share_of(low: float, high: float, value: float) -> float:
    """Return how far a value is between two others."""
    return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0


def along(t: Any, numbers: Any, curve: int, inner: float) -> tuple[float, bool]:
    """Return the ratio along one of the curves, and whether it lies outside."""
    starts = t.curves_at + t.curves
    places = starts + t.curves + 1
    inners = places + t.points
    first, last = int(numbers[starts + curve]), int(numbers[starts + curve + 1]) - 1
    found = first_from(numbers, places, first, last + 1, curve * CURVE + inner)
    above = min(max(found, first + 1), last)
    below = max(above - 1, first)
    share = share_of(numbers[inners + below], numbers[inners + above], inner)
    low, high = numbers[inners + t.points + below], numbers[inners + t.points + above]
    outside = inner < numbers[inners + first] - ROOM or inner > numbers[inners + last] + ROOM
    return low + share * (high - low), outside


@rare
def measured(t: Any, numbers: Any, outer: float, inner: float) -> float:
    """Return measured / roofline (``cost.curves.Curves``)."""
    at, count, here, there = t.curves_at, t.curves, octave(outer), octave(inner)
    above = min(max(first_from(numbers, at, 0, count, here), 1), max(1, count - 1))
    below, above = above - 1, min(above, count - 1)
    share = share_of(numbers[at + below], numbers[at + above], here)
    first, first_off = along(t, numbers, below, there)
    second, second_off = along(t, numbers, above, there)
    off = t.known == 0 or here < numbers[at] - ROOM or here > numbers[at + count - 1] + ROOM
    if off or (share < 1.0 and first_off) or (share > 0.0 and second_off):
        t.outside += 1
    return first + share * (second - first)


def decode_ns(t: Any, numbers: Any, batch: int, keys: int, gap_s: float, longest_s: float) -> int:
    """Return nanoseconds of decode attention, or ``UNKNOWN`` where arrays have to tell."""
    if keys > t.most:
        return UNKNOWN
    blocks = batch * t.kv_heads
    hidden = blocks * t.hidden_head_s
    hidden = hidden * hidden
    compute = keys * t.flops / t.flop_rate
    reading = (keys * t.read + batch * t.heads * t.dims * t.operand_bytes) / t.byte_rate
    if hidden > 0.0:
        reading = math.sqrt(reading * reading + hidden)
    seconds = t.floor_s + blocks * t.head_s + math.sqrt(compute * compute + reading * reading)
    if t.curves > 0:
        seconds *= measured(t, numbers, batch * 1.0, keys / batch)
    ns = (seconds + gap_s) * 1e9
    return round(ns) if ns < longest_s * 1e9 else UNKNOWN


def decode_steps_ns(t: Any, batch: int, keys: int, gap_s: float, into: Any, at: int, count: int) -> None:
    """Do as :func:`decode_ns` for steps in turn, in a loop of which processors do several rounds at once."""
    blocks = batch * t.kv_heads
    hidden = blocks * t.hidden_head_s
    hidden = hidden * hidden
    least_s, ends = t.floor_s + blocks * t.head_s, batch * t.heads * t.dims * t.operand_bytes
    flops, flop_rate, read, byte_rate = t.flops, t.flop_rate, t.read, t.byte_rate
    for step in range(count):
        seen = keys + step * batch
        compute = seen * flops / flop_rate
        reading = (seen * read + ends) / byte_rate
        reading = math.sqrt(reading * reading + hidden)
        into[at + step] = round((least_s + math.sqrt(compute * compute + reading * reading) + gap_s) * 1e9)


def prefill_ns(t: Any, numbers: Any, pairs: int, queries: int, keys: int, gap_s: float, longest_s: float) -> int:
    """Return nanoseconds of prefill attention, or ``UNKNOWN`` where arrays have to tell."""
    if keys > t.most or queries > t.most:
        return UNKNOWN
    busy = (pairs + queries * t.ramp) * t.twice * t.dims / t.flop_rate
    busy += (keys * t.read + queries * t.ends) / t.byte_rate
    serial = t.serial_s * math.sqrt(pairs) + t.key_s * keys
    seconds = t.fixed + math.sqrt(busy * busy + serial * serial)
    if t.curves > 0:
        seconds *= measured(t, numbers, queries * 1.0, (2.0 * pairs / queries - 1.0) / queries)
    seconds += gap_s
    return round(seconds * 1e9) if seconds < longest_s else UNKNOWN
