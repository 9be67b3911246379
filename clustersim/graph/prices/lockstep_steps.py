"""Prices of the steps that replicas in lockstep take together, memoised: what the pricer says, bit for bit.

All replicas do the same work on what each of them brings, of which every feature is a function of seven counts
(:mod:`clustersim.graph.prices.parts`); exchanges and experts alone depend on the tokens of all. How long a step takes
is the longest path through its series (:mod:`clustersim.graph.longest_path`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.table import TableCost
from clustersim.graph.batch import Features
from clustersim.graph.prices.lockstep_parts import BatchPart, Brought, ReplicaAttention, StepPart
from clustersim.graph.prices.parts import ALIASES, ATTENDED, COUNTS, told_by_counts
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.program import OF_ALL, CostClass, StageProgram

FEW_VALUES: Final = frozenset(COUNTS[name] for name in ("tokens", "sequences", "prefill_tokens", "decode_sequences"))
"""Counts that limits of a batch bound."""
OF_TOKENS: Final = "stage_tokens", "peak_tokens"
"""Features of all replicas together: the tokens of all, and the most of one."""


class LockstepSteps:
    """Steps of one kind.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    graph : bool
        Whether they run as captured graphs.

    Attributes
    ----------
    told_by_counts : bool
        Whether every class is priced by what counts tell, and all replicas have equal ones.
    columns : tuple of int
        Classes that attend, in order.
    varying : int64 array
        The same.
    """

    def __init__(self, pricer: Pricer, program: StageProgram, *, graph: bool = False) -> None:
        self.program = program
        self.path = program.template.path
        classes = program.classes
        shared = [at for at, cls in enumerate(classes) if _names(cls) <= OF_ALL]
        left, ranks = set(range(len(classes))).difference(shared), range(pricer.sp.degree)
        own = [[at for at in sorted(left) if classes[at].s == s] for s in ranks]
        told = [[(classes[at].node, classes[at].comm) for at in some] for some in own]
        self.told_by_counts = all(some == told[0] for some in told) and all(map(told_by_counts, classes))
        by_counts: dict[tuple[int, ...], list[int]] = {}
        attend = []
        for order, at in enumerate(own[0] if self.told_by_counts else ()):
            if classes[at].node.op in ATTENDED:
                attend.append(order)
            else:
                places = {COUNTS[name] for name in _names(classes[at])}
                by_counts.setdefault(tuple(sorted(places)), []).append(order)
        self.parts = [self._part(pricer, own, places, orders, graph) for places, orders in by_counts.items()]
        by_tokens: dict[frozenset[str], list[int]] = {}
        for at in shared:
            by_tokens.setdefault(_names(classes[at]), []).append(at)
        self.shared = [self._shared(pricer, names, some, graph) for names, some in by_tokens.items()]
        every = [[some[order] for some in own] for order in attend]
        self.attention = [ReplicaAttention(pricer, classes, some, graph=graph) for some in every]
        self.columns = tuple(sorted([at for some in every for at in some]))
        self.varying = np.array(self.columns, np.int64)

    def _part(
        self, pricer: Pricer, own: list[list[int]], places: tuple[int, ...], orders: list[int], graph: bool
    ) -> StepPart:
        """Return the classes at these places of each replica's own ones."""
        classes, some = self.program.classes, [mine[order] for mine in own for order in orders]
        if len(places) == 1 and places[0] in FEW_VALUES and not _counts(pricer):
            mine = [own[0][order] for order in orders]
            return BatchPart(pricer, classes, some, places[0], ALIASES[places[0]], mine, graph=graph)
        return StepPart(pricer, classes, some, itemgetter(*places), graph=graph)

    def _shared(self, pricer: Pricer, names: frozenset[str], some: list[int], graph: bool) -> StepPart:
        """Return the classes of all replicas together that depend on these sums of their tokens."""
        classes = self.program.classes
        if len(names) == 1 and not _counts(pricer):
            (name,) = names
            return BatchPart(pricer, classes, some, OF_TOKENS.index(name), (name,), some, graph=graph)
        return StepPart(pricer, classes, some, tuple, graph=graph)

    def row(self, brought: Sequence[Brought], size: int = 0) -> Int64Array:
        """Return nanoseconds by class but for attention.

        Parameters
        ----------
        brought : sequence
        size : int
            What each replica's tokens are padded to; 0: they are not.
        """
        counts = [(size or own[0], *own[1:]) for own, _, _ in brought]
        tokens = [own[0] for own in counts]
        told = sum(tokens), max(tokens)

        row = np.zeros(len(self.program.classes), np.int64)
        for part in self.parts:
            part.price(row, counts, lambda: features_of_counts(counts))
        for part in self.shared:
            part.price(row, [told], lambda: features_of_all(told, len(counts)))
        return row


def features_of_counts(counts: Sequence[tuple[int, ...]]) -> Features:
    """Return the features that the counts of each replica tell."""
    each = zip(ALIASES, zip(*counts, strict=True), strict=True)
    return {name: tuple(map(float, values)) for names, values in each for name in names}


def features_of_all(told: tuple[int, int], replicas: int) -> Features:
    """Return those that the tokens of all tell, and the most of one."""
    named = zip(OF_TOKENS, told, strict=True)
    return {name: (float(value),) * replicas for name, value in named}


def _counts(pricer: Pricer) -> bool:
    """Whether it is counted what is asked for beyond the points of a table."""
    return isinstance(pricer.cost, TableCost) and bool(pricer.cost.outside)


def _names(cls: CostClass) -> frozenset[str]:
    return frozenset(name for name, _ in (*cls.node.amount, *cls.node.least))
