"""A pass as a graph of operators: what each waits for, with the order of streams among it.

Of ``full`` it has an operator per node of the step graph; where ranks of a TP group share every collective, one per
instance of the template stands for all of them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STRUCTURAL_OPS
from clustersim.graph.program import StageProgram
from clustersim.values import dataclass

NONE: Final = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Works:
    """What operators consist of where some are joined (``replay.events.joined``).

    Parameters
    ----------
    cls : int64 array of shape (works,)
        Cost class of each work, in order of operators.
    first : int64 array of shape (operators,)
        The first work of each operator.
    of_node : int64 array of shape (template nodes,)
        The work that stands for each node of the template.
    """

    cls: Int64Array
    first: Int64Array
    of_node: Int64Array

    def times(self, starts: Int64Array, ends: Int64Array, durations: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return start and end of the work of every node, from those of operators and the durations of works."""
        many = np.diff(self.first, append=len(self.cls))
        passed = np.cumsum(durations) - durations
        begin = np.repeat(starts - passed[self.first], many) + passed
        last = np.append(self.first[1:], len(self.cls)) - 1
        end = begin + durations
        end[last] = ends
        return begin[self.of_node], end[self.of_node]


@dataclass(frozen=True, kw_only=True, eq=False)
class EventProgram:
    """A pass as a dependency graph whose edges include the order of streams.

    Parameters
    ----------
    indegree : list of int
    successors : list of tuple of int
    cls : list of int
        Cost class of each operator.
    members : list of tuple of int or None
        Local ranks of a communication; None for work of one rank.
    exits : dict
        Operator → local ranks whose output leaves the stage with its end.
    node_of : int64 array of shape (template nodes,)
        The operator that stands for each node of the template.
    works : Works or None
        What each operator consists of; None where each is one.
    """

    indegree: list[int]
    successors: list[tuple[int, ...]]
    cls: list[int]
    members: list[tuple[int, ...] | None]
    exits: dict[int, tuple[int, ...]]
    node_of: Int64Array
    works: Works | None = None

    @cached_property
    def follower(self) -> list[int]:
        """The work of one rank that begins with the end of each operator, where that is all that end does; or −1."""
        return [
            targets[0]
            if len(targets) == 1 and self.indegree[targets[0]] == 1 and self.members[targets[0]] is None
            and operator not in self.exits
            else NONE
            for operator, targets in enumerate(self.successors)
        ]  # fmt: skip

    @cached_property
    def groups(self) -> tuple[list[tuple[int, tuple[int, ...]]], list[list[int]]]:
        """Each class of collectives with its local ranks, once; and the operators that these are."""
        found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for operator, (cls, ranks) in enumerate(zip(self.cls, self.members, strict=True)):
            if ranks is not None:
                found.setdefault((cls, ranks), []).append(operator)
        return list(found), list(found.values())

    def last_instances(self, node_instance: Int64Array) -> Int64Array:
        """Return the instance of the template that each operator ends with."""
        of_node = self.node_of if self.works is None else self.works.of_node
        instance = np.empty(int(of_node.max()) + 1, np.int64)
        instance[of_node] = node_instance
        if self.works is None:
            return instance
        found: Int64Array = instance[np.append(self.works.first[1:], len(self.works.cls)) - 1]
        return found


def expanded_program(program: StageProgram) -> EventProgram:
    """Return the pass with one operator per node: what ``full`` runs."""
    template, graph = program.template, program.graph
    skipped = {i for i, node in enumerate(graph.symbols) if node.op in (*STRUCTURAL_OPS, "send", "recv")}
    kept = np.array([symbol not in skipped for symbol in graph.symbol.tolist()])
    number = np.cumsum(kept) - 1
    before: list[dict[int, None]] = [{} for _ in range(len(graph))]
    order_sources, order_targets = graph.stream_order()
    for source, target in zip(
        np.concatenate((graph.source, order_sources)).tolist(),
        np.concatenate((graph.target, order_targets)).tolist(),
        strict=True,
    ):
        before[target][source] = None
    resolved: list[tuple[int, ...]] = []
    for node in range(len(graph)):
        found: dict[int, None] = {}
        for source in before[node]:
            if kept[source]:
                found[int(number[source])] = None
            else:
                found |= dict.fromkeys(resolved[source])
        resolved.append(tuple(found))
    operators = np.flatnonzero(kept).tolist()
    base = program.stage * program.plan.stage_ranks
    classes = template.class_of_node.tolist()
    members: list[tuple[int, ...] | None] = [
        tuple(rank - base for rank in graph.ranks_of(node))
        if graph.symbols[int(graph.symbol[node])].is_collective
        else None
        for node in operators
    ]
    tp = program.plan.tp
    exits: dict[int, list[int]] = {}
    for s, instance in enumerate(template.exits):
        for rank in range(s * tp, s * tp + tp):
            if instance < 0:
                continue
            node = next(
                n for n in np.flatnonzero(template.node_instance == instance).tolist() if rank in template.members[n]
            )
            exits.setdefault(node, []).append(rank)
    return _linked(
        [resolved[node] for node in operators],
        classes,
        members,
        {node: tuple(ranks) for node, ranks in exits.items()},
        np.arange(len(operators)),
    )


def contracted_program(program: StageProgram) -> EventProgram:
    """Return the pass with one operator per instance; exact where ranks of a TP group share every collective."""
    template, plan = program.template, program.plan
    first_node: dict[int, int] = {}
    for node, instance in enumerate(template.node_instance.tolist()):
        first_node.setdefault(instance, node)
    last: dict[tuple[int, int], int] = {}
    before: list[tuple[int, ...]] = []
    members: list[tuple[int, ...] | None] = []
    for index, (after, s_set) in enumerate(zip(template.after, template.instance_s, strict=True)):
        stream = int(template.instance_stream[index])
        order = {last[s, stream]: None for s in s_set if (s, stream) in last}
        before.append(tuple(dict.fromkeys(after) | order))
        last |= {(s, stream): index for s in s_set}
        cls = program.classes[int(template.instance_class[index])]
        members.append(template.members[first_node[index]] if cls.comm is not None else None)
    exits: dict[int, tuple[int, ...]] = {}
    for s, instance in enumerate(template.exits):
        if instance >= 0:
            exits[instance] = exits.get(instance, ()) + tuple(range(s * plan.tp, s * plan.tp + plan.tp))
    return _linked(before, template.instance_class.tolist(), members, exits, template.node_instance)


def contraction_is_exact(program: StageProgram) -> bool:
    """Whether ranks that share an instance share every collective too, so that contention treats them alike."""
    plan = program.plan
    return program.even and plan.sp.degree == 1 and plan.expert_tp in (1, plan.tp)


def _linked(
    before: list[tuple[int, ...]],
    classes: list[int],
    members: list[tuple[int, ...] | None],
    exits: dict[int, tuple[int, ...]],
    node_of: Int64Array,
) -> EventProgram:
    """Return a program of what each operator waits for, but for what those others wait for themselves."""
    successors: list[list[int]] = [[] for _ in before]
    needed: list[list[int]] = []
    for sources in before:
        implied = {one for source in sources for one in before[source]}
        needed.append([source for source in sources if source not in implied])
    for target, some in enumerate(needed):
        for source in some:
            successors[source].append(target)
    return EventProgram(
        indegree=[len(sources) for sources in needed],
        successors=[tuple(targets) for targets in successors],
        cls=classes,
        members=members,
        exits=exits,
        node_of=node_of,
    )
