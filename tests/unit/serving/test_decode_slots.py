"""Slots of decodes: which one a step uses, and which episodes end. An episode is (slot, request, first, last step)."""

from __future__ import annotations

import pytest

from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.decode_slots import DecodeSlots
from clustersim.serving.sequence import Sequence


class Episodes(list):
    """A log of episodes."""

    def decode(self, *row):
        self.append(row)


def members(*requests):
    found = [Sequence(request, 4, 50, computed=4, generated=1) for request in requests]
    for sequence in found:
        sequence.place = sequence.request
    return found


def group(*sequences):
    found = DecodeGroup(16)
    for sequence in sequences:
        found.join(sequence)
    return found


def test_new_groups_take_the_slot_used_longest_ago():
    slots = DecodeSlots(3, Episodes())
    used = [slots.carry(group(*members(step)), step) for step in range(5)]
    assert used == [(0, -1), (1, -1), (2, -1), (0, 0), (1, 1)]


def test_a_group_stays_in_its_slot():
    log = Episodes()
    slots = DecodeSlots(2, log)
    one, other = group(*members(0, 1)), group(*members(2))
    assert [slots.carry(who, step)[0] for step, who in enumerate((one, other, one, one, other))] == [0, 1, 0, 0, 1]
    slots.close_all(one, one.last_step)
    slots.close_all(other, other.last_step)
    assert log == [(0, 0, 0, 3), (0, 1, 0, 3), (1, 2, 1, 4)]


def test_who_joins_a_group_begins_an_episode_and_the_others_go_on():
    log = Episodes()
    slots = DecodeSlots(1, log)
    early, late = members(0, 1)
    both = group(early)
    slots.carry(both, 0)
    both.join(late)
    slots.carry(both, 1)
    slots.repeat(both, 5)
    slots.close_all(both, both.last_step)
    assert log == [(0, 0, 0, 5), (0, 1, 1, 5)]


@pytest.mark.parametrize(
    ("between", "ended"),
    [([], []), ([2], [(0, 0, 0, 0), (0, 1, 0, 0)])],
    ids=["no step in between", "a step of somebody else in between"],
)
def test_an_episode_ends_when_a_step_of_the_slot_leaves_the_sequence_out(between, ended):
    log = Episodes()
    slots = DecodeSlots(1, log)
    both = group(*members(0, 1))
    slots.carry(both, 0)
    for request in between:
        slots.carry(group(*members(request)), 1)
    slots.carry(both, 2)
    assert log == ended


def test_members_of_two_groups_go_where_the_first_one_was():
    # Request 1 goes on in its slot 1; request 2 comes from slot 0, where its episode ends with step 0.
    log = Episodes()
    slots = DecodeSlots(2, log)
    first, second = members(1, 2)
    for step, sequence in ((0, second), (1, first)):
        slots.carry(group(sequence), step)
        sequence.last_step = step
    assert slots.carry(group(second, first), 2) == (1, 1)
    assert log == [(0, 2, 0, 0)]
    assert (first.first_step, second.first_step, second.slot) == (1, 2, 1)


def test_closing_twice_logs_an_episode_once_and_one_without_a_step_never():
    log = Episodes()
    slots = DecodeSlots(1, log)
    (sequence,) = members(0)
    slots.carry(group(sequence), 3)
    slots.close(sequence, 4)
    slots.close(sequence, 4)
    slots.carry(group(sequence), 5)
    slots.close(sequence, 4)
    assert log == [(0, 0, 3, 4)]
