"""Cost classes grouped by operator, with everything that does not depend on the batch laid out in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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


class Linear(NamedTuple):
    """Classes that amount to the same forms of features, with their places in a group and SP coordinates."""

    amount: Terms
    least: Terms
    sends: bool
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PriceGroup:
    """The cost classes of one operator, with weights in one format.

    Parameters
    ----------
    op, weights : str
        ``weights`` is empty where they are as most.
    indices : int64 array of shape (classes,)
        Positions in the program's classes.
    classes : tuple of CostClass
    shape : dict of float arrays of shape (classes,)
    fused, included : bool arrays of shape (classes,)
    linear : tuple of Linear
        The same classes by what they amount to.
    """

    op: str
    weights: str
    indices: Int64Array
    classes: tuple[CostClass, ...]
    shape: dict[str, FloatArray]
    fused: np.ndarray[tuple[int], np.dtype[np.bool_]]
    included: np.ndarray[tuple[int], np.dtype[np.bool_]]
    linear: tuple[Linear, ...]

    def amounts(self, features: Features) -> list[float]:
        """Return the amount of each class for a batch, as :func:`node_amount` does."""
        found = [0.0] * len(self.classes)
        for one in self.linear:
            seen = {**features, "tokens": features[SENT]} if one.sends and SENT in features else features
            by_s = _amounts(one.amount, seen) or [0.0] * (1 + max(s for _, s in one.places))
            if one.least:
                by_s = list(map(max, by_s, _amounts(one.least, seen)))
            for place, s in one.places:
                found[place] = by_s[s]
        return found

    def feature(self, name: str, features: Features) -> FloatArray:
        """Return an attention feature of each class for a batch."""
        return np.array([features[name + cls.node.variant.text][cls.s] for cls in self.classes])


def price_groups(classes: Sequence[CostClass]) -> tuple[PriceGroup, ...]:
    """Group cost classes by operator and format, in order of first appearance."""
    by_op: dict[tuple[str, str], list[int]] = {}
    for index, cls in enumerate(classes):
        by_op.setdefault((cls.node.op, cls.node.weights), []).append(index)
    return tuple(
        PriceGroup(
            op=op,
            weights=weights,
            indices=np.array(indices, np.int64),
            classes=tuple(classes[i] for i in indices),
            shape={
                key: np.array([float(getattr(classes[i].node, key)) for i in indices]) for key in SHAPE_KEYS.get(op, ())
            },
            fused=np.array([classes[i].node.fused for i in indices]),
            included=np.array([classes[i].node.included for i in indices]),
            linear=_linear([classes[i] for i in indices]),
        )
        for (op, weights), indices in by_op.items()
    )


def _linear(classes: Sequence[CostClass]) -> tuple[Linear, ...]:
    """Return classes by what they amount to."""
    found: dict[tuple[Terms, Terms, bool], list[tuple[int, int]]] = {}
    for place, cls in enumerate(classes):
        found.setdefault((cls.node.amount, cls.node.least, cls.node.op == "send"), []).append((place, cls.s))
    return tuple([Linear(*one, tuple(places)) for one, places in found.items()])


def _amounts(terms: Terms, features: Features) -> list[float]:
    """Return what :func:`amount` does at each SP coordinate."""
    found: list[float] = []
    for feature, coefficient in terms:
        values = features[feature]
        found = [total + coefficient * value for total, value in zip(found or [0.0] * len(values), values, strict=True)]
    return found


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
