"""A pass of two ranks: a GEMM on each, then an all-reduce of both; three spans or four, counted by rank."""

from __future__ import annotations

import numpy as np

from clustersim.graph.template import PassTemplate

GEMM, ALL_REDUCE = 0, 1


def pair(**changed: object) -> PassTemplate:
    """Cost class 0 is the GEMM, 1 the all-reduce; 4 spans: two of each on ranks 0 and 1."""
    fields: dict[str, object] = {
        "kind": "decode",
        "stage": 0,
        "variant": 0,
        "ranks": 2,
        "symbols": (("up", "gemm", "ffn"), ("sum", "all_reduce", "ffn")),
        "class_symbol": (0, 1),
        "instance_class": np.array([GEMM, ALL_REDUCE]),
        "instance_stream": np.array([0, 1]),
        "instance_s": ((0,), (0,)),
        "after": ((), (0,)),
        "exits": (1,),
        "node_instance": np.array([0, 0, 1]),
        "node_symbol": np.array([0, 0, 1]),
        "node_layer": np.array([0, 0, 0]),
        "members": ((0,), (1,), (0, 1)),
        "send_classes": (),
        "receives": False,
    }
    return PassTemplate(**(fields | changed))  # type: ignore[arg-type]
