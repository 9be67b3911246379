"""PP-2, PP-4, PP-5 and PP-6 on the step graph: stages hand on in order, and micro-batches keep to themselves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS, TRANSFER_OPS
from clustersim.legality.finding import NOTHING, Fault, Finding, merged
from clustersim.legality.graph_rules.census import complete
from clustersim.legality.graph_rules.finding import judged, operator, place
from clustersim.legality.graph_rules.program import waiting
from clustersim.legality.graph_rules.stage_ends import hands_over
from clustersim.legality.graph_rules.views.graph import DATA, KV, ORDER, SYNC, BoolArray, GraphView
from clustersim.legality.graph_rules.views.reach import stuck
from clustersim.legality.graph_rules.views.tokens import carried
from clustersim.legality.reference import EXITS
from clustersim.plan.parallel import ParallelPlan

NORMS = ("attention_norm", "ffn_norm", "moe_norm")
ADDS = ("attention_add", "ffn_add", "moe_add")


def hands_on(view: GraphView) -> Finding:
    """PP-2: a stage begins with what arrived from the stage before it: tokens × hidden × bytes."""
    plan = view.plan
    if plan is None or plan.pp == 1:
        return NOTHING
    received = _received(view)
    entry = np.flatnonzero(_entries(view))
    early = np.flatnonzero(~received[entry])
    arrived = judged(
        view, len(entry), early, lambda _: "it starts before the output of the stage before it has arrived",
        "let the first operators of a stage wait for its receive", entry,
    )  # fmt: skip
    model, precision = view.model, view.precision
    arrived = merged(arrived, _bypasses(view, plan), complete(view, "PP-2"))
    if not arrived.faults and not layer_by_layer(view).faults:
        ends = _sends_output(view) if model is None else hands_over(view, plan, model)
        arrived = merged(arrived, ends)
    if model is None or precision is None:
        return arrived
    nodes = np.flatnonzero(view.mask(lambda node: node.op in TRANSFER_OPS) & ~np.isnan(view.amount))
    tokens = carried(view, plan).tokens[view.step[nodes], view.s_of(view.rank[nodes])]
    expected = tokens * model.hidden * precision.activation_bytes
    wrong = np.flatnonzero(np.abs(view.amount[nodes] - expected) > 1e-6 * np.maximum(expected, 1))

    def message(at: int) -> str:
        return (
            f"it carries {view.amount[nodes][at]:,.0f} bytes, where {tokens[at]} tokens × {model.hidden} × "
            f"{precision.activation_bytes:g} bytes are {expected[at]:,.0f}"
        )

    return merged(arrived, judged(view, len(nodes), wrong, message, "send the hidden state of every token", nodes))


def _sends_output(view: GraphView) -> Finding:
    """A send waits for the output of its stage on its rank."""
    edge, rank = view.rows
    made = np.array([name in ADDS or name == "embedding" for name in view.names], bool)[view.name]
    joined = view.mask(lambda node: node.op in COLLECTIVE_OPS)  # behind an output that is put together
    fed = np.zeros(len(view), bool)
    into = view.within_step[edge] & (made | joined)[view.source[edge]] & view.takes_part(view.source[edge], rank)
    into &= view.kind[edge] != ORDER  # which carries no data
    fed[view.target[edge[into]]] = True
    sends = np.flatnonzero(view.mask(lambda node: node.op == "send"))
    return judged(
        view, 0, np.flatnonzero(~fed[sends]), lambda _: "it sends before the output of its stage is there",
        "let the send wait for the last operator of its stage", sends,
    )  # fmt: skip


def _bypasses(view: GraphView, plan: ParallelPlan) -> Finding:
    """Nothing but a send that meets its receive goes from one stage to another."""
    source, target = view.source, view.target
    meets = view.mask(lambda node: node.op == "send")[source] & view.mask(lambda node: node.op == "recv")[target]
    past = view.within_step & (view.stage[source] != view.stage[target]) & (view.kind != ORDER) & ~meets
    fix = "hand the output of a stage on by send and receive"
    edges = judged(
        view, 0, np.flatnonzero(past),
        lambda edge: f"it needs {place(view, int(source[edge]))}, of another stage, and no send brings that",
        fix, target,
    )  # fmt: skip
    stage = view.member_rank % plan.replica_ranks // plan.stage_ranks
    first = view.rank[view.member_node] % plan.replica_ranks // plan.stage_ranks
    torn = np.flatnonzero(stage != first)
    groups = judged(
        view, 0, torn, lambda at: f"{operator(view, int(view.member_node[at]))} joins ranks of several stages", fix,
        view.member_node,
    )  # fmt: skip
    return merged(edges, groups)


def _received(view: GraphView) -> BoolArray:
    """Return which nodes have an edge from a receive of their step and rank."""
    edge, rank = view.rows
    own = view.mask(lambda node: node.op == "recv")[view.source[edge]] & view.within_step[edge]
    own &= view.takes_part(view.target[edge], rank) & (view.kind[edge] != ORDER)
    found = np.zeros(len(view), bool)
    found[view.target[edge[own]]] = True
    return found


def _entries(view: GraphView) -> BoolArray:
    """Return the operators that take the input of a later stage: norm and residual add of its first module."""
    norms = np.array([name in NORMS for name in view.names], bool)[view.name] & (view.stage > 0)
    first = np.full((len(view.steps), int(view.stage.max(initial=0)) + 1), np.iinfo(np.int64).max, np.int64)
    module = np.where(view.named("attention_norm"), 0, 1) + 2 * view.layer
    np.minimum.at(first, (view.step[norms], view.stage[norms]), module[norms])
    adds = np.array([name in ADDS for name in view.names], bool)[view.name] & (view.stage > 0)
    module = np.where(adds, np.where(view.named("attention_add"), 0, 1) + 2 * view.layer, module)
    found: BoolArray = (norms | adds) & (module == first[view.step, view.stage])
    return found


def keeps_apart(view: GraphView) -> Finding:
    """PP-4: no sequence is in two micro-batches, and no edge goes from one to another."""
    lanes: dict[tuple[int, int], int] = {}
    faults = []
    looked_at = 0
    for at, step in enumerate(view.steps):
        requests = [chunk.request for chunk in step.chunks] + [token.request for token in step.decodes or ()]
        looked_at += len(requests)
        for request in requests:
            lane = lanes.setdefault((step.replica, request), step.lane)
            if lane != step.lane:
                message = f"sequence {request} is in micro-batches {lane} and {step.lane}"
                fix = "give every sequence to one micro-batch"
                faults.append(Fault(where=f"{step.kind} step {at}", message=message, fix=fix))
    faults += [*_left_out(view), *_in_one_piece(view)]
    lane_of = np.array([step.lane for step in view.steps], np.int64)[view.step]
    replica = view.replica_of(view.rank)
    source, target = view.source, view.target
    crosses = (lane_of[source] != lane_of[target]) & (replica[source] == replica[target]) & (view.kind != KV)
    cross = judged(
        view, 0, np.flatnonzero(crosses),
        lambda edge: f"it needs {place(view, int(source[edge]))}, of another micro-batch",
        "let micro-batches wait for each other on no data", target,
    )  # fmt: skip
    several = len({(step.replica, step.lane) for step in view.steps}) > 1
    return merged(Finding(looked_at=looked_at if several else 0, faults=tuple(faults[:1])), cross)


def _left_out(view: GraphView) -> Iterator[Fault]:
    """Yield a fault for each step of two halves of which a sequence is in neither."""
    for at, step in enumerate(view.steps):
        if step.half == 1:
            second = view.steps[at + 1] if at + 1 < len(view.steps) else step
            found = {chunk.request for part in (step, second) for chunk in part.chunks}
            found |= {token.request for part in (step, second) for token in part.decodes or ()}
            missing = [request for request in step.whole if request not in found]
            if missing:
                message = f"sequence {missing[0]} of the step is in neither of its halves"
                fix = "give every sequence of a step to one of its halves"
                yield Fault(where=f"{step.kind} step {at}", message=message, fix=fix)


def _in_one_piece(view: GraphView) -> Iterator[Fault]:
    """Yield a fault for each step that the plan runs as two halves, and that is one micro-batch.

    A step is split where each replica that takes it has two sequences, and tokens enough.
    """
    plan = view.plan
    if plan is None or not plan.is_two_batch:
        return
    owners = range(plan.sp.degree if plan.sp.whole else 1)
    for at, step in enumerate(view.steps):
        if step.half or step.kind == "unknown":
            continue
        least = plan.ep.overlap_prefill_tokens if step.chunks else plan.ep.overlap_decode_tokens
        parts = [
            [chunk.count for chunk in step.chunks if chunk.owner == owner] + [1] * count
            for owner, count in zip(owners, step.sequences, strict=False)
        ]
        if len(parts) == len(owners) and all(len(part) > 1 and sum(part) >= least for part in parts):
            count = sum(map(len, parts))
            message = (
                f"{count} sequences are one micro-batch, and plan.ep.overlap two_batch runs the step as two halves"
            )
            fix = (
                "write each half as a graph of its own, with its chunks and decodes as step and ep.overlap none; "
                "or declare a threshold that the step does not reach"
            )
            yield Fault(where=f"{step.kind} step {at}", message=message, fix=fix)


def meets(view: GraphView) -> Finding:
    """PP-5: every send meets one receive, and no two ranks wait for each other, each stream in program order."""
    stages = np.unique(view.stage)  # of a graph of some stages, the transfers to and from the others have no other end
    sends = np.flatnonzero(view.mask(lambda node: node.op == "send") & np.isin(view.stage + 1, stages))
    receives = np.flatnonzero(view.mask(lambda node: node.op == "recv") & np.isin(view.stage - 1, stages))
    if not len(sends) and not len(receives):
        return NOTHING
    edges = np.flatnonzero((view.kind == SYNC) & np.isin(view.source, sends) & np.isin(view.target, receives))
    ahead = view.stage[view.source[edges]] + 1 == view.stage[view.target[edges]]
    across = view.s_of(view.rank[view.source[edges]]) != view.s_of(view.rank[view.target[edges]])
    astray = np.flatnonzero((~ahead | across) & (view.plan is not None))
    out = np.bincount(view.source[edges], minlength=len(view))
    into = np.bincount(view.target[edges], minlength=len(view))
    alone = np.concatenate((sends[out[sends] != 1], receives[into[receives] != 1]))
    single = judged(
        view, len(sends) + len(receives), np.arange(len(alone)),
        lambda at: f"the {operator(view, int(alone[at]))} meets {int(out[alone[at]] + into[alone[at]])} nodes, not one",
        "match every send with one receive", alone,
    )  # fmt: skip
    right = judged(
        view, 0, astray,
        lambda at: f"it takes what {place(view, int(view.source[edges[at]]))} sends: other tokens, or another stage's",
        "let every rank send to the rank with its coordinates in the next stage", view.target[edges],
    )  # fmt: skip
    if single.faults or right.faults:
        return merged(single, right)
    return merged(single, _deadlock(view))


def _deadlock(view: GraphView) -> Finding:
    """A send and its receive are one event; with the order of each rank's streams, nothing may wait for itself."""
    if stuck(len(view), view.source, view.target).any():
        return NOTHING  # the graph itself has a cycle: rule RUN-1
    transfers = view.mask(lambda node: node.op in TRANSFER_OPS)
    held = np.flatnonzero(waiting(view, transfers) & view.mask(lambda node: node.op == "send"))
    return judged(
        view, int(transfers.sum()), held, lambda _: "the send waits for a receive that waits for this send",
        "send and receive in one order on both sides", np.arange(len(view)),
    )  # fmt: skip


