"""Collectives in parts: a sum of payloads in several collectives that join the same ranks, one after the other.

An all-reduce of [A B] is an all-reduce of A and one of B. That holds where all parts take what one producer made, the
payloads make up its whole, and whoever reads one part reads them all.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import isnan
from typing import Final

from clustersim.graph.blueprint import COLLECTIVE_OPS, Terms
from clustersim.graph.vocabulary import PART_MARK
from clustersim.legality.merging.rows import Row, Rows

CLOSE: Final = 1e-6
"""Share by which payloads may differ."""

FIX: Final = "let the parts of a collective carry its payload together, and whoever reads one read all"


def merge_collectives(rows: Rows) -> None:
    """Put the parts of collectives together, and note which are no parts of one."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for at, row in rows.rows.items():
        if row.node.op in COLLECTIVE_OPS and rows.into[at]:
            alike[row.node.op, row.cell, row.node.axis, frozenset(rows.into[at])].append(at)
    for parts in alike.values():
        numbered = all(PART_MARK in rows.rows[at].node.name for at in parts)
        said = all(_says(rows.rows[at]) for at in parts)
        if len(parts) < 2 or not (numbered or said):
            continue
        readers = [rows.out[at] for at in parts]
        if any(found != readers[0] for found in readers):
            odd = next(at for at, found in zip(parts, readers, strict=True) if found != readers[0])
            few = min((readers[0], rows.out[odd]), key=len)
            more = max((readers[0], rows.out[odd]), key=len)
            names = sorted({rows.rows[target].node.name for target, _ in more - few})
            message = f"{' and '.join(names)} reads one part of the collective and not the other"
            rows.breaks("TP-2", odd, message, FIX)
        else:
            _merge(rows, parts)
    _scattered_and_gathered(rows)
    for at, row in list(rows.rows.items()):
        if PART_MARK in row.node.name:
            plain = row.node.name.partition(PART_MARK)[0]
            rows.rows[at] = replace(row, node=replace(row.node, name=plain))
            if not _says(row):
                rows.breaks("TP-2", at, f"it is one part of {plain}, and the others are not there", FIX)


def _scattered_and_gathered(rows: Rows) -> None:
    """Note an all-gather that puts together more or less than its reduce-scatter scattered."""
    for at, row in rows.rows.items():
        if row.node.op != "all_gather" or len(rows.into[at]) != 1:
            continue
        ((source, _),) = rows.into[at]
        before = rows.rows[source]
        if before.node.op == "reduce_scatter" and before.cell.ranks == row.cell.ranks:
            one, two = _payload(before), _payload(row)
            if one is not None and two is not None and abs(one - two) > CLOSE * max(one, two):
                message = f"it gathers {two:,.6g} bytes, where {before.node.name} scattered {one:,.6g}"
                rows.breaks("TP-2", at, message, FIX)


def _payload(row: Row) -> float | None:
    """Return the bytes that a collective carries; None where they are not said as a number."""
    said = [figure for figure in (row.figures[0], row.figures[2]) if not isnan(figure)]
    return said[0] if said else None


def _says(row: Row) -> bool:
    return bool(row.node.amount) or not all(isnan(figure) for figure in (row.figures[0], row.figures[2]))


def _merge(rows: Rows, parts: list[int]) -> None:
    found = [rows.rows[at] for at in parts]
    terms: dict[str, float] = defaultdict(float)
    for row in found:
        for feature, share in row.node.amount:
            terms[feature] += share
    told = [bool(row.node.amount) for row in found]
    amount: Terms = tuple(terms.items()) if all(told) else ()
    name = found[0].node.name.partition(PART_MARK)[0]
    value, flops, moved = (sum(row.figures[at] for row in found) for at in range(3))
    node = replace(found[0].node, name=name, amount=amount)
    unsaid = frozenset().union(*(row.unsaid for row in found)) if not all(map(_says, found)) else found[0].unsaid
    rows.merge(parts, Row(node=node, cell=found[0].cell, unsaid=unsaid, figures=(value, flops, moved)), at=max(parts))
