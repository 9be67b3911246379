"""The core: what breaks it is seen, and how much room its lists have changes nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final
from unittest import mock

import pytest
from hypothesis import given

from clustersim.core.tables import paths, prices, ranks
from clustersim.replay import core_replicas
from clustersim.replay.by_core import core_obstacle
from clustersim.replay.replay import Prepared, replay
from tests.core_storage import BOTH, Storage, core
from tests.effort import examples
from tests.laws.cases import (
    Case,
    by_events,
    case_input,
    cases,
    clocked,
    clocked_splits,
    grouped,
    grouped_hand_overs,
    meeting,
    splits,
)
from tests.laws.core_mutations import MUTATIONS
from tests.laws.corpus import CORPUS
from tests.laws.mutations import mutated

CATCHES: Final = dict(
    line.split("  ", 1) for line in Path(__file__).with_name("core_catches.txt").read_text("utf-8").splitlines()
)
"""A scenario of the corpus that catches each mutation."""
PARTS: Final = 8


@cache
def expected(name: str) -> str:
    """Digest of a scenario, by events alone."""
    return by_events(case_input(CORPUS[name])).timeline.digest


def outcome(name: str) -> str:
    """Digest of a scenario by the core, or what it broke with."""
    try:
        with core("interpreted"):
            return replay(case_input(CORPUS[name])).timeline.digest
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("first", range(PARTS))
def test_the_corpus_catches(first: int) -> None:
    for name in [*MUTATIONS][first::PARTS]:
        catches = CATCHES[name]
        digest = expected(catches)
        with mutated(MUTATIONS[name]):
            assert outcome(catches) != digest, f"{name} is not caught by {catches}"


def test_each_mutation_and_nothing_else_is_written_down_with_what_catches_it() -> None:
    assert list(CATCHES) == list(MUTATIONS)
    assert set(CATCHES.values()) <= set(CORPUS)
    assert [name for name in {*CATCHES.values()} if core_obstacle(Prepared(case_input(CORPUS[name])))] == []


@pytest.mark.parametrize("storage", BOTH)
@examples(30, sieved=True)
@given(case=cases() | clocked() | meeting() | grouped() | grouped_hand_overs() | splits() | clocked_splits())
def test_lists_that_are_short_of_room_grow(storage: Storage, case: Case) -> None:
    """Compiled, a number behind the end of a list would be written where something else is, without a word."""
    inputs = case_input(case)
    with (
        core(storage),
        mock.patch.object(core_replicas, "ROOM", 1),
        mock.patch.object(core_replicas, "FEW", 1),
        mock.patch.object(prices, "FEW_ROWS", 3),
        mock.patch.object(paths, "FEW_VALUES", 3),
        mock.patch.object(ranks, "FEW_CHUNKS", 1),
    ):
        found = replay(inputs)
    assert found.timeline.digest == by_events(case_input(case)).timeline.digest
