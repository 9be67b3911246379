"""DP-3 on the step graph: nothing goes from one replica to another."""

from __future__ import annotations

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.finding import judged, operator, place
from clustersim.legality.graph_rules.views.graph import GraphView


def keeps_apart(view: GraphView) -> Finding:
    """DP-3: no edge or collective joins replicas, save dispatch and combine where experts span them."""
    plan = view.plan
    if plan is None or (plan.dp == 1 and not plan.sp.whole):
        return NOTHING
    replica_of = (
        view.s_of if plan.sp.whole else view.replica_of
    )  # replicas in lockstep are one, coordinate by coordinate
    replica = replica_of(view.rank)
    source, target = view.source, view.target
    spans = plan.ep.scope == "global" or plan.sp.whole
    shared = view.named("dispatch", "combine") if spans else np.zeros(len(view), bool)
    known = (view.rank >= 0) & (view.rank < plan.world)
    crosses = known[source] & known[target] & (replica[source] != replica[target]) & ~shared[source] & ~shared[target]
    fix = "keep sequences, and all that they need, on one replica"
    edges = judged(
        view, len(source), np.flatnonzero(crosses),
        lambda edge: f"it needs {place(view, int(source[edge]))}, of replica {int(replica[source[edge]])}", fix, target,
    )  # fmt: skip
    across = np.zeros(len(view), bool)
    node = view.member_node
    across[node[replica_of(view.member_rank) != replica[node]]] = True
    groups = judged(
        view, 0, np.flatnonzero(across & ~shared),
        lambda node: f"{operator(view, node)} joins ranks of several replicas", fix, np.arange(len(view)),
    )  # fmt: skip
    return merged(edges, groups)
