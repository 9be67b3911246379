"""Which operators each rank runs in a step, and how often, told from plan and architecture alone.

Collectives are not among them, but for the dispatch and combine of experts: which ones a plan needs follows from the
layouts of what they join (rules TP-2, SP-2 and SP-8), and from no list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.graph_rules.views.graph import GraphView, once
from clustersim.legality.reference import attention_inputs, ffn_inputs, head_inputs
from clustersim.legality.stages import Module, stages_of
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

OF_DECODE: Final = ("attention_decode", "q_absorb", "v_absorb")
OF_EXPERTS: Final = ("dispatch", "expert_up", "expert_act", "expert_down", "combine")
"""What ranks that idle otherwise run for the tokens of others, since experts live there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """One operator of one stage: how often each rank runs it, and whether only the first SP rank does."""

    layer: int
    name: str
    times: int
    alone: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Roster:
    """How often each rank should run each operator.

    Parameters
    ----------
    names : tuple of str
    step, layer, rank, name, times : int arrays of shape (entries,)
        ``name`` points into ``names``; an operator of a rank is one entry.
    """

    names: tuple[str, ...]
    step: Int64Array
    layer: Int64Array
    rank: Int64Array
    name: Int64Array
    times: Int64Array

    def about(self, chosen: Callable[[str], bool]) -> Roster:
        """Return the entries of the operators for whose name ``chosen`` holds, and no other name."""
        kept = [at for at, name in enumerate(self.names) if chosen(name)]
        number = np.full(len(self.names), -1)
        number[kept] = np.arange(len(kept))
        mine = number[self.name] >= 0
        return Roster(
            names=tuple(self.names[at] for at in kept),
            step=self.step[mine],
            layer=self.layer[mine],
            rank=self.rank[mine],
            name=number[self.name[mine]],
            times=self.times[mine],
        )


def is_known(view: GraphView) -> bool:
    """Whether plan, model and steps tell which operators there should be.

    Where all replicas share their experts, the step of one replica has a part of them only.
    """
    plan = view.plan
    spread = plan is not None and plan.ep.scope == "global" and plan.dp > 1
    return not (plan is None or view.model is None or spread or any(step.kind == "unknown" for step in view.steps))


@once
def replicas_of(view: GraphView) -> tuple[Int64Array, Int64Array]:
    """Return (step, replica) of every replica that has an operator in a step; the first one, where none has."""
    dp = 1 if view.plan is None else view.plan.dp
    replica = view.replica_of(view.member_rank)
    inside = (replica >= 0) & (replica < dp)
    key = np.unique(view.step[view.member_node[inside]] * dp + replica[inside])
    empty = np.setdiff1d(np.arange(len(view.steps)), key // dp) * dp
    every = np.sort(np.concatenate((key, empty)))
    return every // dp, every % dp


@once
def roster(view: GraphView) -> Roster:
    """Return which operators the ranks of a graph's stages run in its steps; none where plan or model are unknown."""
    plan, model = view.plan, view.model
    if plan is None or model is None:
        return _roster({}, [])
    names: dict[str, int] = {}
    parts: list[Int64Array] = []
    kinds = np.array([step.kind for step in view.steps])
    steps, replicas = replicas_of(view)
    local = np.arange(plan.stage_ranks)
    for kind in dict.fromkeys(kinds.tolist()):
        here = kinds[steps] == kind
        for stage, modules in enumerate(stages_of(model, plan)):
            if not view.shows(stage):
                continue
            first = replicas[here] * plan.replica_ranks + stage * plan.stage_ranks
            duties = list(_duties(model, plan, kind, stage, modules))
            told = ((duty.layer, names.setdefault(duty.name, len(names)), duty.times, duty.alone) for duty in duties)
            layer, name, times, alone = np.array(list(told), np.int64).reshape(-1, 4).T
            shape = len(duties), int(here.sum()), len(local)
            duty, at, rank = np.nonzero(np.broadcast_to((alone == 0)[:, None, None] | (local < plan.tp), shape))
            parts.append(np.stack([steps[here][at], layer[duty], first[at] + rank, name[duty], times[duty]]))
    return _roster(names, parts)


def _roster(names: Mapping[str, int], parts: Sequence[Int64Array]) -> Roster:
    step, layer, rank, name, times = np.concatenate(parts, axis=1) if parts else np.zeros((5, 0), np.int64)
    return Roster(names=tuple(names), step=step, layer=layer, rank=rank, name=name, times=times)


def _duties(model: ModelSpec, plan: ParallelPlan, kind: str, stage: int, modules: Sequence[Module]) -> Iterator[Duty]:
    idle = plan.sp.degree > 1 and plan.sp.decode == "idle"
    parts = plan.sp.degree if plan.sp.scheme == "ring" else 1
    for layer, name in _operators(model, plan, kind, stage, modules):
        for_others = plan.ep.sends and name in OF_EXPERTS
        alone = idle and (name in OF_DECODE or (kind == "decode" and not for_others))
        yield Duty(layer=layer, name=name, times=parts if name == "attention_prefill" else 1, alone=alone)


def _operators(
    model: ModelSpec, plan: ParallelPlan, kind: str, stage: int, modules: Sequence[Module]
) -> Iterator[tuple[int, str]]:
    """Yield (layer, name) of the operators of one stage."""
    last = stage == plan.pp - 1
    prefills, decodes = kind != "decode", kind != "prefill"
    if stage > 0:
        yield -1, "recv"
    for layer, part in modules:
        match part:
            case "embedding":
                yield from ((-1, name) for name in ("schedule", "embedding"))
            case "lm_head":
                yield from ((-1, name) for name in head_inputs(model) if name != "embedding")
            case "attention":
                inputs = attention_inputs(model.layers[layer], prefills=prefills, decodes=decodes)
                yield from ((layer, name) for name in (*inputs, "kv_read"))
            case _:
                yield from ((layer, name) for name in ffn_inputs(model.layers[layer]))
    if not last:
        yield -1, "send"
    moves = plan.sp.degree > 1 and any(part == "attention" for _, part in modules)
    if prefills and (last or moves):  # prefill ends on the last stage, and wherever SP ranks have moved K/V
        yield -1, "boundary"
