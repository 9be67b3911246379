"""Whether every operator that plan and model ask for is in the graph, on each rank, as often as it should be.

Several rules look at it, each for its own operators: :data:`OWNER` says whose an operator is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.finding import NOTHING, Fault, Finding
from clustersim.legality.graph_rules.finding import cell_place
from clustersim.legality.graph_rules.views.dataflow import LOGICAL
from clustersim.legality.graph_rules.views.doubted import in_doubt
from clustersim.legality.graph_rules.views.graph import GraphView, once
from clustersim.legality.graph_rules.views.roster import is_known, replicas_of, roster
from clustersim.plan.parallel import ParallelPlan

OWNER: Final[Mapping[str, str]] = {
    "boundary": "PH-1",
    "kv_write": "KV-1",
    "send": "PP-2",
    "recv": "PP-2",
    "gate": "EP-4",
    "aggregate": "EP-4",
    "dispatch": "EP-2",
    "combine": "EP-2",
    "expert_up": "EP-6",
    "expert_act": "EP-6",
    "expert_down": "EP-6",
}
"""Operator → the rule that misses it, TP-8 where it is not named; writes are looked at by rules KV-1 and KV-4."""

FIX: Final = "let every rank of a stage run each operator of the single-device graph once"


def complete(view: GraphView, rule: str) -> Finding:
    """Compare the operators that ``rule`` answers for with those that plan and model ask for.

    Not checkable where plan, model or step are unknown, and on ranks that lack altogether (:func:`all_ranks`).
    """
    plan, model = view.plan, view.model
    if not is_known(view) or plan is None or model is None or _absent(view) is not None:
        return NOTHING
    wanted = roster(view).about(lambda name: OWNER.get(name, "TP-8") == rule and name not in view.not_asked)
    node, rank = _members(view, plan, rule)
    names = {name: at for at, name in enumerate(dict.fromkeys((*wanted.names, *view.names)))}
    own = np.array([names[name] for name in wanted.names], np.int64)
    its = np.array([names[name] for name in view.names], np.int64)
    layers = 1 + max(int(view.layer.max(initial=-1)) + 1, len(model.layers))

    def cell(step: Int64Array, layer: Int64Array, rank: Int64Array, name: Int64Array) -> Int64Array:
        return ((step * layers + layer + 1) * plan.world + rank) * len(names) + name

    asked = cell(wanted.step, wanted.layer, wanted.rank, own[wanted.name]) if len(own) else wanted.step
    there, times = np.unique(cell(view.step[node], view.layer[node], rank, its[view.name[node]]), return_counts=True)
    every = np.unique(np.concatenate((asked, there)))
    found, should = np.zeros(len(every), np.int64), np.zeros(len(every), np.int64)
    found[np.searchsorted(every, there)] = times
    should[np.searchsorted(every, asked)] = wanted.times
    cells = every // len(names)
    doubts = in_doubt(view, cells // plan.world % layers - 1, cells % plan.world)
    faults = []
    for odd in (found < should, found > should):
        at = np.flatnonzero(odd & ~doubts)
        if len(at):
            rest, name = divmod(int(every[at[0]]), len(names))
            rest, lone = divmod(rest, plan.world)
            step, layer = divmod(rest, layers)
            told = _words(tuple(names)[name], lone, int(found[at[0]]), int(should[at[0]]))
            others = f" (and {len(at) - 1:,} more such operators)" if len(at) > 1 else ""
            where = cell_place(view, step, layer - 1, lone)
            faults.append(Fault(where=where, message=told + others, fix=FIX))
    return Finding(looked_at=len(asked), faults=tuple(faults))


def _members(view: GraphView, plan: ParallelPlan, rule: str) -> tuple[Int64Array, Int64Array]:
    """Return (node, rank) of the operators that a rule answers for; what nothing is connected to is rule RUN-1's."""
    mine = np.array([OWNER.get(name, "TP-8") == rule for name in view.names], bool)[view.name]
    mine &= view.mask(lambda node: node.op not in COLLECTIVE_OPS or node.name in LOGICAL)
    linked = np.zeros(len(view), bool)
    linked[view.source] = linked[view.target] = True
    member = (mine & linked)[view.member_node] & (view.member_rank >= 0) & (view.member_rank < plan.world)
    return view.member_node[member], view.member_rank[member]


def _words(name: str, rank: int, found: int, should: int) -> str:
    if not should:
        return f"rank {rank} runs {name}, which the model does not have there"
    times = {1: "once", 2: "twice"}
    often = {0: f"no {name}"}.get(found, f"{name} {times.get(found, f'{found} times')}")
    return f"rank {rank} runs {often}, where plan and model ask for it {times.get(should, f'{should} times')}"


def all_ranks(view: GraphView) -> Finding:
    """Every rank of the plan's stages has something to run in each step; SP ranks may idle in decode."""
    absent = _absent(view)
    if absent is None:
        return NOTHING
    message = (
        f"rank {absent.rank} runs nothing: the plan puts the step on {absent.expected:,} ranks of the stages that the "
        f"graph shows, and operators are on {absent.found:,} of them"
    )
    fix = "give every rank of the plan its operators, or say in `stages` which stages the graph shows"
    where = cell_place(view, absent.step, -1, absent.rank)
    return Finding(looked_at=0, faults=(Fault(where=where, message=message, fix=fix),))


class Absent(NamedTuple):
    """A step, the first rank of its plan without any operator, how many have one, and how many should."""

    step: int
    rank: int
    found: int
    expected: int


@once
def _absent(view: GraphView) -> Absent | None:
    """Return which rank has no operator, None where all have some.

    It makes no list of the plan's ranks, of which a file may name any number.
    """
    plan = view.plan
    if plan is None:
        return None
    stage = view.member_rank % plan.replica_ranks // plan.stage_ranks
    idle = plan.sp.degree > 1 and plan.sp.decode == "idle"
    rests = np.array([idle and step.kind in ("decode", "unknown") for step in view.steps], bool)
    step = view.step[view.member_node]
    busy = view.shows_each(stage) & ~(rests[step] & (view.local(view.member_rank) >= plan.tp))
    busy &= (view.member_rank >= 0) & (view.member_rank < plan.world)
    for at, replica in zip(*replicas_of(view), strict=True):
        width = plan.tp if rests[at] else plan.stage_ranks
        expected = width * view.num_shown(plan.pp)
        here = busy & (step == at) & (view.replica_of(view.member_rank) == replica)
        ranks = np.unique(view.member_rank[here])
        if len(ranks) >= expected:
            continue
        first = int(replica) * plan.replica_ranks
        present = set(ranks.tolist())
        for number in range(plan.pp):
            if not view.shows(number):
                continue
            base = first + number * plan.stage_ranks
            lone = next((base + local for local in range(width) if base + local not in present), None)
            if lone is not None:
                return Absent(int(at), lone, len(ranks), expected)
    return None
