"""Which passes of a folded timeline are looked at span by span.

- Of each template some regular passes: the starts of a regular pass are a function of its template and its durations,
  the same for all of them, so what holds for the structure of one holds for all;
- every irregular pass whose times contention has stretched, where they were kept node by node; of chains that keep
  what each operator lost, a sample: the others are judged by their losses (``execution``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.graph.template import PassTemplate
from clustersim.legality.history import KINDS, STREAMS, Declared
from clustersim.legality.timeline_rules.views.sheet import Sheet
from clustersim.timeline.passes import Passes
from clustersim.timeline.tables import Tables

MOST_SAMPLED: Final = 16
SAMPLED_ROWS: Final = 1 << 16
"""Regular passes of each template that are unfolded: two at least, then as many as make so many spans."""
MOST_ROWS: Final = 1 << 18
"""Spans of one sheet, about."""


def is_loss(irregular: Any) -> bool:
    """Return whether an irregular pass is kept as what a chain lost where, and not node by node."""
    return not isinstance(irregular, tuple)


def node_times(irregular: Any, template: PassTemplate, durations: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return start and end of every node of an irregular pass, relative to it."""
    if not is_loss(irregular):
        starts, ends = irregular
        return starts, ends
    by_instance = durations[template.instance_class].copy()
    np.add.at(by_instance, irregular.pairs[:, 0], irregular.pairs[:, 1])
    found = np.cumsum(by_instance)
    return (found - by_instance)[template.node_instance], found[template.node_instance]


class TemplateRows:
    """Spans of one pass of a template, in a fixed order, and what each needs.

    Each half of a step that runs as two is a micro-batch of its own, so that its spans are judged as a pass of theirs
    (``second``), and what the step does for both of them, with the first one's.
    """

    def __init__(self, template: PassTemplate) -> None:
        self.template = template
        self.node, self.rank = template.flat("members")
        sizes = np.bincount(self.node, minlength=len(template.members))
        joins = np.array([op in COLLECTIVE_OPS for _, op, _ in template.symbols], bool)[template.node_symbol]
        self.group = np.where((sizes > 1) | joins, np.arange(len(sizes)), -1)[self.node]
        self.instance = template.node_instance[self.node]
        self.cls = template.class_of_node[self.node]
        halves = template.node_half if len(template.node_half) else np.zeros(len(sizes), np.int64)
        self.second = (halves == 2).astype(np.int64)[self.node]
        self.row_of = np.full((len(template.instance_class), template.ranks), -1, np.int64)
        self.row_of[self.instance, self.rank] = np.arange(len(self.node))
        after, before = template.flat("after")
        sources, targets = self.row_of[before], self.row_of[after]
        both = (sources >= 0) & (targets >= 0)
        self.sources, self.targets = sources[both], targets[both]
        lane = self.rank * len(STREAMS) + template.instance_stream[self.instance]
        order = np.lexsort((self.instance, lane))
        self.before = np.full(len(order), -1)
        """The row before each on its stream of its rank, in program order; −1 for the first."""
        follows = np.flatnonzero(lane[order][1:] == lane[order][:-1]) + 1
        self.before[order[follows]] = order[follows - 1]


def sheets_of_tables(tables: Tables, declared: Declared) -> Iterator[Sheet]:
    """Yield the passes of a folded timeline that are looked at span by span."""
    passes = Passes(tables)
    table = tables.passes
    for number, template in enumerate(tables.templates):
        mine = np.flatnonzero(table["template"] == number)
        rows = TemplateRows(template)
        stretched = mine[table["irregular"][mine] >= 0]
        lossy = np.array([is_loss(tables.irregular[at]) for at in table["irregular"][stretched].tolist()], bool)
        for some in (mine[table["irregular"][mine] < 0], stretched[lossy]):
            if len(some):
                yield from _unfolded(tables, passes, rows, _sample(some, len(rows.node)), declared)
        stretched = stretched[~lossy]
        if len(stretched):
            many = max(1, MOST_ROWS // max(1, len(rows.node)))
            for first in range(0, len(stretched), many):
                yield from _unfolded(tables, passes, rows, stretched[first : first + many], declared)


def _sample(runs: Int64Array, width: int) -> Int64Array:
    """Return some of the runs, evenly spread, the first and the last among them."""
    many = min(len(runs), MOST_SAMPLED, max(2, SAMPLED_ROWS // max(1, width)))
    found: Int64Array = runs[np.unique(np.linspace(0, len(runs) - 1, many).astype(np.int64))]
    return found


def _unfolded(
    tables: Tables, passes: Passes, rows: TemplateRows, runs: Int64Array, declared: Declared
) -> Iterator[Sheet]:
    """Yield the first pass of each of these runs."""
    table, template = tables.passes, rows.template
    number = int(table["template"][runs[0]])
    count, width = len(runs), len(rows.node)
    starts, ends, least = (np.empty((count, width), np.int64) for _ in range(3))
    for place, run in enumerate(runs.tolist()):
        (block,) = passes.blocks(np.array([run]))
        durations = passes.durations(block, number)[0]
        by_instance = durations[template.instance_class]
        least[place] = durations[rows.cls]
        irregular = int(table["irregular"][run])
        if irregular >= 0:
            node_starts, node_ends = node_times(tables.irregular[irregular], template, durations)
            starts[place], ends[place] = node_starts[rows.node], node_ends[rows.node]
        else:
            instance_ends = template.ends(by_instance)
            ends[place] = instance_ends[rows.instance]
            starts[place] = (instance_ends - by_instance)[rows.instance]
    begin = table["start_ns"][runs].astype(np.int64)
    of = np.repeat(np.arange(count), width)
    shift = np.arange(count)[:, None]

    def spread(name: str) -> Int64Array:
        found: Int64Array = table[name][runs].astype(np.int64)[of]
        return found

    def tiled(values: Int64Array) -> Int64Array:
        return np.tile(values, count)

    nodes = len(template.members)
    replica, rank = np.divmod(rows.rank, tables.sp_tp[0] * tables.sp_tp[1])
    yield Sheet(
        declared=declared,
        symbols=template.symbols,
        start=(starts + begin[:, None]).ravel(),
        end=(ends + begin[:, None]).ravel(),
        rank=tiled(rank),
        stream=tiled(template.instance_stream[rows.instance]),
        symbol=tiled(template.node_symbol[rows.node]),
        layer=tiled(template.node_layer[rows.node]),
        step=spread("first_step"),
        replica=spread("replica") + tiled(replica),
        stage=spread("stage"),
        pass_of=(of * tables.lockstep + tiled(replica)) * 2 + tiled(rows.second),
        group=np.where(rows.group >= 0, rows.group + shift * nodes, -1).ravel(),
        sources=(rows.sources + shift * width).ravel(),
        targets=(rows.targets + shift * width).ravel(),
        least=least.ravel(),
        kind=np.full(count * width, KINDS.index(template.kind)),
        begins=begin[of],
        before=np.where(rows.before >= 0, rows.before + shift * width, -1).ravel(),
        copies=count,
    )
