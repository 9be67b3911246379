"""Programs of stages for bounds: layers that are alike stand there once or twice, with how many they stand for.

A bound needs how often each class runs, and whether one operator waits for the other all the way. Both are told by
every body that follows another one once: of 80 layers some six units are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import Blueprint, Unit
from clustersim.graph.program import StageProgram
from clustersim.plan.mesh import Mesh
from clustersim.replay.programs import compile_stage

_WEIGHT: Final = 4
"""Of a communication among operators, where a path is looked for: between ranks of several nodes it takes longest."""


class ShortProgram(NamedTuple):
    """A program in which no unit follows another one twice, and how often each class runs in the whole one."""

    program: StageProgram
    counts: FloatArray


def short_program(
    mesh: Mesh, blueprints: Mapping[str, Blueprint], comm: CommTable, stage: int, kind: str, *, path: bool = False
) -> ShortProgram:
    """Return the short program of one kind of step of a stage of the first replica.

    Parameters
    ----------
    mesh, blueprints, comm, stage
        See :func:`~clustersim.replay.programs.compile_stage`.
    kind : str
    path : bool
        Whether a path through all streams is counted where these overlap, which no proof is made of yet: that a layer
        goes on from where the one before it ends is taken for granted.
    """
    whole = blueprints[kind]
    units, times = _short(whole.stages[stage])
    stages = tuple(units if at == stage else one for at, one in enumerate(whole.stages))
    program = compile_stage(mesh, {kind: replace(whole, stages=stages)}, comm, stage)[kind]
    return ShortProgram(program=program, counts=_counts(program, times, path=path))


def _short(units: Sequence[Unit]) -> tuple[tuple[Unit, ...], Int64Array]:
    """Return units without those whose body follows the same body again, numbered as layers, and their counts."""
    places: dict[tuple[int, int], int] = {}
    found: list[Unit] = []
    times: list[int] = []
    before = 0
    for unit in units:
        at = places.setdefault((before, id(unit.body)), len(found))
        before = id(unit.body)
        if at < len(found):
            times[at] += 1
        else:
            found.append(replace(unit, layer=at))
            times.append(1)
    return tuple(found), np.array(times, np.int64)


def _counts(program: StageProgram, times: Int64Array, *, path: bool) -> FloatArray:
    """Return how many instances of each class the first coordinate runs, one after the other; those of one stream only,
    the one with most, where streams overlap.

    Parameters
    ----------
    program : StageProgram
    times : array
        Layer of the program → how many it stands for.
    """
    template = program.template
    mine = [index for index, ranks in enumerate(template.instance_s) if 0 in ranks]
    streams, place = template.instance_stream, {index: at for at, index in enumerate(mine)}
    linked = all(
        streams[index] == streams[mine[at]] or any(place.get(one) == at for one in template.after[index])
        for at, index in enumerate(mine[1:])
    )
    ((busiest, _),) = Counter(streams[index] for index in mine).most_common(1)
    kept = [index for index in mine if linked or streams[index] == busiest]
    if path and not linked:
        kept = _path(program, mine)
    layer = np.zeros(len(template.instance_s), np.int64)
    layer[template.node_instance] = template.node_layer
    weights = times[layer[kept]].astype(np.float64)
    found: FloatArray = np.bincount(template.instance_class[kept], weights, template.num_classes).astype(np.float64)
    return found


def _path(program: StageProgram, mine: Sequence[int]) -> list[int]:
    """Return instances that wait for one another, of those of a coordinate: of the paths the one with most that take
    long, communications before others."""
    template = program.template
    best: dict[int, tuple[int, int]] = {}
    last: dict[int, int] = {}
    for index in mine:
        stream = int(template.instance_stream[index])
        before = [one for one in (*template.after[index], last.get(stream, -1)) if one in best]
        came = max(before, key=lambda one: best[one][0], default=-1)
        weight = _WEIGHT if program.classes[int(template.instance_class[index])].comm is not None else 1
        best[index] = weight + (best[came][0] if came >= 0 else 0), came
        last[stream] = index
    found, at = [], max(best, key=lambda one: best[one][0])
    while at >= 0:
        found.append(at)
        at = best[at][1]
    return found[::-1]
