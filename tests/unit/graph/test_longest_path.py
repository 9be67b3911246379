"""A pass made small ends when all of its instances do, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.compiled import Objects
from clustersim.graph import longest_path
from clustersim.graph.longest_path import LongestPath, follow, walk
from clustersim.graph.shrink import Series, Stretch, contracted, cut, reduced, waits_of
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan
from clustersim.replay.prepared import Prepared
from tests.round_numbers import SPARSE, deployment

Waits = list[tuple[int, ...]]


def plain(waits: Sequence[tuple[int, ...]], durations: Sequence[int]) -> list[int]:
    ends: list[int] = []
    for some, duration in zip(waits, durations, strict=True):
        ends.append(duration + max([ends[one] for one in some], default=0))
    return ends


def critical(waits: Waits, durations: Sequence[int], classes: Sequence[int], many: int) -> list[int]:
    """How many instances of each class are on the longest path: at each turn the first of those that end last."""
    ends, counts = plain(waits, durations), [0] * many
    at = ends.index(max(ends))
    while True:
        counts[classes[at]] += 1
        if not waits[at]:
            return counts
        last = max(ends[one] for one in waits[at])
        at = next(one for one in waits[at] if ends[one] == last)


def layered(draw: np.random.Generator, meets: bool) -> tuple[Waits, list[int], int]:
    """Return a pass of equal layers on some ranks, and the classes of its instances; in layers all may meet."""
    ranks, width, classes = (int(draw.integers(*some)) for some in ((1, 4), (2, 7), (2, 7)))
    cls, place = draw.integers(0, classes, width).tolist(), draw.integers(0, ranks, width).tolist()
    back = [np.unique(draw.integers(1, width + 2, draw.integers(0, 3))).tolist() for _ in range(width)]
    waits, of, last = Waits(), list[int](), dict[int, int]()
    for layer in range(int(draw.integers(1, 9 if meets else 30))):
        for offset in range(width):
            at, first = len(waits), len(waits) - offset
            needs = {at - one for one in back[offset] if at - one >= (first if meets and layer else 0)}
            needs |= {last[place[offset]]} if place[offset] in last else set()
            waits.append(tuple(sorted(needs)))
            of.append(cls[offset])
            last[place[offset]] = at
        if meets:
            waits.append(tuple(sorted(last.values())))
            of.append(classes)
            last = dict.fromkeys(range(ranks), len(waits) - 1)
    return waits, of, classes + 1


def passes(draw: np.random.Generator) -> Iterator[tuple[Waits, list[int], int]]:
    for number in range(200):
        yield layered(draw, meets=number % 2 > 0)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_pass_made_small_ends_as_the_longest_path_has_it(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longest_path, "MANY", 0 if compiled else 1 << 60)
    draw = np.random.Generator(np.random.PCG64(11))
    fewer = stretches = skipped = 0
    for waits, of, many in passes(draw):
        exits = [-1, len(waits) - 1, *draw.integers(0, len(waits), draw.integers(0, 2)).tolist()]
        path = LongestPath(waits, np.array(of), many, exits)
        by_class = draw.integers(0, draw.choice([2, 50, 10_000]), (3, many))
        ends = [plain(waits, one[of].tolist()) for one in by_class]
        assert path.lengths(by_class).tolist() == [max(some) for some in ends]
        assert path.lengths(by_class[:1]).tolist() == [max(ends[0])]
        found = [path.ends(path.terms(one).tolist()) for one in by_class]
        assert found == [(max(some), tuple([some[one] if one >= 0 else 0 for one in exits])) for some in ends]
        fewer += len(path.term) < len(waits)
        stretches += max(one.times for one in path.stretches) > 1
        skipped += max(number for *_, number in path.periods) > 3
    assert fewer > 150
    assert skipped > 20
    assert stretches > 30


def test_series_tell_when_each_instance_ends() -> None:
    draw = np.random.Generator(np.random.PCG64(3))
    for waits, *_ in passes(draw):
        series, durations = Series(waits), draw.integers(0, 50, (len(waits), 3))
        expected = [plain(waits, one) for one in durations.T.tolist()]
        assert series.ends(durations).T.tolist() == expected
        assert series.ends(durations[:, 0]).tolist() == expected[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_who_is_on_the_longest_path_is_the_first_of_those_that_end_last(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longest_path, "MANY", 0 if compiled else 1 << 60)
    draw = np.random.Generator(np.random.PCG64(5))
    for waits, of, many in passes(draw):
        path = LongestPath(waits, np.array(of), many, merge=False)
        by_class = draw.integers(1, draw.choice([3, 50, 10_000]), (3, many))
        expected = [critical(waits, one[of].tolist(), of, many) for one in by_class]
        assert path.follow(by_class).tolist() == expected


def test_what_another_wait_implies_is_dropped() -> None:
    assert reduced([(), (0,), (0, 1), (0, 2), (1,), (0, 3, 4)]) == [(), (0,), (1,), (2,), (1,), (3, 4)]


def test_instances_behind_one_another_are_one_series_unless_its_end_is_asked_for() -> None:
    # 0 → 1 → 3 and 2, which 3 waits for as well.
    waits: Waits = [(), (0,), (), (1, 2)]
    assert contracted(waits) == ([[0, 1], [2], [3]], [(), (), (0, 1)])
    assert contracted(waits, [0]) == ([[0], [1], [2], [3]], [(), (0,), (), (1, 2)])


def test_equal_stretches_between_meetings_are_walked_once() -> None:
    # Twice two ranks and where they meet, 3 and 6, and then rank 0 alone.
    waits: Waits = [(), (), (0, 1), (2,), (2,), (3, 4), (5,)]
    assert cut(waits, "abcabca") == [Stretch(0, 3, 2), Stretch(6, 7, 1)]
    path = LongestPath(waits, np.array([0, 1, 2, 0, 1, 2, 0]), 3)
    assert path.counts.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert path.ends([5, 7, 1])[0] == 2 * (7 + 1) + 5


def test_a_stretch_ends_with_none_that_others_do_not_wait_for() -> None:
    # 1 is never waited for, so that it may end behind all others.
    waits: Waits = [(), (), (), (0, 2), (3,)]
    assert cut(waits, "aabab") == [Stretch(0, 5, 1)]
    assert LongestPath(waits, np.array([0, 1, 0, 2, 0]), 3).ends([1, 100, 3])[0] == 100


def test_a_chain_is_one_series() -> None:
    path = LongestPath([(), (0,), (1,), (2,)], np.array([0, 1, 0, 1]), 2, [3])
    assert path.counts.tolist() == [[2, 2]]
    assert path.ends([7]) == (7, (7,))


def test_the_longest_path_is_that_of_each_stretch_as_often_as_it_is_there() -> None:
    # 0 and 1 meet in 2, five times over: the slower one counts.
    waits, of = Waits(), list[int]()
    for at in range(0, 15, 3):
        waits += [(at - 1,) if at else (), (at - 1,) if at else (), (at, at + 1)]
        of += [0, 1, 2]
    path = LongestPath(waits, np.array(of), 3, merge=False)
    small, ends, counts = path.path(Objects()), [0] * len(path.term), [0] * len(path.counts)
    assert walk(small, 0, len(path.stretches), [4, 6, 1], ends) == 35
    follow(small, ends, counts)
    assert counts == [0, 5, 5]


def test_a_stream_is_waited_for_by_what_it_runs_next() -> None:
    assert waits_of([(0,), (1,), (0, 1), (1,)], np.array([0, 0, 0, 1]), [(), (), (0,), (2,)]) == [(), (), (0, 1), (2,)]


WIDE = ExpertPlan(degree=4, scope="global")
DEPLOYED: dict[str, dict[str, Any]] = {
    "ring": {"plan": ParallelPlan(tp=2, sp=SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="dp"))},
    "all_gather": {
        "plan": ParallelPlan(sp=SequencePlan(degree=2, scheme="all_gather", partition="striped", decode="dp"))
    },
    "all_to_all": {
        "plan": ParallelPlan(sp=SequencePlan(degree=2, scheme="all_to_all", partition="contiguous", decode="idle"))
    },
    "ring, two stages": {
        "plan": ParallelPlan(pp=2, sp=SequencePlan(degree=3, scheme="ring", partition="zigzag", decode="idle"))
    },
    "lockstep": {"plan": ParallelPlan(dp=4, ep=WIDE), "layer": SPARSE},
    "two batches": {"plan": ParallelPlan(dp=4, ep=replace(WIDE, overlap="two_batch")), "layer": SPARSE},
}


@pytest.mark.parametrize("name", DEPLOYED)
def test_passes_of_deployments_end_as_the_longest_path_has_it(name: str) -> None:
    draw = np.random.Generator(np.random.PCG64(7))
    prepared = Prepared(deployment([(0, 1, 1)], layers=8, **DEPLOYED[name]))
    for programs in prepared.pools[0].programs.values():
        for template in (program.template for program in programs.values()):
            by_class = draw.integers(1, draw.choice([3, 1000]), (5, template.num_classes))
            ends = [plain(template.waits, one[template.instance_class].tolist()) for one in by_class]
            assert template.total_times(by_class).tolist() == [max(some) for some in ends]
            leaving = [tuple([some[one] if one >= 0 else 0 for one in template.exits]) for some in ends]
            assert [template.pass_times(one)[1] for one in by_class] == leaving
            assert template.ends(by_class[0][template.instance_class]).tolist() == ends[0]


@pytest.mark.parametrize("head_start", [0, 7, 15, 39, 100, 10_000])
def test_a_rank_that_catches_up_in_a_late_layer_is_waited_for_from_there_on(head_start: int) -> None:
    """Rank 1 needs each layer of rank 0, which takes longer but began earlier: sooner or later it is what counts."""
    waits: Waits = [(), ()]
    for at in range(2, 82, 2):
        waits += [(at - 2,), (at - 1, at)]
    path = LongestPath(waits, np.array([0, 1, *[2, 3] * 40]), 4, [81])
    assert path.periods[0][2] > 30
    by_class = np.array([1, 1 + head_start, 11, 10])
    last = max(1 + 40 * 11 + 10, 1 + head_start + 40 * 10)
    assert path.ends(path.terms(by_class).tolist()) == (last, (last,))


def test_layers_behind_those_that_are_known_are_not_walked() -> None:
    # Both ranks need what both did in the layer before; the slower one takes 5.
    waits: Waits = [(), ()]
    for at in range(2, 40, 2):
        waits += [(at - 2, at - 1), (at - 2, at - 1)]
    path = LongestPath(waits, np.array([0, 0, *[1, 2] * 19]), 3)
    small, ends = path.path(Objects()), [-1] * len(path.term)
    assert walk(small, 0, 1, path.terms(np.array([1, 3, 5])).tolist(), ends) == 1 + 19 * 5
    assert ends.count(-1) == 30  # of 39 series: one, and 19 layers of 2


def test_layers_that_wait_for_the_one_but_last_are_none_that_the_last_one_tells_of() -> None:
    # The first of two waits for the one 3 before, the second for the one 4 before: in turns of 2 both reach too far.
    waits: Waits = [(), (), (0,), (2,)]
    for at in range(4, 28, 2):
        waits += [(at - 3,), (at - 3,)]
    of = [3, 4, 5, 6, *[0, 1] * 12]
    path, by_class = LongestPath(waits, np.array(of), 7, [26]), np.array([1, 2, 3, 2, 1, 3, 3])
    ends = plain(waits, by_class[of].tolist())
    assert path.ends(path.terms(by_class).tolist()) == (max(ends), (ends[26],))


def test_instances_with_nothing_between_them_are_one_run() -> None:
    # One rank does 0, 1, 2, 4, of which 4 waits for another one's 3 too: 1 and 2 are one run, 0 and 2 are two.
    series = Series([(), (0,), (1,), (), (2, 3)])
    assert [some.tolist() for some in series.runs(np.array([2, 1, 4]))] == [[1, 4], [2, 4]]
    assert [some.tolist() for some in series.runs(np.array([0, 2]))] == [[0, 2], [0, 2]]
    assert [some.tolist() for some in series.runs(np.array([2, 3]))] == [[2, 3], [2, 3]]


def test_of_paths_as_long_as_each_other_the_first_one_is_followed_though_others_are_equal() -> None:
    # 3 waits for 1 and 2, which end together; 0 is as 2 is, but nobody waits for it.
    waits: Waits = [(), (), (), (1, 2)]
    path = LongestPath(waits, np.array([0, 1, 0, 2]), 3, merge=False)
    assert path.follow(np.array([[5, 5, 1]])).tolist() == [[0, 1, 1]]
