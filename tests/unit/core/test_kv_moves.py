"""Streams of K/V: a rank sends one move at a time and is reached by one at a time, in the order of asking."""

from __future__ import annotations

import pytest

from clustersim.compiled import Objects
from clustersim.core.kv_moves import NONE, KvMoves, Move, Receiver, Sender, Streams, ask, choose_sender, end_first


@pytest.fixture
def n() -> KvMoves:
    """Two ranks that send, two that are reached, and room for eight moves."""
    store = Objects()
    found = KvMoves(
        streams=store.records(Streams, 1), senders=store.records(Sender, 2), receivers=store.records(Receiver, 2),
        moves=store.records(Move, 8),
    )  # fmt: skip
    for one in found.senders:
        one.first = one.last = one.behind = NONE
    for one in found.receivers:
        one.first = NONE
    for m, move in enumerate(found.moves):
        move.behind = m + 1
    found.streams[0].spares = 8
    return found


def started(n: KvMoves) -> list[int]:
    """Start what can start; return the ranks that send, by their numbers."""
    found = []
    while (f := choose_sender(n)) != NONE:
        found.append(f)
    return sorted(found)


def test_a_rank_is_reached_by_one_at_a_time_in_the_order_of_asking(n):
    ask(n, 1, 0)
    ask(n, 0, 0)
    assert started(n) == [1]
    end_first(n, 1)
    assert started(n) == [0]


def test_a_move_waits_behind_the_one_before_it_though_its_own_end_is_free(n):
    ask(n, 0, 0)
    ask(n, 1, 0)
    ask(n, 1, 1)  # behind the one that waits for rank 0
    assert started(n) == [0]
    end_first(n, 0)
    assert started(n) == [1]
    end_first(n, 1)
    assert started(n) == [1]


def test_who_was_asked_for_first_goes_first_though_it_comes_to_the_front_later(n):
    ask(n, 0, 1)
    early = ask(n, 0, 0)
    ask(n, 1, 1)
    late = ask(n, 1, 0)
    assert started(n) == [0]
    end_first(n, 0)  # the early one is in front now, and the first of rank 1 as well
    assert started(n) == [0, 1]
    assert n.moves[n.senders[0].first] is n.moves[early]
    end_first(n, 1)
    assert started(n) == []
    end_first(n, 0)
    assert started(n) == [1]
    assert n.senders[1].first == late


def test_moves_that_have_ended_are_spare_again(n):
    for _ in range(8):
        ask(n, 0, 0)
    assert n.streams[0].spares == 0
    started(n)
    m = end_first(n, 0)
    assert n.streams[0].spares == 1
    assert ask(n, 1, 1) == m
