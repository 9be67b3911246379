"""Number formats: what an element takes in memory, and in which format a matrix is multiplied.

The formats of weights, activations and K/V are separate choices, as engines have them. Scales that travel
with block-quantised weights are counted; per-tensor and per-128×128 scales are below 0.1 % and are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.values import dataclass

DTYPE_BYTES: Final[Mapping[str, float]] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5625,  # NVFP4: 16 values of 4 bit share one 8-bit scale (NVIDIA cuDNN docs, block scaling, 2025)
    "mxfp4": 0.53125,  # OCP MX v1.0: 32 values of 4 bit share one 8-bit scale
    "int4": 0.515625,  # GPTQ and AWQ in groups of 128 with a 16-bit scale
}
"""Bytes per element, block scales included."""

SCALED_FP8_BYTES: Final = 1.0 + 4.0 / 128.0
"""Of an element that DeepEP dispatches in fp8: 128 of them share a scale of 4 bytes (tests/test_intranode.py)."""

_ROLES: Final = ("weights", "activations", "kv_cache")


def dtype_bytes(name: str) -> float:
    """Return the bytes that one element of the format takes, block scales included.

    Raises
    ------
    InputError
        When the format is unknown; the message names the nearest known one.
    """
    if name not in DTYPE_BYTES:
        raise InputError(Problem(message=_unknown(name)))
    return DTYPE_BYTES[name]


def _unknown(name: str) -> str:
    return f"unknown number format {name!r}{did_you_mean(name, list(DTYPE_BYTES))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The number formats of a deployment.

    Parameters
    ----------
    weights, activations, kv_cache : str
        Keys of :data:`DTYPE_BYTES`. ``activations`` is the format of the residual stream and of what
        collectives carry.
    multiply : str or None
        Format in which weights and activations are multiplied. ``None``: the format of the weights where the
        device multiplies it natively (engines quantise the activations on the fly), else that of the
        activations (weight-only quantisation: the weights are expanded in registers).
    """

    weights: str = "bf16"
    activations: str = "bf16"
    kv_cache: str = "bf16"
    multiply: str | None = None

    def __post_init__(self) -> None:
        chosen = {role: getattr(self, role) for role in _ROLES}
        if self.multiply is not None:
            chosen["multiply"] = self.multiply
        problems = [
            Problem(message=_unknown(name), path=f"precision.{role}")
            for role, name in chosen.items()
            if name not in DTYPE_BYTES
        ]
        if problems:
            raise InputError(problems)

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight."""
        return DTYPE_BYTES[self.weights]

    @property
    def activation_bytes(self) -> float:
        """Bytes per element of the residual stream."""
        return DTYPE_BYTES[self.activations]

    def dispatch_bytes(self, dispatch: str | None = None) -> float:
        """Return the bytes per element that DeepEP dispatches, a scale for each 128 of fp8 included.

        Parameters
        ----------
        dispatch : str or None
            The format; None: fp8 where weights are multiplied in it, else that of activations.
        """
        if dispatch is None:
            dispatch = "fp8" if (self.multiply or self.weights) == "fp8" else self.activations
        return SCALED_FP8_BYTES if dispatch == "fp8" else DTYPE_BYTES[dispatch]

    @property
    def kv_bytes(self) -> float:
        """Bytes per element of the K/V cache."""
        return DTYPE_BYTES[self.kv_cache]

    def multiply_dtype(self, flops: Mapping[str, float]) -> str:
        """Return the format in which a device with the peaks ``flops`` (by format) multiplies weights."""
        if self.multiply is not None:
            return self.multiply
        native = {"mxfp4": "fp4"}.get(self.weights, self.weights)
        return native if native in flops else self.activations
