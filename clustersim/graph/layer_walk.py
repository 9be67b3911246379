"""When the instances of a pass end, each after what it waits for: by some layers that stand for all.

**Why some layers stand for all.** An instance ends its duration after the latest of what it waits for. Let equal layers
wait for instances of their own and of the layer before only (:func:`rounds_of` looks whether they do), and let each
instance i of a layer end λ(i) later than in the layer before. The next n layers are λ later each where

- λ is one constant: what is a maximum of ends is later by c where all of these are; or
- λ was the same in the layer before, and what i waits for ends early enough that it still does n layers later, though
  λ(w) > λ(i): by n (λ(w) − λ(i)) before i starts. Then no w makes i later than by λ(i) a layer, and the w that i waited
  for last has λ(w) = λ(i), since else i would have been later by less, and is the last one again. So ranks that go at
  their own pace each have their own constant.

So a few layers are walked; where that holds of the last ones, it holds of all further ones, and only what follows the
last layer is walked again. Where it doesn't, more are walked, and in the end all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.graph.walk import Walk

KEPT: Final = (3, 8)
"""Layers that stand for all, in the order in which it is tried."""
SHORT: Final = 7
"""Rounds of a pass that tell what happens in all: two at first, three that show the pace, and two before the rest."""
TRIED: Final = 8
"""How many lengths of a layer are tried: a model may repeat several kinds of layer in turns."""


class Rounds(NamedTuple):
    """Equal layers, or equal runs of layers: ``number`` times ``length`` instances from ``first`` on."""

    first: int
    length: int
    number: int

    def start(self, which: int) -> int:
        """Return the first instance of a round, or what follows the last one."""
        return self.first + which * self.length


class KeptWalk:
    """A pass of which only the first ``kept`` rounds are walked, and what follows the last one.

    Parameters
    ----------
    waits, classes
        Of the whole pass.
    rounds : Rounds
    kept : int
    """

    def __init__(self, waits: list[tuple[int, ...]], classes: Int64Array, rounds: Rounds, kept: int) -> None:
        self.rounds = rounds
        self.left = rounds.number - kept
        self.marks = [rounds.start(kept - back) for back in (3, 2, 1, 0)]
        cut, last, after = self.marks[-1], rounds.start(rounds.number - 1), rounds.start(rounds.number)
        self.head, self._behind = Walk(waits[:cut]), waits[after:]
        pairs = [(one, at) for at, some in enumerate(waits[cut - rounds.length : cut]) for one in some]
        self.sources, self.targets = np.array(pairs, np.int64).reshape(-1, 2).T
        early = sorted({one for some in waits[after:] for one in some if one < last})
        self.early = np.array(early, np.int64)
        place = {one: at for at, one in enumerate((*early, *range(last, len(waits))))}
        given: list[tuple[int, ...]] = [()] * (len(early) + rounds.length)
        self.tail = Walk(given + [tuple([place[one] for one in some]) for some in waits[after:]])
        self.shift = last - len(early)
        """From positions in the tail to those in the pass."""
        self.head_classes, self.tail_classes = classes[:cut], classes[after:]

    def ends(
        self, head: Int64Array, tail: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array, npt.NDArray[np.bool_]]:
        """Walk it.

        Parameters
        ----------
        head, tail : int64 arrays of shape (instances,) or (instances, passes)
            Durations up to the rounds left out, and behind all rounds.

        Returns
        -------
        ends : int64 array
            Of the head.
        later : int64 array
            How much later each instance of a round is than that of the round before.
        rest : int64 array
            The ends of the tail: those of the last round first, and before these of what is waited for from elsewhere.
        sure : bool array
            Whether that is so, pass by pass.
        """
        ends = self.head.ends(head)
        one, two, three, cut = self.marks
        later = ends[three:cut] - ends[two:three]
        sure = (later == later[0]).all(axis=0) | (later == ends[two:three] - ends[one:two]).all(axis=0)
        slack = (ends[three:cut] - head[three:cut])[self.targets] - ends[self.sources]
        nearer = later[(self.sources - one) % len(later)] - later[self.targets]
        sure &= (slack >= self.left * nearer).all(axis=0)
        given = (ends[self.early], ends[three:cut] + self.left * later)
        return ends, later, self.tail.ends(np.concatenate((*given, tail))), sure

    @cached_property
    def classes(self) -> Int64Array:
        """Cost class of what is kept, and of what follows the rounds."""
        return np.concatenate((self.head_classes, self.tail_classes))

    @cached_property
    def waits(self) -> list[tuple[int, ...]]:
        """What these wait for: what follows the rounds for the last one that is kept."""
        length, cut = self.rounds.length, self.marks[-1]
        early, left = self.rounds.start(self.rounds.number - 1), self.left * length
        behind = [tuple([one if one < early else one - left for one in some]) for some in self._behind]
        return [*self.head.waits[:cut], *behind]

    def repeats(
        self, rounds: Int64Array, others: Int64Array, starts: Int64Array, ends: Int64Array
    ) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        """Return how much later some instances are from round to round, and in which passes they do the same in each.

        ``SHORT`` rounds are kept. Say that from round 2 on these instances are later by one constant c than in the one
        before, t is the first start in round 4, nothing before round 2 lasts beyond t, no round lasts longer than 2 c,
        and what follows the rounds starts 2 c behind t or later, were there only those that are kept. Then what happens
        from t to t + c is of rounds 3 and 4 alone, and the same from t + c on: each round that is left out is such a
        stretch of time more, as the last one that is kept is to a pass of one less.

        Parameters
        ----------
        rounds : int64 array
            Instances within a round.
        others : int64 array
            Those in front of the rounds, and those behind, numbered as if the rounds left out were not there.
        starts, ends : int64 arrays of shape (instances, passes)
            Of what is kept, and of what follows the rounds as it is.
        """
        first, length, cut = self.rounds.first, self.rounds.length, self.marks[-1]
        of, began = (some[first:cut].reshape(SHORT, length, -1)[:, rounds] for some in (ends, starts))
        later = of[3:] - of[2:-1]
        pace, opens = later[0, 0], began[4].min(axis=0)
        sure = (later == pace).all(axis=(0, 1)) & (pace > 0) & (of[4].max(axis=0) <= opens + 2 * pace)
        sure &= of[1].max(axis=0) <= opens
        sure &= (ends[others[others < first]] <= opens).all(axis=0)
        return pace, sure & (starts[others[others >= cut]] >= opens + (2 + self.left) * pace).all(axis=0)


class LayerWalk:
    """The longest path through a pass, by some of its layers where these stand for all.

    Parameters
    ----------
    waits : list of tuple of int
        What each instance waits for: earlier ones.
    classes : int64 array of shape (instances,)
        Cost class of each instance.
    """

    def __init__(self, waits: list[tuple[int, ...]], classes: Int64Array) -> None:
        self.whole = Walk(waits)
        self.classes = classes
        self.rounds = rounds_of(waits, classes)
        self._kept_walks: dict[int, KeptWalk] = {}

    @cached_property
    def short(self) -> KeptWalk | None:
        """The pass with ``SHORT`` rounds; None where it has few."""
        rounds = self.rounds
        return None if rounds is None or rounds.number < 2 * SHORT else self._kept_walk(SHORT, rounds)

    def _kept_walk(self, kept: int, rounds: Rounds) -> KeptWalk:
        found = self._kept_walks.get(kept)
        if found is None:
            found = self._kept_walks[kept] = KeptWalk(self.whole.waits, self.classes, rounds, kept)
        return found

    def ends(self, durations: Int64Array) -> Int64Array:
        """Return when every instance ends; durations and ends are of shape (instances,) or (instances, passes)."""
        rounds = self.rounds
        if rounds is None:
            return self.whole.ends(durations)
        first, stop = rounds.start(0), rounds.start(rounds.number)
        equal = durations[first:stop].reshape(rounds.number, rounds.length, -1)
        if not (equal == equal[0]).all():  # some are stretched
            return self.whole.ends(durations)
        for kept in KEPT:
            if kept >= rounds.number:
                break
            short, cut = self._kept_walk(kept, rounds), rounds.start(kept)
            ends, later, rest, sure = short.ends(durations[:cut], durations[stop:])
            if sure.all():
                times = np.arange(1, rounds.number - kept + 1).reshape(-1, *[1] * durations.ndim)
                beyond = (ends[cut - rounds.length :] + times * later).reshape(-1, *durations.shape[1:])
                return np.concatenate((ends, beyond, rest[stop - short.shift :]))
        return self.whole.ends(durations)

    def lasts(self, by_class: Int64Array, exits: Sequence[int] = ()) -> Int64Array:
        """Return when passes have ended, and when some of their instances have.

        Parameters
        ----------
        by_class : int64 array of shape (classes,) or (classes, passes)
            Duration of each cost class.
        exits : sequence of int
            Instances.

        Returns
        -------
        int64 array of shape (1 + exits,) or (1 + exits, passes)
        """
        rounds = self.rounds
        if rounds is not None and all(rounds.start(1) > one or one >= rounds.start(rounds.number - 1) for one in exits):
            for kept in KEPT:
                if kept >= rounds.number:
                    break
                found, sure = self._lasts_of(self._kept_walk(kept, rounds), by_class, exits)
                if sure.all():
                    return found
                if by_class.ndim > 1 and kept == KEPT[-1]:  # only some passes need all layers
                    found[:, ~sure] = self._lasts_of_all(by_class[:, ~sure], exits)
                    return found
        return self._lasts_of_all(by_class, exits)

    def _lasts_of(
        self, short: KeptWalk, by_class: Int64Array, exits: Sequence[int]
    ) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        """Return what :meth:`lasts` does, and for which passes it is sure."""
        first = short.rounds.start(1)
        ends, _, rest, sure = short.ends(by_class[short.head_classes], by_class[short.tail_classes])
        leaving = [ends[one] if one < first else rest[one - short.shift] for one in exits]
        return np.stack([np.maximum(ends.max(axis=0), rest.max(axis=0)), *leaving]), sure

    def _lasts_of_all(self, by_class: Int64Array, exits: Sequence[int]) -> Int64Array:
        ends = self.whole.ends(by_class[self.classes])
        return np.stack([ends.max(axis=0), *(ends[one] for one in exits)])


def rounds_of(waits: Sequence[tuple[int, ...]], classes: Int64Array) -> Rounds | None:
    """Return the equal layers of a pass of which some may stand for all; None where there are none.

    In each round the same instance is of the same class, and waits for the same ones relative to itself: of its own
    round and of the one before. What follows the last round waits for nothing of the rounds before.
    """
    numbers: dict[tuple[int, ...], int] = {}
    told = [
        (cls, *(at - one for one in some)) for at, (cls, some) in enumerate(zip(classes.tolist(), waits, strict=True))
    ]
    kinds = np.array([numbers.setdefault(one, len(numbers)) for one in told], np.int64)
    middle = len(kinds) // 2
    best: Rounds | None = None
    for again in (
        (middle + np.flatnonzero(kinds[middle:] == kinds[middle])[1 : TRIED + 1]).tolist() if len(kinds) else ()
    ):
        length = again - middle
        differs = np.flatnonzero(kinds[length:] != kinds[:-length])
        place = int(np.searchsorted(differs, middle))
        first = int(differs[place - 1]) + 1 if place else 0
        stop = (int(differs[place]) if place < len(differs) else len(kinds) - length) + length
        found = Rounds(first, length, (stop - first) // length)
        if found.number > KEPT[0] and (best is None or found.number * length > best.number * best.length):
            best = found
    return best if best is not None and _stand_for_all(waits, best) else None


def _stand_for_all(waits: Sequence[tuple[int, ...]], rounds: Rounds) -> bool:
    """Whether the second round waits for nothing before the first one, and what follows for none but the last one."""
    first, second, third = (rounds.start(number) for number in range(3))
    last = rounds.start(rounds.number - 1)
    inner = all(some and some[0] >= first for some in waits[second:third])
    return inner and not any(first <= one < last for some in waits[rounds.start(rounds.number) :] for one in some)
