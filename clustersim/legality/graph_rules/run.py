"""RUN-1: the graph can run: no cycle, no orphan, every node on its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS, TRANSFER_OPS, Node
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.devices import on_devices
from clustersim.legality.graph_rules.finding import judged, node_name, operator
from clustersim.legality.graph_rules.program import successors, waiting
from clustersim.legality.graph_rules.tensor import joins
from clustersim.legality.graph_rules.views.graph import BoolArray, GraphView, Step
from clustersim.legality.graph_rules.views.reach import stuck

STREAMS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(COLLECTIVE_OPS, ("comm", "compute")),
    **{name: (name, "comm", "compute") for name in TRANSFER_OPS},
    "schedule": ("host",),
    "sample": ("host", "compute"),
}
"""Kind of operator → the streams that can run it; the others compute."""


def can_run(view: GraphView) -> Finding:
    """RUN-1: the graph is acyclic and connected, and every node is bound to its device or devices."""
    return merged(acyclic(view), _in_program_order(view), _bound(view), on_devices(view), _connected(view))


def acyclic(view: GraphView) -> Finding:
    """No node waits for itself, over edges alone: that holds whatever the nodes are, and wherever they run."""
    waiting = stuck(len(view), view.source, view.target)
    found = _cycle(waiting, view.source, view.target)

    def message(_: int) -> str:
        several = [node_name(view, node) for node in (found[-1], found[0])]
        return f"{' → '.join(several)} closes a cycle of {len(found)}"

    first = np.array(found[:1], np.int64)
    return judged(view, len(view), np.arange(len(first)), message, "remove one edge of the cycle", first)


def _cycle(waiting: BoolArray, source: Int64Array, target: Int64Array) -> list[int]:
    """Return the nodes of a cycle, each before the next and the last before the first, from its lowest number on.

    Every node that waits has one among those it waits for: going back from any, one comes up again.
    """
    edges = np.flatnonzero(waiting[source] & waiting[target])
    before = dict(zip(target[edges].tolist(), source[edges].tolist(), strict=True))
    seen: dict[int, int] = {}
    back: list[int] = []
    node = int(target[edges[0]]) if len(edges) else -1
    while node >= 0 and node not in seen:
        seen[node] = len(back)
        back.append(node)
        node = before[node]
    cycle = back[seen[node] :][::-1] if back else []
    lowest = cycle.index(min(cycle)) if cycle else 0
    return cycle[lowest:] + cycle[:lowest]


def _in_program_order(view: GraphView) -> Finding:
    """The streams of all ranks, each in program order, can run the graph.

    Where collectives of TP or transfers alone wait for themselves, rules TP-5 and PP-5 say so.
    """
    if stuck(len(view), view.source, view.target).any():
        return NOTHING
    held = waiting(view, np.ones(len(view), bool))
    transfers = view.mask(lambda node: node.op in TRANSFER_OPS)
    if not held.any() or waiting(view, transfers).any():
        return NOTHING
    if view.plan is not None and waiting(view, joins(view)).any():
        return NOTHING
    first, then = successors(view, held)
    late = np.flatnonzero(held[first] & held[then])

    def message(at: int) -> str:
        return f"in the rank's program it comes behind {operator(view, int(first[at]))}, which waits for it"

    return judged(view, 0, late, message, "list a rank's operators in an order in which each can run", then)


def _bound(view: GraphView) -> Finding:
    joins = view.mask(lambda node: node.op in COLLECTIVE_OPS or node.name in view.nameless)
    wrong = np.flatnonzero((view.size == 0) | (~joins & (view.size != 1)))
    numbers = judged(
        view, 0, wrong, lambda node: f"{operator(view, node)} is bound to {int(view.size[node])} devices",
        "bind an operator to one device, and a collective to those that it joins", np.arange(len(view)),
    )  # fmt: skip
    world = view.plan.world if view.plan is not None else view.num_ranks
    far = np.flatnonzero((view.member_rank >= world) | (view.member_rank < 0))
    outside = judged(
        view, 0, far, lambda at: f"rank {int(view.member_rank[at])} is not one of the plan's {world}",
        "bind it to a rank of the plan", view.member_node,
    )  # fmt: skip
    return merged(numbers, outside, _astray(view), _on_their_streams(view))


def _on_their_streams(view: GraphView) -> Finding:
    """What one rank does joins no axis, and runs where its kind can: no norm on a link, and nothing sent by the host.

    Collectives and transfers may have the compute stream: engines do launch them there.
    """
    wrong = [_misplaced(symbol) for symbol in view.symbols]
    bad = np.array([text is not None for text in wrong], bool)[view.symbol]
    return judged(
        view, 0, np.flatnonzero(bad), lambda node: f"{operator(view, node)} {wrong[int(view.symbol[node])]}",
        "bind an operator to a stream of its kind on one device, and a collective to the ranks of an axis",
        np.arange(len(view)),
    )  # fmt: skip


def _misplaced(node: Node) -> str | None:
    if node.axis is not None and node.op not in COLLECTIVE_OPS:
        return f"is one rank's, and is said to join the ranks of axis {node.axis}"
    streams = STREAMS_OF.get(node.op, ("compute",))
    return None if node.stream in streams else f"is on stream {node.stream}, where it needs {' or '.join(streams)}"


def _astray(view: GraphView) -> Finding:
    """A node of a stage is bound to ranks of that stage."""
    plan = view.plan
    if plan is None:
        return NOTHING
    stage = view.member_rank % plan.replica_ranks // plan.stage_ranks
    here = view.stage[view.member_node]
    away = np.flatnonzero((stage != here) & (view.member_rank >= 0) & (view.member_rank < plan.world))
    return judged(
        view, 0, away, lambda at: f"it is of stage {here[at]}, and rank {int(view.member_rank[at])} is of stage "
        f"{stage[at]}", "bind the nodes of a stage to its ranks", view.member_node,
    )  # fmt: skip


def _connected(view: GraphView) -> Finding:
    inside = view.within_step
    label = _components(len(view), view.source[inside], view.target[inside])
    linked = np.zeros(len(view), bool)
    for end in (view.source[~inside], view.target[~inside]):
        linked[label[end]] = True
    found, counts = np.unique(label, return_counts=True)
    step = view.step[found]
    parts = np.bincount(step, minlength=len(view.steps))
    allowed = np.array([_parts(at, view) for at in view.steps], np.int64)
    others = np.bincount(step[linked[found]], minlength=len(view.steps)) > 0
    many = ~linked[found] & (others | (parts > allowed))[step]  # a part that goes on in another step is no orphan
    many |= ~linked[found] & (counts == 1) & (parts > 1)[step]
    order = np.lexsort((counts, step))
    lost = [int(found[at]) for at in order if many[at]]
    return judged(
        view, 0, np.arange(len(lost)),
        lambda at: f"{operator(view, lost[at])} and what hangs on it is connected to nothing else of the step",
        "connect it to what it needs and to what needs it", np.array(lost, np.int64),
    )  # fmt: skip


def _parts(step: Step, view: GraphView) -> int:
    """Return how many parts a step may fall into: SP ranks that decode their own sequences have nothing in common.

    In a graph of some stages, SP ranks may meet on the others. Without a plan any number of parts is right.
    """
    plan = view.plan
    if plan is None:
        return len(view)
    spread = plan.sp.decode == "dp" and step.kind in ("decode", "unknown") and plan.ep.degree == 1
    return plan.sp.degree if spread or view.shown is not None else 1


def _components(num_nodes: int, source: Int64Array, target: Int64Array) -> Int64Array:
    """Return the lowest node of each node's weakly connected component (label propagation with pointer jumping)."""
    label = np.arange(num_nodes)
    while True:
        grown = label.copy()
        np.minimum.at(grown, source, label[target])
        np.minimum.at(grown, target, label[source])
        np.minimum.at(grown, label, grown)
        grown = grown[grown]
        if np.array_equal(grown, label):
            return label
        label = grown
