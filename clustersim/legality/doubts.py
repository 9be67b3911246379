"""What of a graph from outside rules can't know, and what would make them checkable.

An operator of a name that nobody knows may be any that lacks beside it; a graph that nowhere speaks of the cache may
have left it out. Rules that would call either illegal are silent, but for what no unknown operator excuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.graph.foreign.read import ForeignGraph
from clustersim.legality.check_graph import GRAPH_CHECKS, check_graph
from clustersim.legality.graph_rules.run import acyclic
from clustersim.legality.graph_rules.views.doubted import doubted
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.legality.graph_rules.views.reading import view_of_foreign
from clustersim.legality.merging.merge import Merged
from clustersim.legality.reference import head_inputs, inputs_of
from clustersim.legality.relevance import Declared
from clustersim.legality.rule import LookedAt, Violation
from clustersim.legality.unsaid import BY_LAYER, left_out

OPTIONAL: Final = (
    "schedule", "sample", "attention_norm", "ffn_norm", "moe_norm", "final_norm", "rope", "qk_norm_rope", "kv_write",
    "kv_read", "attention_add", "ffn_add", "moe_add", "ffn_act", "attention_post_norm", "ffn_post_norm",
    "moe_post_norm", "logits_cap",
)  # fmt: skip
"""Operators that other programs often do not speak of at all."""

BY_NAME: Final = BY_LAYER | {"TP-3", "TP-5", "TP-9", "SP-4", "SP-6", "PP-5", "EP-7", "PH-2"}
"""Rules that look for operators by their names, or count what they find."""

INSIDE: Final = BY_NAME - {"TP-5", "PP-5"} | {"TP-4", "KV-4", "KV-5"}
"""Rules about what is inside a module."""


def doubts_of(merging: Merged) -> dict[str, tuple[str, ...]]:
    """Return rule → what it lacks, of the rules that can say nothing of a graph."""
    found: dict[str, dict[str, None]] = {}
    for rules, words in _doubts(merging):
        for rule in sorted(rules):
            found.setdefault(rule, {})[words] = None
    return {rule: tuple(words) for rule, words in found.items()}


def _doubts(merging: Merged) -> Iterator[tuple[frozenset[str] | set[str], str]]:
    graph = merging.graph
    naming = graph.naming
    if naming is None or not naming.foreign:
        return
    if naming.unplaced:
        yield set(GRAPH_CHECKS), f"say the ranks of {_some(naming.unplaced)}"
    if words := _unknown(graph):
        yield BY_NAME, words
    if naming.modules:
        yield INSIDE, f"write the operators inside {_some(naming.modules)} one by one"
    if merging.assumed:
        yield {"TP-9"}, "say n and k of products"
    present = {node.name for node in graph.graph.symbols}
    absent = [name for name in OPTIONAL if name in _wanted(graph) and name not in present]
    if absent:
        yield BY_LAYER | {"TP-9"}, f"write {', '.join(absent)}, of which the graph has none"


def _unknown(graph: ForeignGraph) -> str | None:
    unknown = graph.naming.unknown if graph.naming is not None else {}
    return f"say what {_some(unknown)} {'is' if len(unknown) == 1 else 'are'} (--names FILE)" if unknown else None


def certain(found: ForeignGraph, merging: Merged, doubts: Mapping[str, tuple[str, ...]]) -> tuple[Violation, ...]:
    """Return what is wrong whatever unknown names stand for, and wherever operators of unknown ranks run.

    Parameters
    ----------
    found : ForeignGraph
        As it was before its parts were put together.
    merging : Merged
    doubts : mapping
        As of :func:`doubts_of`.
    """
    words = _unknown(found)
    cycles = check_graph(view_of_foreign(found), {"RUN-1": acyclic}).violations if "RUN-1" in doubts else ()
    if words is None:
        return (*cycles, *merging.violations)
    parts = _in_doubt(found)
    unsure = {parts.written[node].number for node in np.flatnonzero(doubted(parts)).tolist()}
    rules = {rule: GRAPH_CHECKS[rule] for rule, lacks in doubts.items() if lacks == (words,)}
    of_parts = [one for one in merging.violations if one.rule not in doubts or one.node not in unsure]
    return (*cycles, *of_parts, *check_graph(_in_doubt(merging.graph), rules).violations)


def _in_doubt(graph: ForeignGraph) -> GraphView:
    """Return the columns of a graph, with a note which of its operators nobody knows."""
    view = view_of_foreign(graph)
    return replace(view, unknown=view.mask(lambda node: node.name in view.nameless))


def _wanted(graph: ForeignGraph) -> set[str]:
    """Return the names of the operators that plan, model and step ask for."""
    if graph.model is None:
        return set()
    layers = dict.fromkeys(graph.model.layers)
    return {"kv_read", *head_inputs(graph.model)}.union(
        *(inputs_of(layer, prefills=True, decodes=True) for layer in layers)
    )


def declared_of(graph: ForeignGraph) -> Declared:
    """Return what a graph declares that makes rules relevant."""
    batch, plan = graph.batch, graph.plan
    ranks = [rank for group in graph.graph.groups for rank in group]
    replicas = {rank // plan.replica_ranks for rank in ranks} if plan is not None and plan.replica_ranks > 0 else {0}
    return Declared(
        plan=plan, model=graph.model, replicas=len(replicas), shown=graph.stages,
        prefills=None if batch is None else batch.kind != "decode",
        decodes=None if batch is None else batch.kind != "prefill",
    )  # fmt: skip


def lacks_of(entry: LookedAt, graph: ForeignGraph, doubts: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield what would make a rule that looked at nothing checkable."""
    missing = [
        name for name, found in (("plan", graph.plan), ("model", graph.model), ("step", graph.batch)) if found is None
    ]
    if missing:
        yield f"declare {' and '.join(missing)}"
    yield from doubts.get(entry.id, ())
    if not missing and entry.id not in doubts:
        fields = left_out(view_of_foreign(graph))
        yield f"say {', '.join(fields)} of each operator" if fields else f"write the operators that {entry.id} is about"


def _some(names: Mapping[str, object] | tuple[str, ...]) -> str:
    """Return a few names in words."""
    found = [repr(name[:60]) for name in list(names)[:3]]
    return ", ".join(found) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
