"""Attention of single steps in plain numbers: bit for bit what the arrays of :mod:`clustersim.cost.kernels` give.

A replay asks for one duration at a time, where arrays take a hundred times as long as the arithmetic. What the batch
does not change is worked out once, under two rules, so that every rounding stays what and where it was:

- Factors are merged only where all products are exact: dims are integers and widths whole multiples of a power of 2
  (``DTYPE_BYTES``), so ``keys · kv_heads · width · bytes`` is exact in any order while its numerator is below 2^53,
  and doubling is exact anyhow. :func:`_exact_up_to` tells up to how many keys.
- √(x·x) = x for x ≥ 0 in binary floating point, barring under- and overflow (Boldo, "Stupid is as stupid does: taking
  the square root of the square of a floating-point number", 2015). Below, x is seconds: 0, or far from both.

Whatever lies beyond (more keys, a duration of a day, none at all) goes to ``otherwise``, which works with arrays.
Measured points scale what the roofline says: :class:`Measured` is the same ratio, to the same bits, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.cost.curves import Curves, Ratios
from clustersim.cost.protocol import CostModel
from clustersim.cost.roofline import RooflineCost, decode_family
from clustersim.cost.table import TableCost, fixed_keys
from clustersim.values import dataclass

DecodeNs = Callable[[int], int]
"""keys attended → ns"""
PrefillNs = Callable[[int, int, int], int]
"""(pairs, queries, keys) → ns"""

_EXACT: Final = 2**53
_FASTEST: Final = 1e100
"""Bytes/s and FLOP/s from which on squares of seconds might underflow."""


def roofline_of(cost: CostModel) -> RooflineCost | None:
    """Return the roofline that says what operators cost, or that measured points scale; None of any other model."""
    if isinstance(cost, TableCost):
        return cost.fallback
    return cost if type(cost) is RooflineCost else None


class Measured:
    """What measured points make of a roofline at one shape.

    Parameters
    ----------
    curves : Curves or None
        Where None, the roofline alone counts.
    along : callable, optional
        The curves in plain numbers.
    known : bool
        Whether they were measured at this shape, not at the nearest.

    Attributes
    ----------
    least, most : float
        Ratios.
    """

    def __init__(
        self, curves: Curves | None, along: Ratios = lambda outer: lambda inner: 1.0, known: bool = True
    ) -> None:
        self.curves = curves
        self.known = known
        self.at = along
        """Returns measured / roofline along one value of the outer axis."""
        ratios = np.ones(1) if curves is None else curves.ratio
        self.least, self.most = float(ratios.min()), float(ratios.max())

    @classmethod
    def of(cls, cost: CostModel, op: str, shape: Mapping[str, float]) -> Measured:
        """Return what the points of a model make of an operator at the fixed parts of its shape."""
        if not isinstance(cost, TableCost) or not cost.measures(op):
            return ALONE
        curves, known = cost.curves(op, shape)
        return cls(curves, cost.along(op, fixed_keys(op, shape)), known)


ALONE: Final = Measured(None)
"""Of a roofline with no points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTerms:
    """What one batch after another of :func:`~clustersim.cost.kernels.attention_decode` has in common.

    Parameters
    ----------
    heads, dims, operand_bytes : float
        Query heads, their query and value dimensions together, and bytes of each element.
    kv_heads : float
    flops, read : float
        Operations and bytes per key.
    flop_rate, byte_rate : float
        Per second.
    floor_s, head_s, hidden_head_s : float
        The constants of these names.
    most : int
        Up to so many keys every product is exact.
    """

    heads: float
    dims: float
    operand_bytes: float
    kv_heads: float
    flops: float
    read: float
    flop_rate: float
    byte_rate: float
    floor_s: float
    head_s: float
    hidden_head_s: float
    most: int

    @classmethod
    def of(cls, cost: RooflineCost, shape: Mapping[str, float]) -> DecodeTerms:
        """Return the terms of ``heads``, ``kv_heads``, ``qk_dim``, ``v_dim`` and ``shared_kv``."""
        heads, kv_heads, qk_dim, v_dim, shared = _attention(shape)
        c, peak, bandwidth, (kv_bytes, operand_bytes) = cost.attention(decode_family(heads, kv_heads, shared))
        width = qk_dim + (1.0 - shared) * v_dim
        flops = 2.0 * heads * (qk_dim + v_dim)
        return cls(
            heads=heads,
            dims=qk_dim + v_dim,
            operand_bytes=operand_bytes,
            kv_heads=kv_heads,
            flops=flops,
            read=kv_heads * width * kv_bytes,
            flop_rate=peak * c["compute"],
            byte_rate=bandwidth * c["memory"],
            floor_s=c["floor_s"],
            head_s=c["head_s"],
            hidden_head_s=c["hidden_head_s"],
            most=min(_exact_up_to(flops), _exact_up_to(kv_heads, width, kv_bytes)),
        )

    def plain(self, batch: int, gap_s: float, least: float = 1.0) -> bool:
        """Whether plain numbers do for so many sequences: no duration is 0, and no square is too small.

        Measured points leave ``least`` of a roofline at the least.
        """
        fixed = self.floor_s + batch * self.kv_heads * self.head_s
        return round((fixed * least + gap_s) * NS_PER_S) >= 1 and max(self.flop_rate, self.byte_rate) <= _FASTEST


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTerms:
    """What one batch after another of :func:`~clustersim.cost.kernels.attention_prefill` has in common.

    Parameters
    ----------
    ramp, twice, dims : float
        Padded keys per query, twice the heads, and dimensions with those that the exponential costs.
    flop_rate, byte_rate : float
        Per second.
    read, ends : float
        Bytes per key and per query.
    fixed, serial_s, key_s : float
        Seconds: of any kernel, per √pair, and per key.
    most : int
        Up to so many keys and queries every product is exact.
    """

    ramp: float
    twice: float
    dims: float
    flop_rate: float
    byte_rate: float
    read: float
    ends: float
    fixed: float
    serial_s: float
    key_s: float
    most: int

    @classmethod
    def of(cls, cost: RooflineCost, shape: Mapping[str, float]) -> PrefillTerms:
        """Return the terms of ``heads``, ``kv_heads``, ``qk_dim``, ``v_dim`` and ``shared_kv``."""
        heads, kv_heads, qk_dim, v_dim, shared = _attention(shape)
        c, peak, bandwidth, (kv_bytes, operand_bytes) = cost.attention("attention_prefill")
        width = qk_dim + (1.0 - shared) * v_dim
        return cls(
            ramp=c["ramp_keys"],
            twice=2.0 * heads,
            dims=qk_dim + v_dim + c["softmax_dims"],
            flop_rate=peak * c["compute"],
            byte_rate=bandwidth * c["memory"],
            read=kv_heads * width * kv_bytes,
            ends=heads * (qk_dim + v_dim) * operand_bytes,
            fixed=c["floor_s"],
            serial_s=c["serial_s"],
            key_s=c["key_s"],
            most=min(_exact_up_to(kv_heads, width, kv_bytes), _exact_up_to(heads, qk_dim + v_dim, operand_bytes)),
        )

    def plain(self, gap_s: float, least: float = 1.0) -> bool:
        """Whether plain numbers do: no duration is 0; measured points leave ``least`` of a roofline at the least."""
        return round((self.fixed * least + gap_s) * NS_PER_S) >= 1


