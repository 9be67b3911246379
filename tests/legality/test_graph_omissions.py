"""Level G misses what is not there: operators, ranks, stages, boundaries; and sees what is there twice or too early.

The sweeps take every node, edge and copy of small graphs, a plain ``pytest`` those of each name in the first graph
that has it; what they may leave uncaught is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from graph_cases_small import CASES, GATHER, RING, cut, view_of
from omissions import OMISSIONS, Omission, doubled, dropped, one_step
from plans import EXPERTS, LATENT, model

from clustersim.legality.check_graph import GRAPH_CHECKS, check_graph
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan
from tests.effort import each_in_one

CUT = (Cut(layer=0, before="ffn"),)


def split(sp: SequencePlan, degree: int = 2) -> SequencePlan:
    """Return a split of sequences in so many."""
    return SequencePlan(degree=degree, scheme=sp.scheme, partition=sp.partition, decode=sp.decode)


SWEPT = {
    "tensor": (model(layers=1), ParallelPlan(tp=2)),
    "stages": (model(layers=2), ParallelPlan(pp=2, stages=(Cut(layer=1),))),
    "between attention and FFN": (model(layers=1), ParallelPlan(pp=2, tp=2, stages=CUT)),
    "latent": (model(LATENT, layers=1), ParallelPlan(tp=2)),
    "experts": (model(ffn=EXPERTS, layers=1), ParallelPlan(tp=2)),
    "spread": (model(ffn=EXPERTS, layers=1), ParallelPlan(tp=2, ep=ExpertPlan(degree=2))),
    "ring": (model(layers=1), ParallelPlan(sp=split(RING))),
    "gather": (model(LATENT, layers=1), ParallelPlan(sp=split(GATHER))),
    "idle experts": (model(ffn=EXPERTS, layers=1), ParallelPlan(sp=split(RING), ep=ExpertPlan(degree=2))),
}
_IN_A_RING = {(cache, "attention_prefill_1") for cache in ("kv_write", "kv_read")}
HARMLESS = {
    # The first part of attention waits for its rank's cache, and the second part for the first.
    "ring": _IN_A_RING,
    "idle experts": _IN_A_RING,
    # Of segments in a row nobody attends to the last one but its own rank, which has it.
    "gather": {("kv_a_norm_rope", "kv_all_gather")},
}
"""Case → edges without which a step does the same, in an order that other edges imply."""

FIRST = ("TP-8", "TP-5", "EP-2", "EP-4", "EP-6", "PH-1", "PP-2", "SP-8", "KV-1", "KV-4", "PH-5")
RULES = [GRAPH_CHECKS[rule] for rule in dict.fromkeys((*FIRST, *GRAPH_CHECKS))]
"""Those first that find most; what found something last is asked first, since neighbours have like faults."""


def is_legal(view: GraphView) -> bool:
    found = next((check for check in RULES if check(view).faults), None)
    if found is not None:
        RULES.remove(found)
        RULES.insert(0, found)
    return found is None


def names(view: GraphView, nodes: Iterable[int]) -> list[str]:
    return [view.symbols[int(view.symbol[node])].name for node in nodes]


@pytest.mark.parametrize("omission", OMISSIONS, ids=str)
def test_an_omission_breaks_its_rules(omission: Omission) -> None:
    verdict = check_graph(omission.change(view_of(omission.case)))
    assert set(omission.rules) <= {violation.rule for violation in verdict.violations}


def is_tried(view: GraphView, nodes: Iterable[int], kinds: Collection[str]) -> bool:
    return " → ".join(names(view, nodes)) in kinds


def nodes_in(case: str, kind: str) -> list[str]:
    view = one_step(*SWEPT[case], kind)
    return list(dict.fromkeys(names(view, range(len(view)))))


def edges_in(case: str) -> list[str]:
    view = one_step(*SWEPT[case], "mixed")
    pairs = zip(names(view, view.source), names(view, view.target), strict=True)
    return list(dict.fromkeys(map(" → ".join, pairs)))


@cache
def nodes_tried() -> dict[str, list[str]]:
    """Return the names of operators that are tried in each case: those that no case before it has."""
    found = {f"{case}: mixed": nodes_in(case, "mixed") for case in SWEPT}
    return each_in_one(found | {"idle experts: decode": nodes_in("idle experts", "decode")})


@cache
def edges_tried() -> dict[str, list[str]]:
    """Return between which operators edges are tried in each case."""
    return each_in_one({case: edges_in(case) for case in SWEPT})


@pytest.mark.parametrize(("case", "kind"), [*((case, "mixed") for case in SWEPT), ("idle experts", "decode")])
def test_no_node_can_be_dropped_or_doubled(case: str, kind: str) -> None:
    view = one_step(*SWEPT[case], kind)
    assert is_legal(view)
    tried = [node for node in range(len(view)) if is_tried(view, [node], nodes_tried()[f"{case}: {kind}"])]
    unseen = [node for node in tried if is_legal(dropped(view, [node]))]
    assert names(view, unseen) == []
    unseen = [node for node in tried if is_legal(doubled(view, node))]
    assert names(view, unseen) == []


@pytest.mark.parametrize("case", SWEPT)
def test_no_edge_of_a_step_can_be_dropped(case: str) -> None:
    view = one_step(*SWEPT[case], "mixed")
    ends, harmless = list(zip(view.source, view.target, strict=True)), HARMLESS.get(case, set())
    tried = [edge for edge, pair in enumerate(ends) if is_tried(view, pair, edges_tried()[case])]
    unseen = [edge for edge in tried if is_legal(cut(view, [edge]))]
    pairs = set(zip(names(view, view.source[unseen]), names(view, view.target[unseen]), strict=True))
    assert pairs == {pair for pair in harmless if " → ".join(pair) in edges_tried()[case]}


@pytest.mark.parametrize("case", CASES)
def test_no_rank_can_be_left_out(case: str) -> None:
    view = view_of(case)
    for rank in range(view.num_ranks):
        nodes = np.flatnonzero((view.size == 1) & (view.rank == rank))
        assert not is_legal(dropped(view, nodes.tolist())), rank


@pytest.mark.parametrize("kind", ["prefill", "decode"])
@pytest.mark.parametrize("case", [*SWEPT, "cut under SP"])
def test_what_a_part_of_a_graph_does_not_show_is_not_missed(case: str, kind: str) -> None:
    under_sp = (model(layers=1), ParallelPlan(pp=2, sp=split(RING), stages=CUT))
    view = one_step(*SWEPT.get(case, under_sp), kind)
    assert is_legal(replace(view, model=None))
    assert is_legal(replace(view, plan=None, model=None))
    for stage in np.unique(view.stage).tolist():
        part = dropped(view, np.flatnonzero(view.stage != stage).tolist())
        assert is_legal(replace(part, shown=(stage,)))
        assert is_legal(part) == (len(part) == len(view))
