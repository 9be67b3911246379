"""A pass whose spans are not those that its durations imply: which instances of a chain took longer, or every node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """A pass of a chain, of which some instances took longer than their classes do.

    Parameters
    ----------
    packed : bytes
        Instance and what it lost in ns, in turns, as int64: a small fraction of an array object.
    """

    packed: bytes

    @classmethod
    def of(cls, pairs: Sequence[int] | Int64Array) -> Stretch:
        """Pack instances and what each lost, in turns."""
        return cls(np.asarray(pairs, "<i8").tobytes())

    @property
    def pairs(self) -> Int64Array:
        """Instance and ns lost, int64 of shape (instances that lost something, 2)."""
        return np.frombuffer(self.packed, "<i8").astype(np.int64).reshape(-1, 2)

    @property
    def lost_ns(self) -> int:
        """What the whole pass lost."""
        return int(self.pairs[:, 1].sum())

    def node_times(self, template: PassTemplate, durations: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return start and end of every node relative to the pass.

        Parameters
        ----------
        template : PassTemplate
        durations : int64 array of shape (classes,)
        """
        by_instance = durations[template.instance_class]
        pairs = self.pairs
        by_instance[pairs[:, 0]] += pairs[:, 1]
        ends = np.cumsum(by_instance)
        return (ends - by_instance)[template.node_instance], ends[template.node_instance]


Irregular = tuple[Int64Array, Int64Array] | Stretch
"""(starts, ends) of every node relative to the pass, or what a chain lost where."""


def node_times(found: Irregular, template: PassTemplate, durations: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return start and end of every node relative to the pass, whatever form they are kept in."""
    return found.node_times(template, durations) if isinstance(found, Stretch) else found
