"""Measured points of a device's file: the second opinion on what :mod:`clustersim.cost.grid` reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clustersim.clock import FloatArray

Points = tuple[dict[str, FloatArray], FloatArray]
"""Shape of each point, and its seconds."""


def points_of(text: str, op: str, fixed: tuple[str, ...]) -> Points:
    """Return the points of a text that was found readable, of an operator with these fixed parts of its shape."""
    here: dict[str, float] = {}
    outer, rows = 0.0, []
    words = iter(text.split())
    for word in words:
        if word in fixed:
            here[word] = float(next(words))
        elif word.endswith(":"):
            outer = float(word.removesuffix(":"))
        else:
            inner, microseconds = map(float, word.split("="))
            rows.append((*(here[name] for name in fixed), outer, inner, microseconds))
    *parts, first, second, took = np.array(rows, np.float64).T
    return {**dict(zip(fixed, parts, strict=True)), **_rest(op, first, second)}, took / 1e6


def _rest(op: str, outer: FloatArray, inner: FloatArray) -> Mapping[str, FloatArray]:
    """Return what the axes say of the shape."""
    if op == "attention_prefill":  # each prompt from its start, so that it attends to as many keys as it has queries
        return {"queries": outer, "keys": outer, "pairs": outer * (1.0 + outer * inner) / 2.0}
    if op == "attention_decode":
        return {"batch": outer, "keys": outer * inner}
    if op == "grouped_gemm":
        return {"active": outer, "rows": outer * inner}
    return {"m" if op == "gemm" else "bytes": inner}
