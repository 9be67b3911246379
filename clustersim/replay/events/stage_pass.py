"""A stage's pass as events: every operator starts when its stream is free and all that it needs has ended.

This is the definition of a pass; the closed form of ``graph.template`` must give the same times wherever no flow of
the pass meets another one. Operators are callbacks on SimPy events, not processes: a process per operator costs ten
times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from simpy import Environment, Event

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STRUCTURAL_OPS
from clustersim.graph.program import StageProgram
from clustersim.replay.instant import COMPLETION, now_ns


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


def expanded_program(program: StageProgram) -> EventProgram:
    """Return the pass with one operator per node: what ``full`` runs."""
    template, graph = program.template, program.graph
    skipped = {i for i, node in enumerate(graph.symbols) if node.op in (*STRUCTURAL_OPS, "send", "recv")}
    kept = np.array([symbol not in skipped for symbol in graph.symbol.tolist()])
    number = np.where(kept, np.cumsum(kept) - 1, -1)
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
    successors: list[list[int]] = [[] for _ in before]
    for target, sources in enumerate(before):
        for source in sources:
            successors[source].append(target)
    return EventProgram(
        indegree=[len(sources) for sources in before],
        successors=[tuple(targets) for targets in successors],
        cls=classes,
        members=members,
        exits=exits,
        node_of=node_of,
    )


Communicate = Callable[[int, int, tuple[int, ...], int, Callable[[Any], None]], None]
"""(operator, cost class, local ranks, duration in ns, done) starts a communication; it calls ``done(operator)``."""


_NO_MARKS: Final[Mapping[int, Callable[[], None]]] = {}


class EventPass:
    """One execution of an :class:`EventProgram`.

    Parameters
    ----------
    env : simpy.Environment
    program : EventProgram
    durations : list of int
        Nanoseconds by class.
    communicate : callable
        Starts a collective.
    on_exit : callable
        Called with the local ranks whose output has left the stage.
    on_end : callable
        Called when every operator has ended.
    marks : mapping, optional
        Operator → what is to be called when it has ended.
    """

    __slots__ = (
        "communicate", "durations", "ends", "env", "marks", "on_end", "on_exit", "pending", "program", "starts",
        "works",
    )  # fmt: skip

    def __init__(
        self,
        env: Environment,
        program: EventProgram,
        durations: list[int],
        communicate: Communicate,
        on_exit: Callable[[tuple[int, ...]], None],
        on_end: Callable[[], None],
        marks: Mapping[int, Callable[[], None]] = _NO_MARKS,
    ) -> None:
        self.env = env
        self.program = program
        self.marks = marks
        self.works: Int64Array | None = None
        if program.works is None:
            self.durations = [durations[cls] for cls in program.cls]
        else:
            self.works = np.array(durations, np.int64)[program.works.cls]
            self.durations = np.add.reduceat(self.works, program.works.first).tolist()
        self.communicate = communicate
        self.on_exit = on_exit
        self.on_end = on_end
        self.pending = program.indegree.copy()
        self.starts = [0] * len(self.pending)
        self.ends = [0] * len(self.pending)

    def begin(self) -> None:
        """Start every operator that waits for nothing.

        The rest follows in ``ended``, a closure, since names of a closure are twice as fast as attributes. An
        operator that ends hands its event on to the first one that it lets start.
        """
        env, program, communicate = self.env, self.program, self.communicate
        starts, ends, pending, durations = self.starts, self.ends, self.pending, self.durations
        successors, members, exits, classes = program.successors, program.members, program.exits, program.cls
        schedule, on_exit, on_end, marks = env.schedule, self.on_exit, self.on_end, self.marks
        left = len(pending)

        def start(operator: int, event: Event | None, now: int) -> Event | None:
            starts[operator] = now
            group = members[operator]
            if group is not None:
                communicate(operator, classes[operator], group, durations[operator], finish)
                return event
            if event is None:
                event = Event(env)
                event._ok = True
            event._value = operator
            event.callbacks = callbacks
            schedule(event, COMPLETION, durations[operator])  # type: ignore[arg-type]
            return None

        def ended(event: Event) -> None:
            advance(event._value, event)

        def finish(operator: int) -> None:
            advance(operator, None)

        def advance(operator: int, event: Event | None) -> None:
            nonlocal left
            now: int = env._now  # type: ignore[assignment]
            ends[operator] = now
            for after in successors[operator]:
                waits = pending[after] - 1
                pending[after] = waits
                if not waits:
                    event = start(after, event, now)
            left -= 1
            if operator in exits:
                on_exit(exits[operator])
            if operator in marks:
                marks[operator]()
            if not left:
                on_end()

        callbacks: list[Callable[[Any], None]] = [ended]
        for operator, waits in enumerate(program.indegree):
            if waits == 0:
                start(operator, None, now_ns(env))

    def waiting(self) -> list[tuple[int, int]]:
        """Return (operator, unfinished predecessors) of what has not started, for a stall's story."""
        return [(operator, waits) for operator, waits in enumerate(self.pending) if waits > 0]

    def node_times(self) -> tuple[Int64Array, Int64Array]:
        """Return start and end of every node of the template."""
        starts, ends = np.array(self.starts, np.int64), np.array(self.ends, np.int64)
        if self.works is not None and self.program.works is not None:
            return self.program.works.times(starts, ends, self.works)
        node_of = self.program.node_of
        return starts[node_of], ends[node_of]
