"""Graphs of which less is known than of our own: without a model, or without what their attention takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from graph_cases_small import cut, edges, one, pick, recast, valued
from single_changes import GRAPHS, STEPS, view_of

from clustersim.cost.precision import Precision
from clustersim.legality.check_graph import check_graph
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.simulation.graph_legality import graph_view


@cache
def outside(name: str, kind: str) -> GraphView:
    """Return one step as from another program, which says how much operators do, and not of what."""
    spec, plan = GRAPHS[name]
    return replace(graph_view(spec, plan, Precision(), in_full=True, steps=(STEPS[kind],)), in_features=False)


def told(view: GraphView) -> list[tuple[str, str]]:
    return [(found.rule, found.message) for found in check_graph(view).violations]


def test_a_send_without_the_output_of_its_stage_is_found_where_no_model_is_known() -> None:
    view = replace(view_of("stages"), model=None)
    send = one(view, "send", step=0, rank=0)
    assert told(view) == []
    broken = recast(view, edges(view, range(len(view)), [send]), "order")
    assert told(broken) == [("PP-2", "it sends before the output of its stage is there")]


def test_logits_of_fewer_tokens_than_are_sampled_are_found_whichever_rank_makes_them() -> None:
    view = outside("ring", "mixed")
    heads = pick(view, "lm_head")
    assert told(view) == []
    assert ("SP-6", "all ranks make logits of 0 tokens") in [
        (rule, message[:33]) for rule, message in told(valued(view, heads, "amount", lambda _: 0.0))
    ]


def test_attention_that_takes_nothing_that_its_rank_writes_is_found_where_no_variant_is_said() -> None:
    view = outside("gathered heads", "prefill")
    view = replace(view, unsaid=tuple(frozenset({"variant"}) for _ in view.symbols))
    core = one(view, "attention_prefill", layer=0, rank=0)
    writes = np.isin(view.source, pick(view, "kv_write", layer=0, rank=0))
    assert told(view) == []
    found = told(cut(view, writes & (view.target == core)))
    assert ("PH-5", "attention has no K/V edge from its rank's writes, and sees no new token") in found
