"""The longest path through a pass, by its series and as many layers as tell the others, is that of all instances."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from clustersim.graph.layer_walk import LayerWalk
from clustersim.graph.series_walk import SeriesWalk, series_walk
from tests.unit.graph.test_walk import layered, plain
from tests.unit.pass_templates import pair


def series_ends(walk: LayerWalk, by_class: np.ndarray, exits: list[int]) -> list[int]:
    """When a pass has ended, and when some of its instances have, by series."""
    series = SeriesWalk(walk, exits, len(by_class))
    ends = series.ends((series.counts @ by_class).tolist())
    return [max(ends), *(ends[one] for one in series.exits)]


def test_series_end_as_the_longest_path_has_it() -> None:
    draw = np.random.Generator(np.random.PCG64(12))
    for _ in range(300):
        walk, classes = layered(draw)
        exits = [0, len(walk.classes) - 3, len(walk.classes) - 1]
        series = SeriesWalk(walk, exits, classes)
        for _ in range(4):
            by_class = draw.integers(1, draw.choice([3, 50, 10_000]), classes)
            ends = plain(walk.whole.waits, by_class[walk.classes].tolist())
            assert series_ends(walk, by_class, exits) == [max(ends), *(ends[one] for one in exits)]
            for passes in (1, 9):
                assert series.lasts(np.repeat(by_class[None], passes, axis=0)).tolist() == [max(ends)] * passes
                series = pickle.loads(pickle.dumps(series))  # what is compiled is made again where it went


@pytest.mark.parametrize("turns", [True, False])
def test_passes_whose_series_take_turns_last_as_long_as_the_longest_of_each(turns: bool) -> None:
    draw = np.random.Generator(np.random.PCG64(14))
    for _ in range(40):
        before, each, behind = (
            [int(draw.integers(2, 5)) if at % 2 else 1 for at in range(2 * draw.integers(least, 3))]
            for least in (0, 1, 0)
        )
        number = int(draw.integers(1, 9))
        waits: list[tuple[int, ...]] = []
        classes: list[int] = []
        last: tuple[int, ...] = ()
        for begins, some in ((0, before), *[(10, each)] * number, (20, behind)):
            for place, many in enumerate(some):
                here = tuple(range(len(waits), len(waits) + many))
                waits += [last] * many
                classes += range(begins + 30 * place, begins + 30 * place + many)
                last = here
        if not turns and len(waits) > 9:  # one of a turn does not wait for all of the one before
            place = next((at for at in range(len(waits) - 1, 0, -1) if len(waits[at]) > 1), 0)
            waits[place] = waits[place][1:]
        walk = LayerWalk(waits, np.array(classes))
        series = SeriesWalk(walk, [], 200)
        by_class = draw.integers(1, draw.choice([3, 10_000]), (7, 200))
        expected = [max(plain(waits, one[classes].tolist())) for one in by_class]
        assert series.lasts(by_class).tolist() == expected
        assert series.lasts(by_class[:2]).tolist() == expected[:2]


def test_instances_that_end_a_series_end_as_the_longest_path_has_it() -> None:
    draw = np.random.Generator(np.random.PCG64(13))
    for _ in range(60):
        walk, classes = layered(draw)
        series = SeriesWalk(walk, [], classes)
        last = [at for at in range(len(walk.classes)) if series.places([at]) is not None]
        places = series.places(last)
        assert last[-1] == len(walk.classes) - 1
        assert places is not None
        by_class = draw.integers(1, draw.choice([3, 50, 10_000]), classes)
        ends = plain(walk.whole.waits, by_class[walk.classes].tolist())
        assert series.ends_at(places, (series.counts @ by_class).tolist()) == [ends[at] for at in last]


@pytest.mark.parametrize("many", [25, 26, 27])
def test_turns_that_lie_across_the_bounds_of_layers_count_once(many: int) -> None:
    # Turns of two, and of one; one is of another class, so that equal layers may begin or end within a turn.
    waits: list[tuple[int, ...]] = [(), ()]
    for meets in range(2, 26, 3):
        waits += [(meets - 2, meets - 1), (meets,), (meets,)]
    waits = [*waits, (23,)][:many]
    for odd in (3, 4, 24, 25, 26):
        walk = LayerWalk(waits, np.array([3 if at == odd else at % 3 for at in range(many)]))
        by_class = np.array([[5, 1000, 2, 3], [700, 5, 3, 1], [5, 5, 1, 100]])
        expected = [max(plain(waits, one[walk.classes].tolist())) for one in by_class]
        assert SeriesWalk(walk, [], 4).lasts(by_class).tolist() == expected


@pytest.mark.parametrize(("begins", "leaves"), [(1_000, 1_030), (200, 292)])
def test_who_waits_for_a_slower_one_is_told_by_few_layers_only_where_it_stays_ahead(begins: int, leaves: int) -> None:
    # Layers of the first rank take 1 each, those of the second one 10, and the first one waits for them: of 30 layers
    # it meets the ends where it begins 200 later, since 1 + 10 · 29 > 200 + 29, and ends with 1 + 10 · 29 + 1.
    waits: list[tuple[int, ...]] = [(), ()]
    for _ in range(30):
        first, second = len(waits) - 2, len(waits) - 1
        waits += [(first, second), (second,)]
    walk = LayerWalk(waits, np.array([0, 1] + [2, 3] * 30))
    assert series_ends(walk, np.array([begins, 1, 1, 10]), [60]) == [max(leaves, 301), leaves]


def test_a_chain_is_one_series() -> None:
    template = pair()
    walk = series_walk(template)
    assert walk is series_walk(template)
    assert walk.counts.tolist() == [[1, 1]]
    assert walk.ends([7]) == [7]
