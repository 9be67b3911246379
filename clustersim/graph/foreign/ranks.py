"""The ranks of a node that does not list them: those that its name tells, or those of its neighbours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.graph.foreign.rows import Row, key_of

MOST_IN_NAME: Final = 4096
"""More ranks than a name tells."""


def ranks_of(places: Mapping[str, int], plan: Any) -> list[int] | None:
    """Return the ranks that numbers in a name tell."""
    if "rank" in places:
        return [places["rank"]]
    if "first" in places and 0 <= places.get("last", -1) - places["first"] < MOST_IN_NAME:
        return list(range(places["first"], places["last"] + 1))
    degrees = _degrees(plan)
    if degrees is None or not {"tp", "sp", "pp", "dp"} & set(places):
        return [0] if degrees is not None and set(degrees.values()) == {1} else None
    rank = 0
    for axis in ("dp", "pp", "sp", "tp"):
        at = places.get(axis, places.get("stage", 0) if axis == "pp" else 0)
        if axis not in places and degrees[axis] > 1 and not (axis == "pp" and "stage" in places):
            return None
        rank = rank * degrees[axis] + at
    return [rank]


def joined(rows: Sequence[Row], edges: Sequence[tuple[Any, Any]]) -> tuple[str, ...]:
    """Give collectives without ranks those of their neighbours, and return who has none all the same."""
    ranks: dict[Any, set[int]] = defaultdict(set)
    linked: set[Any] = set()
    known = {key_of(row.node.get("id")): row.node.get("ranks") for row in rows}
    for source, target in edges:
        linked |= {source, target}
        for one, other in ((source, target), (target, source)):
            found = known.get(other)
            if isinstance(found, list) and all(type(rank) is int for rank in found):
                ranks[one].update(found)
    unplaced = []
    for row in rows:
        if "ranks" in row.node:
            continue
        joins = row.node.get("op") in COLLECTIVE_OPS
        others = sorted(ranks[key_of(row.node.get("id"))]) if joins else []
        if not others and not (joins and key_of(row.node.get("id")) not in linked):  # what hangs on nothing is RUN-1's
            unplaced.append(row.name)
        row.node["ranks"] = others or [0]
    return tuple(dict.fromkeys(unplaced))


def _degrees(plan: Any) -> dict[str, int] | None:
    if not isinstance(plan, dict):
        return None
    found = {}
    for axis in ("dp", "pp", "sp", "tp"):
        degree = plan.get(axis, 1)
        degree = degree.get("degree", 1) if isinstance(degree, dict) else degree
        if type(degree) is not int or degree < 1:
            return None
        found[axis] = degree
    return found
