"""Whether a step graph from outside goes together with what it declares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import gcd
from typing import Final

import numpy as np

from clustersim.errors import Problem
from clustersim.graph.batch import StepBatch
from clustersim.graph.foreign.read import ForeignGraph
from clustersim.legality.deployment import counted
from clustersim.legality.figures import disagreements
from clustersim.legality.shards import MOST_SEGMENTS
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.built import contradictory, visits_to_none
from clustersim.plan.parallel import ParallelPlan
from clustersim.units import plural

_NUMBER: Final = re.compile(r"[0-9.,]+(?:e[+-]?[0-9]+)?")
MOST_NUMBERED: Final = 2**20
"""More layers, stages or ranks are a slip of the pen."""


def contradictions(found: ForeignGraph) -> list[Problem]:
    """Return what of a graph from outside does not go together with its own plan, step or model."""
    problems = [*_of_numbers(found), *_of_plan(found), *_of_step(found)]
    if not problems and found.batch is not None:
        problems += _told_once(disagreements(found))
    return problems


def _told_once(found: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """Yield a problem per figure and what it contradicts: the first node, and how many others are like it."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path, message in found:
        alike.setdefault((path.partition("].")[2], _NUMBER.sub("", message)), []).append((path, message))
    for (figure, _), ((path, message), *more) in alike.items():
        others = f"; so are the {figure} of {counted(len(more), 'other node')}" if more else ""
        doubt = ": does the graph declare the model, the plan and the precision that it was made of?" if more else ""
        yield Problem(path=path, message=message + others + doubt)


def _of_numbers(found: ForeignGraph) -> Iterator[Problem]:
    """Layers, stages and ranks that are no numbers of these, or more than model and plan have."""
    graph, plan, model = found.graph, found.plan, found.model
    ranks = np.array([max(group) for group in graph.groups], np.int64)[graph.group]
    limits = (
        ("layer", graph.layer, len(model.layers) if model is not None else MOST_NUMBERED, "model"),
        ("stage", graph.stage, plan.pp if plan is not None else MOST_NUMBERED, "plan"),
        ("rank", ranks, MOST_NUMBERED, "plan"),
    )
    for name, column, most, owner in limits:
        at = int(np.argmax(column))
        if column[at] < most:
            continue
        path = f"nodes[{at}].{'ranks' if name == 'rank' else name}"
        if most >= MOST_NUMBERED:
            yield Problem(path=path, message=f"{name} {column[at]} is too large; number them from 0")
        else:
            yield Problem(path=path, message=f"{name} {column[at]}, but the {owner} has {counted(most, name)}")


def _of_plan(found: ForeignGraph) -> Iterator[Problem]:
    """Degrees that no plan has, and replicas that share experts and have several stages or split prompts."""
    plan = found.declared
    if plan is None:
        return
    degrees = {"dp": plan.dp, "pp": plan.pp, "tp": plan.tp, "sp.degree": plan.sp.degree, "ep.degree": plan.ep.degree}
    if plan.devices is not None and plan.devices < 1:
        yield Problem(path="plan.devices", message="a plan is on at least 1 device")
    zeros = [name for name, degree in degrees.items() if degree < 1]
    yield from (Problem(path=f"plan.{name}", message="a degree must be at least 1") for name in zeros)
    if plan.sp.degree > MOST_SEGMENTS:
        yield Problem(path="plan.sp.degree", message=f"{plan.sp.degree} is too large; use at most {MOST_SEGMENTS}")
    elif plan.world > MOST_NUMBERED:
        yield Problem(path="plan", message=f"{plan.world:,} ranks are too many; use at most {MOST_NUMBERED:,}")
    elif max(plan.placement or (0,)) > MOST_NUMBERED:
        yield Problem(path="plan.placement", message="a device's number is too large; number them from 0")
    if plan.is_lockstep and (plan.pp > 1 or plan.sp.degree > 1):
        within = gcd(plan.ep.degree, plan.stage_ranks)
        message = (
            f"replicas that share experts can be read at pp 1 and sp 1, and this plan has pp {plan.pp} and sp "
            f"{plan.sp.degree}; write instead ep: {{degree: {within}, scope: replica}}, or on as many devices pp 1, "
            f"sp 1 and dp {plan.dp * plan.pp * plan.sp.degree}"
        )
        yield Problem(path="plan.ep.scope", message=message)
    yield from _of_visits(plan, found.model)
    unvisited = None if found.model is None else visits_to_none(plan, found.model)
    if not zeros and (nothing := contradictory(plan) or unvisited) is not None:
        yield nothing
    if found.replica is not None and found.replica >= max(1, plan.dp):
        yield Problem(path="replica", message=f"{found.replica}, but the plan has {plural(plan.dp, 'replica')}")
    beyond = [stage for stage in found.stages or () if stage >= plan.pp]
    yield from (
        Problem(path="stages", message=f"{stage}, but the plan has {plural(plan.pp, 'stage')}") for stage in beyond
    )
    ranks = plan.stage_ranks * (plan.dp if plan.ep.scope == "global" else 1)
    if not zeros and ranks % plan.ep.degree:
        yield Problem(path="plan.ep.degree", message=f"{plan.ep.degree} does not divide the {ranks} ranks of experts")


