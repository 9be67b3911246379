"""How long passes take, and what contention made of their operators: the differences from what durations imply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.timeline.passes import Block, Passes
from clustersim.timeline.stretch import node_times

_LAID_OUT: Final = 1 << 21
"""Operators whose times are worked out at a time."""


def some_steps(block: Block, chosen: Int64Array) -> Block:
    """Return some steps of a block, each as if it were a run of its own."""
    return Block(runs=block.runs[block.of[chosen]], of=np.arange(len(chosen)), index=block.index[chosen])


def lengths_of(passes: Passes, block: Block, number: int) -> tuple[Int64Array, Int64Array]:
    """Return how long each pass of a block of one template takes by its durations, and how long it took, ns."""
    template, odd = passes.tables.templates[number], passes.tables.passes["irregular"][block.runs] >= 0
    if template.is_chain:
        regular = passes.lengths(block)
    else:
        many = max(1, _LAID_OUT // len(template.instance_class))
        parts = np.split(np.arange(len(block.of)), range(many, len(block.of), many))
        found = [template.total_times(passes.durations(some_steps(block, part), number)) for part in parts]
        regular = np.concatenate(found)
    actual = regular.copy()
    actual[odd[block.of]] = [int(ends.max()) for _, ends, _ in _node_times(passes, block.runs[odd])]
    return regular, actual


def stretched_columns(passes: Passes, rows: Int64Array) -> dict[str, npt.NDArray[Any]]:
    """Return what contention made of some passes, as differences that are few.

    Parameters
    ----------
    passes : Passes
    rows : int64 array
        Of the recorded passes.

    Returns
    -------
    dict
        Of each pass ``longer``, by how many ns it is longer than its durations imply; ``shift_count``, how many of its
        nodes start later or earlier against what durations imply than the node before does; ``grown_count``, how many
        take longer than that. Of all of these the node and by how much (``shift_node``, ``shift_ns``, ``grown_node``,
        ``grown_ns``).
    """
    longer: list[int] = []
    shifts: list[Int64Array] = []
    grown: list[Int64Array] = []
    for starts, ends, durations in _node_times(passes, rows):
        template = passes.tables.templates[int(passes.tables.passes["template"][rows[len(longer)]])]
        by_instance = durations[template.instance_class]
        implied = template.ends(by_instance)
        begins = (implied - by_instance)[template.node_instance]
        longer.append(int(ends.max() - implied.max()))
        shifts.append(np.diff(starts - begins, prepend=0))
        grown.append(ends - starts - by_instance[template.node_instance])
    return {"longer": np.array(longer, np.int64), **_sparse("shift", shifts), **_sparse("grown", grown)}


def _node_times(passes: Passes, rows: Int64Array) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
    """Yield start and end of every node of irregular passes relative to the pass, and its durations by class."""
    table = passes.tables.passes
    for row in rows.tolist():
        number = int(table["template"][row])
        (block,) = passes.blocks(np.array([row]))
        durations = passes.durations(block, number)[0]
        found = passes.tables.irregular[int(table["irregular"][row])]
        starts, ends = node_times(found, passes.tables.templates[number], durations)
        yield starts.astype(np.int64), ends.astype(np.int64), durations


def _sparse(name: str, rows: list[Int64Array]) -> dict[str, npt.NDArray[Any]]:
    """Return how many values of each row are not 0, and of all rows where and what they are."""
    at = [np.flatnonzero(row) for row in rows]
    nothing = [np.empty(0, np.int64)]
    return {
        f"{name}_count": np.array([len(some) for some in at], np.int64),
        f"{name}_node": np.concatenate(at + nothing),
        f"{name}_ns": np.concatenate([row[some] for row, some in zip(rows, at, strict=True)] + nothing),
    }
