"""A step as two micro-batches that overlap: one computes while the other one's tokens are dispatched or combined.

What runs is one program of three ordinary blueprints (that of the whole step, and one for each half), and not two
passes one beside the other: the halves share the streams of their ranks, so that when either runs depends on both, and
only a program of both has a closed form, one digest in both replays, and runs of decode steps that are one event. Each
half is none the less an ordinary step: :func:`half_of` gives its graph back, and rules judge it as that of any step.

- the host's schedule and sample, the last norm and the LM head are of the whole step, as in vLLM, whose model runner
  splits what happens between (vllm/v1/worker/gpu_ubatch_wrapper.py, 2025);
- everything else is of a half, with its own tokens, its own K/V and its own edges; weights are read in each half;
- no edge leads from one half to the other; what orders them is that they take turns on each stream
  (:mod:`clustersim.graph.turns`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np

from clustersim.graph.blueprint import Blueprint, Body, Node, StepKind, Terms, Unit
from clustersim.graph.stepgraph import StepGraph
from clustersim.graph.turns import half_feature, plain_feature

HALVES: Final[tuple[tuple[StepKind, StepKind], ...]] = (
    ("decode", "decode"),
    ("prefill", "prefill"),
    ("decode", "prefill"),
    ("decode", "mixed"),
    ("mixed", "prefill"),
    ("mixed", "mixed"),
)
"""What two halves can be: sequences that decode come first (``serving.halves``), on each replica in lockstep."""

SHARED: Final = ("schedule", "lm_head")
"""Bodies that the whole step runs as one."""


def kind_of_both(first: StepKind, second: StepKind) -> StepKind:
    """Return the kind of a step of two halves."""
    return first if first == second else "mixed"


def two_batch_blueprints(blueprints: Mapping[StepKind, Blueprint]) -> dict[str, Blueprint]:
    """Return the blueprints of steps of two halves, by name (``decode+decode``).

    Parameters
    ----------
    blueprints : mapping
        Kind of step → its blueprint, of one stage.
    """
    made = [_joined(blueprints, first, second) for first, second in HALVES]
    return {blueprint.name: blueprint for blueprint in made}


def _joined(blueprints: Mapping[StepKind, Blueprint], first: StepKind, second: StepKind) -> Blueprint:
    whole = blueprints[kind_of_both(first, second)]
    (units,) = whole.stages
    parts = [_own(blueprints[kind], half) for half, kind in ((1, first), (2, second))]
    head, tail = ([unit for unit in units if unit.body.name == name] for name in SHARED)
    return replace(whole, stages=(tuple(chain(head, *parts, tail)),), halves=(first, second))


def _own(blueprint: Blueprint, half: int) -> list[Unit]:
    """Return the units of a half, whose amounts are those of its own tokens."""
    (units,) = blueprint.stages
    bodies: dict[int, Body] = {}
    found = []
    for unit in units:
        if unit.body.name not in SHARED:
            body = bodies.get(id(unit.body))
            if body is None:
                nodes = tuple(_of_half(node, half) for node in unit.body.nodes)
                body = bodies[id(unit.body)] = replace(unit.body, nodes=nodes)
            found.append(Unit(body=body, layer=unit.layer, half=half))
    return found


def _of_half(node: Node, half: int) -> Node:
    def named(terms: Terms) -> Terms:
        return tuple((half_feature(feature, half), value) for feature, value in terms)

    attends = node.op in ("attention_prefill", "attention_decode")
    variant = replace(node.variant, half=half) if attends else node.variant
    return replace(node, amount=named(node.amount), least=named(node.least), variant=variant)


def _plain(node: Node) -> Node:
    def named(terms: Terms) -> Terms:
        return tuple((plain_feature(feature), value) for feature, value in terms)

    return replace(node, amount=named(node.amount), least=named(node.least), variant=replace(node.variant, half=None))


def half_of(graph: StepGraph, half: int, kind: StepKind) -> tuple[StepGraph, tuple[int, ...]]:
    """Return one half's step as an ordinary graph, and which nodes of the whole graph its nodes are.

    Operators of the whole step are in either half's graph: of their tokens each half brings its own.

    Parameters
    ----------
    graph : StepGraph
        Of a step of two halves.
    half : int
        1 or 2.
    kind : str
        Kind of the half; where it has no prompts, the phase boundary behind those of the other half is not its own.
    """
    ends_prompts = np.array([node.op == "boundary" for node in graph.symbols], bool)[graph.symbol]
    kept = (graph.half == half) | ((graph.half == 0) & ~(ends_prompts & (kind == "decode")))
    nodes = np.flatnonzero(kept)
    place = np.cumsum(kept) - 1
    inner = kept[graph.source] & kept[graph.target]
    found = replace(
        graph,
        symbols=tuple(_plain(node) for node in graph.symbols),
        **{name: getattr(graph, name)[nodes] for name in ("symbol", "group", "layer", "stage", "unit", "stream")},
        source=place[graph.source[inner]],
        target=place[graph.target[inner]],
        kind=graph.kind[inner],
        half=np.empty(0, np.int64),
    )
    return found, tuple(nodes.tolist())
