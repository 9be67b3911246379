"""Seconds of kernels on a device: rooflines with the constants of its file, and measured points before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cost.kernels import ASSUMED
from clustersim.legality.formats import BYTES, bytes_of
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.legality.prices.grids import points_of

Shape = Mapping[str, Any]
"""Part of the shape → number, or an array over steps."""

_HEADS: Final = ("heads", "kv_heads", "qk_dim", "v_dim", "shared_kv")
FIXED: Final = {
    "gemm": ("n", "k"),
    "grouped_gemm": ("experts", "n", "k"),
    "attention_prefill": _HEADS,
    "attention_decode": _HEADS,
    "memory": (),
}
"""Operator → the parts of its shape that measured points are grouped by."""
AXES: Final[Mapping[str, Callable[[Shape], tuple[Any, Any]]]] = {
    "gemm": lambda s: (np.ones_like(s["m"]), s["m"]),
    "grouped_gemm": lambda s: (s["active"], s["rows"] / s["active"]),
    "attention_prefill": lambda s: (s["queries"], (2.0 * s["pairs"] / s["queries"] - 1.0) / s["queries"]),
    "attention_decode": lambda s: (s["batch"], s["keys"] / s["batch"]),
    "memory": lambda s: (np.ones_like(s["bytes"]), s["bytes"]),
}
"""Operator → the outer and the inner axis between whose points is interpolated."""
Curve = tuple[float, FloatArray, FloatArray]
"""Outer axis; inner axis, ascending; measured over roofline."""


class Kernels:
    """Seconds of the kernels of one kind of device on weights of one format, without the gap before them.

    Parameters
    ----------
    deployment : PricedDeployment
    """

    def __init__(self, deployment: PricedDeployment) -> None:
        self.device, precision = deployment.topology.device, deployment.precision
        self.multiplied_in = deployment.multiplied_in
        self.kv_format, self.act_format = precision.kv_cache, precision.activations
        self.weight, self.operand = bytes_of(precision.weights), BYTES[self.multiplied_in]
        self.act, self.kv = BYTES[precision.activations], BYTES[precision.kv_cache]
        self.bandwidth = float(self.device.memory_bytes_per_s)
        self.sections = dict(self.device.kernels)
        grids = dict(self.device.grids)
        engines = [name for name in (deployment.engine.kernels, deployment.engine.name) if name]
        for section in [part for name in engines for part in (name.split("-")[0], name)]:
            own = self.device.engine_kernels.get(section, {})
            self.sections |= own
            grids = {name: text for name, text in grids.items() if name not in own}
            grids |= self.device.engine_grids.get(section, {})
        self.times = deployment.engine.kernel_time
        self.narrows = deployment.engine.quantisation == "own_kernel"
        self.groups: dict[str, dict[tuple[float, ...], list[Curve]]] = {}
        told = [one for one in deployment.points if one.device in (None, self.device.name)]
        points = [one for one in told if one.dtype in (None, self._format(one.op))]
        listed = [(one.op, one.shape, one.seconds) for one in points]
        listed += [one for one in self._gridded(grids) if one[0] not in {op for op, _, _ in listed}]
        for op in dict.fromkeys(op for op, _, _ in listed):
            self.groups[op] = self._curves(op, [(shape, seconds) for of, shape, seconds in listed if of == op])

    def _gridded(self, grids: Mapping[str, str]) -> list[tuple[str, Shape, FloatArray]]:
        """Return the points of the device's file at the formats of this deployment."""
        found: list[tuple[str, Shape, FloatArray]] = []
        for family in ASSUMED:
            number_format = self.multiplied_in if family in ("gemm", "grouped_gemm") else self.kv_format
            for name in {f"{family}_{number_format}", family} & grids.keys():
                op = "attention_decode" if family in ("multihead_decode", "latent_decode") else family
                found.append((op, *points_of(grids[name], op, FIXED[op])))
        return found

    def seconds(self, op: str, shape: Shape) -> FloatArray:
        """Return what a kernel takes at each step; nothing where an operator is told as one of another shape."""
        try:
            base = np.asarray(getattr(self, f"_{op}")(shape), np.float64)
        except KeyError:
            return np.zeros(np.broadcast_shapes(*(np.shape(value) for value in shape.values())))
        if op not in self.groups:
            return base * self.times
        varying = {name: np.broadcast_to(v, base.shape) for name, v in shape.items() if name not in FIXED[op]}
        works = np.all([values > 0 for values in varying.values()], axis=0)
        some = {name: values[works] for name, values in varying.items()}
        outer, inner = (octaves(axis) for axis in AXES[op](some))
        found = base.copy()
        nearest = self._nearest(op, tuple(float(shape[name]) for name in FIXED[op]))
        if nearest:
            found[works] *= _between(nearest, outer, inner)
        return found * self.times

    def _constants(self, family: str, number_format: str) -> Mapping[str, float]:
        groups = (family, "attention_decode") if family == "multihead_decode" else (family,)
        tried = (name for group in groups for name in (f"{group}_{number_format}", f"{group}_bf16", group))
        named = [name for name in tried if name in self.sections]
        return {**ASSUMED[family], **(self.sections[named[0]] if named else {})}

    def _decode_constants(self, shape: Shape) -> Mapping[str, float]:
        if shape["shared_kv"]:
            return self._constants("latent_decode", self.kv_format)
        each = shape["heads"] == shape["kv_heads"]
        return self._constants("multihead_decode" if each else "attention_decode", self.kv_format)

    def _format(self, op: str) -> str:
        return {"gemm": self.multiplied_in, "grouped_gemm": self.multiplied_in, "memory": self.act_format}.get(
            op, self.kv_format
        )

    def _peak(self, number_format: str) -> float:
        same = ("bf16", "fp16") if number_format in ("bf16", "fp16") else ()
        return next(float(self.device.flops[one]) for one in (number_format, *same) if one in self.device.flops)

    def _gemm(self, s: Shape) -> Any:
        c, m, n, k = self._constants("gemm", self.multiplied_in), s["m"], s["n"], s["k"]
        compute = 2.0 * m * n * (k + c["ramp_k"]) / (self._peak(self.multiplied_in) * c["compute"])
        moved = (k * n * self.weight + m * k * self.operand + m * n * self.act) / (self.bandwidth * c["memory"])
        along_k = c["latency_s"] * k / (k + c["latency_k"])
        narrowed = m * k * c["quantise_bytes"] / self.bandwidth if self.narrows else 0.0
        return c["floor_s"] + np.where(m > 0, along_k + narrowed + _hypotenuse(compute, moved), 0.0)

    def _grouped_gemm(self, s: Shape) -> Any:
        c, rows, n, k = self._constants("grouped_gemm", self.multiplied_in), s["rows"], s["n"], s["k"]
        active = np.minimum(np.minimum(s["active"], s["experts"]), rows)
        padded = rows + active * c["ramp_rows"]
        compute = 2.0 * padded * n * (k + c["ramp_k"]) / (self._peak(self.multiplied_in) * c["compute"])
        bytes_moved = active * k * n * self.weight + rows * k * self.operand + rows * n * self.act
        return c["floor_s"] + _hypotenuse(compute, bytes_moved / (self.bandwidth * c["memory"]))

    def _attention_prefill(self, s: Shape) -> Any:
        c = self._constants("attention_prefill", self.kv_format)
        dims = s["qk_dim"] + s["v_dim"]
        pairs = s["pairs"] + s["queries"] * c["ramp_keys"]
        compute = 2.0 * pairs * s["heads"] * (dims + c["softmax_dims"]) / (self._peak("bf16") * c["compute"])
        moved = s["keys"] * self._entry(s) + s["queries"] * s["heads"] * dims * self.act
        alone = c["serial_s"] * np.sqrt(s["pairs"]) + c["key_s"] * s["keys"]
        return c["floor_s"] + _hypotenuse(compute + moved / (self.bandwidth * c["memory"]), alone)

    def _attention_decode(self, s: Shape) -> Any:
        c = self._decode_constants(s)
        dims, blocks = s["qk_dim"] + s["v_dim"], s["batch"] * s["kv_heads"]
        compute = 2.0 * s["keys"] * s["heads"] * dims / (self._peak("bf16") * c["compute"])
        moved = s["keys"] * self._entry(s) + s["batch"] * s["heads"] * dims * self.act
        reading = _hypotenuse(moved / (self.bandwidth * c["memory"]), blocks * c["hidden_head_s"])
        return c["floor_s"] + blocks * c["head_s"] + _hypotenuse(compute, reading)

    def keys_attended(self, shape: Shape, batch: FloatArray, seconds: FloatArray) -> FloatArray:
        """Return the keys with which decode attention takes so long: :meth:`_attention_decode` the other way round.

        −∞ where no keys take as little; NaN where points were measured, which have no inverse.
        """
        c = self._decode_constants(shape)
        dims, blocks = shape["qk_dim"] + shape["v_dim"], batch * shape["kv_heads"]
        rate = self.bandwidth * c["memory"]
        flops = 2.0 * shape["heads"] * dims / (self._peak("bf16") * c["compute"])
        read, ends = self._entry(shape) / rate, batch * shape["heads"] * dims * self.act / rate
        busy = seconds / self.times - c["floor_s"] - blocks * c["head_s"]
        beside = np.square(busy) - np.square(blocks * c["hidden_head_s"])
        square = flops * flops + read * read
        room = np.square(read * ends) + square * (beside - np.square(ends))
        root = np.sqrt(np.maximum(room, 0.0))
        found: FloatArray = np.where((busy > 0) & (room >= 0), (root - read * ends) / square, -np.inf)
        return np.full_like(found, np.nan) if "attention_decode" in self.groups else found

    def _entry(self, s: Shape) -> float:
        """Return the bytes of one cached key, and its value where that is not the same."""
        width = s["qk_dim"] if s["shared_kv"] else s["qk_dim"] + s["v_dim"]
        return float(s["kv_heads"] * width * self.kv)

    def _memory(self, s: Shape) -> Any:
        c = self._constants("memory", self.kv_format)
        near = np.minimum(s["bytes"], c["cache_bytes"])
        far = s["bytes"] - near
        return c["floor_s"] + (near / c["cached"] + far / c["memory"]) / self.bandwidth

    def _curves(self, op: str, points: list[tuple[Shape, FloatArray]]) -> dict[tuple[float, ...], list[Curve]]:
        """Return, by fixed parts of the shape, curves of measured over roofline."""
        ratios: dict[tuple[float, ...], dict[float, dict[float, list[float]]]] = {}
        for shape, seconds in points:
            for at, took in enumerate(seconds.tolist()):
                one = {name: float(values[at]) for name, values in shape.items()}
                outer, inner = (float(octaves(axis)) for axis in AXES[op](one))
                ratio = took / float(getattr(self, f"_{op}")(one))
                of_shape = ratios.setdefault(tuple(one[name] for name in FIXED[op]), {})
                of_shape.setdefault(outer, {}).setdefault(inner, []).append(ratio)
        return {
            fixed: [
                (outer, np.array(sorted(curve)), np.array([np.mean(curve[at]) for at in sorted(curve)]))
                for outer, curve in sorted(by_outer.items())
            ]
            for fixed, by_outer in ratios.items()
        }

    def _nearest(self, op: str, fixed: tuple[float, ...]) -> list[Curve]:
        """Return the curves of a shape, or of the one that is fewest octaves away; none where none is of its kind."""
        here = octaves(fixed)
        groups = {other: curves for other, curves in self.groups[op].items() if _kind(op, other) == _kind(op, fixed)}
        if not groups:
            return []
        return groups[min(groups, key=lambda other: (float(np.abs(octaves(other) - here).sum()), other))]