def decode_ns(
    terms: DecodeTerms, batch: int, gap_s: float, longest_s: float, otherwise: DecodeNs, measured: Measured = ALONE
) -> DecodeNs:
    """Return nanoseconds of :func:`~clustersim.cost.kernels.attention_decode` and the gap before it, by keys.

    Parameters
    ----------
    terms : DecodeTerms
    batch : int
        Sequences.
    gap_s : float
        Seconds before the kernel.
    longest_s : float
        Durations from here on are left to ``otherwise``.
    otherwise : callable
        The same by arrays.
    measured : Measured
        What points make of the roofline.
    """
    if not terms.plain(batch, gap_s, measured.least):
        return otherwise
    flops, read, flop_rate, byte_rate, most = terms.flops, terms.read, terms.flop_rate, terms.byte_rate, terms.most
    ends = batch * terms.heads * terms.dims * terms.operand_bytes
    blocks = batch * terms.kv_heads
    hidden = blocks * terms.hidden_head_s
    hidden *= hidden
    fixed = terms.floor_s + blocks * terms.head_s

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

    ratio = measured.at(batch)

    def scaled(keys: int) -> int:
        if keys > most or keys < 1:
            return otherwise(keys)
        compute = keys * flops / flop_rate
        reading = (keys * read + ends) / byte_rate
        reading = sqrt(reading * reading + hidden)
        return round(((fixed + sqrt(compute * compute + reading * reading)) * ratio(keys / batch) + gap_s) * 1e9)

    chosen = beside_blocks if hidden else plain
    slack = max(1.0, measured.most)
    while most and not chosen(most) * slack < longest_s * NS_PER_S:  # all rises with keys: no more is to check
        most //= 2
    if measured.curves is not None:
        chosen = scaled
    return chosen if most else otherwise