def _of_visits(plan: ParallelPlan, model: ModelSpec | None) -> Iterator[Problem]:
    """Frequencies that are not one row, or one per layer with experts, of a number for each expert."""
    rows = plan.ep.routing.frequencies if plan.ep.routing is not None else None
    moes = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)] if model is not None else []
    if not rows or not moes:
        return
    owners = moes if len(rows) > 1 else moes[:1]
    if len(rows) not in (1, len(moes)) or [len(row) for row in rows] != [moe.num_experts for moe in owners]:
        message = f"expected a row, or one for each of {len(moes)} layers, with a number for each expert"
        yield Problem(path="plan.ep.routing.frequencies", message=message)


def _of_step(found: ForeignGraph) -> Iterator[Problem]:
    """Counts that are not one per SP rank, and sequences of SP ranks that the plan does not have."""
    plan, batch = found.plan, found.batch
    if batch is None:
        return
    if not len(batch.decode_sequences) == len(batch.decode_keys) > 0:
        yield Problem(path="step", message="expected as many decode_sequences as decode_keys, one per SP rank")
    else:
        yield from _of_keys(batch)
        yield from _of_windows(batch, found.model)
    degree = plan.sp.degree if plan is not None else None
    if degree is None:
        return
    owners = [chunk.owner for chunk in batch.chunks]
    counts = (batch.decode_sequences, batch.decode_keys, *batch.windowed_keys.values())
    if max(owners, default=0) >= degree or any(len(each) > degree for each in counts):
        yield Problem(path="step", message=f"more SP ranks than the plan has ({degree})")
    elif plan is not None and plan.sp.whole and any(len(each) != degree for each in counts):
        yield Problem(path="step", message=f"expected counts of each of {degree} replicas that step together")


def _of_windows(batch: StepBatch, model: ModelSpec | None) -> Iterator[Problem]:
    """Sequences that decode with a model that attends within a window, and no word of the keys within it."""
    layers = model.layers if model is not None else ()
    windows = dict.fromkeys(layer.attention.sliding_window for layer in layers if layer.attention.sliding_window)
    for window in () if model is None else batch.windowed_keys:
        if window not in windows:
            path = f"step.windowed_keys.{window}"
            yield Problem(path=path, message=f"no layer of the model attends within {window:,} tokens")
    for window in windows:
        if window is not None and any(batch.decode_keys) and window not in batch.windowed_keys:
            message = (
                f"the model attends within {window:,} tokens: expected {{{window}: […]}}, per SP rank the keys that "
                "those that decode attend to, at most so many for each"
            )
            yield Problem(path="step.windowed_keys", message=message)


def _of_keys(batch: StepBatch) -> Iterator[Problem]:
    """Keys that sequences can't attend to: fewer than themselves, more than there are, or without a sequence.

    Where all keys are 0, nothing was said of them.
    """
    for s, (sequences, keys) in enumerate(zip(batch.decode_sequences, batch.decode_keys, strict=True)):
        if 0 < keys < sequences or (keys and not sequences):
            words = f"{keys:,}, where {counted(sequences, 'sequence')} decode: each attends to itself at least"
            yield Problem(path=f"step.decode_keys[{s}]", message=words)
    for window, counts in batch.windowed_keys.items():
        path = f"step.windowed_keys.{window}"
        if len(counts) != len(batch.decode_keys):
            yield Problem(path=path, message="expected keys in each window, one number per SP rank")
            continue
        for sequences, keys, seen in zip(batch.decode_sequences, batch.decode_keys, counts, strict=True):
            most = min(keys, window * sequences)
            least = min(most, sequences - 1 + min(window, keys - sequences + 1)) if sequences else 0
            if not least <= seen <= most:
                words = f"{counted(sequences, 'sequence')} of {keys:,} keys have {least:,} to {most:,} in it"
                yield Problem(path=path, message=f"{seen:,}, where {words}")
