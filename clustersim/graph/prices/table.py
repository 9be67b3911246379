"""Cost classes grouped by operator, with everything that does not depend on the batch laid out in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.batch import Features
from clustersim.graph.blueprint import Node, Terms
from clustersim.graph.program import CostClass
from clustersim.values import dataclass

SHAPE_KEYS: Final = {
    "gemm": ("n", "k"),
    "grouped_gemm": ("n", "k", "experts"),
    "attention_prefill": ("heads", "kv_heads", "qk_dim", "v_dim", "shared_kv"),
    "attention_decode": ("heads", "kv_heads", "qk_dim", "v_dim", "shared_kv"),
    "memory": (),
}
"""Compute operator → the parts of its shape that are a node's own."""

SENT: Final = "sent_tokens"
"""Feature of a step with padding: its tokens without that."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PriceGroup:
    """The cost classes of one operator.

    Parameters
    ----------
    op : str
    indices : int64 array of shape (classes,)
        Positions in the program's classes.
    classes : tuple of CostClass
    shape : dict of float arrays of shape (classes,)
    fused, included : bool arrays of shape (classes,)
    """

    op: str
    indices: Int64Array
    classes: tuple[CostClass, ...]
    shape: dict[str, FloatArray]
    fused: np.ndarray[tuple[int], np.dtype[np.bool_]]
    included: np.ndarray[tuple[int], np.dtype[np.bool_]]

    def amounts(self, features: Features) -> list[float]:
        """Return the amount of each class for a batch."""
        return [node_amount(cls.node, features, cls.s) for cls in self.classes]

    def feature(self, name: str, features: Features) -> FloatArray:
        """Return an attention feature of each class for a batch."""
        return np.array([features[name + cls.node.variant.text][cls.s] for cls in self.classes])


def price_groups(classes: Sequence[CostClass]) -> tuple[PriceGroup, ...]:
    """Group cost classes by operator, in order of first appearance."""
    by_op: dict[str, list[int]] = {}
    for index, cls in enumerate(classes):
        by_op.setdefault(cls.node.op, []).append(index)
    return tuple(
        PriceGroup(
            op=op,
            indices=np.array(indices, np.int64),
            classes=tuple(classes[i] for i in indices),
            shape={
                key: np.array([float(getattr(classes[i].node, key)) for i in indices]) for key in SHAPE_KEYS.get(op, ())
            },
            fused=np.array([classes[i].node.fused for i in indices]),
            included=np.array([classes[i].node.included for i in indices]),
        )
        for op, indices in by_op.items()
    )


def amount(terms: Terms, features: Features, s: int) -> float:
    """Evaluate a linear form of features at SP coordinate ``s``."""
    total = 0.0
    for feature, coefficient in terms:
        total += coefficient * features[feature][s]
    return total


def node_amount(node: Node, features: Features, s: int) -> float:
    """Return a node's amount at SP coordinate ``s``; what is sent to the next stage is not padded."""
    if node.op == "send" and SENT in features:
        features = {**features, "tokens": features[SENT]}
    found = amount(node.amount, features, s)
    return max(found, amount(node.least, features, s)) if node.least else found


def attention_shape(node: Node) -> dict[str, float]:
    """Return an attention node's own part of its shape."""
    return {key: float(getattr(node, key)) for key in SHAPE_KEYS["attention_decode"]}
