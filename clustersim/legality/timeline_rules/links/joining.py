"""When the collectives of many passes of one template run, without unfolding what they do not join."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.prices.prices import Priced
from clustersim.legality.timeline_rules.views.occupation import longest_path
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.tables import Tables


class Joining:
    """When the collectives of passes of one template run.

    Parameters
    ----------
    tables : Tables
    template : PassTemplate
    known : list of (Priced, int64 array)
        The collectives and their nodes.

    Attributes
    ----------
    columns : list of (Priced, int64 array)
        The collectives and where their nodes are in the columns of :meth:`times`.
    cls : int64 array of shape (nodes,)
        Cost class of each node: of its own group, which may cost something else than others of its instance.
    """

    def __init__(self, tables: Tables, template: PassTemplate, known: list[tuple[Priced, Int64Array]]) -> None:
        self.tables, self.template = tables, template
        node = np.concatenate([nodes for _, nodes in known] or [np.empty(0, np.int64)])
        bounds = np.cumsum([0, *(len(nodes) for _, nodes in known)])
        self.columns = [(known[i][0], np.arange(bounds[i], bounds[i + 1])) for i in range(len(known))]
        self.node, self.instance = node, template.node_instance[node]
        self.cls = template.class_of_node[node]
        self.joins, self.at = np.unique(self.instance, return_inverse=True)

    @cached_property
    def _upto(self) -> FloatArray:
        """Instances of each class up to each that joins, in a chain: of shape (classes, instances that join)."""
        single = np.zeros((len(self.template.instance_class), self.template.num_classes))
        single[np.arange(len(single)), self.template.instance_class] = 1.0
        found: FloatArray = np.cumsum(single, axis=0)[self.joins].T
        return found

    def times(self, durations: Int64Array, irregular: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return starts and ends of nodes, relative to their passes, each of shape (passes, nodes).

        Parameters
        ----------
        durations : int64 array of shape (passes, classes)
        irregular : int64 array of shape (passes,)
        """
        found = {at: self.tables.irregular[int(irregular[at])] for at in np.flatnonzero(irregular >= 0).tolist()}
        if self.template.is_chain:
            ends = (durations.astype(np.float64) @ self._upto).astype(np.int64)
            own = durations[:, self.template.instance_class[self.joins]]
            pairs = [
                (at, *pair) for at, one in found.items() if isinstance(one, Stretch) for pair in one.pairs.tolist()
            ]
            if pairs:
                row, instance, lost = np.array(pairs, np.int64).T
                first = np.searchsorted(self.joins, instance)
                late = np.zeros((len(ends), len(self.joins) + 1), np.int64)
                np.add.at(late, (row, first), lost)
                ends += np.cumsum(late, axis=1)[:, :-1]
                same = np.flatnonzero(np.append(self.joins, -1)[first] == instance)
                np.add.at(own, (row[same], first[same]), lost[same])
            starts, ends = (ends - own)[:, self.at], ends[:, self.at]
        else:
            ends = longest_path(self.template, durations)[:, self.instance]
            starts = ends - durations[:, self.template.instance_class[self.instance]]
        for at, one in found.items():
            if not isinstance(one, Stretch):
                starts[at], ends[at] = (times[self.node] for times in one)
        return starts, ends
