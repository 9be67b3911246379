"""Exchanges in parts: a dispatch, or a combine, that sub-groups of its ranks take, in rounds that follow each other.

All that a rank has from a round it hands on in the next. Where every rank meets all that share its experts that way,
as in an exchange inside nodes and then between them, the parts are one exchange; what each carries is not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import nan
from typing import Final

from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.graph.foreign.read import FIGURES, ForeignGraph
from clustersim.legality.exchange import apart, sharing_in
from clustersim.legality.merging.rows import Row, Rows

EXCHANGES: Final = ("dispatch", "combine")


def has_exchanges_in_parts(found: ForeignGraph) -> bool:
    """Whether some ranks, and not all, take an exchange together."""
    sizes = {
        len(found.graph.groups[group])
        for symbol, group in zip(found.graph.symbol.tolist(), found.graph.group.tolist(), strict=True)
        if found.graph.symbols[symbol].name in EXCHANGES
    }
    return len(sizes) > 0 and found.plan is not None and sizes != {len(sharing_in(found.plan, 0))}


def merge_exchanges(rows: Rows) -> None:
    """Put the parts of exchanges together that are the whole one; what is none is left as it is."""
    plan = rows.found.plan
    if plan is None or not plan.ep.sends:
        return
    alike: dict[tuple[str, str, int, tuple[int, ...]], list[int]] = defaultdict(list)
    for at, row in rows.rows.items():
        if row.node.name in EXCHANGES and row.node.op in COLLECTIVE_OPS and row.cell.layer >= 0:
            group = sharing_in(plan, row.cell.ranks[0])
            if len(row.cell.ranks) < len(group):
                alike[row.node.name, row.node.op, row.cell.layer, group].append(at)
    for (_, _, _, group), parts in alike.items():
        if len(parts) > 1 and not apart(group, _rounds(rows, parts)):
            first = rows.rows[parts[0]]
            node = replace(first.node, amount=())
            cell = first.cell._replace(ranks=group)
            one = Row(node=node, cell=cell, unsaid=first.unsaid | {"amount"}, figures=(nan,) * len(FIGURES))
            rows.merge(parts, one, at=max(parts))


def _rounds(rows: Rows, parts: list[int]) -> list[list[tuple[int, ...]]]:
    """Return the ranks of each part, by how many others follow each other before it; of a cycle no rounds."""
    before = {at: {source for source, _ in rows.into[at]} & {*parts} for at in parts}
    found: list[list[tuple[int, ...]]] = []
    while ready := [at for at, others in before.items() if not others]:
        found.append([rows.rows[at].cell.ranks for at in ready])
        before = {at: others - {*ready} for at, others in before.items() if at not in ready}
    return [] if before else found
