"""The fewest measured points between which all others of a group lie: what a device's file keeps as its ``grid``.

Points are taken in one after another, the one that is farthest off first (Ramer 1972; Douglas and Peucker 1973), until
none along a curve is off by more than asked; so are curves, until nine tenths of the points of each that is left out
are near enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cost.curves import curves_of, octaves
from clustersim.cost.fit import MOE, predict
from clustersim.cost.points import MeasuredPoints
from clustersim.cost.roofline import PricedDevice
from clustersim.cost.table import AXES, FIXED, nearest_shape
from clustersim.values import dataclass

Fixed = tuple[float, ...]
Curve = dict[float, tuple[float, float]]
"""Inner axis → measured over predicted, and seconds."""
Shape = dict[float, Curve]
"""Outer axis → curve."""
ABOVE: Final = 0.08
"""Median error of a fit from which on its group gets a grid."""
TOLERANCE: Final = {"attention_prefill": 0.2}
"""Relative error of points that are left out, by operator (0.1 of all others): prompts were measured at thousands."""
HELD_OUT: Final = 5
COLUMNS: Final = 112
NEAR: Final = 0.9
"""Share of the points of a curve that must be near enough for it to be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFit:
    """Points that are kept, and how well others are told by them.

    Parameters
    ----------
    text : str
        As :func:`~clustersim.cost.grid.read_grid` reads it.
    median_error, p90_error : float
        Quantiles of abs(interpolated / measured − 1), over all points.
    held_out : float or None
        The median over every fifth shape, from a grid of the others; None where there are fewer than five.
    """

    text: str
    median_error: float
    p90_error: float
    held_out: float | None


def fit_grid(device: PricedDevice, points: MeasuredPoints, constants: Mapping[str, float]) -> GridFit:
    """Choose the points of one group that a device's file keeps.

    Parameters
    ----------
    device : PricedDevice
    points : MeasuredPoints
        Of one group.
    constants : mapping
        Of the group.
    """
    if points.op == MOE:
        points = _products(device, points, constants)
    op, shapes = points.op, _shapes(device, points, constants)
    kept = _told(shapes, op)
    error = _errors(op, kept, shapes)
    return GridFit(
        text=_text(op, kept),
        median_error=float(np.quantile(error, 0.5)),
        p90_error=float(np.quantile(error, 0.9)),
        held_out=_held_out(op, shapes) if len(shapes) >= HELD_OUT else None,
    )


def _held_out(op: str, shapes: Mapping[Fixed, Shape]) -> float:
    held = [fixed for number, fixed in enumerate(sorted(shapes)) if number % HELD_OUT == 0]
    others = _told({fixed: shape for fixed, shape in shapes.items() if fixed not in held}, op)
    return float(np.quantile(_errors(op, others, {fixed: shapes[fixed] for fixed in held}), 0.5))


def _text(op: str, shapes: Mapping[Fixed, Shape]) -> str:
    lines = []
    for fixed, shape in shapes.items():
        lines += [" ".join(f"{name} {value:.6g}" for name, value in zip(FIXED[op], fixed, strict=True))]
        words = []
        for outer, curve in sorted(shape.items()):
            words += [f"{outer:.6g}:"]
            words += [f"{inner:.6g}={seconds * 1e6:.3g}" for inner, (_, seconds) in sorted(curve.items())]
        lines += wrap(" ".join(words), COLUMNS)
    return "\n".join(filter(None, lines))


def _errors(op: str, kept: Mapping[Fixed, Shape], shapes: Mapping[Fixed, Shape]) -> FloatArray:
    """Return the errors of all points of these shapes by the shapes that are kept."""
    found = []
    for fixed, shape in shapes.items():
        nearest = fixed if fixed in kept else nearest_shape(op, fixed, kept)
        if nearest is not None:
            found.append(_shape_errors(kept[nearest], shape))
    return np.concatenate(found)


def _told(shapes: Mapping[Fixed, Shape], op: str) -> dict[Fixed, Shape]:
    """Return the thinned curves of the shapes that the nearest of the others does not tell, in their order."""
    tolerance = TOLERANCE.get(op, 0.1)
    kept: dict[Fixed, Shape] = {}
    for fixed in sorted(shapes, key=lambda each: (-sum(map(len, shapes[each].values())), each)):
        nearest = nearest_shape(op, fixed, kept)
        if nearest is None or np.quantile(_shape_errors(kept[nearest], shapes[fixed]), NEAR) > tolerance:
            kept[fixed] = _thinned(shapes[fixed], tolerance)
    return {fixed: kept[fixed] for fixed in shapes if fixed in kept}


