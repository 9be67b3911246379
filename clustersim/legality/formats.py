"""Number formats: what a weight takes, and which format the weights of an operator are in, from what was declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from clustersim.cost.precision import Precision
from clustersim.model.architecture import ModelSpec
from clustersim.model.weight_parts import Formats

BYTES: Final[Mapping[str, float]] = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "fp4": (16 * 4 + 8) / 16 / 8, "mxfp4": (32 * 4 + 8) / 32 / 8, "int4": (128 * 4 + 16) / 128 / 8,
}  # fmt: skip
"""Bytes per element, with the scale that each block of elements shares."""
_VALUE_BITS: Final = {"int4": 4, "int8": 8, "fp8": 8}
_OUTSIDE: Final = ("embedding", "lm_head", "norms")


class _Part(Protocol):
    @property
    def formats(self) -> Formats: ...


def bytes_of(name: str) -> float:
    """Return the bytes of an element; ``int8-g64z``: 64 values share a scale of 16 bit and a zero point of 8."""
    family, _, scales = name.partition("-")
    if not scales:
        return BYTES[name]
    bits = _VALUE_BITS[family]
    if scales == "channel":
        return bits / 8
    if scales.startswith("g"):
        group = int(scales[1:].rstrip("z"))
        shared = 16 + (bits if scales.endswith("z") else 0)
    else:
        rows, columns = map(int, scales.split("x"))
        group, shared = rows * columns, 32
    return (group * bits + shared) / group / 8


def weights_in(precision: Precision, model: ModelSpec, name: str, part: _Part) -> str:
    """Return the format of a matrix, or of vectors (``norms``), of a part of the model.

    Parameters
    ----------
    precision : Precision
    model : ModelSpec
    name : str
        Of the operator that reads it.
    part : Attention, Ffn, Moe or ModelSpec
    """
    name = "kv_b_proj" if name in ("q_absorb", "v_absorb") else name
    name = "embedding" if name == "lm_head" and model.tied_embeddings else name
    module = _module(name)
    for one, said in precision.modules:
        if one == module:
            return said
    narrow = BYTES.get(precision.weights, 1.0) < BYTES["bf16"]
    whole = "fp16" if precision.activations == "fp16" else "bf16"
    if precision.weights == model.default_weight_dtype:
        for one, said in part.formats:
            if one == name:
                return whole if said == "bf16" and narrow else said
    return whole if narrow and module in ("embedding", "lm_head", "router", "norms") else precision.weights


def _module(name: str) -> str:
    if name in _OUTSIDE:
        return name
    if name in ("gate", "shared_gate"):
        return "router"
    before = {"ffn_": "ffn", "expert_": "experts", "shared_": "shared_experts"}
    return next((module for start, module in before.items() if name.startswith(start)), "attention")
