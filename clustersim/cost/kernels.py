"""Duration formulas of the operator families; pure functions over floats or arrays.

Only + − × ÷, square roots, minima, maxima and comparisons occur: IEEE 754 defines each of them to the last bit, so a
value does not depend on the length or alignment of the array that it lies in, nor on the machine. (numpy's exp, log and
power do: their vector and scalar versions differ.) Python floats give the same bits as arrays, several times faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from clustersim.clock import FloatArray

Number = FloatArray | float
Constants = Mapping[str, float]

ASSUMED: Final[Mapping[str, Constants]] = {
    "gemm": {"compute": 0.75, "memory": 0.8, "floor_s": 3e-6, "m": 32.0, "n": 128.0, "k": 256.0},
    "grouped_gemm": {"compute": 0.6, "memory": 0.7, "floor_s": 6e-6, "m": 32.0, "n": 128.0, "k": 256.0},
    "attention_prefill": {"compute": 0.5, "memory": 0.7, "floor_s": 5e-6, "tile": 64.0},
    "attention_decode": {"compute": 0.3, "memory": 0.7, "floor_s": 5e-6, "sequence_s": 0.0},
    "memory": {"memory": 0.8, "floor_s": 2e-6},
}


def larger(a: Number, b: Number) -> Number:
    """Return the element-wise maximum, of arrays or of floats."""
    if isinstance(a, float) and isinstance(b, float):
        return a if a >= b else b
    return np.maximum(a, b)


def smaller(a: Number, b: Number) -> Number:
    """Return the element-wise minimum, of arrays or of floats."""
    if isinstance(a, float) and isinstance(b, float):
        return a if a <= b else b
    return np.minimum(a, b)


def hypotenuse(a: Number, b: Number) -> Number:
    """Return √(a² + b²): a smooth maximum, at most 41 % above the hard one where both are equal."""
    squares = a * a + b * b
    return math.sqrt(squares) if isinstance(squares, float) else np.sqrt(squares)


def where_positive(work: Number, seconds: Number) -> Number:
    """Return ``seconds`` where there is work, and 0 where there is none: nothing is launched."""
    if isinstance(work, float) and isinstance(seconds, float):
        return seconds if work > 0.0 else 0.0
    return np.where(np.asarray(work) > 0.0, seconds, 0.0)


def gemm(
    c: Constants, peak: float, bandwidth: float, weight_bytes: float, activation_bytes: float,
    *, m: Number, n: Number, k: Number,
) -> Number:  # fmt: skip
    """Return seconds of an m×k by k×n product."""
    compute = 2.0 * (m + c["m"]) * (n + c["n"]) * (k + c["k"]) / (peak * c["compute"])
    moved = k * n * weight_bytes + m * k * activation_bytes + m * n * 2.0
    memory = moved / (bandwidth * c["memory"])
    return where_positive(m, c["floor_s"] + larger(compute, memory))


def grouped_gemm(
    c: Constants, peak: float, bandwidth: float, weight_bytes: float, activation_bytes: float,
    *, rows: Number, experts: Number, active: Number, n: Number, k: Number,
) -> Number:  # fmt: skip
    """Return seconds of one product per active expert; only active experts' weights are read."""
    active = smaller(smaller(active, experts), rows)
    compute = 2.0 * (rows + active * c["m"]) * (n + c["n"]) * (k + c["k"]) / (peak * c["compute"])
    moved = active * k * n * weight_bytes + rows * k * activation_bytes + rows * n * 2.0
    memory = moved / (bandwidth * c["memory"])
    return where_positive(rows, c["floor_s"] + larger(compute, memory))


def attention_prefill(
    c: Constants, peak: float, bandwidth: float, kv_bytes: float, activation_bytes: float,
    *, pairs: Number, queries: Number, keys: Number, heads: Number, kv_heads: Number, qk_dim: Number, v_dim: Number,
    shared_kv: Number,
) -> Number:  # fmt: skip
    """Return seconds of attention of new tokens over their context and themselves."""
    compute = 2.0 * (pairs + queries * c["tile"]) * heads * (qk_dim + v_dim) / (peak * c["compute"])
    width = qk_dim + (1.0 - shared_kv) * v_dim
    moved = keys * kv_heads * width * kv_bytes + queries * heads * (qk_dim + v_dim) * activation_bytes
    memory = moved / (bandwidth * c["memory"])
    return where_positive(queries, c["floor_s"] + larger(compute, memory))


def attention_decode(
    c: Constants, peak: float, bandwidth: float, kv_bytes: float, activation_bytes: float,
    *, batch: Number, keys: Number, heads: Number, kv_heads: Number, qk_dim: Number, v_dim: Number, shared_kv: Number,
) -> Number:  # fmt: skip
    """Return seconds of attention of one new token per sequence over ``keys`` cached tokens in all."""
    compute = 2.0 * keys * heads * (qk_dim + v_dim) / (peak * c["compute"])
    width = qk_dim + (1.0 - shared_kv) * v_dim
    moved = keys * kv_heads * width * kv_bytes + batch * heads * (qk_dim + v_dim) * activation_bytes
    memory = moved / (bandwidth * c["memory"])
    return where_positive(batch, c["floor_s"] + batch * c["sequence_s"] + larger(compute, memory))


def memory(c: Constants, bandwidth: float, *, bytes: Number) -> Number:  # noqa: A002
    """Return seconds of an operator that only moves bytes."""
    return where_positive(bytes, c["floor_s"] + bytes / (bandwidth * c["memory"]))