def layer_by_layer(view: GraphView) -> Finding:
    """PP-6: on every rank, layer l of a step runs after layer l−1 of that step."""
    edge, rank = view.rows
    source, target = view.source[edge], view.target[edge]
    data = (view.kind[edge] == DATA) & view.within_step[edge]
    between = data & (view.layer[source] >= 0) & (view.layer[target] >= 0) & (view.layer[source] != view.layer[target])
    between &= view.takes_part(source, rank) & view.takes_part(target, rank)
    source, target, rank = source[between], target[between], rank[between]
    fix = "run the layers in the model's order on every rank"
    back = np.flatnonzero(view.layer[source] > view.layer[target])
    backward = judged(
        view, len(source), back, lambda at: f"it runs after {place(view, int(source[at]))}, a later layer", fix, target
    )
    if backward.faults:
        return backward
    follows = _follows(view, source, target, rank, fix)
    return follows if follows.faults else merged(backward, follows, _skips(view, fix))


def _skips(view: GraphView, fix: str) -> Finding:
    """What a layer makes goes to the next one on its rank, the embedding to the first, and the last to the head."""
    edge, rank = view.rows
    source, target = view.source[edge], view.target[edge]
    above, here = view.layer[source], view.layer[target]
    enters = np.array([name.startswith("embedding") for name in view.names], bool)[view.name[source]]
    ends = view.named("final_norm")[target]
    leaves = view.named(*EXITS) | view.mask(lambda node: node.op in COLLECTIVE_OPS)
    kept = (view.kind[edge] == DATA) & view.within_step[edge] & (above != here) & leaves[source]
    kept &= (
        ((above >= 0) | enters) & ((here >= 0) | ends) & view.takes_part(source, rank) & view.takes_part(target, rank)
    )
    edge, rank, above, here = edge[kept], rank[kept], above[kept], here[kept]
    layers = int(view.layer.max(initial=0)) + 1
    inner = view.layer[view.member_node] >= 0
    node, member = view.member_node[inner], view.member_rank[inner]
    width = max(1, view.num_ranks)
    cells = np.unique((view.step[node] * width + member) * layers + view.layer[node])
    lane = view.step[view.target[edge]] * width + rank
    beyond = np.searchsorted(cells, lane * layers + np.where(here < 0, layers, here))  # the place of this layer
    low = np.searchsorted(cells, lane * layers)
    before = np.where(beyond > low, cells[np.maximum(beyond - 1, 0)] % layers if len(cells) else -1, -1)
    wrong = np.flatnonzero(above != before)

    def message(at: int) -> str:
        return f"it takes the output of {place(view, int(view.source[edge[at]]))}, which is not the layer before it"

    return judged(view, 0, wrong, message, fix, view.target[edge])


def _follows(view: GraphView, source: Int64Array, target: Int64Array, rank: Int64Array, fix: str) -> Finding:
    """Each layer that a rank attends in has an edge from the layer before it on that rank."""
    width, layers = max(1, view.num_ranks), int(view.layer.max(initial=0)) + 1
    adds = np.flatnonzero(view.named("attention_add"))
    here = (view.step[adds] * width + view.rank[adds]) * layers + view.layer[adds]
    order = np.argsort(here, kind="stable")
    node, here = adds[order], here[order]
    later = np.concatenate(([False], here[1:] // layers == here[:-1] // layers)) if len(here) else np.zeros(0, bool)
    before = np.where(later, np.roll(here, 1), -1) % layers if len(here) else here
    linked = ((view.step[target] * width + rank) * layers + view.layer[target]) * layers + view.layer[source]
    lost = np.flatnonzero(later & ~np.isin(here * layers + before, linked))
    return judged(view, int(later.sum()), lost, lambda _: "the layer does not wait for the one before it", fix, node)
