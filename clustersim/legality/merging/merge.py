"""All that is put together of a graph from outside before rules look at it."""

from __future__ import annotations

from collections import Counter

from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.graph.foreign.read import ForeignGraph
from clustersim.graph.vocabulary import PART_MARK, PARTS
from clustersim.legality.merging.caching import has_caching, merge_caching
from clustersim.legality.merging.collectives import merge_collectives
from clustersim.legality.merging.exchanges import has_exchanges_in_parts, merge_exchanges
from clustersim.legality.merging.products import merge_products
from clustersim.legality.merging.rows import Rows
from clustersim.legality.merging.shapes import assume_shapes
from clustersim.legality.rule import Violation
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A graph in operators that rules know, what of its parts is illegal, and whether shapes are those of the plan."""

    graph: ForeignGraph
    violations: tuple[Violation, ...] = ()
    assumed: bool = False


def merged(found: ForeignGraph) -> Merged:
    """Return a graph with its parts put together; one that has none is as it was."""
    foreign = found.naming is not None and found.naming.foreign
    if not foreign and not (_has_parts(found) or has_caching(found) or has_exchanges_in_parts(found)):
        return Merged(graph=found)
    rows = Rows(found)
    merge_products(rows)
    merge_caching(rows)
    merge_collectives(rows)
    merge_exchanges(rows)
    assumed = foreign and assume_shapes(rows)
    return Merged(graph=rows.graph(), violations=tuple(rows.violations), assumed=assumed)


def _has_parts(found: ForeignGraph) -> bool:
    graph = found.graph
    if any(node.op == "reduce_scatter" for node in graph.symbols):
        return True
    joins = [node.op in COLLECTIVE_OPS for node in graph.symbols]
    names = {node.name for node in graph.symbols}
    if not names.isdisjoint(PARTS) or any(PART_MARK in name for name in names):
        return True
    collectives = [at for at, symbol in enumerate(graph.symbol.tolist()) if joins[symbol]]
    columns = (graph.group, graph.layer, graph.stage, graph.unit)
    alike = Counter(
        (graph.symbols[int(graph.symbol[at])].op, *(int(column[at]) for column in columns)) for at in collectives
    )
    return any(count > 1 for count in alike.values())
