"""Whether operators that say which unit of their stage they are in are in that one: units are a stage's modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from clustersim.graph.blueprint import Node
from clustersim.legality.finding import NOTHING, Finding
from clustersim.legality.graph_rules.finding import judged, operator
from clustersim.legality.graph_rules.views.graph import GraphView, base_name
from clustersim.legality.stages import Module, stages_of
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan

OPENS: Final[Module] = (-1, "opens")
CLOSES: Final[Module] = (-1, "closes")
SENDS: Final[Module] = (-1, "sends")
"""What a stage begins with (the host's schedule, or its receive), and ends with (the LM head, or the hand-over of the
K/V of SP ranks), behind which it sends."""

_PART: Final[Mapping[str, str]] = {"attention": "attention", "ffn": "ffn", "moe": "ffn"}
_OUTSIDE: Final[Mapping[str, Module]] = {
    "embedding": (-1, "embedding"), "lm_head": CLOSES, "host": CLOSES, "boundary": CLOSES, "attention": CLOSES,
}  # fmt: skip
"""Module → unit outside the layers; of attention it is the hand-over."""
_NAMED: Final[Mapping[str, Module]] = {"schedule": OPENS, "recv": OPENS, "send": SENDS}


def in_their_units(view: GraphView, plan: ParallelPlan, model: ModelSpec, modules: Mapping[str, str]) -> Finding:
    """A unit is one module's place in its stage, from 0; not judged where layer, stage or module are not said.

    Parameters
    ----------
    view : GraphView
    plan, model
        Of the graph.
    modules : mapping
        Name of an operator → its module; of other operators, such as collectives, it is the one that they say.
    """
    if view.unit is None:
        return NOTHING
    numbers = _numbers(plan, model, frozenset(view.stage[view.named("kv_move")].tolist()))
    cells, of = np.unique(np.stack([view.symbol, view.layer, view.stage]), axis=1, return_inverse=True)
    units = [(stage, *_unit_of(view.symbols[at], layer, modules)) for at, layer, stage in cells.T.tolist()]
    wanted, unit = np.array([numbers.get(one, -1) for one in units], np.int64)[of.ravel()], view.unit
    wrong = np.flatnonzero((wanted >= 0) & (unit != wanted) & view.says("unit", "layer", "stage"))
    return judged(
        view, 0, wrong, lambda node: f"{operator(view, node)} is said to be of unit {unit[node]}, and its module is "
        f"number {wanted[node]} of its stage", "number the modules of a stage from 0 on, or leave `unit` out",
        np.arange(len(view)),
    )  # fmt: skip


def _numbers(plan: ParallelPlan, model: ModelSpec, handing: frozenset[int]) -> dict[tuple[int, int, str], int]:
    """Return (stage, layer, part) → the number of that unit; ``handing`` are the stages that hand K/V over."""
    found: dict[tuple[int, int, str], int] = {}
    for stage, own in enumerate(stages_of(model, plan)):
        units = (OPENS, *(module for module in own if module[1] != "lm_head"), CLOSES)
        found |= {(stage, *module): number for number, module in enumerate(units)}
        found[(stage, *SENDS)] = len(units) - 1 + (stage in handing)
    return found


def _unit_of(node: Node, layer: int, modules: Mapping[str, str]) -> Module:
    if node.name in _NAMED:
        return _NAMED[node.name]
    module = modules.get(base_name(node), node.module)
    return (layer, _PART.get(module, "")) if layer >= 0 else _OUTSIDE.get(module, (-1, ""))
