"""Compiles a stage of a blueprint: places its bodies on ranks, and merges what ranks of a TP group do together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import INPUT, STREAMS, Blueprint, Body, Node
from clustersim.graph.program import CostClass, StageProgram, class_node, depends_on_s
from clustersim.graph.stepgraph import Placed, place
from clustersim.graph.template import PassTemplate
from clustersim.graph.turns import Turns, in_turn
from clustersim.plan.exchange import Exchange
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

CommKey = Callable[[str | Exchange, tuple[int, ...]], int]
"""(operator, local ranks of a group) → number that is equal for groups whose communication costs the same."""


class Instance(NamedTuple):
    """One operator at its SP coordinates, in program order; ``after`` are earlier instances that it needs."""

    cls: int
    s: tuple[int, ...]
    stream: int
    after: tuple[int, ...]


def build_program(
    blueprint: Blueprint, plan: ParallelPlan, stage: int, comm_key: CommKey, variant: int = 0
) -> StageProgram:
    """Compile one stage of a blueprint.

    Parameters
    ----------
    blueprint : Blueprint
    plan : ParallelPlan
    stage : int
    comm_key : callable
        Tells groups apart whose communication costs differ.
    variant : int
        Number of the placement that ``comm_key`` belongs to.
    """
    compiler = _Compiler(plan, comm_key)
    units = blueprint.stages[stage]
    for unit in units:
        compiler.unit(unit.body, unit.layer, unit.half)
    return StageProgram(
        blueprint=blueprint,
        plan=plan,
        stage=stage,
        template=compiler.template(blueprint.kind, stage, variant, receives=units[0].body.name == "recv"),
        classes=tuple(compiler.classes),
        even=compiler.even,
    )


Needs = tuple[int, ...]
"""Instances of a block that something needs, by position; ~s stands for what left SP coordinate s before it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    """Instances and nodes of a body, with positions relative to its first instance."""

    instances: list[tuple[int, tuple[int, ...], int, Needs]]
    positions: list[int]
    node_instance: Int64Array
    node_symbol: Int64Array
    node_class: Int64Array
    members: list[tuple[int, ...]]
    send_classes: list[int]
    leaving: list[Needs]
    even: bool


def _evened(body: Body, placed: list[Placed]) -> list[Placed]:
    """Give the ranks of a TP group the work of the one whose experts are visited most: none leaves before it."""
    loaded = {position for position, node in enumerate(body.nodes) if node.loads}
    if not loaded:
        return placed
    heaviest: dict[tuple[int, tuple[int, ...]], Node] = {}
    for item in placed:
        if item.position in loaded:
            known = heaviest.setdefault((item.position, item.s), item.node)
            if item.node.amount[0][1] > known.amount[0][1]:
                heaviest[item.position, item.s] = item.node
    return [replace(p, node=heaviest[p.position, p.s]) if p.position in loaded else p for p in placed]


