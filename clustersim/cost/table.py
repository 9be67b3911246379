"""Measured points before the roofline: interpolated where there are any, the roofline scaled where there are none.

What is interpolated is the ratio of measured to roofline time, piecewise linearly over logarithmic axes; so between
points the roofline's shape is kept, and at a point the measurement is returned. Points of an operator form groups
of equal *fixed* keys, and within a group a nest of curves:

===================== =============================================== ======================================
operator              fixed                                           axes, outer first
===================== =============================================== ======================================
``gemm``              ``n k``                                         ``m``
``grouped_gemm``      ``experts n k``                                 ``active``, rows per active expert
``attention_prefill`` ``heads kv_heads qk_dim v_dim shared_kv``       ``queries``, pairs per query / queries
``attention_decode``  ``heads kv_heads qk_dim v_dim shared_kv``       ``batch``, keys per sequence
``memory``                                                            ``bytes``
===================== =============================================== ======================================

Outside the measured range the ratio at the edge is kept; without a group of these fixed keys, the ratio of the
nearest one of the same kind (decode attention over latents, with a head of K/V for each of the queries, or for
several). Both are counted in :attr:`TableCost.outside`. The axes are exponent + 2 · mantissa of a float (a logarithm
that is straight within an octave): exact arithmetic, so the promise of the roofline holds here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray
from clustersim.cost.curves import Curves, Ratios, curves_of, octaves
from clustersim.cost.points import MeasuredPoints, read_points
from clustersim.cost.protocol import Shape
from clustersim.cost.roofline import RooflineCost, decode_family, shape_numbers
from clustersim.errors import InputError, Problem

__all__ = ["LeastCost", "TableCost", "read_points"]

_ATTENTION: Final = ("heads", "kv_heads", "qk_dim", "v_dim", "shared_kv")
FIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "gemm": ("n", "k"),
    "grouped_gemm": ("experts", "n", "k"),
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    "memory": (),
}
FEW: Final = 16
"""Durations asked for at once up to which plain numbers are faster than arrays."""
_Axes = Callable[[Mapping[str, FloatArray]], tuple[FloatArray, FloatArray]]
AXES: Final[Mapping[str, _Axes]] = {
    "gemm": lambda s: (np.ones_like(s["m"]), s["m"]),
    "grouped_gemm": lambda s: (s["active"], s["rows"] / s["active"]),
    "attention_prefill": lambda s: (s["queries"], (2.0 * s["pairs"] / s["queries"] - 1.0) / s["queries"]),
    "attention_decode": lambda s: (s["batch"], s["keys"] / s["batch"]),
    "memory": lambda s: (np.ones_like(s["bytes"]), s["bytes"]),
}


class TableCost:
    """Durations of operators from measured points, and from a roofline where there are none.

    Parameters
    ----------
    points : sequence of MeasuredPoints
        Measurements on the device and at the precision of ``fallback``; those that name another format are not
        used. Operators without points cost what the fallback says.
    fallback : RooflineCost
        The roofline.
    grids : sequence of MeasuredPoints
        The same of the device's own file, for operators of which ``points`` has none.

    Attributes
    ----------
    outside : dict of str to int
        Per operator of ``points``: how many of the durations asked for so far lay outside them.

    Raises
    ------
    InputError
        When no point is of a format of the fallback's precision.
    """

    def __init__(
        self, points: Sequence[MeasuredPoints], fallback: RooflineCost, grids: Sequence[MeasuredPoints] = ()
    ) -> None:
        self.fallback, self.points = fallback, points
        wanted = [own for own in points if own.dtype in {None, _dtype(fallback, own.op)}]
        if points and not wanted:
            found = ", ".join(dict.fromkeys(f"{own.op} in {own.dtype}" for own in points)) or "nothing"
            formats = ", ".join(f"{op} in {_dtype(fallback, op)}" for op in FIXED)
            raise InputError(Problem(message=f"no point of the table can be used: it has {found}; expected {formats}"))
        self.outside = dict.fromkeys((own.op for own in wanted), 0)
        wanted += [own for own in grids if own.op not in self.outside]
        self._groups: dict[str, dict[tuple[float, ...], Curves]] = {}
        for op in dict.fromkeys(own.op for own in wanted):
            same = [own for own in wanted if own.op == op]
            shape = {key: np.concatenate([own.shape[key] for own in same]) for key in same[0].shape}
            self._groups[op] = self._group(op, shape, np.concatenate([own.seconds for own in same]) * fallback.times)
        self._of_formats: dict[str, TableCost] = {}
        self._along: dict[tuple[str, tuple[float, ...]], Ratios] = {}
        self._neighbours: dict[tuple[str, tuple[float, ...]], tuple[float, ...] | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: curves in plain numbers it makes itself."""
        return {**self.__dict__, "_along": {}}

    def in_format(self, weights: str) -> TableCost:
        """Return what prices operators whose weights are in this format; what lies outside is counted here."""
        from clustersim.cost.grid import measured_by  # it reads points with what is here

        if weights == self.fallback.precision.weights:
            return self
        if weights not in self._of_formats:
            of_format = self.fallback.in_format(weights)
            own = [one for one in self.points if one.dtype in {None, _dtype(of_format, one.op)}]
            made = TableCost(own, of_format, measured_by(of_format))
            if made.outside.keys() == self.outside.keys():
                made.outside = self.outside
            self._of_formats[weights] = made
        return self._of_formats[weights]

    def seconds(self, op: str, shape: Shape) -> FloatArray:
        """Return the device time of ``op`` in seconds; see :meth:`RooflineCost.seconds`."""
        base = self.fallback.seconds(op, shape)
        if op not in self._groups:
            return base
        numbers = shape_numbers(op, shape)
        flat = {key: np.broadcast_to(values, base.shape).ravel() for key, values in numbers.items()}
        if base.size <= FEW:
            return base * self._few(op, numbers, flat).reshape(base.shape)
        ratio, outside = np.ones(base.size), np.zeros(base.size, dtype=np.bool_)
        for keys, chosen in _by_fixed_keys(op, numbers, flat):
            outer, inner = (octaves(axis) for axis in AXES[op]({key: flat[key][chosen] for key in flat}))
            group, known = self._nearest(op, keys)
            if group is None:
                outside[chosen] = True
                continue
            ratio[chosen], beyond = group.ratios(outer, inner)
            outside[chosen] = beyond | (not known)
        if op in self.outside:
            self.outside[op] += int(np.count_nonzero(outside))
        return np.asarray(base * ratio.reshape(base.shape))

    def _few(self, op: str, numbers: Mapping[str, Any], flat: Mapping[str, FloatArray]) -> FloatArray:
        """Return measured / roofline of a few shapes, one at a time: arrays take much longer than the arithmetic."""
        ratio = np.ones(len(next(iter(flat.values()))))
        for keys, chosen in _by_fixed_keys(op, numbers, flat):
            along = self.along(op, keys)
            for place in np.flatnonzero(chosen).tolist():
                outer, inner = AXES[op]({key: values[place] for key, values in flat.items()})
                ratio[place] = along(float(outer))(float(inner))
        return ratio

    def along(self, op: str, keys: tuple[float, ...]) -> Ratios:
        """Return measured / roofline at fixed keys in plain numbers; what lies outside the points is counted.

        Parameters
        ----------
        op : str
            One that is measured.
        keys : tuple of float
            Its ``FIXED`` parts.
        """
        found = self._along.get((op, keys))
        if found is None:
            group, known = self._nearest(op, keys)
            count = partial(self.count_outside, op, 1) if op in self.outside else _nothing
            self._along[op, keys] = found = _counted(count) if group is None else group.plain(count, known=known)
        return found

    def count_outside(self, op: str, many: int) -> None:
        """Count durations that lay outside the measured points of a table."""
        if op in self.outside:
            self.outside[op] += many

    def curves(self, op: str, shape: Shape) -> tuple[Curves | None, bool]:
        """Return the curves that scale the roofline at fixed keys, None where nothing does, and if they are theirs.

        Parameters
        ----------
        op : str
        shape : mapping
            Has the fixed keys of the operator, as numbers.
        """
        return self._nearest(op, fixed_keys(op, shape)) if op in self._groups else (None, True)

    def _group(self, op: str, shape: Mapping[str, FloatArray], seconds: FloatArray) -> dict[tuple[float, ...], Curves]:
        ratio = seconds / self.fallback.seconds(op, shape)
        outer, inner = (octaves(axis) for axis in AXES[op](shape))
        found: dict[tuple[float, ...], list[tuple[float, float, float]]] = {}
        for index in range(len(seconds)):
            keys = tuple(float(shape[key][index]) for key in FIXED[op])
            found.setdefault(keys, []).append((float(outer[index]), float(inner[index]), float(ratio[index])))
        return {keys: curves_of(rows) for keys, rows in found.items()}

    def _nearest(self, op: str, keys: tuple[float, ...]) -> tuple[Curves | None, bool]:
        """Return the curves of these fixed keys, or of the nearest (octaves away, summed), and which it is."""
        groups = self._groups[op]
        if keys in groups:
            return groups[keys], True
        if (op, keys) not in self._neighbours:
            self._neighbours[op, keys] = nearest_shape(op, keys, groups)
        nearest = self._neighbours[op, keys]
        return None if nearest is None else groups[nearest], False


