"""Which slot a step's decodes belong to, and when an episode begins and ends."""

from __future__ import annotations

from functools import partial

from clustersim.timeline.columns import Columns
from clustersim.timeline.episodes import Episodes
from clustersim.timeline.tables import DECODE_COLUMNS


class Log:
    """Episodes of one replica, as (slot, request, first step, last step)."""

    def __init__(self, slots: int = 1) -> None:
        self.table = Columns(DECODE_COLUMNS)
        self.episodes = Episodes(slots, partial(self.table.append, 5))

    def steps(self, *lists):
        """Take a step per list; return the slots."""
        return [self.episodes.decoded(number, 1, tuple(requests)) for number, requests in enumerate(lists)]

    def closed(self):
        return list(zip(*(self.table.arrays()[name].tolist() for name in list(DECODE_COLUMNS)[1:]), strict=True))

    def all(self):
        self.episodes.close()
        return sorted(self.closed())


def test_an_episode_lasts_while_the_steps_of_its_slot_carry_the_request():
    log = Log()
    assert log.steps([1, 2], [1, 2], [1, 2, 3]) == [0, 0, 0]
    assert log.all() == [(0, 1, 0, 2), (0, 2, 0, 2), (0, 3, 2, 2)]
    assert log.table.arrays()["replica"].tolist() == [5, 5, 5]


def test_a_run_of_steps_is_as_one_by_one():
    log = Log()
    log.episodes.decoded(0, 5, (1, 2))
    log.episodes.decoded(5, 1, (2,))
    assert log.all() == [(0, 1, 0, 4), (0, 2, 0, 5)]


def test_steps_without_decodes_are_in_no_slot_and_end_nothing():
    log = Log()
    assert log.steps([1], [], [1]) == [0, -1, 0]
    assert log.all() == [(0, 1, 0, 2)]


def test_a_request_that_a_step_skips_has_two_episodes():
    log = Log()
    log.steps([1, 2], [1], [1, 2])
    assert log.all() == [(0, 1, 0, 2), (0, 2, 0, 0), (0, 2, 2, 2)]


def test_a_request_computed_anew_has_two_episodes_though_its_slot_had_no_step_meanwhile():
    log = Log()
    log.steps([1, 2])
    log.episodes.close((2,))
    assert log.closed() == [(0, 2, 0, 0)]
    log.episodes.decoded(3, 1, (1, 2))
    assert log.all() == [(0, 1, 0, 3), (0, 2, 0, 0), (0, 2, 3, 3)]


def test_what_finished_ends_with_the_last_step_that_carried_it():
    log = Log()
    log.steps([1, 2], [1, 2])
    log.episodes.close((1, 7))  # 7 never decoded: it had one token, that of its prompt.
    log.episodes.decoded(2, 1, (2,))
    assert log.all() == [(0, 1, 0, 1), (0, 2, 0, 2)]


def test_lists_take_the_slot_of_their_first_request_else_the_one_used_longest_ago():
    log = Log(slots=3)
    assert log.steps([1, 2], [3], [1, 2], [4], [5], [3, 9]) == [0, 1, 0, 2, 1, 0]
    # [5] is new: slot 1 was used last at step 1, slot 0 at 2, slot 2 at 3. It ends 3, so [3, 9] is new too.


def test_a_request_that_moves_to_another_slot_ends_in_the_old_one_with_its_last_step_there():
    log = Log(slots=2)
    assert log.steps([1, 2], [3, 4], [1, 2], [3, 2], [1]) == [0, 1, 0, 1, 0]
    assert log.all() == [(0, 1, 0, 4), (0, 2, 0, 2), (1, 2, 3, 3), (1, 3, 1, 3), (1, 4, 1, 1)]


def test_a_list_as_before_opens_anew_what_was_in_another_slot_meanwhile():
    log = Log(slots=2)
    assert log.steps([1, 2], [3], [3, 2], [1, 2], [3]) == [0, 1, 1, 0, 1]
    assert log.all() == [(0, 1, 0, 3), (0, 2, 0, 0), (0, 2, 3, 3), (1, 2, 2, 2), (1, 3, 1, 4)]
