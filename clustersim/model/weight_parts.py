"""The modules whose weights have a number format of their own, and the linear maps of each.

A *format* is a name such as ``fp8`` or ``int4-g32`` (:mod:`clustersim.cost.precision`). Parts of an architecture list
the formats of their linear maps where the checkpoint says so (:data:`Formats`); what they don't list has the one of
most weights, or stays in 16 bit (:data:`KEPT`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Formats = tuple[tuple[str, str], ...]
"""(linear map, format)"""

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "embedding": ("embedding",),
    "lm_head": ("lm_head",),
    "attention": ("qkv_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj"),
    "ffn": ("ffn_up", "ffn_down"),
    "experts": ("expert_up", "expert_down"),
    "shared_experts": ("shared_up", "shared_down"),
    "router": ("gate", "shared_gate"),
    "norms": ("norms",),
}
"""Module → its linear maps, by the names of :mod:`clustersim.model.weights`; ``norms`` are all vectors, biases too."""

KEPT: Final = ("embedding", "lm_head", "router", "norms")
"""Modules that engines leave in 16 bit when they load or make narrower weights, unless told otherwise.

vLLM's fp8, AWQ and GPTQ quantise ``LinearBase`` and ``FusedMoE`` alone (vllm/model_executor/layers/quantization of
0.9.2), and models make their routers without a quantisation; GPTQ and AWQ have the key ``lm_head``."""

MODULE_OF: Final[Mapping[str, str]] = {
    **{linear: module for module, linears in MODULES.items() for linear in linears},
    "q_absorb": "attention",
    "v_absorb": "attention",
}
"""Linear map, or the operator that reads its weights → module."""

READS: Final[Mapping[str, str]] = {"q_absorb": "kv_b_proj", "v_absorb": "kv_b_proj"}
"""Operator → the linear map whose weights it reads, where that has another name."""
