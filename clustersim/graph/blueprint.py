"""The step graph in SPMD form: every operator once per kind of layer, for all ranks of its axes at once.

::

    Blueprint ── stages ── units (module, layer) ── Body ── nodes and edges

A :class:`Body` is the dataflow of one module (one attention, one FFN, …); identical layers share one body. A
:class:`Unit` places a body at a layer. A :class:`Blueprint` is the units of each stage, in order. The passes, one
per primitive, map blueprints to blueprints; ``clustersim.graph.stepgraph`` expands one into nodes per rank.

An amount is a linear form of *features* of the batch (``tokens``, ``prefill_tokens``, ``pairs``, …; see
``clustersim.graph.batch``), so that the shape of the graph does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from clustersim.graph.variant import PLAIN, Variant
from clustersim.plan.exchange import Exchange
from clustersim.values import dataclass

Terms = tuple[tuple[str, float], ...]
StepKind = Literal["prefill", "decode", "mixed"]
STEP_KINDS: Final[tuple[StepKind, ...]] = ("prefill", "decode", "mixed")

COMPUTE_OPS: Final = ("gemm", "grouped_gemm", "attention_prefill", "attention_decode", "memory")
COLLECTIVE_OPS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "ring_shift",
)
TRANSFER_OPS: Final = ("send", "recv")
HOST_OPS: Final = ("schedule", "sample")
STRUCTURAL_OPS: Final = ("kv_read", "boundary")
OPS: Final = COMPUTE_OPS + COLLECTIVE_OPS + TRANSFER_OPS + HOST_OPS + STRUCTURAL_OPS

STREAMS: Final = ("compute", "comm", "send", "recv", "host")

EdgeKind = Literal["data", "kv", "sync", "order", "boundary"]
EDGE_KINDS: Final[tuple[EdgeKind, ...]] = ("data", "kv", "sync", "order", "boundary")

Axis = Literal["tp", "sp", "stage", "expert_tp"]
INPUT: Final = -1
"""As the source of an edge: the value that enters the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator for all ranks of a stage, or one collective over an axis of the stage.

    Parameters
    ----------
    name, op, module : str
        Name within its body (``qkv_proj``), operator kind (one of :data:`OPS`), module (``attention``, …).
    amount : Terms
        GEMM rows, expert rows, bytes moved, or payload bytes, as a linear form of the batch's features.
    least : Terms
        Another linear form: the amount is the larger of both.
    loads : tuple of float
        Where EP ranks are visited unevenly, the amount of each over their mean (``amount``); empty where they are not.
    visits : tuple of tuple of float
        Where experts are visited unevenly, the share of all tokens that visit each expert of each EP rank, of a placed
        operator those of its own rank alone; empty where they are not.
    n, k : int
        Matrix dimensions on one rank.
    heads, kv_heads, qk_dim, v_dim : int
        Attention shape on one rank.
    experts, num_experts, top_k : int
        Experts that one rank holds; experts of the layer; how many of them a token visits.
    variant : Variant
        Which attention features this node reads: a sliding window, a part of a ring, one half.
    rule : str
        How TP splits it (see ``clustersim.graph.passes.tensor``).
    width : int
        Elements per token of the whole (unsharded) output.
    axis : str or None
        The axis whose ranks a collective joins; ``None`` for work of one rank.
    where : str
        ``all`` SP ranks, or only ``s0`` (the others idle).
    copies : int
        Ranks that do the very same work; logical work is work / copies.
    fused : bool
        Whether engines run it inside a neighbour's kernel: it moves its bytes but has no launch of its own.
    included : bool
        Whether its neighbours' measured constants hold all of its cost: that of its bytes as well.
    stream : str
        The device stream that runs it.
    weights : str
        Number format of the weights that it reads; empty: that of most weights, or none.
    exchange : Exchange or None
        Of an all-to-all between experts, how DeepEP does it; None where a library's all-to-all does.
    """

    name: str
    op: str
    module: str
    amount: Terms = ()
    least: Terms = ()
    loads: tuple[float, ...] = ()
    visits: tuple[tuple[float, ...], ...] = ()
    n: int = 0
    k: int = 0
    heads: int = 0
    kv_heads: int = 0
    qk_dim: int = 0
    v_dim: int = 0
    shared_kv: bool = False
    experts: int = 0
    num_experts: int = 0
    top_k: int = 0
    variant: Variant = PLAIN
    rule: str = "replicate"
    width: int = 0
    axis: Axis | None = None
    where: Literal["all", "s0"] = "all"
    copies: int = 1
    fused: bool = False
    included: bool = False
    stream: str = "compute"
    weights: str = ""
    exchange: Exchange | None = None

    def __hash__(self) -> int:
        return hash((self.name, self.op, self.amount, self.n, self.k))  # of 26 fields, those that tell most apart

    @property
    def is_collective(self) -> bool:
        """Whether the node joins several ranks."""
        return self.axis is not None

    @property
    def communication(self) -> str | Exchange:
        """What tells the costs of a collective or send on one group from those of another one there."""
        return self.exchange or self.op

    @property
    def is_structural(self) -> bool:
        """Whether the node only orders others: it takes no time and has no span."""
        return self.op in STRUCTURAL_OPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """``target`` needs what ``source`` made; nodes are positions in the body, :data:`INPUT` is the unit's input."""

    source: int
    target: int
    kind: EdgeKind = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The dataflow of one module.

    ``nodes`` are in program order: each stream runs its nodes in this order, and every edge points forward.
    ``exit`` is the node whose output leaves the unit, or :data:`INPUT` when its input passes through.
    """

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    exit: int

    def __hash__(self) -> int:
        return hash((self.name, len(self.nodes), len(self.edges), self.exit))  # bodies are looked up layer by layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A body at a layer (−1 outside the layers), of one half of the step (1 or 2), or of the whole of it (0)."""

    body: Body
    layer: int
    half: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The units of each stage, for one kind of step.

    Parameters
    ----------
    kind : str
        ``prefill``, ``decode`` or ``mixed``.
    stages : tuple of tuple of Unit
        Units of each stage in order.
    tp, sp, expert_tp, replicas : int
        Sizes of the axes that the passes have introduced so far.
    halves : tuple of str
        Kinds of the two halves of a step that overlap; empty where a step is one micro-batch.
    """

    kind: StepKind
    stages: tuple[tuple[Unit, ...], ...]
    halves: tuple[StepKind, ...] = ()
    tp: int = 1
    sp: int = 1
    expert_tp: int = 1
    replicas: int = 1

    @property
    def name(self) -> str:
        """What tells it from the others of a plan: its kind, or ``decode+decode`` of two halves."""
        return "+".join(self.halves) or self.kind

    def map_bodies(self, change: Callable[[Body], Body]) -> Blueprint:
        """Return the blueprint with every distinct body replaced by ``change(body)``."""
        changed: dict[Body, Body] = {}
        stages = []
        for stage in self.stages:
            units = []
            for unit in stage:
                body = changed.get(unit.body)
                if body is None:
                    body = changed[unit.body] = change(unit.body)
                units.append(unit if body is unit.body else Unit(body=body, layer=unit.layer, half=unit.half))
            stages.append(tuple(units))
        return replace(self, stages=tuple(stages))


class BodyBuilder:
    """Builds a body node by node; ``add`` returns the node's position, to be named as a source later."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []

    def add(self, node: Node, *sources: int, kind: EdgeKind = "data") -> int:
        """Append ``node`` with edges of one kind from ``sources``."""
        position = len(self.nodes)
        self.nodes.append(node)
        for source in sources:
            self.edge(source, position, kind)
        return position

    def edge(self, source: int, target: int, kind: EdgeKind) -> None:
        """Add an edge unless it is there already."""
        edge = Edge(source=source, target=target, kind=kind)
        if edge not in self.edges:
            self.edges.append(edge)

    def build(self, exit_node: int) -> Body:
        """Return the finished body, whose output is that of ``exit_node``."""
        return Body(name=self.name, nodes=tuple(self.nodes), edges=tuple(self.edges), exit=exit_node)
