"""The blueprint of a step without what repeats: of equal layers in a row two remain, and of equal stages two.

What goes from one operator to another is decided inside a body or between neighbouring ones, so that a graph holds
nothing that this shorter one does not show once. It is expanded by the same :func:`clustersim.graph.stepgraph.expand`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final

from clustersim.graph.blueprint import Blueprint, Body, Unit
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import Cut, ParallelPlan
from clustersim.plan.stages import stage_layers
from clustersim.values import dataclass

LONGEST_PERIOD: Final = 8
"""Patterns of layers (sliding, sliding, full, …) that repeat within so many are shortened."""


@dataclass(frozen=True, kw_only=True)
class Condensed:
    """Which layers and stages of a deployment are kept, and the deployment that they make.

    Parameters
    ----------
    layers, stages : tuple of int
        Numbers that the kept ones have in the whole deployment.
    model, plan
        With the kept layers and stages only, numbered from 0.
    """

    layers: tuple[int, ...]
    stages: tuple[int, ...]
    model: ModelSpec
    plan: ParallelPlan

    def blueprint(self, whole: Blueprint) -> Blueprint:
        """Return the kept units of a blueprint, with layers renumbered."""
        number = {layer: index for index, layer in enumerate(self.layers)} | {-1: -1}
        stages = tuple(
            tuple(Unit(body=u.body, layer=number[u.layer]) for u in whole.stages[stage] if u.layer in number)
            for stage in self.stages
        )
        return replace(whole, stages=stages)

    def shows_all(self, whole: Blueprint, num_layers: int) -> bool:
        """Whether every body of a blueprint is among those of the kept units, and every layer of the model in it.

        Bodies that differ in how often experts are visited are alike.
        """
        if {unit.layer for stage in whole.stages for unit in stage} != set(range(-1, num_layers)):
            return False
        kept = {_shape(unit.body) for stage in self.blueprint(whole).stages for unit in stage}
        return all(_shape(unit.body) in kept for stage in whole.stages for unit in stage)


def _shape(body: Body) -> Body:
    """Return a body without what its layer's visits of experts make of its amounts."""
    if not any(node.loads or node.visits for node in body.nodes):
        return body
    plain = (replace(node, loads=(), visits=(), least=()) for node in body.nodes)
    return replace(body, nodes=tuple(replace(n, amount=()) if n.op == "all_to_all" else n for n in plain))


def whole(model: ModelSpec, plan: ParallelPlan) -> Condensed:
    """Return the deployment with everything kept."""
    return Condensed(layers=tuple(range(len(model.layers))), stages=tuple(range(plan.pp)), model=model, plan=plan)


def condensed(model: ModelSpec, plan: ParallelPlan) -> Condensed:
    """Return the deployment without layers and stages that only repeat their neighbours."""
    modules = stage_layers(model, plan)
    parts = [_parts(stage) for stage in modules]
    kinds = [[(model.layers[layer], names) for layer, names in stage] for stage in parts]
    kept = [[parts[at][i] for i in shortened(stage)] for at, stage in enumerate(kinds)]
    shapes = [
        (at if at in (0, plan.pp - 1) or _is_ragged(parts[at]) else -1, tuple(kinds[at])) for at in range(plan.pp)
    ]
    stages = shortened(shapes, longest=1)
    layers = tuple(dict.fromkeys(layer for stage in stages for layer, _ in kept[stage]))
    if stages == list(range(plan.pp)) and len(layers) == len(model.layers):
        return whole(model, plan)
    number = {layer: index for index, layer in enumerate(layers)}
    cuts = tuple(
        Cut(layer=number[layer], before="attention" if names[0] == "attention" else "ffn")
        for layer, names in (kept[stage][0] for stage in stages[1:])
    )
    return Condensed(
        layers=layers,
        stages=tuple(stages),
        model=replace(model, layers=tuple(model.layers[layer] for layer in layers)),
        plan=replace(plan, pp=len(stages), stages=cuts, placement=None),
    )


def _is_ragged(stage: Sequence[tuple[int, tuple[str, ...]]]) -> bool:
    """Whether a stage begins or ends inside a layer."""
    return any(len(names) < 2 for _, names in stage)


def _parts(modules: Sequence[tuple[int, str]]) -> list[tuple[int, tuple[str, ...]]]:
    """Return the layers of a stage, each with the modules that it has there."""
    found: dict[int, tuple[str, ...]] = {}
    for layer, name in modules:
        found[layer] = (*found.get(layer, ()), name)
    return list(found.items())


def shortened(kinds: Sequence[Hashable], longest: int = LONGEST_PERIOD) -> list[int]:
    """Return the positions that remain when of each pattern's repetitions in a row only two are kept.

    Examples
    --------
    >>> shortened("abbbbc")
    [0, 1, 2, 5]
    >>> shortened("ababababc")
    [0, 1, 2, 3, 8]
    """
    left = list(range(len(kinds)))
    for period in range(1, longest + 1):
        at = 0
        while at + 3 * period <= len(left):
            first, second, third = (
                [kinds[i] for i in left[at + part * period : at + (part + 1) * period]] for part in range(3)
            )
            if first == second == third:
                del left[at + 2 * period : at + 3 * period]
            else:
                at += 1
    return left
