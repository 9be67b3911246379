"""What a rule of level G concludes, and how its messages name a place in the graph."""

from __future__ import annotations

from collections.abc import Callable

from clustersim.clock import Int64Array
from clustersim.legality.finding import Fault, Finding, and_more
from clustersim.legality.graph_rules.views.doubted import doubted
from clustersim.legality.graph_rules.views.graph import GraphView


def judged(
    view: GraphView, looked_at: int, bad: Int64Array, message: Callable[[int], str], fix: str, node: Int64Array
) -> Finding:
    """Return a finding with one fault for all of ``bad``, told by the first.

    Parameters
    ----------
    view : GraphView
    looked_at : int
    bad : int array
        What is wrong: positions in whatever the rule looked at.
    message : callable
        Position → what is wrong there.
    fix : str
    node : int array
        Node of each position in ``bad``'s numbering.
    """
    if len(bad) and view.unknown is not None:
        bad = bad[~doubted(view)[node[bad]]]
    if not len(bad):
        return Finding(looked_at=int(looked_at))
    first = int(bad[0])
    told = message(first) + and_more(len(bad) - 1)
    return Finding(looked_at=int(looked_at), faults=(fault_at(view, int(node[first]), told, fix),))


def fault_at(view: GraphView, node: int, message: str, fix: str) -> Fault:
    """Return a fault at a node."""
    return Fault(where=place(view, node), message=message, fix=fix, node=node)


def operator(view: GraphView, node: int) -> str:
    """Return the name of a node's operator."""
    return view.symbols[int(view.symbol[node])].name


def node_name(view: GraphView, node: int) -> str:
    """Return a node by its id in a graph's file, or its number: ``node 'a' (o_proj)``."""
    called = f"{view.written[node].id!r:.80}" if view.written else str(node)
    return f"node {called} ({operator(view, node)})"


def place(view: GraphView, node: int) -> str:
    """Return where a node is: ``decode step 3, stage 1, layer 12, rank 5, o_proj``, and its id in a graph's file."""
    step, layer, stage = int(view.step[node]), int(view.layer[node]), int(view.stage[node])
    words = [f"{view.steps[step].kind} step {step}", f"stage {_named(stage, view.stage_names)}"]
    if layer >= 0:
        words.append(f"layer {_named(layer, view.layer_names)}")
    size = int(view.size[node])
    if size == 1:
        words.append(f"rank {int(view.rank[node])}")
    elif size > 1:
        offsets, ranks = view.members
        found = ranks[offsets[node] : offsets[node + 1]].tolist()
        words.append("ranks " + (", ".join(map(str, found)) if size <= 4 else f"{found[0]} … {found[-1]}"))
    called = f" (node {view.written[node].id!r:.80})" if view.written else ""
    return ", ".join([*words, operator(view, node)]) + called


def cell_place(view: GraphView, step: int, layer: int, rank: int) -> str:
    """Return where an operator that is not there would be: ``decode step 3, stage 1, layer 12, rank 5``."""
    words = [f"{view.steps[step].kind} step {step}"]
    if view.plan is not None:
        stage = rank % view.plan.replica_ranks // view.plan.stage_ranks
        words.append(f"stage {_named(stage, view.stage_names)}")
    if layer >= 0:
        words.append(f"layer {_named(layer, view.layer_names)}")
    return ", ".join([*words, f"rank {rank}"])


def layer_name(view: GraphView, node: int) -> str:
    """Return how messages name the layer of a node."""
    layer = int(view.layer[node])
    return f"layer {_named(layer, view.layer_names)}" if layer >= 0 else "no layer"


def _named(number: int, names: tuple[int, ...]) -> int:
    return names[number] if number < len(names) else number
