"""Duration formulas of the operator families; pure functions over floats or arrays.

Only + − × ÷, square roots, minima, maxima and comparisons occur: IEEE 754 defines each of them to the last
bit, so a value does not depend on the length or alignment of the array that it lies in, nor on the machine.
(numpy's exp, log and power do: vector and scalar versions differ.) Python floats give the same bits, faster.

All are a roofline (Williams, Waterman, Patterson 2009) with a floor. Where compute and memory time meet,
√(compute² + memory²) was as good as the larger of both on measured GEMMs of A100, H100, B200 and L40S (median
error 6–8 % either way) and has no kink. Wave and tile quantisation did not pay: libraries choose among many
tiles, and ceilings made the error two to four times larger.

Without work an operator costs its floor: an engine launches it all the same. So ``seconds(x) − seconds(0)`` is
what it costs inside a neighbour's kernel.

Not modelled: clocks that fall under power, bank and alignment effects of odd dimensions, L2 hits of weights.
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
    "gemm": {
        "compute": 0.7,  # share of the peak that large products reach
        "memory": 0.85,  # share of the memory bandwidth that large weights reach
        "floor_s": 2e-6,  # least time of a kernel
        "ramp_k": 100.0,  # filling and draining the pipeline costs as much as this much more k
        "latency_s": 4e-6,  # time to walk along a long k; half of it at k = latency_k
        "latency_k": 3000.0,
        "quantise_bytes": 0.0,  # moved per activation to bring it into the narrower format, in bytes
    },
    "grouped_gemm": {
        "compute": 0.5,
        "memory": 0.85,
        "floor_s": 12e-6,  # with sorting and padding of rows by expert
        "ramp_k": 300.0,
        "ramp_rows": 32.0,  # padding of each active expert's rows
    },
    "attention_prefill": {
        "compute": 0.7,
        "memory": 0.5,
        "floor_s": 8e-6,
        "ramp_keys": 20.0,  # masked and padded keys per query
        "softmax_dims": 100.0,  # the exponential costs as much as this many more head dimensions
        "serial_s": 1.2e-8,  # per √pair: few heads and short prompts do not fill the device
        "key_s": 0.0,  # per key read, one after the other
    },
    "attention_decode": {
        "compute": 0.3,
        "memory": 0.85,
        "floor_s": 8e-6,
        "head_s": 2e-8,  # per sequence and K/V head: one thread block each
        "hidden_head_s": 0.0,  # the same where it runs beside reading (Blackwell)
    },
    "multihead_decode": {  # where a device has no group of it, its group of attention_decode stands for it
        "compute": 0.3,
        "memory": 0.85,
        "floor_s": 8e-6,
        "head_s": 2e-8,
        "hidden_head_s": 0.0,
    },
    "latent_decode": {
        "compute": 0.5,
        "memory": 0.7,
        "floor_s": 12e-6,
        "head_s": 1e-8,
        "hidden_head_s": 0.0,
    },
    "memory": {
        "memory": 0.7,
        "floor_s": 2.5e-6,
        "cached": 1.5,  # the same for bytes that the last kernel left in the cache
        "cache_bytes": 0.0,
    },
}
"""Per family the constants and what is assumed where a device has no fit: round values within the range of
the fits of ``topologies/devices`` (A100 to B200)."""


SHARES: Final[Mapping[str, float]] = {"compute": 1.0, "memory": 1.0, "cached": 64.0}
"""Constants that are shares, and their largest value: of a peak all of it; a cache gives at most as many times the
bandwidth of the memory as registers do (assumed: the fits have 3.7 at most)."""
_SECONDS: Final = (*(name for one in ASSUMED.values() for name in one if name.endswith("_s")), "quantise_bytes")
"""Constants that are terms of a time, or become one without a share."""
LONGEST_S: Final = 1.0
"""Of one constant in seconds (assumed; the fits have 55 µs at most)."""
MOST: Final = 1e12
"""Of any other constant (assumed; the fits have a cache of 72 MB at most)."""


LEAST_SHARE: Final = 1e-6
"""Of a peak (assumed; the fits have 0.2 at least)."""


def least(constant: str) -> float:
    """Return the smallest value of a constant that makes sense."""
    return LEAST_SHARE if constant in SHARES else 0.0


def most(constant: str) -> float:
    """Return the largest value of a constant that makes sense."""
    return SHARES.get(constant, LONGEST_S if constant.endswith("_s") else MOST)


def lasting(constants: Constants, times: float) -> Constants:
    """Return the constants with which a formula gives so many times the seconds: less of the peaks, longer floors."""
    found = {}
    for name, value in constants.items():
        found[name] = value / times if name in SHARES else value * times if name in _SECONDS else value
    return found


def hypotenuse(a: Number, b: Number) -> Number:
    """Return √(a² + b²): a smooth maximum, at most 41 % above the hard one, where both are equal."""
    return _root(a * a + b * b)


def gemm(
    c: Constants, peak: float, bandwidth: float, widths: tuple[float, float, float],
    *, m: Number, n: Number, k: Number,
) -> Number:  # fmt: skip
    """Return seconds of an m×k by k×n product; its floor where m is 0, when no weights are read.

    ``widths`` are the bytes per weight, operand and result.
    """
    weight_bytes, operand_bytes, result_bytes = widths
    compute = 2.0 * m * n * (k + c["ramp_k"]) / (peak * c["compute"])
    moved = k * n * weight_bytes + m * k * operand_bytes + m * n * result_bytes
    latency = c["latency_s"] * k / (k + c["latency_k"])
    quantise = m * k * c["quantise_bytes"] / bandwidth
    busy = hypotenuse(compute, moved / (bandwidth * c["memory"]))
    return c["floor_s"] + _where_positive(m, latency + quantise + busy)


def grouped_gemm(
    c: Constants, peak: float, bandwidth: float, widths: tuple[float, float, float],
    *, rows: Number, experts: Number, active: Number, n: Number, k: Number,
) -> Number:  # fmt: skip
    """Return seconds of one product per active expert, rows shared out evenly.

    Only the weights of active experts are read; ``active`` is cut to ``experts`` and ``rows``.
    """
    weight_bytes, operand_bytes, result_bytes = widths
    active = _smaller(_smaller(active, experts), rows)
    padded = rows + active * c["ramp_rows"]
    compute = 2.0 * padded * n * (k + c["ramp_k"]) / (peak * c["compute"])
    moved = active * k * n * weight_bytes + rows * (k * operand_bytes + n * result_bytes)
    return c["floor_s"] + hypotenuse(compute, moved / (bandwidth * c["memory"]))


def attention_prefill(
    c: Constants, peak: float, bandwidth: float, widths: tuple[float, float],
    *, pairs: Number, queries: Number, keys: Number, heads: Number, kv_heads: Number, qk_dim: Number,
    v_dim: Number, shared_kv: Number,
) -> Number:  # fmt: skip
    """Return seconds of attention of new tokens over their context and themselves.

    FLOPs are 2 · pairs · heads · (qk_dim + v_dim). Few queries leave the device partly idle: the serial term.
    ``widths`` are the bytes per element of the K/V cache and of queries.
    """
    kv_bytes, operand_bytes = widths
    scores = (pairs + queries * c["ramp_keys"]) * heads
    compute = 2.0 * scores * (qk_dim + v_dim + c["softmax_dims"]) / (peak * c["compute"])
    width = qk_dim + (1.0 - shared_kv) * v_dim
    moved = keys * kv_heads * width * kv_bytes + queries * heads * (qk_dim + v_dim) * operand_bytes
    serial = c["serial_s"] * _root(pairs) + c["key_s"] * keys
    busy = compute + moved / (bandwidth * c["memory"])
    return c["floor_s"] + hypotenuse(busy, serial)


def attention_decode(
    c: Constants, peak: float, bandwidth: float, widths: tuple[float, float],
    *, batch: Number, keys: Number, heads: Number, kv_heads: Number, qk_dim: Number, v_dim: Number,
    shared_kv: Number,
) -> Number:  # fmt: skip
    """Return seconds of attention of one new token per sequence over ``keys`` cached tokens in all.

    A function of the batch and the sum of keys only, smooth and increasing in both. Kernels split long contexts
    over the device (flash decoding), so how keys spread over sequences matters less.
    """
    kv_bytes, operand_bytes = widths
    compute = 2.0 * keys * heads * (qk_dim + v_dim) / (peak * c["compute"])
    width = qk_dim + (1.0 - shared_kv) * v_dim
    moved = keys * kv_heads * width * kv_bytes + batch * heads * (qk_dim + v_dim) * operand_bytes
    blocks = batch * kv_heads
    reading = hypotenuse(moved / (bandwidth * c["memory"]), blocks * c["hidden_head_s"])
    return c["floor_s"] + blocks * c["head_s"] + hypotenuse(compute, reading)


def memory(c: Constants, bandwidth: float, *, bytes: Number) -> Number:  # noqa: A002
    """Return seconds of an operator that only moves bytes.

    The first ``cache_bytes`` are found in the cache, where the previous kernel left them.
    """
    near = _smaller(bytes, c["cache_bytes"])
    far = bytes - near
    return c["floor_s"] + near / (bandwidth * c["cached"]) + far / (bandwidth * c["memory"])


def _smaller(a: Number, b: Number) -> Number:
    if isinstance(a, float) and isinstance(b, float):
        return a if a <= b else b
    return np.minimum(a, b)


def _root(x: Number) -> Number:
    return math.sqrt(x) if isinstance(x, float) else np.sqrt(x)


def _where_positive(work: Number, seconds: Number) -> Number:
    if isinstance(work, float) and isinstance(seconds, float):
        return seconds if work > 0.0 else 0.0
    return np.where(np.asarray(work) > 0.0, seconds, 0.0)
