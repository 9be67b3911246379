"""Attention of single steps in plain numbers: bit for bit what the arrays of :mod:`clustersim.cost.kernels` give.

A replay asks for one duration at a time, where arrays take a hundred times as long as the arithmetic. What the batch
does not change is worked out once, under two rules, so that every rounding stays what and where it was:

- Factors are merged only where all products are exact: dims are integers and widths whole multiples of a power of 2
  (``DTYPE_BYTES``), so ``keys · kv_heads · width · bytes`` is exact in any order while its numerator is below 2^53,
  and doubling is exact anyhow. :func:`_exact_up_to` tells up to how many keys.
- √(x·x) = x for x ≥ 0 in binary floating point, barring under- and overflow (Boldo, "Stupid is as stupid does: taking
  the square root of the square of a floating-point number", 2015). Below, x is seconds: 0, or far from both.

Whatever lies beyond (more keys, a duration of a day, none at all) is ``UNKNOWN``, and arrays have to tell. Measured
points scale what the roofline says. The functions are of the subset that ``clustersim.compiled`` has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.compiled import Objects, Record, set_field
from clustersim.cost.curves import Curves
from clustersim.cost.protocol import CostModel
from clustersim.cost.roofline import RooflineCost, decode_family
from clustersim.cost.table import TableCost

UNKNOWN: Final = -1
ROOM: Final = 1e-6
"""``cost.curves``' room at the ends of curves."""
CURVE: Final = 4096.0
"""``cost.curves``': places one curve behind another."""

_EXACT: Final = 2**53
_FASTEST: Final = 1e100
"""Bytes/s and FLOP/s from which on squares of seconds might underflow."""


class Terms(Record):
    """The constants of a class of attention.

    Of decodes: ``heads`` and ``kv_heads``, query and value dimensions together (``dims``) of ``operand_bytes`` each,
    ``flops`` and bytes to ``read`` per key. Of prompts: ``twice`` the heads, ``dims`` with those that the exponential
    costs, padded keys per query (``ramp``), bytes to ``read`` per key and of ``ends`` per query; seconds of any kernel
    (``fixed``), per √pair (``serial_s``) and per key (``key_s``). Of both: rates per second, and up to how many keys
    every product is exact (``most``).

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


# ---- constants ------------------------------------------------------------------------------------------------------
def roofline_of(cost: CostModel) -> RooflineCost | None:
    """Return the roofline that says what operators cost, or that measured points scale; None of any other model."""
    if isinstance(cost, TableCost):
        return cost.fallback
    return cost if type(cost) is RooflineCost else None


def constants(
    cost: CostModel, op: str, shape: Mapping[str, float], gap_s: float, numbers: list[float], batch: int = 1
) -> dict[str, float]:
    """Return the constants of a class of attention by the names of :class:`Terms`; none where arrays have to tell all.

    Plain numbers do where no duration is 0, and no square is too small.

    Parameters
    ----------
    cost : CostModel
    op : str
        ``attention_prefill`` or ``attention_decode``.
    shape : mapping
        ``heads``, ``kv_heads``, ``qk_dim``, ``v_dim`` and ``shared_kv``.
    gap_s : float
        Seconds before the kernel, at least.
    numbers : list of float
        Where measured points are put, behind those of others.
    batch : int
        Sequences that decode, at least.
    """
    roofline = roofline_of(cost)
    if roofline is None:
        return {}
    curves, known = cost.curves(op, shape) if isinstance(cost, TableCost) else (None, True)
    if op == "attention_prefill":
        found = _of_prefill(roofline, shape)
        fixed_s = found["fixed"]
    else:
        found = _of_decode(roofline, shape)
        fixed_s = found["floor_s"] + batch * found["kv_heads"] * found["head_s"]
        if max(found["flop_rate"], found["byte_rate"]) > _FASTEST:
            return {}
    least = 1.0 if curves is None else float(curves.ratio.min())
    if round((fixed_s * least + gap_s) * NS_PER_S) < 1:
        return {}
    return found if curves is None else found | _placed(curves, known, numbers)


def terms_of(found: Mapping[str, float]) -> Any:
    """Return constants as :class:`Terms`, for functions as they stand."""
    made = Objects().records(Terms, 1)
    for name, value in found.items():
        set_field(made, 0, name, value)
    return made[0]


def _of_decode(cost: RooflineCost, shape: Mapping[str, float]) -> dict[str, float]:
    """Return the constants of :func:`~clustersim.cost.kernels.attention_decode`."""
    heads, kv_heads, qk_dim, v_dim, shared = _attention(shape)
    c, peak, bandwidth, (kv_bytes, operand_bytes) = cost.attention(decode_family(heads, kv_heads, shared))
    width = qk_dim + (1.0 - shared) * v_dim
    flops = 2.0 * heads * (qk_dim + v_dim)
    return {
        "heads": heads,
        "dims": qk_dim + v_dim,
        "operand_bytes": operand_bytes,
        "kv_heads": kv_heads,
        "flops": flops,
        "read": kv_heads * width * kv_bytes,
        "flop_rate": peak * c["compute"],
        "byte_rate": bandwidth * c["memory"],
        "floor_s": c["floor_s"],
        "head_s": c["head_s"],
        "hidden_head_s": c["hidden_head_s"],
        "most": min(_exact_up_to(flops), _exact_up_to(kv_heads, width, kv_bytes)),
    }


def _of_prefill(cost: RooflineCost, shape: Mapping[str, float]) -> dict[str, float]:
    """Return the constants of :func:`~clustersim.cost.kernels.attention_prefill`."""
    heads, kv_heads, qk_dim, v_dim, shared = _attention(shape)
    c, peak, bandwidth, (kv_bytes, operand_bytes) = cost.attention("attention_prefill")
    width = qk_dim + (1.0 - shared) * v_dim
    return {
        "ramp": c["ramp_keys"],
        "twice": 2.0 * heads,
        "dims": qk_dim + v_dim + c["softmax_dims"],
        "flop_rate": peak * c["compute"],
        "byte_rate": bandwidth * c["memory"],
        "read": kv_heads * width * kv_bytes,
        "ends": heads * (qk_dim + v_dim) * operand_bytes,
        "fixed": c["floor_s"],
        "serial_s": c["serial_s"],
        "key_s": c["key_s"],
        "most": min(_exact_up_to(kv_heads, width, kv_bytes), _exact_up_to(heads, qk_dim + v_dim, operand_bytes)),
    }


def _placed(curves: Curves, known: bool, numbers: list[float]) -> dict[str, int]:
    """Put measured points behind other numbers, and return where."""
    found = {
        "curves": len(curves.outer), "curves_at": len(numbers), "points": len(curves.inner), "known": int(known),
    }  # fmt: skip
    for each in (curves.outer, curves.starts, curves.place, curves.inner, curves.ratio):
        numbers += np.asarray(each, np.float64).tolist()
    return found


def _attention(shape: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(shape[key] for key in ("heads", "kv_heads", "qk_dim", "v_dim", "shared_kv"))


def _exact_up_to(*factors: float) -> int:
    """Return the largest count whose product with the factors, in any order, is exact."""
    numerator = 1
    for factor in factors:
        numerator *= factor.as_integer_ratio()[0]
    return _EXACT // max(numerator, 1)