def _shape_errors(near: Shape, shape: Shape) -> FloatArray:
    """Return how far off the points of a shape are by the curves of another, or by its own."""
    kept, rows = (
        np.array([(outer, inner, one[0]) for outer, curve in each.items() for inner, one in curve.items()])
        for each in (near, shape)
    )
    kept[:, :2] = octaves(kept[:, :2])
    told, _ = curves_of([tuple(row) for row in kept.tolist()]).ratios(*octaves(rows[:, :2]).T)
    found: FloatArray = np.abs(told / rows[:, 2] - 1.0)
    return found


def _thinned(curves: Shape, tolerance: float) -> Shape:
    thin = {outer: _thin(curve, tolerance) for outer, curve in curves.items()}
    outers = sorted(curves)

    def off(low: int, high: int, at: int) -> float:
        places = [outers[number] for number in (low, high, at)]
        return _curve_off(thin[places[0]], thin[places[1]], curves[places[2]], places)

    return {outers[number]: thin[outers[number]] for number in _chosen(len(outers), off, tolerance)}


def _products(device: PricedDevice, points: MeasuredPoints, constants: Mapping[str, float]) -> MeasuredPoints:
    """Return the two grouped products of measured MoE modules, each with the share of its formula."""
    shape = dict(points.shape)
    hidden, intermediate = shape.pop("hidden"), shape.pop("intermediate")
    ratio = points.seconds / predict(device, points, constants)
    sides = ((2.0 * intermediate, hidden), (hidden, intermediate))
    each = {name: np.concatenate((values, values)) for name, values in shape.items()}
    each |= {"n": np.concatenate([n for n, _ in sides]), "k": np.concatenate([k for _, k in sides])}
    found = replace(points, op="grouped_gemm", shape=each, seconds=np.ones(2 * len(ratio)))
    return replace(found, seconds=predict(device, found, constants) * np.concatenate((ratio, ratio)))


def _shapes(device: PricedDevice, points: MeasuredPoints, constants: Mapping[str, float]) -> dict[Fixed, Shape]:
    """Return all curves by the fixed parts of the shape, and by the outer axis."""
    outer, inner = AXES[points.op](points.shape)
    predicted = predict(device, points, constants)
    gathered: dict[Fixed, dict[float, dict[float, list[tuple[float, float]]]]] = {}
    for at, seconds in enumerate(points.seconds.tolist()):
        fixed = tuple(float(points.shape[name][at]) for name in FIXED[points.op])
        curve = gathered.setdefault(fixed, {}).setdefault(float(outer[at]), {})
        curve.setdefault(float(f"{inner[at]:.6g}"), []).append((seconds / float(predicted[at]), seconds))
    return {
        fixed: {
            each: {at: tuple(np.mean(values, axis=0).tolist()) for at, values in sorted(curve.items())}
            for each, curve in curves.items()
        }
        for fixed, curves in gathered.items()
    }


def _thin(curve: Curve, tolerance: float) -> Curve:
    places = sorted(curve)

    def off(low: int, high: int, at: int) -> float:
        chosen = {places[i]: curve[places[i]] for i in (low, high)}
        return abs(float(_along(chosen, [places[at]])[0]) / curve[places[at]][0] - 1.0)

    return {places[number]: curve[places[number]] for number in _chosen(len(places), off, tolerance)}


def _chosen(count: int, off: Callable[[int, int, int], float], tolerance: float) -> list[int]:
    """Return which of a row to keep so that none between two of them is ``off`` by more than the tolerance."""
    kept = sorted({0, count - 1})
    pending = [(0, count - 1)]
    while pending:
        low, high = pending.pop()
        worst = max(((off(low, high, at), at) for at in range(low + 1, high)), default=(0.0, 0))
        if worst[0] > tolerance:
            kept.append(worst[1])
            pending += [(low, worst[1]), (worst[1], high)]
    return sorted(kept)


def _curve_off(low: Curve, high: Curve, curve: Curve, outers: Sequence[float]) -> float:
    """Return how far off a curve is, at most of its points, between two others at these places of the outer axis."""
    places = list(curve)
    start, end, here = octaves(outers).tolist()
    share = (here - start) / (end - start)
    between = (1.0 - share) * _along(low, places) + share * _along(high, places)
    return float(np.quantile(np.abs(between / [ratio for ratio, _ in curve.values()] - 1.0), NEAR))


def _along(curve: Curve, places: Sequence[float]) -> FloatArray:
    return np.interp(octaves(places), octaves(list(curve)), [ratio for ratio, _ in curve.values()])
