"""The roofline cost model: a formula per operator family with constants fitted per device and number format.

The constants are in the section ``kernels:`` of the device's file, in groups named ``<family>_<format>``:
the format in which weights are multiplied for ``gemm`` and ``grouped_gemm``, that of the K/V cache for
attention. A format without a group takes the one of bf16 (constants are shares of that format's own peak), and a family
without any is assumed (:data:`clustersim.cost.kernels.ASSUMED`); decode attention with a head of K/V for each of
the queries may have a group of its own, ``multihead_decode``.

Promise: the same bytes on any machine, however many values are asked for at once; see
:mod:`clustersim.cost.kernels` for how. More tokens, keys or experts never cost less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cost import kernels
from clustersim.cost.precision import DTYPE_BYTES, Precision, dtype_bytes
from clustersim.cost.protocol import OPTIONAL_KEYS, SHAPE_KEYS, Shape
from clustersim.errors import InputError, Problem, did_you_mean

_BASE: Final = "bf16"
_SIXTEEN_BIT: Final = ("bf16", "fp16")


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
    @property
    def grids(self) -> Mapping[str, str]: ...


class RooflineCost:
    """Durations of operators on one kind of device at one precision.

    Parameters
    ----------
    device : PricedDevice
        Peaks, bandwidth and fitted constants.
    precision : Precision
        Number formats.
    times : float
        How long kernels take over what the constants say (``kernel_time`` of an engine).

    Raises
    ------
    InputError
        When the device has no peak for the format in which it must multiply, or a group of ``kernels`` holds
        an unknown or impossible constant.
    """

    def __init__(self, device: PricedDevice, precision: Precision, times: float = 1.0) -> None:
        check_kernels(device)
        self.device = device
        self.precision = precision
        self.times = times
        self._of_formats: dict[str, RooflineCost] = {}
        self.multiply_dtype = precision.multiply_dtype(device.flops)
        self._peak = _peak(device, self.multiply_dtype)
        self._attention_peak = _peak(device, _BASE)
        self._operand_bytes = dtype_bytes(self.multiply_dtype)
        self._constants = {
            family: kernels.lasting(constants_of(device, family, self.format_of(family)), times)
            for family in kernels.ASSUMED
        }

    def in_format(self, weights: str) -> RooflineCost:
        """Return what prices operators whose weights are in this format."""
        if weights == self.precision.weights:
            return self
        if weights not in self._of_formats:
            self._of_formats[weights] = RooflineCost(self.device, self.precision.in_format(weights), self.times)
        return self._of_formats[weights]

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
            Seconds; 0-d when every value of ``shape`` is a scalar. No work costs the operator's floor.

        Raises
        ------
        InputError
            When the operator or a shape key is unknown or missing.
        """
        numbers = shape_numbers(op, shape)
        c = self._constants[op]
        bandwidth = float(self.device.memory_bytes_per_s)
        p = self.precision
        if op == "memory":
            return np.asarray(kernels.memory(c, bandwidth, **numbers))
        if op in {"gemm", "grouped_gemm"}:
            product = kernels.gemm if op == "gemm" else kernels.grouped_gemm
            widths = (p.weight_bytes, self._operand_bytes, p.activation_bytes)
            return np.asarray(product(c, self._peak, bandwidth, widths, **numbers))
        prefill = op == "attention_prefill"
        formula = kernels.attention_prefill if prefill else kernels.attention_decode
        c, peak, bandwidth, kv_widths = self.attention(op)
        if prefill:
            return np.asarray(formula(c, peak, bandwidth, kv_widths, **numbers))

        def plain() -> FloatArray:
            alike = np.equal(numbers["heads"], numbers["kv_heads"])
            grouped = formula(c, peak, bandwidth, kv_widths, **numbers)
            if not np.any(alike):
                return np.asarray(grouped)
            alone = formula(self._constants["multihead_decode"], peak, bandwidth, kv_widths, **numbers)
            return np.asarray(alone if np.all(alike) else np.where(alike, alone, grouped))

        if not np.any(numbers["shared_kv"]):
            return plain()
        latent = formula(self._constants["latent_decode"], peak, bandwidth, kv_widths, **numbers)
        if np.all(numbers["shared_kv"]):
            return np.asarray(latent)
        return np.where(numbers["shared_kv"], latent, plain())

    def format_of(self, family: str) -> str:
        """Return the format by which the constants of a family are chosen."""
        return self.multiply_dtype if family in {"gemm", "grouped_gemm"} else self.precision.kv_cache

    def attention(self, family: str) -> tuple[kernels.Constants, float, float, tuple[float, float]]:
        """Return what a formula of attention takes first: constants, peak FLOP/s, memory bytes/s and widths.

        Parameters
        ----------
        family : str
            ``attention_prefill``, ``attention_decode``, or what :func:`decode_family` says in its place.
        """
        widths = (self.precision.kv_bytes, self.precision.activation_bytes)
        return self._constants[family], self._attention_peak, float(self.device.memory_bytes_per_s), widths


