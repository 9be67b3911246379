"""The lists of the core: queues, events and tables of prices, as they stand and compiled."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from clustersim.compiled import Objects
from clustersim.core import state as st
from clustersim.core.events import drop_first, expect, first_kind, first_number, first_version
from clustersim.core.prices import place_of
from clustersim.core.queue import pop, push, remove


def queue_of(ranks: list[tuple[int, int]]) -> Any:
    """Return a state in which one replica has a queue, and each sequence a rank."""
    lists = Objects()
    s = SimpleNamespace(
        replicas=lists.records(st.Replica, 1),
        sequences=lists.records(st.Sequence, len(ranks)),
        queues=lists.table(1, len(ranks)),
    )
    for one, (rank, then) in enumerate(ranks):
        s.sequences[one].rank, s.sequences[one].then, s.sequences[one].request = rank, then, one
    return s


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_a_queue_comes_first_whoever_left_it(seed: int) -> None:
    random = Random(seed)
    ranks = [(random.randint(-1, 2), random.randint(0, 3)) for _ in range(40)]
    s, waiting = queue_of(ranks), set()
    for one in random.sample(range(40), 40):
        push(s, 0, one)
        waiting.add(one)
        if random.random() < 0.4:
            gone = random.choice(sorted(waiting))
            remove(s, 0, gone)
            waiting.remove(gone)
    assert [pop(s, 0) for _ in range(s.replicas[0].waiting)] == sorted(waiting, key=lambda one: (*ranks[one], one))


def test_events_of_one_instant_come_by_kind_then_number() -> None:
    s = SimpleNamespace(clock=Objects().records(st.Clock, 1), times=[0] * 8, whats=[0] * 8)
    told = [(7, 2, 0, 0), (7, 0, 3, 1), (5, 1, 9, 0), (7, 0, 2, 67_108_863), (7, 0, (1 << 33) - 1, 0)]
    for event in told:
        expect(s, *event)
    found = []
    while s.clock[0].events:
        found.append((s.times[0], first_kind(s), first_number(s), first_version(s)))
        drop_first(s)
    assert found == sorted(told)


def test_rows_of_one_place_stand_one_behind_another_and_go_round() -> None:
    keys = [-1] * 5
    for key in (4, 9, 14, 2):  # three of them have the last place
        keys[place_of(key, keys, 5)] = key
    assert keys == [9, 14, 2, -1, 4]
    assert [place_of(key, keys, 5) for key in (14, 19)] == [1, 3]
