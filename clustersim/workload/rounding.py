"""Exact division of integer instants by a fraction."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.column import by_parts
from clustersim.errors import InputError, Problem
from clustersim.workload.limits import MAX_NS

_MOST_NEARLY: Final = 2**48
"""Of instants (three days), up to which quotients in floating point are off by less than …"""
_UNSURE: Final = 0.125
"""… this: three roundings of 2⁻⁵³ each come to 2⁻³ at most from 2⁴⁸ on (2⁴⁸ · 3 · 2⁻⁵³ < 0.1)."""


def divide_rounded(values_ns: Int64Array, divisor: Fraction) -> Int64Array:
    """Divide non-negative instants by a positive fraction exactly, rounding half to even.

    Where products do not fit int64 quotients are taken in floating point; those so near to a half that its error might
    decide are computed with Python's integers.

    Raises
    ------
    InputError
        When a quotient does not fit int64.
    """
    numerator, denominator = divisor.numerator, divisor.denominator
    largest = int(values_ns.max(initial=0)) * denominator
    if largest // numerator >= MAX_NS:
        message = f"dividing by {float(divisor)} makes the last request arrive after more than 292 years"
        raise InputError(Problem(path="rate_scale", message=message))
    if max(largest, denominator, 2 * numerator) <= MAX_NS:
        return by_parts(np.int64, len(values_ns), lambda some: _divided(values_ns[some], numerator, denominator))
    if max(largest // numerator, int(values_ns.max(initial=0))) > _MOST_NEARLY:
        return _divided(values_ns.astype(object), numerator, denominator)
    return by_parts(np.int64, len(values_ns), lambda some: _nearly(values_ns[some], divisor))


def _nearly(values: Int64Array, divisor: Fraction) -> Int64Array:
    nearly = values * float(1 / divisor)
    rounded: Int64Array = np.rint(nearly).astype(np.int64)
    unsure = np.flatnonzero(np.abs(nearly - np.floor(nearly) - 0.5) <= _UNSURE)
    rounded[unsure] = _divided(values[unsure].astype(object), divisor.numerator, divisor.denominator)
    return rounded


def _divided(values: npt.NDArray[Any], numerator: int, denominator: int) -> Int64Array:
    products = values * denominator
    quotients = products // numerator
    doubled = 2 * (products - quotients * numerator)
    up = (doubled > numerator) | ((doubled == numerator) & (quotients % 2 == 1))
    rounded: Int64Array = (quotients + up).astype(np.int64)
    return rounded
