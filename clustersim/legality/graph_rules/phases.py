"""PH-1, PH-2, PH-3: prefill before decode, one token at a time, step after step."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.finding import NOTHING, Fault, Finding, merged
from clustersim.legality.graph_rules.census import complete
from clustersim.legality.graph_rules.finding import judged, operator, place
from clustersim.legality.graph_rules.kinds import crosses_as
from clustersim.legality.graph_rules.links import Links, links, pairs_of, successions
from clustersim.legality.graph_rules.views.graph import ORDER, GraphView
from clustersim.legality.graph_rules.views.reach import reach
from clustersim.legality.graph_rules.views.tokens import carried
from clustersim.legality.reference import EXPERT_CHAIN

KIND_FIX: Final = "pass the phase on by edges of kind boundary, and the sampled token by one of kind data"


def prefills_first(view: GraphView) -> Finding:
    """PH-1: a sequence decodes behind the phase boundary of its last chunk, and by no way beside it."""
    found = []
    between = links(view)
    for before, after in successions(view):
        steps = view.steps
        if not steps[before].chunks or steps[after].kind == "prefill":
            continue
        found.append(_bounded(view, between, before, after))
    kinds = [crosses_as(view, "boundary", target, "boundary", KIND_FIX) for target in ("schedule", "kv_read")]
    return merged(complete(view, "PH-1"), _sampled(view), *found, *kinds)


def _sampled(view: GraphView) -> Finding:
    """The boundary of a rank that samples waits for its sample: only then the prompt is through the last stage."""
    ends, samples = np.flatnonzero(view.named("boundary")), np.flatnonzero(view.named("sample"))
    width = max(1, view.num_ranks)
    cell = view.step * width + view.rank
    order = samples[np.argsort(cell[samples], kind="stable")]
    if not len(order) or not len(ends):
        return NOTHING
    own = order[np.minimum(np.searchsorted(cell[order], cell[ends]), len(order) - 1)]
    both = cell[own] == cell[ends]
    sample, end = own[both], ends[both]
    early = np.flatnonzero(~reach(view, ends).comes_before(sample, end))
    return judged(
        view, len(end), early, lambda at: f"the boundary does not wait for {place(view, int(sample[at]))}",
        "let the boundary wait for the sample of its rank, which is behind the whole prompt", end,
    )  # fmt: skip


def _bounded(view: GraphView, between: Links, before: int, after: int) -> Finding:
    boundary = view.mask(lambda node: node.op == "boundary")
    here = view.step == before
    crossing = np.flatnonzero((view.step[between.source] == before) & (view.step[between.target] == after))
    beside = crossing[~boundary[between.source[crossing]]]
    fix = "let decode wait for the boundary nodes of the last chunk, and for nothing beside them"

    def direct(at: int) -> str:
        node = int(between.target[at])
        return f"{operator(view, int(between.source[at]))} goes to {place(view, node)} with no boundary between"

    past = judged(view, len(crossing), beside, direct, fix, between.source)
    if past.faults:
        return past
    done = np.flatnonzero(here & (boundary | view.named("kv_write", "sample")))
    starts = np.flatnonzero((view.step == after) & view.named("schedule"))
    if not (boundary & here).any():
        message = f"prefill has no boundary node, and {view.steps[after].kind} step {after} decodes its sequences"
        where = f"{view.steps[before].kind} step {before}"
        return Finding(looked_at=1, faults=(Fault(where=where, message=message, fix=fix),))
    node, start = _of_one_replica(view, *pairs_of(done, between.unlike(view, starts, before)))
    early = np.flatnonzero(~between.awaited(view, node, start))

    def message_of(at: int) -> str:
        return f"{place(view, int(start[at]))} does not wait for {operator(view, int(node[at]))}"

    return merged(past, judged(view, len(node), early, message_of, fix, node))


def _of_one_replica(view: GraphView, node: Int64Array, start: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the pairs within one replica: of those in lockstep, each waits for its own tokens."""
    if view.plan is None or not view.plan.sp.whole:
        return node, start
    own = view.s_of(view.rank[node]) == view.s_of(view.rank[start])
    return node[own], start[own]


