"""PP-4 of steps that run as two halves: each is a micro-batch, so that no operator of one needs one of the other."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.prices.features import Features
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
        len(source), (half[source] > 0) & (half[target] > 0) & (half[source] != half[target]),
        "template {number} ({template.kind}, stage {template.stage}), operator {target}",
        "is of half {half} of a step, and needs operator {source}, of half {other}",
        "let micro-batches wait for each other on no data", number=number, template=template, target=target,
        source=source, half=Rows(half, target), other=Rows(half, source),
    )  # fmt: skip


def as_split(template: PassTemplate, features: Features, replica: Int64Array, step: Int64Array) -> Finding:
    """Judge whether steps run as two halves where the plan says so: those of two sequences and tokens enough."""
    experts = features.deployment.plan.ep
    if experts.overlap == "none":
        return NOTHING
    can = np.ones(len(features), bool)
    for s, run in enumerate(features.run):  # replicas that take a step together split it when each of them can
        prompts, decodes = features.contents.prompts(None), features.decoding(s)[0]
        chunks, tokens = prompts["chunks"][run], prompts["new"][run] + decodes
        least = np.where(chunks > 0, experts.overlap_prefill_tokens, experts.overlap_decode_tokens)
        can &= (chunks + decodes >= 2) & (tokens >= least)
    split = len(template.node_half) > 0
    return judged(
        len(can), can != split, "replica {replica}, step {step}",
        "runs as two halves, and is to run as one" if split else "runs as one, and is to run as two halves",
        "split the steps that overlap_decode_tokens and overlap_prefill_tokens say, and no others", replica=replica,
        step=step,
    )  # fmt: skip
