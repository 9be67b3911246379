"""PP-4 of steps that run as two halves: each is a micro-batch, so that no operator of one needs one of the other."""

from __future__ import annotations

import numpy as np

from clustersim.graph.template import PassTemplate
from clustersim.legality.timeline_rules.finding import NOTHING, Finding, judged, merged
from clustersim.legality.timeline_rules.views.reading import Reading


def halves_apart(reading: Reading) -> Finding:
    """Judge whether the halves of a step wait for each other on nothing but the streams that they share."""
    tables = reading.history.folded
    if tables is None:
        return NOTHING
    return merged(
        *(_apart(number, template) for number, template in enumerate(tables.templates) if len(template.node_half))
    )


def _apart(number: int, template: PassTemplate) -> Finding:
    half = np.zeros(len(template.instance_class), np.int64)
    half[template.node_instance] = template.node_half
    pairs = [(before, at) for at, after in enumerate(template.after) for before in after]
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    return judged(
        len(source),
        (half[source] > 0) & (half[target] > 0) & (half[source] != half[target]),
        lambda i: f"template {number} ({template.kind}, stage {template.stage}), operator {target[i]}",
        lambda i: f"is of half {half[target[i]]} of a step, and needs operator {source[i]}, of half {half[source[i]]}",
        "let micro-batches wait for each other on no data",
    )