def one_token_each(view: GraphView) -> Finding:
    """PH-2: a decode step has one new token of each sequence in it, and no sequence twice."""
    plan = view.plan
    faults = []
    looked_at = 0
    fix = "give a sequence one token per decode step: the next one does not exist yet"
    for at, step in enumerate(view.steps):
        for token in step.decodes or ():
            looked_at += 1
            if token.tokens != 1:
                message = f"the step carries {token.tokens} new tokens of sequence {token.request}"
                faults.append(Fault(where=f"{step.kind} step {at}", message=message, fix=fix))
        twice = [r for r, n in Counter(token.request for token in step.decodes or ()).items() if n > 1]
        if twice:
            message = f"sequence {twice[0]} is in the step twice"
            faults.append(Fault(where=f"{step.kind} step {at}", message=message, fix=fix))
    listed = Finding(looked_at=looked_at, faults=tuple(faults[:1]))
    if plan is None:
        return listed
    cores = np.flatnonzero(view.mask(lambda node: node.op == "attention_decode") & ~np.isnan(view.amount))
    expected = carried(view, plan).decode[view.step[cores], view.s_of(view.rank[cores])]
    wrong = np.flatnonzero(np.abs(view.amount[cores] - expected) > 1e-6)

    def message_of(at: int) -> str:
        return f"attention takes {view.amount[cores][at]:g} new tokens of {expected[at]} sequences"

    return merged(listed, judged(view, len(cores), wrong, message_of, fix, cores))


def one_step_at_a_time(view: GraphView) -> Finding:
    """PH-3: a decode step waits until the one before it has sampled, and every layer on every stage has written."""
    found = []
    between = links(view)
    for before, after in successions(view):
        if view.steps[before].chunks and view.steps[after].kind != "prefill":
            continue  # the way from prefill to decode is rule PH-1
        done = np.flatnonzero((view.step == before) & view.named("kv_write", "sample"))
        starts = np.flatnonzero((view.step == after) & view.named("schedule"))
        node, start = _of_one_replica(view, *pairs_of(done, between.unlike(view, starts, before)))
        early = np.flatnonzero(~between.awaited(view, node, start))
        found.append(_early(view, node, start, early))
    decodes = view.of_steps(lambda step: not step.chunks)
    kinds = crosses_as(view, "sample", "schedule", "data", KIND_FIX, among=decodes)
    return merged(kinds, _beside(view), *found) if found else _beside(view)


def _beside(view: GraphView) -> Finding:
    """From one step to a later one of its lane go the boundary, the sampled token and the cache, and nothing else.

    Ways from a prompt to decode are rule PH-1; what collectives and experts take from other steps, TP-7, EP-4 and EP-5.
    """
    source, target = view.source, view.target
    lane = np.array([(step.replica << 32) + step.lane for step in view.steps], np.int64)[view.step]
    across = ~view.within_step & (view.kind != ORDER) & (lane[source] == lane[target])
    ends, starts = view.named("boundary"), view.named("schedule")
    passes = (ends | view.named("sample"))[source] & starts[target]
    reads = view.named("kv_read")[target] & (ends | view.named("kv_write"))[source]
    alike = (view.layer[source] == view.layer[target]) & (view.rank[source] == view.rank[target])
    reads &= alike | ~view.named("kv_write")[source]
    chunks = np.array([bool(step.chunks) for step in view.steps], bool)[view.step]
    decodes = view.of_steps(lambda step: step.kind != "prefill")
    follows = np.full(len(view.steps), -1, np.int64)
    for before, after in successions(view):
        follows[before] = after
    told = chunks[source] & decodes[target] & ~ends[source] & (follows[view.step[source]] == view.step[target])
    told |= view.mask(lambda node: node.op in COLLECTIVE_OPS)[source] | view.named(*EXPERT_CHAIN)[source]
    told |= view.mask(lambda node: node.op in COLLECTIVE_OPS)[target] | view.named(*EXPERT_CHAIN, "moe_norm")[target]
    back = view.step[source] > view.step[target]
    wrong = np.flatnonzero(across & ((~passes & ~reads & ~told) | back))
    return judged(
        view, 0, wrong, lambda edge: f"it takes what {place(view, int(source[edge]))} makes, of another step",
        "let a step take from the one before it the sampled tokens and what is cached", target,
    )  # fmt: skip


def _early(view: GraphView, node: Int64Array, start: Int64Array, early: Int64Array) -> Finding:
    def message(at: int) -> str:
        return f"{place(view, int(start[at]))} does not wait for {operator(view, int(node[at]))} of the step before it"

    fix = "start a step of a sequence when the one before it has sampled its token and written its K/V everywhere"
    return judged(view, len(node), early, message, fix, node)
