"""When K/V entries were written, and may leave: the ends of operators of a layer in a step, worked out anew.

Entries of a layer may leave when its attention over prompts has ended on every rank of the stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.timeline_rules.views.occupation import longest_path, order_key
from clustersim.legality.timeline_rules.views.unfolding import node_times
from clustersim.timeline.passes import Block, Passes
from clustersim.timeline.tables import Tables

WRITE: Final = "kv_write"
ATTEND: Final = "attention_prefill"
AT_A_TIME: Final = 512
UNTOLD: Final = -1

Nodes = Callable[[PassTemplate, Int64Array], Int64Array]
"""(template, entries) → nodes of it of shape (entries, some), −1 where there are fewer."""


def written_at(
    tables: Tables, replica: Int64Array, stage: Int64Array, step: Int64Array, layer: Int64Array, rank: Int64Array
) -> Int64Array:
    """Return when entries were written, ns; −1 where no pass, or no write in it, was recorded.

    Parameters
    ----------
    tables : Tables
    replica, stage, step, layer, rank : int64 arrays of shape (entries,)
        ``rank`` is local to the stage.
    """
    teller = _teller(tables, replica)
    rank = rank + (replica - teller) * tables.layout.values("stage_ranks")[tables.layout.of_replica(replica)]

    def writes(template: PassTemplate, some: Int64Array) -> Int64Array:
        found = np.full((_layers(template, layer[some]), template.ranks), UNTOLD, np.int64)
        for node in _nodes(template, [name == WRITE for name, _, _ in template.symbols]).tolist():
            found[template.node_layer[node] + 1, list(template.members[node])] = node
        return found[layer[some] + 1, rank[some]][:, None]

    return _ended(tables, teller, stage, step, writes)


def passed_at(
    tables: Tables, replica: Int64Array, stage: Int64Array, step: Int64Array, layer: Int64Array
) -> Int64Array:
    """Return when steps have passed a layer, ns; −1 where no pass, or nothing that attends in it, was recorded.

    Parameters
    ----------
    tables : Tables
    replica, stage, step, layer : int64 arrays of shape (entries,)
    """

    def attends(template: PassTemplate, some: Int64Array) -> Int64Array:
        nodes = _nodes(template, [op == ATTEND for _, op, _ in template.symbols])
        at = template.node_layer[nodes] + 1
        found = np.full((_layers(template, layer[some]), max(np.bincount(at).max(initial=1), 1)), UNTOLD, np.int64)
        for row in np.unique(at).tolist():
            mine = nodes[at == row]
            found[row, : len(mine)] = mine
        return found[layer[some] + 1]

    return _ended(tables, _teller(tables, replica), stage, step, attends)


def _teller(tables: Tables, replica: Int64Array) -> Int64Array:
    """Return the replica as of which the passes of each are recorded: of those in lockstep the first."""
    layout = tables.layout
    pool = layout.of_replica(replica)
    first = layout.values("first_replica")[pool]
    return np.where(replica - first < layout.values("lockstep")[pool], first, replica)


def _nodes(template: PassTemplate, chosen: list[bool]) -> Int64Array:
    return np.flatnonzero(np.array(chosen, bool)[template.node_symbol])


def _layers(template: PassTemplate, layer: Int64Array) -> int:
    return max(int(template.node_layer.max(initial=0)), int(layer.max(initial=0))) + 2


def _ended(tables: Tables, replica: Int64Array, stage: Int64Array, step: Int64Array, nodes_of: Nodes) -> Int64Array:
    """Return when the last of some nodes of passes had ended, ns; −1 where there is none."""
    found = np.full(len(replica), UNTOLD, np.int64)
    table = tables.passes
    key = order_key(*(table[name].astype(np.int64) for name in ("replica", "stage", "first_step")))
    order = np.argsort(key, kind="stable")
    wanted = order_key(replica, stage, step)
    if not len(key) or not len(wanted):
        return found
    place = np.minimum(np.searchsorted(key[order], wanted), len(key) - 1)
    run = np.where(key[order][place] == wanted, order[place], UNTOLD)
    passes = Passes(tables)
    for number, template in enumerate(tables.templates):
        mine = np.flatnonzero((run >= 0) & (table["template"][run] == number))
        if not len(mine):
            continue
        nodes = nodes_of(template, mine)
        mine, nodes = mine[nodes[:, 0] >= 0], nodes[nodes[:, 0] >= 0]
        runs, of = np.unique(run[mine], return_inverse=True)
        for first in range(0, len(runs), AT_A_TIME):
            some = runs[first : first + AT_A_TIME]
            here = np.flatnonzero((of >= first) & (of < first + len(some)))
            ends, at = _node_ends(tables, passes, template, number, some), of[here] - first
            last = np.where(nodes[here] >= 0, ends[at[:, None], nodes[here]], 0).max(axis=1, initial=0)
            found[mine[here]] = table["start_ns"][some][at] + last
    return found


def _node_ends(tables: Tables, passes: Passes, template: PassTemplate, number: int, runs: Int64Array) -> Int64Array:
    """Return the end of every node of the first pass of each of some runs, relative to it, (runs, nodes)."""
    firsts = Block(runs=runs, of=np.arange(len(runs)), index=np.zeros(len(runs), np.int64))
    durations = passes.durations(firsts, number)
    ends = longest_path(template, durations)[:, template.node_instance]
    for place, irregular in enumerate(tables.passes["irregular"][runs].tolist()):
        if irregular >= 0:
            ends[place] = node_times(tables.irregular[irregular], template, durations[place])[1]
    return ends
