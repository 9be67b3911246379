"""Attention of single steps in plain numbers: bit for bit what the arrays of :mod:`clustersim.cost.kernels` give.

A replay asks for one duration at a time, where arrays take a hundred times as long as the arithmetic. What the batch
does not change is worked out once, under two rules, so that every rounding stays what and where it was:

- Factors are merged only where all products are exact: dims are integers and widths whole multiples of a power of 2
  (``DTYPE_BYTES``), so ``keys · kv_heads · width · bytes`` is exact in any order while its numerator is below 2^53,
  and doubling is exact anyhow. :func:`_exact_up_to` tells up to how many keys.
- √(x·x) = x for x ≥ 0 in binary floating point, barring under- and overflow (Boldo, "Stupid is as stupid does: taking
  the square root of the square of a floating-point number", 2015). Below, x is seconds: 0, or far from both.

Whatever lies beyond (more keys, a duration of a day, none at all) goes to ``otherwise``, which works with arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Final

from clustersim.clock import NS_PER_S
from clustersim.cost.protocol import CostModel
from clustersim.cost.roofline import RooflineCost, decode_family
from clustersim.cost.table import TableCost

DecodeNs = Callable[[int], int]
"""keys attended → ns"""
PrefillNs = Callable[[int, int, int], int]
"""(pairs, queries, keys) → ns"""

_EXACT: Final = 2**53
_FASTEST: Final = 1e100
"""Bytes/s and FLOP/s from which on squares of seconds might underflow."""


def roofline_of(cost: CostModel, op: str) -> RooflineCost | None:
    """Return the roofline that alone says what ``op`` costs, or None where something else has a say."""
    if isinstance(cost, TableCost) and not cost.measures(op):
        return cost.fallback
    return cost if type(cost) is RooflineCost else None


def decode_ns(
    cost: RooflineCost,
    shape: Mapping[str, float],
    batch: int,
    gap_s: float,
    longest_s: float,
    otherwise: DecodeNs,
) -> DecodeNs:
    """Return nanoseconds of :func:`~clustersim.cost.kernels.attention_decode` and the gap before it, by keys.

    Parameters
    ----------
    cost : RooflineCost
    shape : mapping
        ``heads``, ``kv_heads``, ``qk_dim``, ``v_dim`` and ``shared_kv``.
    batch : int
        Sequences.
    gap_s : float
        Seconds before the kernel.
    longest_s : float
        Durations from here on are left to ``otherwise``.
    otherwise : callable
        The same by arrays.
    """
    heads, kv_heads, qk_dim, v_dim, shared = _attention(shape)
    c, peak, bandwidth, (kv_bytes, operand_bytes) = cost.attention(decode_family(heads, kv_heads, shared))
    width = qk_dim + (1.0 - shared) * v_dim
    flop_rate, byte_rate = peak * c["compute"], bandwidth * c["memory"]
    flops, read = 2.0 * heads * (qk_dim + v_dim), kv_heads * width * kv_bytes
    ends = batch * heads * (qk_dim + v_dim) * operand_bytes
    blocks = batch * kv_heads
    hidden = blocks * c["hidden_head_s"]
    hidden *= hidden
    fixed = c["floor_s"] + blocks * c["head_s"]
    most = min(_exact_up_to(flops), _exact_up_to(kv_heads, width, kv_bytes))
    if round((fixed + gap_s) * NS_PER_S) < 1 or max(flop_rate, byte_rate) > _FASTEST:
        return otherwise

    def plain(keys: int) -> int:
        if keys > most:
            return otherwise(keys)
        compute = keys * flops / flop_rate
        reading = (keys * read + ends) / byte_rate
        return round((fixed + sqrt(compute * compute + reading * reading) + gap_s) * 1e9)

    def beside_blocks(keys: int) -> int:
        if keys > most:
            return otherwise(keys)
        compute = keys * flops / flop_rate
        reading = (keys * read + ends) / byte_rate
        reading = sqrt(reading * reading + hidden)
        return round((fixed + sqrt(compute * compute + reading * reading) + gap_s) * 1e9)

    chosen = beside_blocks if hidden else plain
    while most and not chosen(most) < longest_s * NS_PER_S:  # every operation rises with keys, so that is all to check
        most //= 2
    return chosen if most else otherwise


def prefill_ns(
    cost: RooflineCost, shape: Mapping[str, float], gap_s: float, longest_s: float, otherwise: PrefillNs
) -> PrefillNs:
    """Return nanoseconds of :func:`~clustersim.cost.kernels.attention_prefill` and the gap before it.

    Parameters are those of :func:`decode_ns`; the function returned takes pairs, queries and keys.
    """
    heads, kv_heads, qk_dim, v_dim, shared = _attention(shape)
    c, peak, bandwidth, (kv_bytes, operand_bytes) = cost.attention("attention_prefill")
    width = qk_dim + (1.0 - shared) * v_dim
    flop_rate, byte_rate = peak * c["compute"], bandwidth * c["memory"]
    ramp, twice, dims = c["ramp_keys"], 2.0 * heads, qk_dim + v_dim + c["softmax_dims"]
    read, ends = kv_heads * width * kv_bytes, heads * (qk_dim + v_dim) * operand_bytes
    fixed, serial_s, key_s = c["floor_s"], c["serial_s"], c["key_s"]
    most = min(_exact_up_to(kv_heads, width, kv_bytes), _exact_up_to(heads, qk_dim + v_dim, operand_bytes))
    if round((fixed + gap_s) * NS_PER_S) < 1:
        return otherwise

    def ns(pairs: int, queries: int, keys: int) -> int:
        if keys > most or queries > most:
            return otherwise(pairs, queries, keys)
        busy = (pairs + queries * ramp) * twice * dims / flop_rate + (keys * read + queries * ends) / byte_rate
        serial = serial_s * sqrt(pairs) + key_s * keys
        seconds = fixed + sqrt(busy * busy + serial * serial) + gap_s
        return round(seconds * 1e9) if seconds < longest_s else otherwise(pairs, queries, keys)

    return ns


def _attention(shape: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(shape[key] for key in ("heads", "kv_heads", "qk_dim", "v_dim", "shared_kv"))


def _exact_up_to(*factors: float) -> int:
    """Return the largest count whose product with the factors, in any order, is exact."""
    numerator = 1
    for factor in factors:
        numerator *= factor.as_integer_ratio()[0]
    return _EXACT // max(numerator, 1)
