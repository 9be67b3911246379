"""Level G: whether a step graph is legal, or several steps one after the other.

Every rule reads the columns of a :class:`GraphView` and derives what is legal from plan and architecture; no rule
knows the code that expands a plan into a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from clustersim.legality.finding import NOTHING, Finding
from clustersim.legality.graph_rules import (
    cache,
    data,
    exchange,
    expert,
    exposure,
    moves,
    phases,
    pipeline,
    run,
    sequence,
    shares,
    structure,
    tensor,
)
from clustersim.legality.graph_rules.views import attended
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.legality.unsaid import not_checkable

GraphCheck = Callable[[GraphView], Finding]

GRAPH_CHECKS: Final[Mapping[str, GraphCheck]] = {
    "PH-1": phases.prefills_first,
    "PH-2": phases.one_token_each,
    "PH-3": phases.one_step_at_a_time,
    "PH-5": attended.lower_triangular,
    "KV-1": cache.appends,
    "KV-2": cache.reads_what_is_there,
    "KV-4": cache.holds_every_head,
    "KV-5": cache.keeps_apart,
    "TP-2": tensor.recombines,
    "TP-3": tensor.inherits,
    "TP-4": tensor.local_heads,
    "TP-5": tensor.takes_turns,
    "TP-7": tensor.within_layer,
    "TP-8": structure.keeps_the_graph,
    "TP-9": shares.conserves,
    "SP-1": sequence.partitions,
    "SP-2": exposure.materialised,
    "SP-3": sequence.prefill_only,
    "SP-4": exposure.volumes,
    "SP-5": exposure.in_order,
    "SP-6": sequence.same_partition,
    "SP-8": moves.moved_for_decode,
    "PP-2": pipeline.hands_on,
    "PP-4": pipeline.keeps_apart,
    "PP-5": pipeline.meets,
    "PP-6": pipeline.layer_by_layer,
    "EP-2": expert.routes_all,
    "EP-4": structure.chains_experts,
    "EP-5": structure.sees_attention,
    "EP-6": expert.one_map,
    "EP-7": expert.leaves_attention,
    "EP-8": exchange.by_all_ranks,
    "DP-3": data.keeps_apart,
    "RUN-1": run.can_run,
}
"""Rule → the function that checks it at level G."""


def check_graph(
    view: GraphView, rules: Mapping[str, GraphCheck] = GRAPH_CHECKS, without: Collection[str] = ()
) -> Verdict:
    """Check every rule of level G; all violations at once.

    Parameters
    ----------
    view : GraphView
    rules : mapping
        By default all; tests switch one off.
    without : collection of str
        Rules that can say nothing of this graph.
    """
    silent = not_checkable(view).union(without)
    findings = {rule: NOTHING if rule in silent else check(view) for rule, check in rules.items()}
    violations = [
        Violation(
            rule=rule,
            level="G",
            where=fault.where,
            message=fault.message,
            fix=fault.fix,
            node=view.written[fault.node].number if fault.node is not None and view.written else None,
        )
        for rule, finding in findings.items()
        for fault in finding.faults
    ]
    looked = [LookedAt(id=rule, level="G", looked_at=finding.looked_at) for rule, finding in findings.items()]
    return Verdict(violations=tuple(violations), rules=tuple(looked))
