"""Ready decodes: the first ones in order of admission, as the group that waits where that is it."""

from __future__ import annotations

import pytest

from clustersim.serving.grouped.ready_decodes import ReadyDecodes
from clustersim.serving.sequence import Sequence


def sequence(place):
    return Sequence(place, 4, 50, computed=4, generated=1, place=place)


def ready(groups, loose):
    """Groups and loose sequences, by their places."""
    found = ReadyDecodes(16, ())
    for places in groups:
        found.form(sequence(place) for place in places)
    found.loose.extend(sequence(place) for place in loose)
    return found


def places(group):
    return sorted(entry[1] for entry in group.finishes)


@pytest.mark.parametrize(
    ("groups", "loose", "share", "chosen", "left", "same"),
    [
        ([], [3, 1], 2, [1, 3], [], False),
        ([], [3, 1, 2], 2, [1, 2], [3], False),
        ([[0, 1]], [], 2, [0, 1], [], True),
        ([[0, 1]], [], 3, [0, 1], [], True),
        ([[0, 1]], [2], 3, [0, 1, 2], [], True),
        ([[0, 1]], [2], 2, [0, 1], [2], True),
        ([[0, 2]], [1], 2, [0, 1], [2], False),
        ([[0, 1]], [2, 3], 3, [0, 1, 2], [3], False),
        ([[0, 1, 2]], [], 2, [0, 1], [2], False),
        ([[0, 3], [1, 2]], [4], 3, [0, 1, 2], [3, 4], False),
    ],
)
def test_the_first_in_order_of_admission_are_chosen(groups, loose, share, chosen, left, same):
    found = ready(groups, loose)
    before = found.groups[:1]
    group = found.first(share)
    assert places(group) == chosen
    assert [one.place for one in found.loose] == left
    assert found.groups == [group]
    assert (before == [group]) == same


def test_nobody_is_ready():
    assert ready([], []).first(4) is None


def test_what_is_dissolved_is_up_to_date_and_keeps_the_last_step_that_carried_it():
    found = ready([[0]], [2])
    (group,) = found.groups
    group.fresh.clear()
    group.last_step = 7
    group.advance(3)
    late = sequence(1)
    late.last_step = 5
    group.join(late)
    dissolved = found.dissolve()
    assert [(one.place, one.computed, one.last_step) for one in dissolved] == [(0, 7, 7), (1, 4, 5), (2, 4, -1)]
    assert found.groups == found.loose == []