def _dtype(cost: RooflineCost, op: str) -> str:
    """Return the format of the points of an operator that can be used."""
    if op in {"gemm", "grouped_gemm"}:
        return cost.multiply_dtype
    return cost.precision.activations if op == "memory" else cost.precision.kv_cache


def fixed_keys(op: str, shape: Shape) -> tuple[float, ...]:
    """Return the fixed keys of a shape that has them as numbers."""
    return tuple(float(shape[key]) for key in FIXED[op])


def _nothing() -> None:
    pass


def _counted(count: Callable[[], None]) -> Ratios:
    """Return ratios of 1, each of which is counted."""

    def ratio(inner: float) -> float:
        del inner
        count()
        return 1.0

    return lambda outer: ratio


def nearest_shape(op: str, keys: tuple[float, ...], others: Iterable[tuple[float, ...]]) -> tuple[float, ...] | None:
    """Return which fixed keys are fewest octaves away, summed, among those of the same kind; None where none is."""
    here = octaves(keys).tolist()
    alike = [other for other in others if _kind(op, other) == _kind(op, keys)]
    away = {other: _distance(here, octaves(other).tolist()) for other in alike}
    return min(alike, key=lambda other: (away[other], other), default=None)


def _kind(op: str, keys: tuple[float, ...]) -> str:
    """Return what kernels differ by at heart: one kind tells nothing of another."""
    return decode_family(keys[0], keys[1], keys[4]) if op == "attention_decode" else op


