"""Operators of one rank that run one after the other whatever happens: one event for all of them.

Where an operator is all that the next one waits for, and nobody else waits for it, the next one starts when it ends.
Between two collectives most of a rank's operators are such rows, so that a pass has a third of the events or fewer.
Collectives are never joined, since what they meet on a link decides how long they take.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from clustersim.replay.events.pass_program import EventProgram, Works


def joined(program: EventProgram, streams: Sequence[int], ends: Collection[int] = ()) -> EventProgram:
    """Return a pass with one operator for each row of operators.

    Parameters
    ----------
    program : EventProgram
        In which no operators are joined.
    streams : sequence of int
        The stream of a rank on which each operator runs, in order of their numbers; any number for collectives.
    ends : collection of int
        Operators whose ends somebody waits for: they are the last ones of their rows.
    """
    kept = {*ends, *program.exits}
    successors, indegree = _without_implied(program, streams)
    alone = [group is None for group in program.members]
    after = {
        source: targets[0]
        for source, targets in enumerate(successors)
        if len(targets) == 1 and indegree[targets[0]] == 1 and alone[source] and alone[targets[0]]
        and source not in kept
    }  # fmt: skip
    inner = set(after.values())
    rows: list[list[int]] = []
    for operator in range(len(indegree)):
        if operator in inner:
            continue
        row = [operator]
        while row[-1] in after:
            row.append(after[row[-1]])
        rows.append(row)
    lengths = np.array([len(row) for row in rows], np.int64)
    works = np.array([operator for row in rows for operator in row], np.int64)
    number, place = np.empty_like(works), np.empty_like(works)
    number[works], place[works] = np.repeat(np.arange(len(rows)), lengths), np.arange(len(works))
    new = number.tolist()
    return replace(
        program,
        indegree=[indegree[row[0]] for row in rows],
        successors=[tuple([new[target] for target in successors[row[-1]]]) for row in rows],
        cls=[program.cls[row[0]] for row in rows],
        members=[program.members[row[0]] for row in rows],
        exits={new[operator]: ranks for operator, ranks in program.exits.items()},
        node_of=number[program.node_of],
        works=Works(
            cls=np.array(program.cls, np.int64)[works],
            first=np.cumsum(lengths) - lengths,
            of_node=place[program.node_of],
        ),
    )


def _without_implied(program: EventProgram, streams: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Return what waits for each operator, and for how many it waits, but for what the order of its stream implies.

    Of what an operator waits for on its own stream, only the last one matters: the others end before that one.
    """
    alone = [group is None for group in program.members]
    last = [-1] * len(alone)
    for source, targets in enumerate(program.successors):
        for target in targets:
            if alone[source] and alone[target] and streams[source] == streams[target]:
                last[target] = max(last[target], source)
    successors: list[list[int]] = []
    indegree = [0] * len(alone)
    for source, targets in enumerate(program.successors):
        kept = [
            target
            for target in targets
            if not (alone[source] and alone[target] and streams[source] == streams[target] and last[target] != source)
        ]
        for target in kept:
            indegree[target] += 1
        successors.append(kept)
    return successors, indegree
