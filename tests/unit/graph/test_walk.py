"""A pass by some of its layers ends when the whole pass does, operator by operator."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.clock import Int64Array
from clustersim.graph.layer_walk import KEPT, KeptWalk, LayerWalk
from clustersim.graph.levels import levels_of
from clustersim.graph.walk import Walk, waits_of
from clustersim.timeline.intervals import union
from clustersim.timeline.step_parts import _critical, _critical_of_rounds
from clustersim.timeline.tokens import BoolArray
from tests.effort import is_whole

LAYERS = 40


def layered(draw: np.random.Generator, layers: int = LAYERS) -> tuple[LayerWalk, int]:
    """Return a pass of equal layers on two ranks of two streams each, and the number of its classes."""
    width, classes = int(draw.integers(3, 9)), int(draw.integers(2, 9))
    cls, place = draw.integers(0, classes, width), draw.integers(0, 4, width)
    back = [np.unique(draw.integers(1, width + 1, draw.integers(0, 3))) for _ in range(width)]
    waits: list[tuple[int, ...]] = [(), (0,)]
    last = {0: 0, 1: 1, 2: 0, 3: 1}
    for at in range(2, 2 + layers * width):
        offset = (at - 2) % width
        needs = {at - one for one in back[offset].tolist() if at - one >= 0} | {last[int(place[offset])]}
        last[int(place[offset])] = at
        waits.append(tuple(sorted(needs)))
    stop = len(waits)
    waits += [(0, stop - 1), tuple(sorted({0, *last.values()})), (stop,)]
    return LayerWalk(waits, np.array([0, 1, *np.tile(cls, layers), 0, 1, 0])), classes


def plain(waits: list[tuple[int, ...]], durations: list[int]) -> list[int]:
    ends: list[int] = []
    for some, duration in zip(waits, durations, strict=True):
        ends.append(duration + max([ends[one] for one in some], default=0))
    return ends


def rounds_tell(draw: np.random.Generator, walk: LayerWalk, short: KeptWalk, by_class: Int64Array) -> Int64Array:
    """Hold what some rounds tell to whole passes; return of how many it was sure, and was not, twice."""
    labels, durations = draw.integers(0, 9, by_class.shape[0])[walk.classes], by_class[walk.classes]
    ends = walk.ends(durations)
    spent, known = _critical_of_rounds(short, by_class, labels)
    expected = _critical(ends, durations, walk.whole.waits, labels)
    assert (spent == expected)[: len(spent), known].all()
    rounds, cut = short.rounds, short.marks[-1]
    stop, length = rounds.start(rounds.number), rounds.length
    head, _, rest, sure = short.ends(durations[:cut], durations[stop:])
    kept = np.concatenate((head, rest[stop - short.shift :]))
    mine, talks = draw.integers(0, 2, (2, len(walk.classes))) > 0
    mine[rounds.first] = True
    for one in (mine, talks):
        one[rounds.first : stop] = np.tile(one[rounds.first : rounds.start(1)], rounds.number)
    there, behind = np.flatnonzero(mine[:cut]), np.flatnonzero(mine[stop:]) + cut
    columns = np.concatenate((there, behind))
    in_round = np.flatnonzero(mine[rounds.first : rounds.start(1)])
    starts = kept - by_class[short.classes]
    pace, repeats = short.repeats(in_round, columns, starts, kept)
    communicates = np.concatenate((talks[:cut], talks[stop:]))[columns]
    for at in np.flatnonzero(sure & repeats).tolist():
        each = []
        for one, left in ((columns >= 0, short.left), ((columns < cut - length) | (columns >= cut), short.left + 1)):
            sooner = np.where(columns >= cut, left * pace[at], 0)
            each.append(exposed(starts[columns, at] - sooner, kept[columns, at] - sooner, communicates, one))
        whole = np.flatnonzero(mine)
        found = exposed((ends - durations)[whole, at], ends[whole, at], talks[whole], whole >= 0)
        assert each[0] + short.left * (each[0] - each[1]) == found
    return np.array([known.sum(), (~known).sum(), (sure & repeats).sum(), (sure & ~repeats).sum()])


def exposed(starts: Int64Array, ends: Int64Array, talks: BoolArray, those: BoolArray) -> int:
    comm, busy = (union(starts[some & those], ends[some & those]) for some in (talks, ~talks))
    return comm.outside(busy)


def test_layers_left_out_end_as_the_longest_path_has_it() -> None:
    draw = np.random.Generator(np.random.PCG64(11))
    folded, walked, told = 0, 0, np.zeros(4, int)
    for _ in range(300 if is_whole() else 100):
        walk, classes = layered(draw)
        by_class = draw.integers(1, draw.choice([3, 50, 10_000]), (classes, 12))
        by_class *= draw.choice([1, 1, 300], by_class.shape)  # so that some last over many layers
        expected = [plain(walk.whole.waits, of_one) for of_one in by_class.T[:, walk.classes].tolist()]
        exits = [0, len(walk.classes) - 1, len(walk.classes) - 3]
        for one, ends in zip(by_class.T, expected, strict=True):
            assert walk.ends(one[walk.classes]).tolist() == ends
            assert walk.lasts(one, exits).tolist() == [max(ends), *(ends[at] for at in exits)]
        assert walk.ends(by_class[walk.classes]).T.tolist() == expected
        assert walk.lasts(by_class, exits).T.tolist() == [[max(e), *(e[at] for at in exits)] for e in expected]
        for kept, short in walk._kept_walks.items():
            cut, stop = walk.rounds.start(kept), walk.rounds.start(walk.rounds.number)
            durations = by_class[walk.classes]
            sure = short.ends(durations[:cut], durations[stop:])[3]
            folded, walked = folded + int(sure.sum()), walked + int((~sure).sum())
        if walk.short is not None:
            told += rounds_tell(draw, walk, walk.short, by_class)
    assert told.min() > (200 if is_whole() else 60)
    assert folded > (500 if is_whole() else 150)  # the test would say nothing if all were walked …
    assert walked > (50 if is_whole() else 15)  # … or if none were


def test_a_stretched_layer_lets_all_be_walked() -> None:
    walk, classes = layered(np.random.Generator(np.random.PCG64(5)))
    durations = np.arange(1, classes + 1)[walk.classes]
    durations[len(durations) // 2] += 1_000_000
    assert walk.ends(durations).tolist() == plain(walk.whole.waits, durations.tolist())


@pytest.mark.parametrize("head_start", [0, 7, 15, 39, 100, 10_000])
def test_a_rank_that_catches_up_in_a_late_layer_is_waited_for_from_there_on(head_start: int) -> None:
    """Rank 1 needs each layer of rank 0, which takes longer but began earlier: sooner or later it is what counts."""
    waits: list[tuple[int, ...]] = [(), ()]
    for at in range(2, 2 + 2 * LAYERS, 2):
        waits += [(at - 2,), (at - 1, at)]
    walk = LayerWalk(waits, np.array([0, 1, *[2, 3] * LAYERS]))
    assert walk.rounds is not None
    by_instance = np.array([1, 1 + head_start, 11, 10])[walk.classes]
    assert walk.ends(by_instance).tolist() == plain(waits, by_instance.tolist())


def test_a_pass_without_equal_layers_is_walked() -> None:
    walk = LayerWalk([(), (0,), (0, 1)], np.array([0, 1, 2]))
    assert walk.rounds is None
    assert walk.ends(np.array([3, 4, 5])).tolist() == [3, 7, 12]


def test_few_layers_are_walked() -> None:
    walk, classes = layered(np.random.Generator(np.random.PCG64(5)), layers=KEPT[0])
    assert walk.rounds is None or walk.rounds.number > KEPT[0]
    durations = np.arange(1, classes + 1)[walk.classes]
    assert walk.ends(durations).tolist() == plain(walk.whole.waits, durations.tolist())


def test_a_stream_is_waited_for_by_what_it_runs_next() -> None:
    assert waits_of([(0,), (1,), (0, 1), (1,)], np.array([0, 0, 0, 1]), [(), (), (0,), (2,)]) == [(), (), (0, 1), (2,)]


def test_levels_and_single_walks_agree() -> None:
    draw = np.random.Generator(np.random.PCG64(2))
    waits = [tuple(np.unique(draw.integers(0, at, 2)).tolist()) if at > 20 else () for at in range(400)]
    walk = Walk(waits)
    durations = draw.integers(1, 100, (400, 9))
    assert walk.levels is not None
    assert walk.ends(durations).T.tolist() == [plain(waits, one) for one in durations.T.tolist()]


def side_by_side(draw: np.random.Generator, ranks: int) -> list[tuple[int, ...]]:
    """Return what ranks wait for that do the same one after the other, and meet now and then."""
    before: list[tuple[int, ...]] = [()] * ranks
    waits: list[tuple[int, ...]] = []
    for _ in range(12):
        kind, first = int(draw.integers(0, 4)), len(waits)
        meets = tuple(range(first - ranks, first)) if waits else ()
        if kind == 0 and waits:
            waits.append(meets)
            before = [(first,)] * ranks
            continue
        for some in before:
            earlier = (int(draw.integers(0, first)),) if kind == 1 and first else ()
            waits.append(tuple(sorted({*some, *earlier})))
        before = [(first + rank,) for rank in range(ranks)]
    return waits


def test_levels_that_follow_one_another_end_as_the_longest_path_has_it() -> None:
    draw = np.random.Generator(np.random.PCG64(5))
    joined = 0
    for _ in range(40):
        waits = side_by_side(draw, int(draw.integers(1, 6)))
        levels = levels_of(waits, least_width=0)
        assert levels is not None
        joined += sum(level.depth > 1 for level in levels.levels)
        durations = draw.integers(0, 50, (len(waits), 3))
        expected = np.stack([plain(waits, one) for one in durations.T.tolist()], axis=1)
        assert np.array_equal(levels.ends(durations), expected)
        assert np.array_equal(levels.ends(durations[:, 0]), expected[:, 0])
    assert joined > 40
