"""A stage's part of a step as a program: instances in order, cost classes, and its duration in closed form.

Ranks of one TP group do the same work at the same time, so the program has one *instance* per operator and SP
coordinate (or per set of SP coordinates that a collective joins). Every instance has a *cost class*; identical
layers share classes. With the duration of each class known, starts and ends follow from the longest path through
in-order streams — and where the instances form a chain, the duration is a dot product of counts and durations.

The contraction is exact because the ranks of a TP group enter a pass at one instant, have equal durations, and
meet in every collective together; :attr:`StageProgram.even` says whether all groups of an operator cost the same
on this placement, which is the one way in which that could fail.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from clustersim.graph.blueprint import Blueprint, Node
from clustersim.graph.stepgraph import StepGraph, expand
from clustersim.graph.template import PassTemplate
from clustersim.graph.turns import plain_feature
from clustersim.plan.exchange import Exchange
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

_BY_S: Final = frozenset(
    ("tokens", "prefill_tokens", "decode_sequences", "rows", "pairs", "prefill_keys", "decode_keys")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostClass:
    """Operators that take equally long: the same work at SP coordinate ``s`` over the same kind of group."""

    node: Node
    s: int
    comm: int | None = None


def class_node(node: Node) -> Node:
    """Strip a node of what does not bear on its cost."""
    return replace(node, name="", module="", rule="", width=0, copies=1, where="all")


OF_ALL: Final = frozenset(("stage_tokens", "peak_tokens"))
"""Features that are of all SP ranks, or replicas in lockstep, together."""


def depends_on_s(node: Node, *, whole: bool = False) -> bool:
    """Whether any number that prices the node differs between SP ranks; ``whole``: between replicas in lockstep."""
    if node.op in ("attention_prefill", "attention_decode"):
        return True
    features = [plain_feature(feature) for feature, _ in node.amount]
    return any(feature not in OF_ALL if whole else feature in _BY_S for feature in features)


@dataclass(frozen=True, kw_only=True, eq=False)
class StageProgram:
    """What the ranks of one stage run for one kind of step.

    Parameters
    ----------
    blueprint : Blueprint
    plan : ParallelPlan
    stage : int
    template : PassTemplate
        Instances, nodes and their order.
    classes : tuple of CostClass
        What the template's cost classes are.
    even : bool
        Whether the groups of every collective cost the same, so that the contraction to instances is exact.
    """

    blueprint: Blueprint
    plan: ParallelPlan
    stage: int
    template: PassTemplate
    classes: tuple[CostClass, ...]
    even: bool

    @property
    def key(self) -> tuple[int, int, str]:
        """What tells this program from the others of a run."""
        return self.template.variant, self.stage, self.blueprint.name

    @cached_property
    def collectives(self) -> tuple[tuple[str | Exchange, tuple[int, ...]], ...]:
        """Every (communication, local ranks) inside the stage, each once."""
        template = self.template
        distinct = dict.fromkeys(zip(template.class_of_node.tolist(), template.members, strict=True))
        found = ((self.classes[cls].node.communication, members) for cls, members in distinct if len(members) > 1)
        return tuple(dict.fromkeys(found))

    @cached_property
    def exchanged(self) -> dict[tuple[int, tuple[int, ...]], int]:
        """(class, local ranks) of everything that communicates inside the stage → how often, in one pass."""
        template = self.template
        classes = template.instance_class[template.node_instance].tolist()
        of = (one for one in zip(classes, template.members, strict=True) if self.classes[one[0]].comm is not None)
        return dict(Counter(of))

    @cached_property
    def product_weights(self) -> tuple[dict[str, int], dict[int, int]]:
        """The elements of all ranks' dense weights by format, and by class of experts those of one expert × ranks."""
        template = self.template
        ranks = [float(len(members)) for members in template.members]
        counts = np.bincount(template.class_of_node, ranks, template.num_classes)
        dense: dict[str, int] = {}
        experts: dict[int, int] = {}
        for number, (cls, count) in enumerate(zip(self.classes, counts.tolist(), strict=True)):
            size = cls.node.n * cls.node.k * int(count)
            if cls.node.op == "gemm":
                dense[cls.node.weights] = dense.get(cls.node.weights, 0) + size
            elif cls.node.op == "grouped_gemm":
                experts[number] = size
        return dense, experts

    @cached_property
    def graph(self) -> StepGraph:
        """The expanded graph of this stage."""
        return expand(self.blueprint, self.plan, [self.stage])
