"""RUN-2: operators wait for what they need and run for their cost, and steps last from their first to their last."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, FindingOfParts, Rows, judged, lacking, merged
from clustersim.legality.history import STREAMS
from clustersim.legality.timeline_rules.operators.lost import lost_as_told
from clustersim.legality.timeline_rules.operators.ready import operators_start, steps_follow
from clustersim.legality.timeline_rules.operators.slowness import (
    COST,
    as_slow_as_told,
    as_weak_as_told,
    of_weak_groups,
    on_slow_ranks,
)
from clustersim.legality.timeline_rules.operators.tensor import EXPERTS, collectives
from clustersim.legality.timeline_rules.requests.told import inside_steps
from clustersim.legality.timeline_rules.transfers.carried import outputs
from clustersim.legality.timeline_rules.transfers.swaps import copies_cost
from clustersim.legality.timeline_rules.views.grouping import gathered
from clustersim.legality.timeline_rules.views.occupation import Occupation
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sheet import COMPUTE, Sheet
from clustersim.timeline.passes import parts

WAIT = "start an operator when all that it needs has ended"
ON_LINKS = tuple(STREAMS.index(name) for name in ("comm", "send", "recv"))


def waits(sheet: Sheet) -> Finding:
    """RUN-2: no operator starts before what it needs has ended, or ends before its cost.

    Edges that a rule of their own looks at are left to it: those of collectives (TP-6), of experts (EP-4), from
    exposed, moved or written K/V to attention (SP-5, KV-2), from layer to layer (PP-6), and between replicas (DP-3).
    """
    sources, targets = sheet.sources, sheet.targets
    own = np.tile(~_others(sheet.one), sheet.copies)
    sources, targets = sources[own], targets[own]
    late = operators_start(sheet)
    early = judged(
        len(sources), sheet.start[targets] < sheet.end[sources], Rows(sheet, targets),
        "starts at {start:,} ns, but needs {source.name}, which ends at {source.end:,} ns", WAIT,
        source=Rows(sheet, sources),
    )  # fmt: skip
    if not len(sheet.sources):
        early = lacking("whether operators wait for what they need (no after was recorded)")
    if sheet.least is None:
        return merged(early, late, lacking("whether operators run for their cost (no cost_ns was recorded)"))
    took = sheet.end - sheet.start
    least, most = of_weak_groups(sheet, on_slow_ranks(sheet, sheet.least))
    short = judged(
        int((least >= 0).sum()), took < least, Rows(sheet),
        "takes {took:,} ns, and costs {least:,} ns", COST, took=took, least=least,
    )  # fmt: skip
    long = judged(
        0, (least >= 0) & (took > least) & (sheet.group < 0) & ~np.isin(sheet.stream, ON_LINKS), Rows(sheet),
        "takes {took:,} ns and costs {least:,} ns, but uses no link on which it could wait", COST, took=took,
        least=least,
    )  # fmt: skip
    return merged(early, late, short, long, _unshared(sheet, most))


def _unshared(sheet: Sheet, most: Int64Array) -> Finding:
    """Judge whether a collective takes longer than it costs although nothing else may be on its links."""
    longer = np.flatnonzero((sheet.group >= 0) & (most >= 0) & (sheet.end - sheet.start > most))
    carriage = sheet.declared.carriage
    if carriage is None or not len(longer):
        return NOTHING
    places = np.stack((sheet.replica[longer], sheet.stage[longer]), axis=1)
    alone = np.array([carriage.alone(replica, stage) for replica, stage in places.tolist()], bool)
    return judged(
        0, alone, Rows(sheet, longer),
        "takes {took:,} ns and costs {most:,} ns at most, but nothing else can be on its links", COST,
        took=Rows(sheet.end - sheet.start, longer), most=Rows(most, longer),
    )  # fmt: skip


def _others(sheet: Sheet) -> BoolArray:
    """Return which edges a rule of their own looks at; most of these look at one rank in one pass."""
    sources, targets = sheet.sources, sheet.targets
    exposure = sheet.named("kv_all_gather", "kv_ring", "qkv_all_to_all", "kv_write")
    attends = sheet.named("attention_prefill", "attention_decode")
    experts = sheet.named(*EXPERTS)
    collective = collectives(sheet) & ~experts
    expert = sheet.in_module("moe") & (experts | sheet.named("gate", "expert_"))
    layer, compute = sheet.layer, sheet.stream == COMPUTE
    same = sheet.place[sources] == sheet.place[targets]
    layered = (layer[sources] >= 0) & (layer[targets] >= 0) & (layer[sources] != layer[targets])
    found: BoolArray = collective[sources] | collective[targets]
    found |= same & expert[sources] & expert[targets] & _apart(sheet, sources, targets)
    found |= same & layered & compute[sources] & compute[targets]
    found |= (exposure[sources] | (sheet.named("kv_move")[sources] & ~same)) & attends[targets]
    found |= sheet.replica[sources] != sheet.replica[targets]
    return found


def _apart(sheet: Sheet, sources: Int64Array, targets: Int64Array) -> BoolArray:
    """Return which edges lead from one part of an MoE module to another, not along one expert."""
    experts = sheet.named("expert_")
    found: BoolArray = ~(experts[sources] & experts[targets])
    return found


def as_recorded(reading: Reading) -> Finding:
    """RUN-2: a step lasts from its first pass to its last; sends wait for outputs, and run for their cost."""
    tables, passes, runs = reading.history.folded, reading.passes, reading.runs
    if tables is None or passes is None:
        return inside_steps(reading)
    findings = [
        lost_as_told(reading),
        as_slow_as_told(reading),
        as_weak_as_told(reading),
        copies_cost(reading),
    ]
    if runs is not None and len(runs):
        findings += [_bounds(reading, passes), steps_follow(reading)]
    if tables.stages > 1:
        findings.append(outputs(reading))
        findings.append(_sent_when_made(reading, passes))
    return merged(*findings)


def _sent_when_made(reading: Reading, passes: Occupation) -> Finding:
    """Judge whether outputs leave their ranks when they are there, and are under way for their cost at least."""
    assert reading.sends is not None
    judging = FindingOfParts(WAIT)
    for some in parts(len(passes)):
        made, sends = passes.part(some), reading.sends.of(some)
        assert made.leaves is not None
        assert made.sends_for is not None
        sent = (sends.has[:, None] > 0) & (made.sends_for >= 0)
        broken = sent & ((sends.starts < made.leaves) | (sends.ends - sends.starts < made.sends_for))
        places, ranks = np.nonzero(broken)
        judging.look(
            int(sent.sum()), np.ones(len(places), bool), "{stage_pass}, send of local rank {ranks}",
            "runs from {start:,} to {end:,} ns, but its output leaves at {left:,} ns and sending it costs {cost:,} ns",
            stage_pass=Rows(made, places), ranks=ranks, start=sends.starts[broken], end=sends.ends[broken],
            left=made.leaves[broken], cost=made.sends_for[broken],
        )  # fmt: skip
    return judging.finding


def durations(reading: Reading) -> Finding:
    """RUN-2: durations are from 0 on, those that vary from step to step from 1 on."""
    tables = reading.history.folded
    if tables is None or reading.history.hands_over:
        return NOTHING
    return merged(
        *(
            judged(
                len(values), values < least, f"{name}, value {{at}}", "a duration of {value:,} ns", COST, value=values
            )
            for name, values, least in (("row_values", tables.row_values, 0), ("varying", tables.varying, 1))
        )
    )


def _bounds(reading: Reading, passes: Occupation) -> Finding:
    runs, stages = reading.runs, reading.declared.pp
    assert runs is not None
    counts, past, recorded = np.zeros(len(runs)), runs.step + runs.count, runs.recorded_end
    bounds = FindingOfParts("let a step last from its first operator to its last")
    for some in parts(len(passes)):
        part = passes.part(some)
        run = runs.at(part.replica, part.step)
        known = run >= 0
        begins = (part.stage == 0) & known & (part.step == runs.step[run])
        final = (part.stage == stages - 1) & known & (part.step + part.count == past[run])
        late = begins & (part.start != runs.start[run])
        short = final & (part.end != recorded[run])
        bounds.look(
            int(begins.sum() + final.sum()), late | short, Rows(part),
            "its operators run from {start:,} to {end:,} ns, the step is recorded from {run.start:,} to "
            "{recorded:,} ns",
            run=Rows(runs, run), recorded=Rows(recorded, run),
        )  # fmt: skip
        gathered(counts, np.add, run[known], part.count[known])
    complete = judged(
        len(runs), counts != runs.count * stages, Rows(runs),
        "has {counts:.0f} passes, where {count} steps of {stages} stages have {due}",
        "run every step on every stage once", counts=counts, stages=stages, due=runs.count * stages,
    )  # fmt: skip
    return merged(bounds.finding, complete)
