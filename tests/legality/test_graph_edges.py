"""Every kind of edge of a legal graph is needed: drop one, and some rule of level G finds it.

A plain ``pytest`` drops each kind in one of the graphs that have it, ``--long=1`` in all of them.
"""

from __future__ import annotations

from functools import cache

import pytest
from graph_cases_small import CASES, cut, view_of
from test_graph_omissions import is_legal

from clustersim.graph.blueprint import EDGE_KINDS
from tests.effort import each_in_one

Kind = tuple[str, str, str, str, bool]


@cache
def kinds_of_edges(case: str) -> dict[Kind, int]:
    """Return of each kind (names of both ends, kind, kind of step, across steps) one edge, from the middle."""
    view = view_of(case)
    found: dict[Kind, list[int]] = {}
    rows = zip(view.source.tolist(), view.target.tolist(), view.kind.tolist(), strict=True)
    for edge, (source, target, kind) in enumerate(rows):
        names = (view.symbols[view.symbol[node]].name for node in (source, target))
        step = view.steps[view.step[source]].kind
        found.setdefault((*names, EDGE_KINDS[kind], step, bool(view.step[source] != view.step[target])), []).append(
            edge
        )  # type: ignore[arg-type]
    return {kind: edges[len(edges) // 2] for kind, edges in found.items()}


def is_redundant(kind: Kind) -> bool:
    """Later parts of a ring work on K/V of other ranks, and have edges from the own rank's cache all the same."""
    source, target, *_ = kind
    later = target.startswith("attention_prefill_") and not target.endswith("_0")
    return source in ("kv_write", "kv_read") and later


@pytest.mark.parametrize("case", CASES)
def test_no_edge_can_be_dropped(case: str) -> None:
    view, found = view_of(case), kinds_of_edges(case)
    assert len(found) > 60
    tried = each_in_one({one: kinds_of_edges(one) for one in sorted(CASES, key=lambda one: len(view_of(one)))})[case]
    unseen = [kind for kind in tried if is_legal(cut(view, [found[kind]]))]
    assert [kind for kind in unseen if not is_redundant(kind)] == []
    assert len(unseen) <= 12
