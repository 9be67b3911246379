"""The templates of passes as columns: which operators there are, on which ranks, and what each waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.graph.template import AT_TIMES, PassTemplate
from clustersim.timeline.timeline import Timeline


def varying_classes(template: PassTemplate) -> list[int]:
    """Return the cost classes that attend: their durations change from step to step, those of others seldom do."""
    ops = [template.symbols[symbol][1] for symbol in template.class_symbol]
    return [cls for cls, op in enumerate(ops) if op.startswith("attention")]


def program_words(timeline: Timeline, number: int, shapes: Mapping[tuple[str, str, str], str]) -> dict[str, Any]:
    """Return what a page says of a template in plain values; names and kinds of operators are numbers of words."""
    template = timeline.templates[number]
    names, ops = timeline.words
    return {
        "kind": template.kind,
        "stage": template.stage,
        "ranks": template.ranks,
        "classes": template.num_classes,
        "chain": template.is_chain,
        "varying": varying_classes(template),
        "names": [names[name] for name, _, _ in template.symbols],
        "ops": [ops[op] for _, op, _ in template.symbols],
        "shapes": [shapes.get(symbol, "") for symbol in template.symbols],
    }


def program_columns(template: PassTemplate) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a template: of its instances, what these need, its nodes, and the ranks of each node."""
    after = [index - needed for index, some in enumerate(template.after) for needed in some]
    return {
        "instance_class": template.instance_class,
        "instance_stream": template.instance_stream,
        **_ragged("instance_s", template.instance_s),
        "after_count": _lengths(template.after),
        "after": np.array(after, np.int64),
        "node_instance": template.node_instance,
        "node_symbol": template.node_symbol,
        "node_layer": template.node_layer,
        **_ragged("members", template.members),
        **{name: getattr(template, name) for name in AT_TIMES},
    }


def _ragged(name: str, rows: Sequence[Sequence[int]]) -> dict[str, Int64Array]:
    flat = np.fromiter(chain.from_iterable(rows), np.int64)
    return {f"{name}_count": _lengths(rows), name: flat}


def _lengths(rows: Sequence[Sequence[int]]) -> Int64Array:
    return np.fromiter(map(len, rows), np.int64, len(rows))
