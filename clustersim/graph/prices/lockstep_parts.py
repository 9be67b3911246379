"""The parts that steps of replicas in lockstep are priced in: classes of all replicas that depend on the same counts.

What a count costs one replica it costs every other one, so each value is priced once. Attention is worked out for each
step, in plain numbers as :mod:`clustersim.graph.prices.parts` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.scalar import DecodeNs
from clustersim.errors import InputError
from clustersim.graph.batch import Features
from clustersim.graph.prices.parts import COUNTS, MOST_PRICES, decode_price, prefill_price, window_of
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.table import price_groups
from clustersim.graph.program import CostClass

NEW, DECODES = COUNTS["prefill_tokens"], COUNTS["decode_sequences"]
NEAR: Final = 64
"""Values that are priced together: twice as dear as eight (measured)."""


class Brought(NamedTuple):
    """What a replica brings to a step.

    Parameters
    ----------
    counts : tuple of int
        As :data:`~clustersim.graph.prices.parts.ALIASES` names them.
    attended : tuple of (int, int, int)
        Without a window and within each: pairs, prefill keys, decode keys.
    growth : tuple of int
        How many decode keys there are more with every step, likewise.
    """

    counts: tuple[int, ...]
    attended: tuple[tuple[int, int, int], ...]
    growth: tuple[int, ...]


class StepPart:
    """Classes that depend on the same counts: as many of each replica in the same order, or such of all together.

    Parameters
    ----------
    pricer : Pricer
    classes : sequence of CostClass
        Of the program.
    indices : list of int
        Those of this part.
    pick : callable
        Returns what they depend on, of one replica's counts.
    graph : bool
        Whether they run as a captured graph.
    """

    def __init__(
        self,
        pricer: Pricer,
        classes: Sequence[CostClass],
        indices: list[int],
        pick: Callable[[tuple[int, ...]], object],
        *,
        graph: bool,
    ) -> None:
        self.pricer = pricer
        self.indices = np.array(indices, np.int64)
        self.groups = price_groups([classes[index] for index in indices])
        self.pick = pick
        self.graph = graph
        self.known: dict[object, Int64Array] = {}

    def price(self, row: Int64Array, counts: Sequence[tuple[int, ...]], features: Callable[[], Features]) -> None:
        """Fill in nanoseconds by class, of the counts of each replica; ``features`` are those of the step."""
        keys, known = [*map(self.pick, counts)], self.known
        try:
            row[self.indices] = np.concatenate([known[key] for key in keys])
        except KeyError:
            if len(known) >= MOST_PRICES:
                known.clear()
            self.learn(keys, features)
            row[self.indices] = np.concatenate([known[key] for key in keys])

    def learn(self, keys: Sequence[object], features: Callable[[], Features]) -> None:
        """Remember the prices of what the replicas count."""
        ns = self.pricer.price_groups(self.groups, features(), graph=self.graph)
        self.known.update(zip(keys, ns.reshape(len(keys), -1), strict=True))


class BatchPart(StepPart):
    """Classes that depend on one count: with the second value in a range all others there are priced, too.

    Parameters
    ----------
    place : int
        Which count it is.
    names : tuple of str
        What it is called.
    own : list of int
        The classes of one replica.
    """

    def __init__(
        self,
        pricer: Pricer,
        classes: Sequence[CostClass],
        indices: list[int],
        place: int,
        names: tuple[str, ...],
        own: list[int],
        *,
        graph: bool,
    ) -> None:
        super().__init__(pricer, classes, indices, itemgetter(place), graph=graph)
        self.names = names
        self.ranges: set[int] = set()
        """The first values of the ranges of which somebody has had one."""
        self.near = price_groups([replace(classes[index], s=s) for s in range(NEAR) for index in own])

    def learn(self, keys: Sequence[Any], features: Callable[[], Features]) -> None:
        """Remember the prices of what the replicas count, and of what is near it."""
        missed = dict.fromkeys(key - key % NEAR for key in keys if key not in self.known)
        if not self.ranges.issuperset(missed):
            self.ranges.update(missed)
            super().learn(keys, features)
            return
        for first in missed:
            values = range(first, first + NEAR)
            told: Features = dict.fromkeys(self.names, tuple(map(float, values)))
            try:
                ns = self.pricer.price_groups(self.near, told, graph=self.graph)
            except InputError:  # perhaps of a value that nobody has
                super().learn(keys, features)
                return
            self.known.update(zip(values, ns.reshape(NEAR, -1), strict=True))


class ReplicaAttention:
    """One class of attention of each replica.

    Parameters
    ----------
    pricer : Pricer
    classes : list of CostClass
    indices : list of int
        What they are among the program's.
    graph : bool
    """

    def __init__(self, pricer: Pricer, classes: Sequence[CostClass], indices: list[int], *, graph: bool) -> None:
        self.pricer = pricer
        self.indices = np.array(indices, np.int64)
        self.graph = graph
        self.cls = cls = classes[indices[0]]
        self.at = (None, *pricer.windows).index(window_of(cls))
        self.prefills = cls.node.op == "attention_prefill"
        self.of_prefill = prefill_price(pricer, cls) if self.prefills else None
        self._decode: dict[int, DecodeNs] = {}
        self._nothing: int | None = None

    @property
    def nothing(self) -> int:
        """Nanoseconds of a replica that has none of it."""
        if self._nothing is None:
            self._nothing = self.of_prefill(0, 0, 0) if self.of_prefill is not None else self.decode(0)(0)
        return self._nothing

    def decode(self, sequences: int) -> DecodeNs:
        """Return the price of so many sequences that decode."""
        found = self._decode.get(sequences)
        if found is None:
            found = self._decode[sequences] = decode_price(self.pricer, self.cls, sequences, graph=self.graph)
        return found

    def ns(self, brought: Sequence[Brought], step: int = 0) -> list[int]:
        """Return nanoseconds of each replica so many steps later."""
        at, price = self.at, self.of_prefill
        if price is not None:
            told = [(each.attended[at], each.counts[NEW]) for each in brought]
            return [price(pairs, new, keys) if new else self.nothing for (pairs, keys, _), new in told]
        found, known = [], self._decode
        for counts, attended, growth in brought:
            decodes = counts[DECODES]
            priced = known.get(decodes) or self.decode(decodes)
            found.append(priced(attended[at][2] + step * growth[at]) if decodes else self.nothing)
        return found
