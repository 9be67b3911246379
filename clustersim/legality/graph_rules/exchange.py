"""EP-8 on the step graph: all ranks that experts are spread over take a dispatch together, and its combine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.exchange import FIX, lacking, words
from clustersim.legality.finding import NOTHING, Finding
from clustersim.legality.graph_rules.finding import judged, operator
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.plan.parallel import ParallelPlan


def by_all_ranks(view: GraphView) -> Finding:
    """EP-8: tokens can reach every expert, and come back; a rank that lacks an exchange altogether is rule EP-2's."""
    plan = view.plan
    if plan is None or not plan.ep.sends:
        return NOTHING
    nodes = np.flatnonzero(view.named("dispatch", "combine") & view.mask(lambda node: node.op in COLLECTIVE_OPS))
    stage = _stage(plan, view.rank[nodes])
    cell = np.unique(
        np.stack([view.step[nodes], view.layer[nodes], view.name[nodes], stage]), axis=1, return_inverse=True
    )
    which = cell[1].ravel()
    whole = (np.bincount(which)[which] == 1) & (view.size[nodes] == _group(plan, 0).size)
    told = dict(entry for one in np.unique(which[~whole]).tolist() for entry in _apart(view, plan, nodes[which == one]))
    bad = np.array(sorted(told), np.int64)
    return judged(view, len(nodes), np.arange(len(bad)), lambda at: told[int(bad[at])], FIX, bad)


def _stage(plan: ParallelPlan, rank: Int64Array) -> Int64Array:
    """Return the stage of ranks, that of each replica apart where each has all experts."""
    place = rank // plan.stage_ranks
    return place % plan.pp if plan.ep.scope == "global" else place


def _group(plan: ParallelPlan, rank: int) -> Int64Array:
    """Return the ranks that share the experts of a stage with one."""
    first = rank // plan.stage_ranks
    places = np.arange(first % plan.pp, plan.dp * plan.pp, plan.pp) if plan.ep.scope == "global" else np.array([first])
    return (places[:, None] * plan.stage_ranks + np.arange(plan.stage_ranks)).ravel()


def _apart(view: GraphView, plan: ParallelPlan, nodes: Int64Array) -> Iterator[tuple[int, str]]:
    """Yield each part of one exchange whose ranks do not meet all others, with what is wrong."""
    offsets, ranks = view.members
    members = {node: tuple(ranks[offsets[node] : offsets[node + 1]].tolist()) for node in nodes.tolist()}
    rounds: dict[int, list[int]] = defaultdict(list)
    for node, depth in _depths(view, nodes).items():
        rounds[depth].append(node)
    group = _group(plan, int(view.rank[nodes[0]])).tolist()
    lacks = lacking(group, [[members[node] for node in rounds[depth]] for depth in sorted(rounds)])
    for node, own in members.items():
        odd = next((rank for rank in own if rank in lacks), None)
        if odd is not None:
            yield node, f"{operator(view, node)} {words(own, odd, lacks[odd], group)}"


def _depths(view: GraphView, nodes: Int64Array) -> dict[int, int]:
    """Return how many of these nodes each one is behind."""
    edges = np.flatnonzero(np.isin(view.source, nodes) & np.isin(view.target, nodes))
    pairs = list(zip(view.source[edges].tolist(), view.target[edges].tolist(), strict=True))
    found = dict.fromkeys(nodes.tolist(), 0)
    for _ in nodes:
        deeper = {target: found[source] + 1 for source, target in pairs if found[source] + 1 > found[target]}
        if not deeper:
            break
        found |= deeper
    return found
