"""The shapes of operators on one rank, in words: of a matrix, of heads. How many tokens there are, steps say."""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.graph.blueprint import Node
from clustersim.graph.expand import step_blueprints
from clustersim.scenario.scenario import Scenario

Shapes = Mapping[tuple[str, str, str], str]
"""(name, kind of operator, module) → its shape."""


def shapes_of(scenario: Scenario) -> tuple[Shapes, ...]:
    """Return the shapes of the operators of each pool; where layers differ, those of all of them."""
    return tuple(_of_pool(one) for one in scenario.each_pool())


def _of_pool(scenario: Scenario) -> Shapes:
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for blueprint in step_blueprints(scenario.model, scenario.plan.lockstep, scenario.precision).values():
        bodies = dict.fromkeys(unit.body for units in blueprint.stages for unit in units)
        for node in (node for body in bodies for node in body.nodes):
            found.setdefault((node.name, node.op, node.module), {})[shape_words(node)] = None
    return {symbol: " or ".join(filter(None, shapes)) for symbol, shapes in found.items()}


def shape_words(node: Node) -> str:
    """Return the shape of an operator on one rank in words; nothing where it has none.

    Examples
    --------
    >>> shape_words(Node(name="o_proj", op="gemm", module="attention", n=8192, k=1024))
    '1,024 × 8,192'
    """
    match node.op:
        case "gemm":
            return f"{node.k:,} × {node.n:,}"
        case "grouped_gemm":
            return f"{node.experts} × {node.k:,} × {node.n:,}"
        case "attention_prefill" | "attention_decode":
            keys = "one latent" if node.shared_kv else f"{node.kv_heads} of K/V"
            return f"{node.heads} heads of {node.qk_dim}, {keys}"
        case _:
            return ""
