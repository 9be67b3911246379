"""The roofline cost model: per operator family a floor, and the larger of compute and memory time.

Each family has a few constants, fitted per device and number format; they are in the section ``kernels:`` of the device's
file, named ``<family>_<format>`` or ``<family>``. A device without measurements uses assumed values and says so there.

Promise: the same bytes on any machine. See :mod:`clustersim.cost.kernels` for how.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cost import kernels
from clustersim.cost.precision import Precision
from clustersim.cost.protocol import OPTIONAL_KEYS, SHAPE_KEYS, Shape
from clustersim.errors import InputError, Problem, did_you_mean


class PricedDevice(Protocol):
    """What the cost model needs to know of a device (``clustersim.cluster.Device`` has it)."""

    @property
    def name(self) -> str: ...
    @property
    def memory_bytes_per_s(self) -> float: ...
    @property
    def flops(self) -> Mapping[str, float]: ...
    @property
    def kernels(self) -> Mapping[str, Mapping[str, float]]: ...


class RooflineCost:
    """Durations of operators on one device at one precision.

    Parameters
    ----------
    device : PricedDevice
        Peaks, bandwidth and fitted constants.
    precision : Precision
        Number formats.

    Raises
    ------
    InputError
        When the device has no peak for the format in which it must multiply, or a section of ``kernels`` holds an
        unknown or impossible constant.
    """

    def __init__(self, device: PricedDevice, precision: Precision) -> None:
        self.device = device
        self.precision = precision
        self.multiply_dtype = precision.multiply_dtype(device.flops)
        attention_dtype = precision.activations if precision.activations in device.flops else "bf16"
        self._peak = _peak(device, self.multiply_dtype)
        self._attention_peak = _peak(device, attention_dtype)
        self._constants = {
            "gemm": _constants(device, "gemm", self.multiply_dtype),
            "grouped_gemm": _constants(device, "grouped_gemm", self.multiply_dtype),
            "attention_prefill": _constants(device, "attention_prefill", precision.kv_cache),
            "attention_decode": _constants(device, "attention_decode", precision.kv_cache),
            "memory": _constants(device, "memory", precision.activations),
        }

    def seconds(self, op: str, shape: Shape) -> FloatArray:
        """Return the device time of ``op`` in seconds.

        Parameters
        ----------
        op : str
            An operator of :mod:`clustersim.cost.protocol`.
        shape : mapping
            Its shape keys; floats or arrays that broadcast.

        Returns
        -------
        ndarray
            Seconds, 0-d when every value of ``shape`` is a scalar. No work costs 0.

        Raises
        ------
        InputError
            When the operator or a shape key is unknown or missing.
        """
        numbers = _numbers(op, shape)
        constants = self._constants[op]
        bandwidth = float(self.device.memory_bytes_per_s)
        p = self.precision
        if op == "memory":
            return np.asarray(kernels.memory(constants, bandwidth, **numbers))
        if op in {"gemm", "grouped_gemm"}:
            formula = kernels.gemm if op == "gemm" else kernels.grouped_gemm
            from_dtype = self.multiply_dtype
            operand_bytes = Precision(activations=from_dtype).activation_bytes
            return np.asarray(formula(constants, self._peak, bandwidth, p.weight_bytes, operand_bytes, **numbers))
        attention = kernels.attention_prefill if op == "attention_prefill" else kernels.attention_decode
        return np.asarray(
            attention(constants, self._attention_peak, bandwidth, p.kv_bytes, p.activation_bytes, **numbers)
        )


def _numbers(op: str, shape: Shape) -> dict[str, kernels.Number]:
    if op not in SHAPE_KEYS:
        raise InputError(Problem(message=f"unknown operator {op!r}{did_you_mean(op, list(SHAPE_KEYS))}"))
    optional = OPTIONAL_KEYS.get(op, {})
    found = dict(optional) | dict(shape)
    if len(found) != len(SHAPE_KEYS[op]) + len(optional) or any(key not in found for key in SHAPE_KEYS[op]):
        wanted = ", ".join((*SHAPE_KEYS[op], *(f"[{key}]" for key in optional)))
        raise InputError(Problem(message=f"operator {op!r} has the shape keys {wanted}; found {', '.join(shape)}"))
    if any(isinstance(value, np.ndarray) and value.ndim for value in found.values()):
        return {key: np.asarray(value, dtype=np.float64) for key, value in found.items()}
    return {key: float(value) for key, value in found.items()}


def _peak(device: PricedDevice, dtype: str) -> float:
    if dtype not in device.flops:
        message = f"{device.name} has no peak for {dtype!r}{did_you_mean(dtype, list(device.flops))}"
        raise InputError(Problem(message=message, path="precision"))
    return float(device.flops[dtype])


def _constants(device: PricedDevice, family: str, dtype: str) -> kernels.Constants:
    section = f"{family}_{dtype}" if f"{family}_{dtype}" in device.kernels else family
    given = device.kernels.get(section, {})
    known = kernels.ASSUMED[family]
    problems = [
        Problem(message=f"unknown constant{did_you_mean(key, list(known))}", path=f"kernels.{section}.{key}")
        for key in given
        if key not in known
    ]
    problems += [
        Problem(message=f"expected a number of at least 0, but found {value!r}", path=f"kernels.{section}.{key}")
        for key, value in given.items()
        if not 0.0 <= value < float("inf")
    ]
    if problems:
        raise InputError(problems)
    return {**known, **{key: float(value) for key, value in given.items()}}
