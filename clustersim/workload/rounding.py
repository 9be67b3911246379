"""Exact division of integer instants by a fraction."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem
from clustersim.workload.limits import MAX_NS


def divide_rounded(values_ns: Int64Array, divisor: Fraction) -> Int64Array:
    """Divide non-negative instants by a positive fraction exactly, rounding half to even.

    Products that do not fit int64 are computed with Python's integers, slower and just as exact.

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
    fits = max(largest, denominator, 2 * numerator) <= MAX_NS
    products = (values_ns if fits else values_ns.astype(object)) * denominator
    quotients = products // numerator
    doubled = 2 * (products - quotients * numerator)
    up = (doubled > numerator) | ((doubled == numerator) & (quotients % 2 == 1))
    rounded: Int64Array = (quotients + up).astype(np.int64)
    return rounded
