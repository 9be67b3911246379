"""EP-8 on the step graph: all ranks that experts are spread over take a dispatch together, and its combine."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.exchange import FIX, sharing_in, words
from clustersim.legality.finding import NOTHING, Finding
from clustersim.legality.graph_rules.finding import judged, operator
from clustersim.legality.graph_rules.views.graph import GraphView


def by_all_ranks(view: GraphView) -> Finding:
    """EP-8: tokens can reach every expert, and come back; a rank that lacks an exchange altogether is rule EP-2's.

    Rounds of sub-groups that reach everybody are one exchange before this looks (``merging.exchanges``).
    """
    plan = view.plan
    if plan is None or not plan.ep.sends:
        return NOTHING
    exchanges = view.named("dispatch", "combine")
    if view.names_are_foreign:  # one node per rank may be a drawing of what all take together
        exchanges &= view.mask(lambda node: node.op in COLLECTIVE_OPS)
    size = len(sharing_in(plan, 0))

    def place(rank: Int64Array) -> Int64Array:
        return rank // plan.stage_ranks % (plan.pp if size > plan.stage_ranks else plan.world)

    wrong = view.size != size
    wrong[view.member_node[place(view.member_rank) != place(view.rank)[view.member_node]]] = True
    offsets, ranks = view.members

    def message(node: int) -> str:
        members = ranks[offsets[node] : offsets[node + 1]].tolist()
        return f"{operator(view, node)} {words(members, members[0], members, sharing_in(plan, members[0]))}"

    bad = np.flatnonzero(exchanges & wrong & (view.size > 0))  # of no rank at all: RUN-1
    return judged(view, int(exchanges.sum()), bad, message, FIX, np.arange(len(view)))