class LeastCost:
    """What operators cost at least where points were measured: the roofline, at the least ratio of their shape.

    Between points and beyond them the ratio is none that was not measured around there, so this lies nowhere above; as
    the roofline it never falls with more work, and it is convex where that is.

    Parameters
    ----------
    table : TableCost
    """

    def __init__(self, table: TableCost) -> None:
        self._table = table

    def in_format(self, weights: str) -> LeastCost:
        """Return the same of operators whose weights are in this format."""
        return LeastCost(self._table.in_format(weights))

    def seconds(self, op: str, shape: Shape) -> FloatArray:
        """Return the least device time of ``op`` in seconds; the fixed keys of ``shape`` are single numbers."""
        curves, _ = self._table.curves(op, shape)
        least = 1.0 if curves is None else min(1.0, float(curves.ratio.min()))
        return np.asarray(self._table.fallback.seconds(op, shape) * least)


def _by_fixed_keys(
    op: str, numbers: Mapping[str, Any], flat: Mapping[str, FloatArray]
) -> Iterator[tuple[tuple[float, ...], npt.NDArray[np.bool_]]]:
    """Yield each combination of fixed keys and where it occurs with some work to do."""
    work = np.ones(len(next(iter(flat.values()))), dtype=np.bool_)
    for key in flat:
        if key not in FIXED[op]:
            work &= flat[key] > 0.0
    fixed = [numbers[key] for key in FIXED[op]]
    if all(np.ndim(values) == 0 for values in fixed):
        yield tuple(float(values) for values in fixed), work
        return
    rows = np.stack([flat[key] for key in FIXED[op]], axis=1)
    for keys in dict.fromkeys(map(tuple, rows.tolist())):
        yield keys, np.all(np.equal(rows, keys), axis=1) & work


def _distance(here: Sequence[float], there: Sequence[float]) -> float:
    return math.fsum(abs(a - b) for a, b in zip(here, there, strict=True))