def prefill_ns(
    terms: PrefillTerms, gap_s: float, longest_s: float, otherwise: PrefillNs, measured: Measured = ALONE
) -> PrefillNs:
    """Return nanoseconds of :func:`~clustersim.cost.kernels.attention_prefill` and the gap before it.

    Parameters are those of :func:`decode_ns`; the function returned takes pairs, queries and keys.
    """
    if not terms.plain(gap_s, measured.least):
        return otherwise
    ramp, twice, dims, flop_rate, byte_rate = terms.ramp, terms.twice, terms.dims, terms.flop_rate, terms.byte_rate
    read, ends, fixed, serial_s, key_s = terms.read, terms.ends, terms.fixed, terms.serial_s, terms.key_s
    most = terms.most

    def ns(pairs: int, queries: int, keys: int) -> int:
        if keys > most or queries > most:
            return otherwise(pairs, queries, keys)
        busy = (pairs + queries * ramp) * twice * dims / flop_rate + (keys * read + queries * ends) / byte_rate
        serial = serial_s * sqrt(pairs) + key_s * keys
        seconds = fixed + sqrt(busy * busy + serial * serial) + gap_s
        return round(seconds * 1e9) if seconds < longest_s else otherwise(pairs, queries, keys)

    if measured.curves is None:
        return ns
    limit = longest_s / max(1.0, measured.most)

    def scaled(pairs: int, queries: int, keys: int) -> int:
        if keys > most or queries > most or min(pairs, queries, keys) < 1:
            return otherwise(pairs, queries, keys)
        busy = (pairs + queries * ramp) * twice * dims / flop_rate + (keys * read + queries * ends) / byte_rate
        serial = serial_s * sqrt(pairs) + key_s * keys
        base = fixed + sqrt(busy * busy + serial * serial)
        if not base + gap_s < limit:
            return otherwise(pairs, queries, keys)
        return round((base * measured.at(queries)((2.0 * pairs / queries - 1.0) / queries) + gap_s) * 1e9)

    return scaled


def _attention(shape: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(shape[key] for key in ("heads", "kv_heads", "qk_dim", "v_dim", "shared_kv"))


def _exact_up_to(*factors: float) -> int:
    """Return the largest count whose product with the factors, in any order, is exact."""
    numerator = 1
    for factor in factors:
        numerator *= factor.as_integer_ratio()[0]
    return _EXACT // max(numerator, 1)
