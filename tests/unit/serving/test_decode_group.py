"""Decode groups: clocks, sums and K/V blocks; blocks have 4 tokens."""

from __future__ import annotations

import pytest

from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.sequence import Sequence


def member(place, *, computed, left):
    """A sequence that decodes, with ``left`` tokens to go; its first token came from the prompt."""
    sequence = Sequence(request=place, prompt_tokens=computed, output_tokens=left + 1, computed=computed, generated=1)
    sequence.place = place
    return sequence


def group(*members):
    found = DecodeGroup(4)
    for sequence in members:
        found.join(sequence)
    return found


def test_a_member_enters_a_block_when_its_tokens_fill_the_one_before():
    # 3 computed tokens: the next is the 4th, in the block that it has; the one after begins the second block.
    found = group(member(0, computed=3, left=9))
    grown = []
    for _ in range(6):
        grown.append(found.growth)
        found.advance(1)
    assert grown == [0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 8, 9, 13])
def test_growth_after_the_first_step_is_the_sum_of_that_of_each_step(steps):
    lengths = (1, 2, 4, 4, 7)
    whole, stepped = (group(*(member(i, computed=c, left=20) for i, c in enumerate(lengths))) for _ in range(2))
    grown = 0
    for _ in range(steps - 1):
        stepped.advance(1)
        grown += stepped.growth
    assert whole.growth_after_first(steps) == grown


@pytest.mark.parametrize(("free", "steps"), [(0, 1), (1, 5), (2, 9), (3, 10), (9, 10)])
def test_steps_are_affordable_as_long_as_there_are_blocks(free, steps):
    # A block is entered in steps 2, 6 and 10, counted from 1; the first step has taken its own.
    assert group(member(0, computed=3, left=99)).affordable(10, free) == steps


def test_members_finish_in_order_of_their_places_and_leave_the_sums():
    first, second, last = member(0, computed=5, left=2), member(1, computed=7, left=2), member(2, computed=1, left=9)
    found = group(last, second, first)
    assert found.advance(1) == []
    assert found.advance(1) == [first, second]
    assert (found.count, found.computed) == (1, 3)
    assert (first.computed, first.generated, first.blocks) == (7, 3, 2)


def test_a_member_that_joins_later_is_brought_up_to_date_from_then_on():
    early, late = member(0, computed=5, left=9), member(1, computed=2, left=9)
    found = group(early)
    found.advance(3)
    found.join(late)
    found.advance(2)
    assert found.refresh() == [early, late]
    assert (early.computed, late.computed) == (10, 4)
    assert found.computed == 14
