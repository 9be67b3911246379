"""Number formats: what an element takes in memory, and in which format a matrix is multiplied.

The formats of weights, activations and K/V are separate choices, as engines have them, and each module may have its
own. Scales that travel with block-quantised weights are counted; per-tensor, per-channel and per-128×128 scales are
some 0.1 % at most and are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.model.architecture import FormatOf, ModelSpec, WithFormats
from clustersim.model.weight_parts import KEPT, MODULE_OF, MODULES, READS
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

_SCALED: Final = re.compile(r"(fp8|int8|int4)-(?:g([1-9]\d*)(z?)|([1-9]\d*)x([1-9]\d*)|(channel))")
"""A format with a 16-bit scale, and a zero point (z), for each group of so many values; with a 32-bit scale for each
block; or with scales of whole channels, which are not counted."""
_BITS: Final = {"fp8": 8, "int8": 8, "int4": 4}

SCALED_FP8_BYTES: Final = 1.0 + 4.0 / 128.0
"""Of an element that DeepEP dispatches in fp8: 128 of them share a scale of 4 bytes (tests/test_intranode.py)."""


def dtype_bytes(name: str) -> float:
    """Return the bytes that one element of the format takes, block scales included.

    Raises
    ------
    InputError
        When the format is unknown; the message names the nearest known one.
    """
    if name in DTYPE_BYTES:
        return DTYPE_BYTES[name]
    scaled = _SCALED.fullmatch(name)
    if scaled is None:
        raise InputError(Problem(message=str(format_problem(name))))
    bits = _BITS[scaled[1]]
    if scaled[6]:
        return bits / 8
    if scaled[2]:
        return (bits + (16 + (bits if scaled[3] else 0)) / int(scaled[2])) / 8
    return (bits + 32 / (int(scaled[4]) * int(scaled[5]))) / 8


def family_of(name: str) -> str:
    """Return a format without its groups or blocks: ``int4`` of ``int4-g32``."""
    return name.partition("-")[0]


def format_of(precision: Precision, model: ModelSpec, linear: str, part: WithFormats) -> str:
    """Return the number format of the weights that an operator reads: the one place that decides it.

    What ``precision`` names by module comes first. Where its ``weights`` is the format of the checkpoint, the
    checkpoint's own list is next. Then, modules that engines keep are in 16 bit, and all others in ``weights``.

    Parameters
    ----------
    precision : Precision
    model : ModelSpec
    linear : str
        A linear map of :data:`clustersim.model.weight_parts.MODULES`, or an operator that reads its weights.
    part : Attention, Ffn, Moe or ModelSpec
        What it is of, which may list formats.
    """
    linear = READS.get(linear, linear)
    if linear == "lm_head" and model.tied_embeddings:
        linear = "embedding"
    module = MODULE_OF[linear]
    named = dict(precision.modules)
    if module in named:
        return named[module]
    if precision.weights == model.default_weight_dtype:
        listed = dict(part.formats)
        if linear in listed:
            return precision.wide if listed[linear] == "bf16" else listed[linear]
    return precision.wide if module in KEPT else precision.weights


def format_problem(name: str, *, scaled: bool = True) -> str | None:
    """Return why a text is no number format, of weights where ``scaled``; None where it is one."""
    if name in DTYPE_BYTES or (scaled and _SCALED.fullmatch(name)):
        return None
    return f"unknown number format {name!r}{did_you_mean(name, list(DTYPE_BYTES))}"


def formats_of(precision: Precision, model: ModelSpec) -> FormatOf:
    """Return what tells the format of a linear map of a part of a model (:func:`format_of`), and bytes of a weight."""

    def found(linear: str, part: WithFormats) -> tuple[str, float]:
        name = format_of(precision, model, linear, part)
        return name, dtype_bytes(name)

    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The number formats of a deployment.

    Parameters
    ----------
    weights, activations, kv_cache : str
        Keys of :data:`DTYPE_BYTES`, of weights also with groups or blocks (``int4-g32``). ``weights`` is the format of
        most (:func:`format_of`); ``activations`` that of the residual stream and of what collectives carry.
    modules : tuple of (str, str)
        Modules whose weights are in a format of their own, and which.
    multiply : str or None
        Format in which ``weights`` and activations are multiplied. ``None``: the format of the weights where the
        device multiplies it natively (engines quantise the activations on the fly), else that of the
        activations (weight-only quantisation: the weights are expanded in registers).
    """

    weights: str = "bf16"
    activations: str = "bf16"
    kv_cache: str = "bf16"
    modules: tuple[tuple[str, str], ...] = ()
    multiply: str | None = None

    def __post_init__(self) -> None:
        roles = "weights", "activations", "kv_cache", "multiply"
        chosen = {f"precision.{role}": getattr(self, role) for role in roles}
        chosen |= {f"precision.weights.{module}": name for module, name in self.modules if module in MODULES}
        problems = [
            Problem(message=f"unknown module{did_you_mean(module, list(MODULES))}", path=f"precision.weights.{module}")
            for module, _ in self.modules
            if module not in MODULES
        ]
        for path, name in chosen.items():
            if name and (why := format_problem(name, scaled="weights" in path)):
                problems.append(Problem(message=why, path=path))
        if problems:
            raise InputError(problems)

    @property
    def weight_bytes(self) -> float:
        """Bytes of most weights."""
        return dtype_bytes(self.weights)

    @property
    def wide(self) -> str:
        """Format of weights that are not quantised: of 16 bit, or as all weights where these are as wide or wider."""
        if self.weight_bytes >= DTYPE_BYTES["bf16"]:
            return self.weights
        return self.activations if self.activation_bytes == DTYPE_BYTES["bf16"] else "bf16"

    def bytes_of(self, weights: str) -> float:
        """Return the bytes of a weight in a format; where that is empty, of most weights."""
        return dtype_bytes(weights or self.weights)

    def in_format(self, weights: str) -> Precision:
        """Return the precision of an operator whose weights are in this format; ``multiply`` is of ``weights``."""
        return self if weights == self.weights else replace(self, weights=weights, modules=(), multiply=None)

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
            multiply = self.multiply or family_of(dict(self.modules).get("experts", self.weights))
            dispatch = "fp8" if multiply == "fp8" else self.activations
        return SCALED_FP8_BYTES if dispatch == "fp8" else DTYPE_BYTES[dispatch]

    @property
    def kv_bytes(self) -> float:
        """Bytes per element of the K/V cache."""
        return DTYPE_BYTES[self.kv_cache]

    def multiply_dtype(self, flops: Mapping[str, float]) -> str:
        """Return the format in which a device with the peaks ``flops`` (by format) multiplies weights."""
        if self.multiply is not None:
            return self.multiply
        family = family_of(self.weights)
        native = {"mxfp4": "fp4"}.get(family, family)
        return native if native in flops else self.activations
