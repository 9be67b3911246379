"""What attention over SP ranks may take in other ways than clustersim's own graphs do, and prompts of any length."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from graph_cases_small import CASES, PRECISION, cut, drawn, edges, one, recast, valued, view_of

from clustersim.graph.batch import Chunk
from clustersim.legality.check_graph import check_graph
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.simulation.graph_legality import StepContents, graph_view


def redrawn(view: GraphView, lost: str, other: str, target: str, kind: str) -> GraphView:
    """Return the view with an edge of one rank from another operator of its layer."""
    old, new, end = (one(view, name, step=0, layer=0, rank=2) for name in (lost, other, target))
    return drawn(cut(view, edges(view, [old], [end])), [(new, end, kind)])


def without(view: GraphView, source: str, target: str) -> GraphView:
    """Return the view without an edge of one rank."""
    return cut(view, edges(view, *([one(view, name, step=0, layer=0, rank=2)] for name in (source, target))))


def brought_as_data(view: GraphView) -> GraphView:
    """Return the view with queries that come to ranks of heads as data, as keys and values do too."""
    exchange, core = (one(view, name, step=0, layer=0, rank=2) for name in ("qkv_all_to_all", "attention_prefill"))
    return recast(view, edges(view, [exchange], [core]), "data")


LEGAL: dict[str, tuple[str, Callable[[GraphView], GraphView]]] = {
    "a gather takes new keys as they are cached": (
        "gather", lambda view: redrawn(view, "rope", "kv_write", "kv_all_gather", "kv"),
    ),
    "a ring takes new keys as they are cached": (
        "ring", lambda view: redrawn(view, "rope", "kv_write", "kv_ring_1", "kv"),
    ),
    "a later part of a ring has no edge from its own rank's cache": (
        "ring", lambda view: without(view, "kv_read", "attention_prefill_2"),
    ),
    "a later part of a ring has no edge from its own rank's writes": (
        "ring", lambda view: without(view, "kv_write", "attention_prefill_2"),
    ),
    "queries come to ranks of heads as data": ("heads", brought_as_data),
}  # fmt: skip


@pytest.mark.parametrize(("case", "change"), LEGAL.values(), ids=LEGAL)
def test_another_way_of_the_same_is_legal(case: str, change: Callable[[GraphView], GraphView]) -> None:
    assert check_graph(change(view_of(case))).violations == ()


@pytest.mark.parametrize("tokens", [9, 3000])
@pytest.mark.parametrize("case", ["wide", "gather", "ring", "heads", "latent"])
def test_a_prompt_of_any_length_attends_to_what_its_rank_writes(case: str, tokens: int) -> None:
    spec, plan = CASES[case]
    steps = (StepContents(chunks=(Chunk(request=0, start=16, count=tokens),)),)
    view = graph_view(spec, plan, PRECISION, steps=steps)
    core = "attention_prefill_0" if case == "ring" else "attention_prefill"
    assert check_graph(view).violations == ()
    for source in ("kv_write", "kv_read"):
        ends = ([one(view, name, step=0, layer=0, rank=0)] for name in (source, core))
        assert "PH-5" in {found.rule for found in check_graph(cut(view, edges(view, *ends))).violations}


@pytest.mark.parametrize("tokens", [9, 3000])
@pytest.mark.parametrize("case", ["wide", "gather", "ring", "heads", "latent"])
def test_pairs_of_a_prompt_of_any_length_are_counted(case: str, tokens: int) -> None:
    spec, plan = CASES[case]
    steps = (StepContents(chunks=(Chunk(request=0, start=16, count=tokens),)),)
    view = graph_view(spec, plan, PRECISION, steps=steps)
    core = one(view, "attention_prefill_0" if case == "ring" else "attention_prefill", step=0, layer=0, rank=0)
    for other in (1, -1):
        changed = valued(view, [core], "attended", lambda pairs, other=other: pairs + other)  # type: ignore[misc]
        assert "PH-5" in {found.rule for found in check_graph(changed).violations}