def _kind(op: str, fixed: tuple[float, ...]) -> tuple[bool, bool]:
    """Return whether decode attention is over latents, and has a head of K/V for each of the queries."""
    if op != "attention_decode":
        return False, False
    heads, kv_heads, _, _, shared = fixed
    return shared > 0, heads == kv_heads and not shared


def _hypotenuse(a: Any, b: Any) -> Any:
    """Return √(a² + b²): numpy's own way takes three times as long, and differs in the last bit between machines."""
    return np.sqrt(a * a + b * b)


def octaves(values: Any) -> FloatArray:
    """Return exponent + 2 · mantissa − 2: a logarithm to base 2 that is straight between powers of 2."""
    mantissa, exponent = np.frexp(np.maximum(np.asarray(values, np.float64), 2.0**-60))
    return np.asarray(exponent - 2.0 + 2.0 * mantissa)


def _between(curves: list[Curve], outer: FloatArray, inner: FloatArray) -> FloatArray:
    """Interpolate along each curve, and between the two that lie around; at the edges they go on level."""
    places = np.array([curve[0] for curve in curves])
    along = np.array([np.interp(inner, xs, ratios) for _, xs, ratios in curves])
    above = np.clip(np.searchsorted(places, outer), 1, max(1, len(curves) - 1))
    low, high = above - 1, np.minimum(above, len(curves) - 1)
    each = np.arange(len(outer))
    width = places[high] - places[low]
    share = np.where(width > 0, np.clip((outer - places[low]) / np.where(width > 0, width, 1.0), 0.0, 1.0), 0.0)
    found: FloatArray = along[low, each] * (1.0 - share) + along[high, each] * share
    return found