def shape_numbers(op: str, shape: Shape) -> dict[str, kernels.Number]:
    """Return the shape with its optional keys, all floats or (when one is an array) all float64 arrays.

    Raises
    ------
    InputError
        When the operator or a shape key is unknown or missing.
    """
    if op not in SHAPE_KEYS:
        raise InputError(Problem(message=f"unknown operator {op!r}{did_you_mean(op, list(SHAPE_KEYS))}"))
    required, optional = SHAPE_KEYS[op], OPTIONAL_KEYS.get(op, {})
    found = {**optional, **shape}
    if len(found) != len(required) + len(optional) or any(key not in found for key in required):
        wanted = ", ".join((*required, *(f"[{key}]" for key in optional)))
        message = f"operator {op!r} has the shape keys {wanted}; found {', '.join(shape)}"
        raise InputError(Problem(message=message))
    if any(isinstance(value, np.ndarray) and value.ndim for value in found.values()):
        return {key: np.asarray(value, dtype=np.float64) for key, value in found.items()}
    return {key: float(value) for key, value in found.items()}


def decode_family(heads: float, kv_heads: float, shared_kv: float) -> str:
    """Return the family of decode attention: over latents, a K/V head for each head, or for several."""
    if shared_kv:
        return "latent_decode"
    return "multihead_decode" if heads == kv_heads else "attention_decode"


def group_of(device: PricedDevice, family: str, dtype: str) -> str | None:
    """Return the group of ``kernels`` that tells a family at a format: its own, that of bf16, or none."""
    names = [f"{family}_{dtype}", f"{family}_{_BASE}", family]
    if family == "multihead_decode":
        names += [f"attention_decode_{dtype}", f"attention_decode_{_BASE}", "attention_decode"]
    return next((name for name in names if name in device.kernels), None)


def constants_of(device: PricedDevice, family: str, dtype: str) -> kernels.Constants:
    """Return the constants of a family at a format: its own group, that of bf16, or what is assumed."""
    group = group_of(device, family, dtype)
    given = {} if group is None else device.kernels[group]
    return {**kernels.ASSUMED[family], **{key: float(value) for key, value in given.items()}}


def check_kernels(device: PricedDevice) -> None:
    """Raise an InputError with all unknown groups and constants, and impossible values, of ``kernels``."""
    problems = kernel_problems(device.kernels, "kernels")
    if problems:
        raise InputError([Problem(message=p.message, path=f"{device.name}: {p.path}") for p in problems])


def kernel_problems(groups: Mapping[str, Mapping[str, float]], section: str) -> list[Problem]:
    """Return what is unknown or impossible in groups of constants, with paths below ``section``."""
    problems = []
    for group, constants in groups.items():
        family, dtype = _family_of(group)
        if family is None:
            known = list(kernels.ASSUMED)
            problems.append(Problem(message=f"unknown group{did_you_mean(group, known)}", path=f"{section}.{group}"))
            continue
        if dtype not in {"", *DTYPE_BYTES}:
            message = f"unknown number format {dtype!r}{did_you_mean(dtype, list(DTYPE_BYTES))}"
            problems.append(Problem(message=message, path=f"{section}.{group}"))
        for key, value in constants.items():
            path = f"{section}.{group}.{key}"
            if key not in kernels.ASSUMED[family]:
                guess = did_you_mean(key, list(kernels.ASSUMED[family]))
                problems.append(Problem(message=f"unknown constant{guess}", path=path))
            elif not kernels.least(key) <= value <= kernels.most(key):
                message = f"expected a number from {kernels.least(key):g} to {kernels.most(key):g}, but found {value!r}"
                problems.append(Problem(message=message, path=path))
    return problems


def absent_constants(group: str, constants: Mapping[str, float], section: str) -> list[Problem]:
    """Return which constants a group of a file leaves out: what is assumed must not stand beside a fit unsaid.

    Those of which nothing is assumed need not be there.
    """
    assumed = kernels.ASSUMED.get(_family_of(group)[0] or "", {})
    told = ", ".join(f"{name} ({of:g})" for name, of in assumed.items() if of and name not in constants)
    message = f"lacks {told}; in brackets stands what is assumed where nothing was measured"
    return [Problem(message=message, path=f"{section}.{group}")] if told else []


def _family_of(group: str) -> tuple[str | None, str]:
    """Return family and number format of a group of constants; no family where there is none of it."""
    family = next((name for name in kernels.ASSUMED if group == name or group.startswith(f"{name}_")), None)
    return family, group.removeprefix(family or "").removeprefix("_")


def _peak(device: PricedDevice, dtype: str) -> float:
    names = _SIXTEEN_BIT if dtype in _SIXTEEN_BIT else (dtype,)
    found = next((device.flops[name] for name in (dtype, *names) if name in device.flops), None)
    if found is None:
        message = f"{device.name} has no peak for {dtype!r}; it has {', '.join(sorted(device.flops))}"
        raise InputError(Problem(message=message, path="precision"))
    return float(found)
