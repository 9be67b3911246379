"""What chains lost, instance by instance: to weak links as much as these explain, and to others on their links (RUN-2).

Every pass that keeps what it lost where is looked at, also those that no sheet has.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.finding import Finding, FindingOfParts, Rows
from clustersim.legality.history import Declared
from clustersim.legality.timeline_rules.operators.slowness import COST, classes_of, longer_over, place_of
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.unfolding import is_loss
from clustersim.timeline.passes import Passes
from clustersim.timeline.tables import Table, Tables

AT_A_TIME = 1 << 22
"""Instances that are looked at together."""


def lost_as_told(reading: Reading) -> Finding:
    """Judge what chains lost: each collective what weak links explain, and more only where it shares a link."""
    tables = reading.history.folded
    assert tables is not None
    table, judging = tables.passes, FindingOfParts(COST)
    lossy = np.array([is_loss(one) for one in tables.irregular] + [False], bool)[table["irregular"]]
    for number, template in enumerate(tables.templates):
        mine = np.flatnonzero(lossy & (table["template"] == number))
        for some in _by_place(table, mine, max(1, AT_A_TIME // max(1, len(template.after)))):
            _judge(judging, tables, reading.declared, template, some)
    return judging.finding


def _by_place(table: Table, rows: Int64Array, many: int) -> Iterator[Int64Array]:
    """Yield passes of one stage of one replica, so many at a time."""
    places = np.stack((table["replica"][rows], table["stage"][rows]), axis=1)
    for place in np.unique(places, axis=0):
        mine = rows[(places == place).all(axis=1)]
        for first in range(0, len(mine), many):
            yield mine[first : first + many]


def _judge(
    judging: FindingOfParts, tables: Tables, declared: Declared, template: PassTemplate, rows: Int64Array
) -> None:
    """Look at passes of one template on one stage."""
    table = tables.passes
    place = int(table["replica"][rows[0]]), int(table["stage"][rows[0]])
    alone = declared.carriage is not None and declared.carriage.alone(*place)
    lost = _lost(tables, rows, len(template.after))
    least, most = _over_weak_links(tables, declared, template, rows, lost, alone=alone)
    broken = (lost < least) | (~_joins(template) & (lost > 0)) | (alone & (lost > most))
    of, instances = np.nonzero(broken)
    judging.look(
        int(np.count_nonzero(lost | least)), np.ones(len(of), bool),
        "replica {row.replica}, stage {row.stage}, first_step {row.first_step}",
        "operator {instance} takes {lost:,} ns longer than its cost{alone}", row=Rows(table, rows[of]),
        instance=instances, lost=lost[broken],
        alone=Rows(("", ", and nothing else can be on its links"), np.full(len(of), int(alone))),
    )  # fmt: skip


def _lost(tables: Tables, rows: Int64Array, width: int) -> Int64Array:
    found = np.zeros((len(rows), width), np.int64)
    for place, number in enumerate(tables.passes["irregular"][rows].tolist()):
        pairs = tables.irregular[number].pairs
        np.add.at(found[place], pairs[:, 0], pairs[:, 1])
    return found


def _joins(template: PassTemplate) -> BoolArray:
    """Return which instances are collectives of several ranks."""
    sizes = np.zeros(len(template.after), np.int64)
    np.maximum.at(
        sizes, template.node_instance, np.bincount(template.flat("members")[0], minlength=len(template.members))
    )
    found: BoolArray = sizes > 1
    return found


def _over_weak_links(
    tables: Tables, declared: Declared, template: PassTemplate, rows: Int64Array, lost: Int64Array, *, alone: bool
) -> tuple[Int64Array, Int64Array]:
    """Return what each instance loses at least and at most to links that are weak when its pass begins."""
    table, at = tables.passes, template.instance_class
    least, most = np.zeros((2, *lost.shape), np.int64)
    replica, stage, begin = (table[name][rows] for name in ("replica", "stage", "start_ns"))
    durations: Int64Array | None = None
    for weak in declared.weak_groups:
        *place, first = place_of(weak, declared, tables)
        within = np.flatnonzero((begin >= weak.since_ns) & (begin < weak.until_ns))
        classes = classes_of(template, weak, first, declared.apart)
        if place != [replica[0], stage[0]] or not classes or not len(within):
            continue
        if durations is None:
            passes, number = Passes(tables), int(table["template"][rows[0]])
            durations = np.concatenate([passes.durations(block, number) for block in passes.blocks(rows)])[:, at]
        mine = np.flatnonzero(np.isin(at, classes))
        by_weak = longer_over(weak.costs, durations[within][:, mine])
        ends = begin[within, None] + np.cumsum(durations[within] + lost[within], axis=1)[:, mine]
        least[np.ix_(within, mine)] = np.where(alone | (ends <= weak.until_ns), by_weak[0], 0)
        most[np.ix_(within, mine)] = by_weak[1]
    return least, most
