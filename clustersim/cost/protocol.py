"""What a cost model is: seconds of device time for an operator of a given shape.

Gaps between kernels and host time are the engine's (:mod:`clustersim.cost.engine`), not part of a cost.

===================== =================================================================================
operator              shape keys, all per rank
===================== =================================================================================
``gemm``              ``m n k``: m×k activations times k×n weights
``grouped_gemm``      ``rows`` (token-expert pairs on this rank), ``experts`` (that it holds), ``active``
                      (experts with at least one row), ``n k``
``attention_prefill`` ``pairs`` (Σ attended query-key pairs), ``queries`` (Σ new tokens), ``keys``
                      (Σ keys read: context and new), ``heads kv_heads qk_dim v_dim``, optional ``shared_kv``
``attention_decode``  ``batch`` (sequences), ``keys`` (Σ context tokens read), ``heads kv_heads qk_dim
                      v_dim``, optional ``shared_kv`` (1: keys and values are one latent of width ``qk_dim``)
``memory``            ``bytes`` read and written
===================== =================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from clustersim.clock import FloatArray

Shape = Mapping[str, FloatArray | float]

SHAPE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "gemm": ("m", "n", "k"),
    "grouped_gemm": ("rows", "experts", "active", "n", "k"),
    "attention_prefill": ("pairs", "queries", "keys", "heads", "kv_heads", "qk_dim", "v_dim"),
    "attention_decode": ("batch", "keys", "heads", "kv_heads", "qk_dim", "v_dim"),
    "memory": ("bytes",),
}
"""Required shape keys of each operator."""

OPTIONAL_KEYS: Final[Mapping[str, Mapping[str, float]]] = {
    "attention_prefill": {"shared_kv": 0.0},
    "attention_decode": {"shared_kv": 0.0},
}
"""Optional shape keys of each operator and the value that their absence means."""


class CostModel(Protocol):
    """Durations of operators on one kind of device."""

    def seconds(self, op: str, shape: Shape) -> FloatArray:
        """Return the device time of ``op`` in seconds; the values of ``shape`` broadcast."""
        ...


def in_format(cost: CostModel, weights: str) -> CostModel:
    """Return what prices operators with weights in a format; empty: that of most. Not every model knows of formats."""
    of_format = getattr(cost, "in_format", None) if weights else None
    found: CostModel = cost if of_format is None else of_format(weights)
    return found
