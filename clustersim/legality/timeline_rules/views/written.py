"""When K/V entries were written: the end of ``kv_write`` of a layer on a rank in a step, worked out anew."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.timeline_rules.views.occupation import longest_path, order_key
from clustersim.legality.timeline_rules.views.unfolding import node_times
from clustersim.timeline.passes import Passes
from clustersim.timeline.tables import Tables

WRITE: Final = "kv_write"
AT_A_TIME: Final = 512
UNTOLD: Final = -1


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
        node = _writes(template, int(layer[mine].max()) + 2)[layer[mine] + 1, rank[mine]]
        mine, node = mine[node >= 0], node[node >= 0]
        runs, of = np.unique(run[mine], return_inverse=True)
        for first in range(0, len(runs), AT_A_TIME):
            some = runs[first : first + AT_A_TIME]
            here = (of >= first) & (of < first + len(some))
            ends = _node_ends(tables, passes, template, number, some)
            found[mine[here]] = table["start_ns"][some][of[here] - first] + ends[of[here] - first, node[here]]
    return found


def _writes(template: PassTemplate, least: int) -> Int64Array:
    """Return the node that writes entries, by layer + 1 (so many at least) and local rank; −1 where there is none."""
    found = np.full((max(int(template.node_layer.max(initial=0)) + 2, least), template.ranks), UNTOLD, np.int64)
    names = np.array([name == WRITE for name, _, _ in template.symbols], bool)
    for node in np.flatnonzero(names[template.node_symbol]).tolist():
        found[template.node_layer[node] + 1, list(template.members[node])] = node
    return found


def _node_ends(tables: Tables, passes: Passes, template: PassTemplate, number: int, runs: Int64Array) -> Int64Array:
    """Return the end of every node of the first pass of each of some runs, relative to it, (runs, nodes)."""
    firsts = [next(iter(passes.blocks(np.array([run])))) for run in runs.tolist()]
    durations = np.array([passes.durations(block, number)[0] for block in firsts])
    ends = longest_path(template, durations)[:, template.node_instance]
    for place, irregular in enumerate(tables.passes["irregular"][runs].tolist()):
        if irregular >= 0:
            ends[place] = node_times(tables.irregular[irregular], template, durations[place])[1]
    return ends
