"""Fits the constants of the roofline to measured durations: pure functions over arrays, numpy only.

The loss is the mean of √(1 + (r / 0.1)²) − 1 over residuals r = log(predicted / measured): relative, and an
outlier counts linearly. Every octave of the operator's size (rows, tokens, keys, bytes) has the same weight,
however densely it was measured. The search is that of Nelder and Mead (1965), over logarithms of constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cost import kernels
from clustersim.cost.points import MeasuredPoints
from clustersim.cost.precision import dtype_bytes
from clustersim.cost.roofline import PricedDevice
from clustersim.errors import InputError, Problem
from clustersim.values import dataclass

MOE: Final = "moe"
"""Operator name of a measured MoE module: two grouped products, n × k = 2·intermediate × hidden and back, with all
that surrounds them (permutation, activation, sum), which is therefore in the constants of ``grouped_gemm``.
Shape keys: ``rows``, ``experts``, ``active``, ``hidden``, ``intermediate``."""

_SIZES: Final[Mapping[str, str]] = {
    "gemm": "m",
    "grouped_gemm": "rows",
    MOE: "rows",
    "attention_prefill": "queries",
    "attention_decode": "keys",
    "memory": "bytes",
}
_START_AT: Final = {"key_s": 1e-9, "cache_bytes": 3e7, "quantise_bytes": 3.0, "hidden_head_s": 1e-8}
_NEVER_ZERO: Final = ("compute", "memory", "cached", "latency_k")
_AT_MOST: Final = {"compute": 1.0, "memory": 1.0, "latency_k": 65536.0}
_FEWEST_POINTS: Final = 12
_MOST_OFF: Final = 50.0
"""How many times what is assumed for a device points may last in the median, or the other way round (assumed)."""
_ABOVE_PEAK: Final = 1.25
"""Clocks above the data sheet's reach a little more than its peak (assumed)."""
_UNITS: Final[Mapping[str, float]] = {"milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9, "hours": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFit:
    """Fitted constants of one group of ``kernels:`` and how well they describe the measurements.

    Parameters
    ----------
    group : str
        Name of the group, such as ``gemm_bf16``.
    constants : Mapping of str to float
        By name, three significant digits.
    points : int
        Number of measurements.
    median_error, p90_error : float
        Quantiles of abs(predicted / measured − 1).
    """

    group: str
    constants: Mapping[str, float]
    points: int
    median_error: float
    p90_error: float


def fit_device(device: PricedDevice, measured: Sequence[MeasuredPoints]) -> tuple[FamilyFit, ...]:
    """Fit every group for which there are measurements.

    Parameters
    ----------
    device : PricedDevice
        Its peaks and bandwidth are the ceilings; its own constants are not used.
    measured : sequence of MeasuredPoints
        At most one per group; a missing format means bf16.

    Returns
    -------
    tuple of FamilyFit
        In the order of ``measured``.

    Raises
    ------
    InputError
        When two sets of points belong to one group, one has fewer than twelve points, or the device has no
        peak for its format.
    """
    groups = [group_of(points) for points in measured]
    problems = [
        Problem(message=f"{group}: {groups.count(group)} sets of points; expected one")
        for group in dict.fromkeys(groups)
        if groups.count(group) > 1
    ]
    for group, points in zip(groups, measured, strict=True):
        if len(points.seconds) < _FEWEST_POINTS:
            found = len(points.seconds)
            problems.append(Problem(message=f"{group}: {found} points; expected at least {_FEWEST_POINTS}"))
        if _peak(device, points) is None:
            problems.append(Problem(message=f"{group}: {device.name} has no peak for {points.dtype!r}"))
        elif told := _implausible(device, points):
            problems.append(Problem(message=f"{group}: {told}"))
    if problems:
        raise InputError(problems)
    return tuple(fit_points(device, points) for points in measured)


def _implausible(device: PricedDevice, points: MeasuredPoints) -> str:
    """Say of points that no device of this kind can have measured in seconds why; empty where one can."""
    if told := unlike_seconds(device, float(np.median(times_expected(device, points)))):
        return f"the median of its points {told}"
    rates = multiplied_per_s(points)
    return above_peak(device, points, float(np.max(rates, initial=0.0)))


def times_expected(device: PricedDevice, points: MeasuredPoints) -> FloatArray:
    """Return how many times what is assumed for a device, without its own constants, each point lasts."""
    return points.seconds / predict(device, points, {})


def unlike_seconds(device: PricedDevice, times: float) -> str:
    """Say of a time that no device of this kind takes, in multiples of what is expected, why; else nothing."""
    if 1.0 / _MOST_OFF <= times <= _MOST_OFF:
        return ""
    unit = min(_UNITS, key=lambda name: abs(np.log(times * _UNITS[name])))
    ask = f", are these {unit}?" if 0.1 < times * _UNITS[unit] < 10.0 else " of this device"
    return f"lasts {times:,.3g} times what {device.name} is expected to take; expected seconds{ask}"


def multiplied_per_s(points: MeasuredPoints) -> FloatArray:
    """Return FLOP/s of each product; none of other operators."""
    if points.op != "gemm":
        return np.empty(0)
    return 2.0 * points.shape["m"] * points.shape["n"] * points.shape["k"] / points.seconds


def above_peak(device: PricedDevice, points: MeasuredPoints, rate: float) -> str:
    """Say of FLOP/s that a device can't reach in the format of some points why; else nothing."""
    peak = _peak(device, points) or np.inf
    if rate <= _ABOVE_PEAK * peak:
        return ""
    most = f"{rate / 1e12:,.4g} TFLOP/s, above the peak of {peak / 1e12:,.4g}"
    return f"a point reaches {most} of {device.name}; expected seconds of this device"


def fit_points(device: PricedDevice, points: MeasuredPoints) -> FamilyFit:
    """Fit the constants of one group to its measurements; see :func:`fit_device`."""
    family = _family(points)
    names = [name for name in kernels.ASSUMED[family] if name != "quantise_bytes" or _narrow(points)]
    start = np.log([kernels.ASSUMED[family][name] or _START_AT[name] for name in names])
    measured, weight = np.log(points.seconds), octave_weights(points)

    def loss(logs: FloatArray) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            predicted = predict(device, points, _named(names, logs))
            scaled = (np.log(predicted) - measured) / 0.1
            value = float(np.sum(weight * (np.sqrt(1.0 + scaled * scaled) - 1.0))) + _excess(names, logs)
        return value if np.isfinite(value) else float("inf")

    best = minimise(loss, start)
    constants = _without_idle(_named(names, best), loss)
    error = np.abs(predict(device, points, constants) / points.seconds - 1.0)
    return FamilyFit(
        group=group_of(points),
        constants=constants,
        points=len(error),
        median_error=float(np.quantile(error, 0.5)),
        p90_error=float(np.quantile(error, 0.9)),
    )


def predict(device: PricedDevice, points: MeasuredPoints, constants: kernels.Constants) -> FloatArray:
    """Return the seconds that the formulas give for the points, with these constants on this device."""
    constants = {**kernels.ASSUMED[_family(points)], **constants}
    bandwidth, shape = float(device.memory_bytes_per_s), dict(points.shape)
    if points.op == "memory":
        return np.asarray(kernels.memory(constants, bandwidth, **shape))
    peak, width = _peak(device, points) or 0.0, dtype_bytes(points.dtype or "bf16")
    if points.op in {"gemm", "grouped_gemm"}:
        product = kernels.gemm if points.op == "gemm" else kernels.grouped_gemm
        return np.asarray(product(constants, peak, bandwidth, (width, width, 2.0), **shape))
    if points.op == MOE:
        hidden, intermediate = shape.pop("hidden"), shape.pop("intermediate")
        up, down = (2.0 * intermediate, hidden), (hidden, intermediate)
        parts = [
            kernels.grouped_gemm(constants, peak, bandwidth, (width, width, 2.0), n=n, k=k, **shape)
            for n, k in (up, down)
        ]
        return np.asarray(parts[0] + parts[1])
    attention = kernels.attention_prefill if points.op == "attention_prefill" else kernels.attention_decode
    shape.setdefault("shared_kv", np.zeros(1))
    return np.asarray(attention(constants, peak, bandwidth, (width, 2.0), **shape))


def group_of(points: MeasuredPoints) -> str:
    """Return the group of ``kernels:`` that these points fit, such as ``gemm_bf16``."""
    family = _family(points)
    return family if family == "memory" else f"{family}_{points.dtype or 'bf16'}"


def octave_weights(points: MeasuredPoints) -> FloatArray:
    """Return weights that sum to 1, equal for every octave of the operator's size.

    Products with n or k below 512 count a sixth: tables are full of them, models are not.
    """
    octave = np.rint(np.log2(points.shape[_SIZES[points.op]])).astype(np.int64)
    _, where, count = np.unique(octave, return_inverse=True, return_counts=True)
    weight = 1.0 / count[where]
    if points.op == "gemm":
        weight = weight * np.where((points.shape["n"] >= 512) & (points.shape["k"] >= 512), 1.0, 1.0 / 6.0)
    return np.asarray(weight / np.sum(weight))


def minimise(loss: Callable[[FloatArray], float], start: FloatArray, *, restarts: int = 6) -> FloatArray:
    """Return a local minimum of ``loss`` near ``start``, by the simplex search of Nelder and Mead.

    The search starts anew from its result, with a fresh simplex, until that gains less than 0.01 %.
    """
    best, value = start, loss(start)
    for step in (0.7, -0.5, 0.3, -0.3, 0.2, -0.2)[:restarts]:
        found, lower = _simplex(loss, best, step)
        gained, best, value = value - lower, found, lower
        if gained < 1e-4 * abs(value):
            break
    return best


def _simplex(loss: Callable[[FloatArray], float], start: FloatArray, step: float) -> tuple[FloatArray, float]:
    size = len(start)
    corners = [start, *(start + step * row for row in np.eye(size))]
    values = [loss(corner) for corner in corners]
    for _ in range(250 * size):
        order = sorted(range(size + 1), key=lambda i: values[i])
        corners, values = [corners[i] for i in order], [values[i] for i in order]
        if values[-1] - values[0] < 1e-7 * (abs(values[0]) + 1e-9):
            break
        centre = np.mean(corners[:-1], axis=0)
        away = centre - corners[-1]
        point, value = centre + away, loss(centre + away)
        if value < values[0]:  # expand
            further = loss(centre + 2.0 * away)
            point, value = (centre + 2.0 * away, further) if further < value else (point, value)
        elif value >= values[-2]:  # contract, outside or inside
            near = centre + (0.5 if value < values[-1] else -0.5) * away
            point, value = near, loss(near)
            if value >= values[-1]:  # shrink
                corners = [corners[0], *(corners[0] + 0.5 * (c - corners[0]) for c in corners[1:])]
                values = [values[0], *(loss(corner) for corner in corners[1:])]
                continue
        corners[-1], values[-1] = point, value
    lowest = min(range(size + 1), key=lambda i: values[i])
    return corners[lowest], values[lowest]


def has_peak(device: PricedDevice, points: MeasuredPoints) -> bool:
    """Whether a device has a peak for the format of some points."""
    return _peak(device, points) is not None


def _narrow(points: MeasuredPoints) -> bool:
    return dtype_bytes(points.dtype or "bf16") < 2.0


def _excess(names: Sequence[str], logs: FloatArray) -> float:
    """Return by how much constants exceed what is possible, to draw the search back from there."""
    limits = [np.log(_AT_MOST.get(name, np.inf)) for name in names]
    return float(np.sum(np.maximum(0.0, logs - np.array(limits))))


def _named(names: Sequence[str], logs: FloatArray) -> dict[str, float]:
    values = zip(names, np.exp(logs), strict=True)
    return {name: min(float(value), _AT_MOST.get(name, float("inf"))) for name, value in values}


def _without_idle(constants: dict[str, float], loss: Callable[[FloatArray], float]) -> dict[str, float]:
    """Round to three digits, and set to 0 each constant whose absence costs less than 0.1 % of the loss."""
    rounded = {name: float(f"{value:.3g}") for name, value in constants.items()}
    tiny = np.log(1e-30)

    def value(of: Mapping[str, float]) -> float:
        return loss(np.array([np.log(v) if v > 0 else tiny for v in of.values()]))

    for name in rounded:
        if name not in _NEVER_ZERO and value({**rounded, name: 0.0}) <= 1.001 * value(rounded):
            rounded[name] = 0.0
    return rounded


def _family(points: MeasuredPoints) -> str:
    if points.op == MOE:
        return "grouped_gemm"
    if points.op == "attention_decode" and np.any(points.shape.get("shared_kv", 0.0)):
        return "latent_decode"
    if points.op == "attention_decode" and np.all(points.shape["heads"] == points.shape["kv_heads"]):
        return "multihead_decode"
    return points.op


def _peak(device: PricedDevice, points: MeasuredPoints) -> float | None:
    dtype = points.dtype or "bf16"
    attention = points.op.startswith("attention") or points.op == "memory"
    return device.flops.get("bf16" if attention or dtype == "fp16" else dtype)
