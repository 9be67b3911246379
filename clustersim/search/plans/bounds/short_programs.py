"""Programs of stages for bounds: layers that are alike stand there once or twice, with how many they stand for.

A bound needs how often each class runs, and which operators wait for one another all the way. Both are told by every
body that follows another one once: of 80 layers some six units are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import Blueprint, Node, Unit
from clustersim.graph.program import StageProgram, depends_on_s
from clustersim.graph.shrink import waits_of
from clustersim.plan.mesh import Mesh
from clustersim.replay.programs import compile_stage

_WEIGHT: Final = 4
"""Of a communication among operators, where a path is looked for: between ranks of several nodes it takes longest."""


class ShortProgram(NamedTuple):
    """A program in which no unit follows another one twice.

    Parameters
    ----------
    program : StageProgram
    layer : array of shape (instances,)
        Which unit each instance is of.
    path : list of int
        Instances of the first coordinate that run one after the other, but for what SP ranks exchange, which
        :mod:`~clustersim.search.plans.bounds.exposure` adds.
    by_itself : list of int
        Of these, what each of several replicas in lockstep does by itself.
    """

    program: StageProgram
    layer: Int64Array
    path: list[int]
    by_itself: list[int]

    def counts(self, times: Int64Array) -> tuple[FloatArray, FloatArray]:
        """Return how often each class runs on the path in the whole program, and how often each rank does so by itself.

        Parameters
        ----------
        times : array of shape (units,)
            How many units of the whole program each one stands for.
        """
        classes, number = self.program.template.instance_class, self.program.template.num_classes
        path, alone = (
            np.bincount(classes[some], times[self.layer[some]], number).astype(np.float64)
            for some in (self.path, self.by_itself)
        )
        return path, alone


def short_program(mesh: Mesh, whole: Blueprint, comm: CommTable, stage: int) -> ShortProgram:
    """Return the short program of a stage of the first replica.

    Parameters
    ----------
    mesh, comm, stage
        See :func:`~clustersim.replay.programs.compile_stage`.
    whole : Blueprint
    """
    units, times = short_units(whole.stages[stage])
    stages = tuple(units if at == stage else one for at, one in enumerate(whole.stages))
    (program,) = compile_stage(mesh, {whole.kind: replace(whole, stages=stages)}, comm, stage).values()
    template = program.template
    layer = np.zeros(len(template.instance_s), np.int64)
    layer[template.node_instance] = template.node_layer
    path = _counted(program, [id(unit.body) for unit in units], layer, times)
    path = [index for index in path if _node_of(program, index).axis != "sp"]
    alone = [index for index in path if mesh.plan.sp.whole and _is_of_one(program, index)]
    return ShortProgram(program, layer, path, alone)


def _is_of_one(program: StageProgram, index: int) -> bool:
    """Whether an instance is of one of several replicas in lockstep, and costs what that has by itself."""
    return len(program.template.instance_s[index]) == 1 and depends_on_s(_node_of(program, index), whole=True)


def _node_of(program: StageProgram, index: int) -> Node:
    return program.classes[int(program.template.instance_class[index])].node


def short_units(units: Sequence[Unit]) -> tuple[tuple[Unit, ...], Int64Array]:
    """Return units without those whose body follows the same body again, numbered as layers, and their counts.

    Each that counts follows the body that it follows in the whole program: where needed one is put in that counts
    nothing.
    """
    places: dict[tuple[int, int], int] = {}
    found: list[Unit] = []
    times: list[int] = []
    before: Unit | None = None

    def add(unit: Unit, count: int) -> None:
        found.append(replace(unit, layer=len(found)))
        times.append(count)

    for unit in units:
        key = id(before and before.body), id(unit.body)
        if key in places:
            times[places[key]] += 1
        else:
            if before is not None and found[-1].body is not before.body:
                add(before, 0)
            places[key] = len(found)
            add(unit, 1)
        before = unit
    return tuple(found), np.array(times, np.int64)


def _counted(program: StageProgram, bodies: Sequence[int], layer: Int64Array, times: Int64Array) -> list[int]:
    """Return the instances of the first coordinate that run one after the other: all where each waits for the one
    before; else those of a path through all streams, or of the stream with most where none is proven."""
    template = program.template
    mine = [index for index, ranks in enumerate(template.instance_s) if 0 in ranks]
    waits = waits_of(template.instance_s, template.instance_stream, template.after)
    if all(before in waits[index] for before, index in pairwise(mine)):
        return mine
    if (path := _path(program, mine, waits, bodies, layer, times)) is not None:
        return path
    streams = template.instance_stream
    ((busiest, _),) = Counter(streams[index] for index in mine).most_common(1)
    return [index for index in mine if streams[index] == busiest]


def _path(
    program: StageProgram,
    mine: Sequence[int],
    waits: Sequence[tuple[int, ...]],
    bodies: Sequence[int],
    layer: Int64Array,
    times: Int64Array,
) -> list[int] | None:
    """Return instances each of which waits for the one before, here and in the whole program; None where none are
    found.

    Of the paths through the short program one with most that take long is looked for. Of each body it takes the same
    instances wherever the body stands (those of its last unit). What a unit waits for of the one right before is told
    by both bodies alone, and :func:`short_units` has each pair of bodies that follow one another in the whole program.
    So where the first instance of each unit waits for the last one of the unit before, that holds of all units of the
    whole program, and their instances are a path through it.
    """
    first = np.searchsorted(layer, np.arange(len(bodies)))
    some: list[int] = np.unique(layer).tolist()  # none of what a stage receives first, and sends last
    if some[-1] - some[0] >= len(some):
        return None
    longest, inner = _longest(program, mine, waits), dict[int, list[int]]()
    for unit in some:
        inner[bodies[unit]] = [index - int(first[unit]) for index in longest if layer[index] == unit]
    found = [[place + int(first[unit]) for place in inner[bodies[unit]]] for unit in some]
    if not all(found):
        return None
    entered = zip(pairwise(found), some[1:], strict=True)
    linked = all(before[-1] in waits[here[0]] for (before, here), unit in entered if times[unit])
    return [index for part in found for index in part] if linked else None


def _longest(program: StageProgram, mine: Sequence[int], waits: Sequence[tuple[int, ...]]) -> list[int]:
    """Return a path of instances of a coordinate, of those with most that take long, communications before others."""
    template = program.template
    best: dict[int, tuple[int, int]] = {}
    for index in mine:
        came = max((one for one in waits[index] if one in best), key=lambda one: best[one][0], default=-1)
        weight = _WEIGHT if program.classes[int(template.instance_class[index])].comm is not None else 1
        best[index] = weight + (best[came][0] if came >= 0 else 0), came
    found, at = [], max(best, key=lambda one: best[one][0])
    while at >= 0:
        found.append(at)
        at = best[at][1]
    return found[::-1]
