"""Step graphs as JSON, as ``clustersim graph`` writes them, of random plans and batches; and ways to damage one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from random import Random
from typing import Any

import numpy as np

from clustersim.cost.precision import Precision
from clustersim.graph.batch import features_of
from clustersim.graph.expand import blueprint_of
from clustersim.graph.export import json_text, model_facts
from clustersim.graph.prices.priced import NO_DURATION, PricedGraph
from clustersim.graph.prices.table import amount
from clustersim.graph.prices.work import bytes_moved, flops
from clustersim.graph.stepgraph import expand
from tests.laws.graph_cases import CONFIGS, PRECISION, Case, batch_of, model_of, plan_of, windows

Document = dict[str, Any]


MOST_RANKS = 4


def case_of(random: Random, primitives: str = "tsep") -> Case:
    """Draw a model of two layers, a legal plan of few ranks, and a batch."""
    model = model_of(random.choice(tuple(CONFIGS)))
    model = replace(model, layers=model.layers[:2])
    plan = plan_of(random, model, primitives)
    while plan.world > MOST_RANKS or plan.pp > len(model.layers):
        plan = plan_of(random, model, primitives)
    batch, prefills, decodes = batch_of(random, plan.sp, windows(model), random.choice(("prefill", "mixed", "decode")))
    return Case(model=model, plan=plan, batch=batch, prefills=prefills, decodes=decodes)


def document_of(case: Case, precision: Precision = PRECISION) -> Document:
    """Return the JSON of a case, every figure with it but durations."""
    return json.loads(json_text(*priced_of(case, precision)))  # type: ignore[no-any-return]


def priced_of(case: Case, precision: Precision = PRECISION) -> tuple[PricedGraph, Document]:
    """Return the graph of a case, every figure with it but durations, and what it is about."""
    graph = expand(blueprint_of(case.model, case.plan, precision, case.batch.kind), case.plan)
    features = features_of(case.batch, case.plan.sp, case.windows)
    rows = []
    for symbol, group in zip(graph.symbol.tolist(), graph.group.tolist(), strict=True):
        node, s = graph.symbols[symbol], graph.groups[group][0] % case.plan.stage_ranks // case.plan.tp
        moved = bytes_moved(node, features, s, precision)
        rows.append((amount(node.amount, features, s), flops(node, features, s), moved))
    figures = np.array(rows).T
    priced = PricedGraph(
        graph=graph, plan=case.plan, batch=case.batch, amount=figures[0], flops=figures[1], bytes_moved=figures[2],
        duration_ns=np.full(len(graph), NO_DURATION),
    )  # fmt: skip
    return priced, {"title": "a test", "model": model_facts(case.model), "precision": asdict(precision)}


Place = tuple[Any, ...]
"""Keys and positions that lead to a value of a document."""


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Yield every value inside a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*here, key)
        yield from places(inner, (*here, key))


def holder(document: Document, place: Place) -> Any:
    """Return what has the value at a place."""
    found: Any = document
    for key in place[:-1]:
        found = found[key]
    return found


def kind_of(document: Document, place: Place) -> Place:
    """Return what places that mean the same have in common: operator and key, whichever rank or layer."""
    if place[0] == "nodes" and len(place) > 2:
        return (document["nodes"][place[1]]["name"], *(key for key in place[2:] if isinstance(key, str)))
    if place[0] == "edges" and len(place) > 2:
        edge = document["edges"][place[1]]
        names = [document["nodes"][edge[end]]["name"] for end in ("source", "target")]
        return ("edge", *names, place[2])
    return tuple(key for key in place if isinstance(key, str))
