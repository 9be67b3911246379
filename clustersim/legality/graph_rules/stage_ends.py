"""Part of PP-2: a stage sends the last value that it makes, and its first module alone takes what arrived.

An operator and a layer identify a value; collectives that put its parts together are contracted away. Where a plan
cuts between attention and FFN, the last value is that behind attention's residual addition.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.finding import judged, operator, place
from clustersim.legality.graph_rules.kinds import kinds_of
from clustersim.legality.graph_rules.views.dataflow import contracted
from clustersim.legality.graph_rules.views.graph import BoolArray, GraphView
from clustersim.legality.stages import Module, stages_of
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan

Value = tuple[str, int]
"""An operator, and its layer (−1 outside the layers)."""

FIX: Final = "send what the last module of the stage adds to the residual stream, and begin the next stage with that"


def last_value(model: ModelSpec, modules: tuple[Module, ...]) -> Value:
    """Return what makes the last value of a stage; a stage of no module passes on what it received."""
    if not modules:
        return "recv", -1
    layer, part = modules[-1]
    if part in ("embedding", "lm_head"):
        return "embedding" if part == "embedding" else "sample", -1
    return f"{_module(model, layer, part)}_add", layer


def first_takers(model: ModelSpec, modules: tuple[Module, ...]) -> tuple[Value, ...]:
    """Return what takes the input of a stage: norm and residual addition of its first module."""
    if not modules:
        return (("send", -1),)
    layer, part = modules[0]
    if part in ("embedding", "lm_head"):
        return (("final_norm", -1),) if part == "lm_head" else ()
    name = _module(model, layer, part)
    return (f"{name}_norm", layer), (f"{name}_add", layer)


def _module(model: ModelSpec, layer: int, part: str) -> str:
    return part if part == "attention" else "moe" if isinstance(model.layers[layer].ffn, Moe) else "ffn"


def hands_over(view: GraphView, plan: ParallelPlan, model: ModelSpec) -> Finding:
    """Compare what sends take, and what takes receives, with the ends of the stages."""
    transfers = view.mask(lambda node: node.op in ("send", "recv"))
    if not transfers.any():
        return NOTHING
    stages = stages_of(model, plan)
    known = view.named(*kinds_of(model))
    source, target, rank = contracted(view, transfers=True)
    sends, recvs = view.named("send"), view.named("recv")
    makes = _are(view, [(last_value(model, modules),) for modules in stages])
    takes = _are(view, [first_takers(model, modules) for modules in stages])
    out = sends[target] & view.takes_part(source, rank)
    wrong = np.flatnonzero(out & known[source] & ~makes[source])
    sent = judged(
        view, int(sends.sum()), wrong, lambda at: f"it sends what {place(view, int(source[at]))} makes, which is not "
        "the last value of its stage", FIX, target,
    )  # fmt: skip
    given = np.zeros(len(view), bool)
    given[target[out & (makes[source] | ~known[source])]] = True
    empty = np.flatnonzero(sends & ~given)
    lost = judged(
        view, 0, empty, lambda _: "it does not send the last value of its stage", FIX, np.arange(len(view))
    ) if not len(wrong) else NOTHING  # fmt: skip
    into = recvs[source]
    astray = np.flatnonzero(into & known[target] & ~takes[target])
    strayed = judged(
        view, 0, astray, lambda at: f"it takes what {operator(view, int(source[at]))} brought, which is for the first "
        "module of the stage", FIX, target,
    )  # fmt: skip
    fed = np.zeros(len(view), bool)
    fed[target[into]] = True
    hungry = np.flatnonzero(takes & ~fed & (view.stage > 0) & _received(view, recvs))
    waits = judged(
        view, 0, hungry, lambda _: "it does not take the output of the stage before it", FIX, np.arange(len(view))
    )
    return merged(sent, lost, strayed, waits)


def _are(view: GraphView, values: list[tuple[Value, ...]]) -> BoolArray:
    """Return which nodes are among the values of their stage."""
    found = np.zeros(len(view), bool)
    for stage, some in enumerate(values):
        for name, layer in some:
            found |= view.named(name) & (view.layer == layer) & (view.stage == stage)
    return found


def _received(view: GraphView, recvs: BoolArray) -> BoolArray:
    """Return which nodes are on a rank, in a step, that receives: without it, the receive is what is missing."""
    width = max(1, view.num_ranks)
    cell: Int64Array = view.step * width + view.rank
    found: BoolArray = np.isin(cell, cell[recvs])
    return found
