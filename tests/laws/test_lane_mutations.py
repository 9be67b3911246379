"""The named scenarios of the lanes catch what they are for: each mutation of the lanes changes the outcome of one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import pytest

from clustersim.replay.replay import replay
from tests.core_storage import no_core
from tests.laws.lane_cases import by_events, case_input
from tests.laws.lane_corpus import CORPUS
from tests.laws.lane_mutations import MUTATIONS, Mutation, mutated

CATCHES: Final = dict(
    line.split("  ", 1) for line in Path(__file__).with_name("lane_catches.txt").read_text("utf-8").splitlines()
)
"""The cheapest scenario that catches each mutation: one replay shows what a search through all of them found."""

PARTS: Final = 16
"""Tests of mutations of lanes, so that several processes may share them."""


@cache
def expected(name: str) -> str:
    """Digest of a scenario, by events alone."""
    return by_events(case_input(CORPUS[name])).timeline.digest


def outcome(name: str) -> str:
    """The digest of a scenario by lanes, also where the core could simulate it, or what a replay broke with."""
    try:
        with no_core():
            return replay(case_input(CORPUS[name])).timeline.digest
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("first", range(PARTS))
def test_the_corpus_catches(first: int) -> None:
    for mutation in [*MUTATIONS][first::PARTS]:
        assert_caught(f"lanes: {mutation}", MUTATIONS[mutation])


def assert_caught(name: str, mutation: Mutation) -> None:
    caught = CATCHES.get(name, "")
    if caught in CORPUS:
        digest = expected(caught)
        with mutated(mutation):
            if outcome(caught) != digest:
                return
    raise AssertionError(f"lane_catches.txt: {name!r} is caught by {another(mutation)!r}")


def another(mutation: Mutation) -> str | None:
    """Return a scenario that catches a mutation, which is to be written down; None where none does."""
    digests = {name: expected(name) for name in CORPUS}
    with mutated(mutation):
        return next((name for name in CORPUS if outcome(name) != digests[name]), None)


def test_each_mutation_and_nothing_else_is_written_down_with_what_catches_it() -> None:
    assert list(CATCHES) == [f"lanes: {name}" for name in MUTATIONS]
    assert set(CATCHES.values()) <= set(CORPUS)
