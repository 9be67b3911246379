"""What a step would last that is not in the record: one of which it is known what it carries.

It is priced as those that were recorded, operator by operator, and lasts as long as the longest path through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from clustersim.graph.template import PassTemplate
from clustersim.legality.prices.contents import Contents
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.legality.prices.features import Features
from clustersim.legality.prices.prices import Priced, Prices
from clustersim.legality.timeline_rules.views.runs import Runs


def lasts(
    prices: Prices, templates: Iterable[PassTemplate], chunks: Sequence[tuple[int, int]],
    decodes: Sequence[tuple[int, int]],
) -> int | None:  # fmt: skip
    """Return how long a step takes on its stages together, with nothing else there or on their links, ns.

    What a stage sends to the next one is not in it.

    Parameters
    ----------
    prices : Prices
        Of its pool.
    templates : iterable of PassTemplate
        Of its pool.
    chunks : sequence of (int, int)
        First token and tokens of each.
    decodes : sequence of (int, int)
        Entries of each sequence that decodes, and the SP rank that keeps it.

    Returns
    -------
    int or None
        None where some operators tell nothing, or steps run as halves.
    """
    if prices.deployment.plan.ep.overlap != "none" or prices.deployment.together:
        return None
    kind = "mixed" if chunks and decodes else "prefill" if chunks else "decode"
    features = _contents(prices.deployment, chunks, decodes).at(*(np.zeros(1, np.int64) for _ in range(2)))
    found: dict[int, list[int | None]] = {stage: [] for stage in range(prices.deployment.plan.pp)}
    for one in templates:
        if one.kind == kind and one.stage in found:
            found[one.stage].append(_pass(prices, one, features))
    known = [[took for took in each if took is not None] for each in found.values()]
    if not all(known) or list(map(len, known)) != list(map(len, found.values())):
        return None
    return sum(map(max, known))


def _contents(
    deployment: PricedDeployment, chunks: Sequence[tuple[int, int]], decodes: Sequence[tuple[int, int]]
) -> Contents:
    """Return contents of one step."""
    zero, one = (np.full(1, value, np.int64) for value in (0, 1))
    slot = zero if decodes else -one
    runs = Runs({"replica": zero, "step": zero, "count": one, "slot": slot, "start_ns": zero, "end_ns": zero})
    start, count = np.array(chunks, np.int64).reshape(-1, 2).T
    none = np.zeros(len(start), np.int64)
    entries, owner = np.array(decodes, np.int64).reshape(-1, 2).T
    each = np.zeros(len(entries), np.int64)
    pieces: Any = SimpleNamespace(is_chunk=each > 0, first_run=each, count=each + 1, computed=entries)
    table = {"replica": none, "step": none, "start": start, "count": count}
    return Contents(deployment, runs, pieces, table, owner)


def _pass(prices: Prices, template: PassTemplate, features: Features) -> int | None:
    """Return how long a pass lasts; None where that is not known."""
    classes, unknown = prices.of_template(template)
    if unknown or len(template.node_class) or not set(template.instance_class.tolist()) <= set(classes):
        return None
    engine, by_class = prices.deployment.engine, np.zeros(template.num_classes)
    gap = np.where(prices.in_graph(template.kind, features), engine.graph_launch_s, engine.launch_s)
    for cls, operators in classes.items():
        by_class[cls] = max(_longest(prices, template, one, features, gap) for one in operators)
    if np.isnan(by_class).any():
        return None
    return int(template.pass_times(np.ceil(by_class).astype(np.int64))[0])


def _longest(prices: Prices, template: PassTemplate, one: Priced, features: Features, gap: Any) -> float:
    if not one.groups:
        return float(prices.kernel_ns(one, features, gap)[0])
    replicas = range(prices.first_replica, prices.first_replica + prices.deployment.plan.dp)
    each = (prices.collective_ns(one, features, np.array([replica]), template.stage) for replica in replicas)
    return max(float(values[0]) for found in each for values in found)
