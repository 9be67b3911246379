"""The step graphs of a script executed node by node, in whatever order is asked for.

A node that runs before what it needs finds nothing there. Values of a step are forgotten when it is over; caches and
sampled tokens stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from clustersim.errors import BrokenLawError
from clustersim.graph.blueprint import Node
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.operators import attention, cache, collectives, dense, experts
from clustersim.proof.operators.values import Arrival, Value
from clustersim.proof.operators.weights import Weights
from clustersim.proof.place import Memory, Place, Setting
from clustersim.proof.script import Script, program_of
from clustersim.proof.tokens import lay_out
from clustersim.proof.wiring import WiredGraph, WiredNode

Event = tuple[int, int]
"""(step, node of its graph)."""

Alone = Callable[[Place, list[Arrival]], Value]
Together = Callable[[list[Place], list[list[Arrival]]], Sequence[Value]]

ALONE: Final[Mapping[str, Alone]] = {
    "schedule": dense.schedule,
    "embedding": dense.embedding,
    "rope": dense.rope,
    "qk_norm_rope": dense.rope,
    "kv_a_norm_rope": dense.kv_a_norm_rope,
    "q_b_proj": dense.q_b_proj,
    "gate": dense.gate,
    "shared_gate": dense.shared_gate,
    "kv_b_proj": attention.kv_b_proj,
    "q_absorb": attention.q_absorb,
    "v_absorb": attention.v_absorb,
    "kv_write": cache.kv_write,
    "kv_read": cache.kv_read,
    "boundary": cache.boundary,
    "dispatch": experts.permute,
    "expert_up": experts.expert_linear,
    "expert_act": experts.expert_act,
    "expert_down": experts.expert_linear,
    "combine": experts.bring_back,
    "aggregate": dense.aggregate,
    "logits_cap": dense.logits_cap,
    "send": dense.pass_on,
    "recv": dense.pass_on,
    "sample": dense.sample,
}
"""Operator of one rank → what it computes; see :func:`alone` for those that go by a kind."""

TOGETHER: Final[Mapping[str, Together]] = {
    "dispatch": experts.dispatch,
    "combine": experts.combine,
    "kv_all_gather": collectives.kv_all_gather,
    "qkv_all_to_all": collectives.qkv_all_to_all,
    "out_all_to_all": collectives.out_all_to_all,
    "kv_move": collectives.kv_move,
    "all_reduce": collectives.all_reduce,
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "ring_shift": collectives.ring_shift,
}
"""Collective by its name, or else by its operator → what it brings to each member."""


def alone(name: str, op: str) -> Alone:
    """Return what an operator of one rank computes."""
    if name in ALONE:
        return ALONE[name]
    if op == "gemm":
        return dense.linear
    if op in ("attention_prefill", "attention_decode"):
        return attention.attention
    for ending, function in (("_norm", dense.norm), ("_act", dense.activation), ("_add", dense.add)):
        if name.endswith(ending):
            return function
    raise BrokenLawError(f"a step graph has the operator {name} ({op}), whose meaning the proof does not know")


class Watch(Protocol):
    """Sees every value as it is made."""

    def __call__(self, step: int, at: Place, arrived: list[Arrival], value: Value, /) -> None: ...


class OutOfShapeError(BrokenLawError):
    """A node asks for heads or features that are not there: its graph can't be executed."""

    def __init__(self, step: int, at: Place) -> None:
        super().__init__(f"{at.node.name} of step {step} asks rank {at.rank} for what it does not have")
        self.step = step
        self.at = at


class Execution:
    """One execution of a script under a plan.

    Parameters
    ----------
    model : ModelSpec
    plan : ParallelPlan
    weights : Weights
    script : Script
    graphs : mapping
        Kind of step → its graph of one replica.
    watch : callable, optional
    """

    def __init__(
        self,
        model: ModelSpec,
        plan: ParallelPlan,
        weights: Weights,
        script: Script,
        graphs: Mapping[str, WiredGraph],
        watch: Watch | None = None,
    ) -> None:
        self.script = script
        self.memory = Memory(prompts=script.prompts)
        self.watch = watch
        self.setting = Setting(model=model, plan=plan, weights=weights)
        self.graphs = [graphs[program_of(step)] for step in script.steps]
        self.tokens = [lay_out(step, plan, len(script.prompts), script.positions) for step in script.steps]
        self.left = [len(graph) for graph in self.graphs]
        self.values: list[dict[int, Sequence[Value]]] = [{} for _ in script.steps]

    def run(self, order: Iterable[Event]) -> Memory:
        """Execute nodes in the order given; return what was sampled and cached.

        Raises
        ------
        OutOfShapeError
            When a node asks for more heads or features than its inputs or the model have.
        """
        with np.errstate(all="ignore"):
            for step, node in order:
                self._node(step, node)
        return self.memory

    def _node(self, step: int, index: int) -> None:
        wired, values = self.graphs[step].nodes[index], self.values[step]
        if self.left[step] == len(self.graphs[step]):
            self._begin(step)
        arrived = [
            [
                Arrival(kind=wire.kind, source=wire.source, value=values[wire.source][wire.place])
                for wire in wires
                if wire.source in values
            ]
            for wires in wired.wires
        ]
        ats = [
            self._place(wired, step, rank, wired.cached_layers[place] if wired.cached_layers and arrived[place] else ())
            for place, rank in enumerate(wired.ranks)
        ]
        try:
            made = values[index] = self._made(wired.node, ats, arrived)
        except (IndexError, ValueError):  # numpy's words for indices and for shapes
            raise OutOfShapeError(step, ats[0]) from None
        if self.watch is not None:
            for at, inputs, value in zip(ats, arrived, made, strict=True):
                self.watch(step, at, inputs, value)
        self.left[step] -= 1
        if not self.left[step]:
            values.clear()

    def _made(self, node: Node, ats: list[Place], arrived: list[list[Arrival]]) -> Sequence[Value]:
        if not node.is_collective:
            return [alone(node.name, node.op)(ats[0], arrived[0])]
        if node.axis in ("tp", "expert_tp"):
            self.memory.counts["joined"] += 1
        return (TOGETHER.get(node.name) or TOGETHER[node.op])(ats, arrived)

    def _begin(self, step: int) -> None:
        """Free what is left of the cache of sequences that start anew."""
        tokens = self.tokens[step]
        anew = tokens.sequence[tokens.position == 0]
        freed = np.isin(tokens.slot_sequence, anew)
        for place, kept in self.memory.caches.items() if len(anew) else ():
            self.memory.caches[place] = np.where(freed[:, None, None], np.nan, kept)

    def _place(self, wired: WiredNode, step: int, rank: int, cached_layers: tuple[int, ...]) -> Place:
        plan = self.setting.plan
        local = rank % plan.stage_ranks
        return Place(
            node=wired.node,
            layer=wired.layer,
            stage=wired.stage,
            rank=rank,
            local=local,
            s=local // plan.tp,
            t=local % plan.tp,
            setting=self.setting,
            tokens=self.tokens[step],
            memory=self.memory,
            cached_layers=cached_layers,
        )
