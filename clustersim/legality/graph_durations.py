"""RUN-2 of a step graph that states durations: each is what its operator costs on what a scenario declares.

A graph names neither devices nor engine: the scenario that it is of has to be given. Priced by ``legality.prices``, as
timelines are, and no operator is looked at whose name tells nothing there, nor what stages send to each other.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from clustersim.clock import FloatArray
from clustersim.graph.batch import StepBatch
from clustersim.graph.blueprint import Node
from clustersim.graph.stepgraph import StepGraph
from clustersim.legality.prices.contents import Contents
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.legality.prices.features import Features
from clustersim.legality.prices.prices import Priced, Prices
from clustersim.legality.prices.ways import WAYS
from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.legality.timeline_rules.operators.priced import COST, HALF_NS, ROUNDING
from clustersim.legality.timeline_rules.views.runs import Runs


class _Step(Contents):
    """What one step has, as its graph states it: sums over the sequences that decode."""

    def __init__(self, deployment: PricedDeployment, batch: StepBatch) -> None:
        zero, one, none = np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(0, np.int64)
        slot = zero if any(batch.decode_sequences) else -one
        runs = Runs({"replica": zero, "step": zero, "count": one, "slot": slot, "start_ns": zero, "end_ns": zero})
        pieces: Any = SimpleNamespace(is_chunk=none > 0, first_run=none, count=none, computed=none)
        start, count = np.array([(part.start, part.count) for part in batch.chunks], np.int64).reshape(-1, 2).T
        chunks = {"replica": np.zeros_like(start), "step": np.zeros_like(start), "start": start, "count": count}
        super().__init__(deployment, runs, pieces, chunks)
        self._batch = batch

    def decodes(self, window: int | None) -> tuple[FloatArray, FloatArray]:
        keys = self._batch.decode_keys if window is None else self._batch.windowed_keys[window]
        return np.array([sum(self._batch.decode_sequences), 0.0]), np.array([sum(keys), 0.0])

    def decodes_of(self, s: int, window: int | None) -> tuple[FloatArray, FloatArray]:
        keys = self._batch.decode_keys if window is None else self._batch.windowed_keys[window]
        return np.array([self._batch.decode_sequences[s], 0.0]), np.array([keys[s], 0.0])


def as_priced(
    graph: StepGraph, durations: FloatArray, batch: StepBatch, deployment: PricedDeployment, replica: int
) -> Verdict:
    """Compare the durations that a graph states with what its operators cost.

    Parameters
    ----------
    graph : StepGraph
    durations : float64 array of shape (nodes,)
        In ns; NaN where the graph states none.
    batch : StepBatch
    deployment : PricedDeployment
        Its plan is that of the graph.
    replica : int
        Of its pool, whose devices price collectives.
    """
    if deployment.together or batch.halves:
        lacks = ("what replicas in lockstep, and steps of two halves, take is compared by audit alone",)
        return Verdict(violations=(), rules=(LookedAt(id="RUN-2", level="T", looked_at=0, lacks=lacks),))
    said = np.flatnonzero(np.isfinite(durations))
    columns = np.stack((graph.symbol, graph.group, graph.stage, graph.layer))[:, said]
    alike, of = np.unique(columns, axis=1, return_inverse=True)
    costs = _Costs(graph, batch, deployment, replica)
    due = np.array([costs.of(*one) for one in alike.T.tolist()])[of.reshape(-1)] if len(said) else durations[said]
    off = np.abs(durations[said] - due) - ROUNDING * due > HALF_NS  # never of what has no price
    violations = tuple(
        _violation(graph, node, stated, cost)
        for node, stated, cost in zip(said[off].tolist(), durations[said][off], due[off], strict=True)
    )
    return Verdict(
        violations=violations[:1],  # one mistake is in many of them
        rules=(LookedAt(id="RUN-2", level="T", looked_at=int(np.isfinite(due).sum())),),
    )


def _violation(graph: StepGraph, node: int, stated: float, cost: float) -> Violation:
    symbol, layer = graph.symbols[graph.symbol[node]], int(graph.layer[node])
    where = f"stage {graph.stage[node]}" + (f", layer {layer}" if layer >= 0 else "")
    message = (
        f"{symbol.name} ({symbol.op}) is said to take {stated:,.10g} ns, and costs {cost:,.0f} ns by the cost model of "
        "the scenario, with what the step has"
    )
    return Violation(rule="RUN-2", level="T", where=where, message=message, fix=COST, node=node)


class _Costs:
    """What operators of one step cost, ns; NaN where nothing tells."""

    def __init__(self, graph: StepGraph, batch: StepBatch, deployment: PricedDeployment, replica: int) -> None:
        self.graph, self.deployment, self.replica = graph, deployment, replica
        self.prices = Prices(deployment, 0)
        zero = np.zeros(1, np.int64)
        self.features: Features = _Step(deployment, batch).at(zero, zero)
        engine = deployment.engine
        captured = self.prices.in_graph(batch.kind, self.features)
        self.gap = np.where(captured, engine.graph_launch_s, engine.launch_s)
        writes = np.array([one.name == "kv_write" for one in graph.symbols], bool)[graph.symbol]
        self.cached = {
            stage: tuple(np.unique(graph.layer[writes & (graph.stage == stage)]).tolist())
            for stage in np.unique(graph.stage).tolist()
        }

    def of(self, symbol: int, group: int, stage: int, layer: int) -> float:
        node, plan = self.graph.symbols[symbol], self.deployment.plan
        ranks = tuple(rank % (plan.sp.degree * plan.tp) for rank in self.graph.groups[group])
        s = ranks[0] // plan.tp, ranks[-1] // plan.tp
        work = self._work(node, layer, s, stage)
        if work is None:
            return float("nan")
        joins = node.op in WAYS
        one = Priced(name=node.name, layer=layer, work=work, s=s[0], groups=(ranks,) if joins else ())
        if not joins:
            return float(self.prices.kernel_ns(one, self.features, self.gap)[0])
        return float(self.prices.collective_ns(one, self.features, np.array([self.replica]), stage)[0][0])

    def _work(self, node: Node, layer: int, s: tuple[int, int], stage: int) -> Any:
        if layer >= len(self.deployment.model.layers):
            return None
        work = self.prices.works.of(node.name, node.op, layer, s, self.cached[stage])
        known = work is not None and work.op == node.op and (node.op in WAYS or not self.prices.joins(node.op))
        return work if known else None
