"""Requests of two pools whose clients give them up, at every stage; the round numbers of ``test_hand_overs``.

A prompt of 10 tokens is computed by ``FIRST``, its K/V is there 11 µs later; the client gives request 0 up.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.replay.input import ReplayInput
from tests.round_numbers import pools
from tests.unit.replay.test_hand_overs import chunk_end, facts, leaving, moves, ran

FIRST = chunk_end(ran(pools([(0, 10, 3)])).timeline)
ARRIVES = FIRST + 11_000


def giving_up(given: ReplayInput, *after: int, layerwise: bool = False) -> ReplayInput:
    """The same, and request i is given up ``after[i]`` ns after its arrival (−1: never)."""
    waits = np.array([*after, *[-1] * (len(given.requests) - len(after))], np.int64)
    given = replace(given, requests=replace(given.requests, cancel_after_ns=waits))
    return leaving(given, layerwise=layerwise)


def used_at_the_end(timeline):
    """Return the blocks in use in each pool after its last fact."""
    told = timeline.facts
    pooled = told["used"] >= 0
    return [int(told["used"][pooled & (told["replica"] == replica)][-1]) for replica in (0, 1)]


@pytest.mark.parametrize(
    ("after", "last", "words"),
    [
        (FIRST // 2, ("cancelled", 0, FIRST), "between its first token and its last"),
        (FIRST + 5_000, ("cancelled", 1, ARRIVES), "between its first token and its last"),
        (ARRIVES + 10, ("cancelled", 1, None), "between its first token and its last"),
    ],
)
@pytest.mark.parametrize("layerwise", [False, True])
def test_who_is_given_up_goes_when_its_step_or_its_transfer_ends(after, last, words, layerwise):
    result = ran(giving_up(pools([(0, 10, 9), (200_000, 10, 3)]), after, layerwise=layerwise))
    told = facts(result.timeline, 0)
    kind, replica, instant = told[-1]
    if layerwise and after == FIRST // 2:  # its blocks are set aside, and its first layer may be on its way
        assert (kind, replica) == ("cancelled", 1)
    else:
        assert (kind, replica) == last[:2]
        assert layerwise or last[2] in (None, instant)
    assert result.reasons == {0: f"its client gave it up {words}"}
    assert used_at_the_end(result.timeline) == [0, 0]
    assert [fact[0] for fact in facts(result.timeline, 1)][-1] == "finished"


def test_what_is_on_its_way_arrives_before_it_is_let_go():
    timeline = ran(giving_up(pools([(0, 10, 9)]), FIRST + 5_000)).timeline
    assert moves(timeline, "start_ns", "end_ns") == [(FIRST, ARRIVES)]
    assert facts(timeline, 0)[-3:] == [("handed_over", 0, ARRIVES), ("received", 1, ARRIVES), ("cancelled", 1, ARRIVES)]


@pytest.mark.parametrize("layerwise", [False, True])
def test_who_waits_for_decode_blocks_goes_at_once_and_makes_room_for_others(layerwise):
    """Decode blocks for one: the second waits for them with its blocks in the prefill pool, the third behind it."""
    given = pools([(0, 10, 40), (0, 44, 3), (0, 10, 3)], decode_blocks=13)
    undisturbed = ran(giving_up(given, -1, layerwise=layerwise)).timeline
    after = (chunk_end(undisturbed) + facts(undisturbed, 0)[-1][2]) // 2
    result = ran(giving_up(given, -1, after, layerwise=layerwise))
    assert facts(result.timeline, 1)[-1] == ("cancelled", 0, after)
    assert not [move for move in moves(result.timeline, "request") if move[0] == 1]
    assert facts(result.timeline, 2)[-1][0] == "finished"
    assert used_at_the_end(result.timeline) == [0, 0]


def test_who_is_given_up_in_the_prefill_queue_is_never_computed():
    result = ran(giving_up(pools([(0, 10, 3), (0, 10, 3)], max_batch_requests=1), -1, 10))
    assert [fact[:2] for fact in facts(result.timeline, 1)] == [("arrived", 0), ("cancelled", 0)]
    assert result.reasons == {1: "its client gave it up while it waited to be taken up"}