class _Compiler:
    def __init__(self, plan: ParallelPlan, comm_key: CommKey) -> None:
        self.plan = plan
        self.comm_key = comm_key
        self.classes: dict[CostClass, int] = {}
        self.class_symbol: list[int] = []
        self.symbols: dict[tuple[str, str, str], int] = {}
        self.instances: list[Instance] = []
        self.node_instance: list[Int64Array] = []
        self.node_symbol: list[Int64Array] = []
        self.node_layer: list[Int64Array] = []
        self.node_class: list[Int64Array] = []
        self.members: list[tuple[int, ...]] = []
        self.leaving = {half: [-1] * plan.sp.degree for half in (1, 2)}
        self.turns = Turns()
        self.instance_turn: list[int] = []
        self.node_half: list[Int64Array] = []
        self.send_classes: list[int] = []
        self.even = True
        self.blocks: dict[int, _Block] = {}
        """By identity: layers that are alike share one body."""
        self.bare: dict[int, tuple[Node, Node, bool]] = {}
        """By identity: the node, which so stays what it is, its part that bears on its cost, and whether ``s`` does."""

    def _tile(self, body: Body) -> list[tuple[Placed, int, int]]:
        """Return the body's nodes on every rank with their symbol and cost class (−1: none)."""
        return [self._classified(placed) for placed in _evened(body, place(body, self.plan))]

    def _classified(self, placed: Placed) -> tuple[Placed, int, int]:
        node = placed.node
        symbol = self.symbols.setdefault((node.name, node.op, node.module), len(self.symbols))
        if node.is_structural or node.op == "recv":
            return placed, symbol, -1
        _, bare, by_s = self.bare.get(id(node)) or self._bared(node)
        communicates = node.axis is not None or node.op == "send"
        key = CostClass(
            node=bare,
            s=placed.s[0] if by_s else 0,
            comm=self.comm_key(node.communication, placed.members) if communicates else None,
        )
        if key not in self.classes:
            self.classes[key] = len(self.classes)
            self.class_symbol.append(symbol)
        return placed, symbol, self.classes[key]

    def _bared(self, node: Node) -> tuple[Node, Node, bool]:
        """Return a node, its part that bears on its cost, and whether SP ranks differ in it: the same for all ranks."""
        found = self.bare[id(node)] = node, class_node(node), depends_on_s(node, whole=self.plan.sp.whole)
        return found

    def unit(self, body: Body, layer: int, half: int) -> None:
        """Append one unit's instances and nodes; one of the whole step follows both halves, and both follow it."""
        block = self.blocks.get(id(body))
        if block is None:
            block = self.blocks[id(body)] = self._block(body)
        base = len(self.instances)
        before = [self.leaving[one] for one in ((half,) if half else (1, 2))]

        def absolute(needs: Needs) -> tuple[int, ...]:
            if needs and needs[0] >= 0:  # they are sorted
                return (base + needs[0],) if len(needs) == 1 else tuple([base + need for need in needs])
            found = {leaving[~need] if need < 0 else base + need for need in needs for leaving in before}
            return tuple(sorted(found - {-1}))

        turns = self.turns.of(body, half)
        self.instance_turn += [turns[position] for position in block.positions]
        self.node_half.append(np.full(len(block.members), half, np.int64))
        self.instances += [Instance(cls, s, stream, absolute(needs)) for cls, s, stream, needs in block.instances]
        self.node_instance.append(block.node_instance + base)
        self.node_symbol.append(block.node_symbol)
        self.node_class.append(block.node_class)
        self.node_layer.append(np.full(len(block.members), layer, np.int64))
        self.members += block.members
        self.send_classes += block.send_classes
        self.even = self.even and block.even
        ends = [absolute(needs) for needs in block.leaving]
        for one in (half,) if half else (1, 2):
            self.leaving[one] = [
                found[-1] if found else last for found, last in zip(ends, self.leaving[one], strict=True)
            ]

    def _block(self, body: Body) -> _Block:
        """Return what a body adds, whatever comes before it."""
        degree = self.plan.sp.degree
        here: dict[tuple[int, int], Needs] = {(INPUT, s): (~s,) for s in range(degree)}
        sources: dict[int, list[int]] = {}
        for edge in body.edges:
            sources.setdefault(edge.target, []).append(edge.source)
        merged: dict[tuple[int, tuple[int, ...]], int] = {}
        instances: list[tuple[int, tuple[int, ...], int, Needs]] = []
        positions: list[int] = []
        nodes: list[tuple[int, int, int]] = []
        members: list[tuple[int, ...]] = []
        send_classes: list[int] = []
        even = True
        for placed, symbol, cls in self._tile(body):
            if placed.node.op == "send":
                send_classes.append(cls)
                continue
            key = (placed.position, placed.s)
            number = merged.get(key)
            if number is None:
                before = [here.get((x, s), ()) for x in sources.get(placed.position, ()) for s in placed.s]
                needs = tuple(sorted({instance for part in before for instance in part}))
                if cls < 0:
                    for s in placed.s:
                        here[placed.position, s] = needs
                    continue
                merged[key] = number = len(instances)
                instances.append((cls, placed.s, STREAMS.index(placed.node.stream), needs))
                positions.append(placed.position)
                for s in placed.s:
                    here[placed.position, s] = (number,)
            even = even and instances[number][0] == cls
            nodes.append((number, symbol, cls))
            members.append(placed.members)
        node_instance, node_symbol, node_class = np.array(nodes, np.int64).reshape(-1, 3).T
        return _Block(
            instances=instances,
            positions=positions,
            node_instance=node_instance,
            node_symbol=node_symbol,
            node_class=node_class,
            members=members,
            send_classes=send_classes,
            leaving=[here.get((body.exit, s), ()) if body.exit != INPUT else () for s in range(degree)],
            even=even,
        )

    def template(self, kind: str, stage: int, variant: int, *, receives: bool) -> PassTemplate:
        """Return what was compiled as plain arrays, halves of a step in turn."""
        columns = (self.node_instance, self.node_symbol, self.node_layer, self.node_half, self.node_class)
        node_instance, node_symbol, node_layer, node_half, node_class = (np.concatenate(parts) for parts in columns)
        instances, members, exits = self.instances, self.members, self.leaving[1]
        if node_half.any():
            turn = np.array(self.instance_turn, np.int64)
            order, nodes = in_turn(turn), in_turn(turn[node_instance])
            place = np.argsort(order)
            instances = _placed([instances[at] for at in order.tolist()], place.tolist())
            node_instance = place[node_instance[nodes]]
            node_symbol, node_layer, node_half = node_symbol[nodes], node_layer[nodes], node_half[nodes]
            node_class = node_class[nodes]
            members = [members[at] for at in nodes.tolist()]
            exits = [int(place[at]) for at in exits]
        return PassTemplate(
            kind=kind,
            stage=stage,
            variant=variant,
            ranks=self.plan.stage_ranks,
            symbols=tuple(self.symbols),
            class_symbol=tuple(self.class_symbol),
            instance_class=np.array([i.cls for i in instances], np.int64),
            instance_stream=np.array([i.stream for i in instances], np.int64),
            instance_s=tuple(i.s for i in instances),
            after=tuple(i.after for i in instances),
            exits=tuple(exits),
            node_instance=node_instance,
            node_symbol=node_symbol,
            node_layer=node_layer,
            members=tuple(members),
            send_classes=tuple(self.send_classes),
            receives=receives,
            node_half=node_half if node_half.any() else np.empty(0, np.int64),
            node_class=np.empty(0, np.int64) if self.even else node_class,
        )


def _placed(instances: list[Instance], place: list[int]) -> list[Instance]:
    """Return instances whose earlier ones are where ``place`` puts them."""
    return [Instance(cls, s, stream, tuple(sorted([place[at] for at in after]))) for cls, s, stream, after in instances]
