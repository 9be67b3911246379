"""The named scenarios of the lanes catch what they are for: each mutation of the lanes changes the outcome of one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from clustersim.replay.input import CompiledMode
from clustersim.replay.replay import replay
from tests.laws.lane_cases import by_events, case_input
from tests.laws.lane_corpus import CORPUS
from tests.laws.lane_mutations import COMPILED, MUTATIONS, Mutation, mutated

CATCHES: Final = dict(
    line.split("  ", 1) for line in Path(__file__).with_name("lane_catches.txt").read_text("utf-8").splitlines()
)
"""The cheapest scenario that catches each mutation: one replay shows what a search through all of them found."""

PARTS: Final = 4
LANE_PARTS: Final = 48
"""Tests of mutations of what is compiled, and of lanes, so that several processes may share them."""


@cache
def expected(name: str) -> str:
    """Digest of a scenario, by events alone."""
    return by_events(case_input(CORPUS[name])).timeline.digest


def outcome(name: str, compiled: CompiledMode) -> str:
    """The digest of a scenario, or what a replay broke with."""
    try:
        return replay(replace(case_input(CORPUS[name]), compiled=compiled)).timeline.digest
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("first", range(LANE_PARTS))
def test_the_corpus_catches(first: int) -> None:
    for mutation in [*MUTATIONS][first::LANE_PARTS]:
        assert_caught(f"lanes: {mutation}", MUTATIONS[mutation], "auto")


@pytest.mark.parametrize("first", range(PARTS))
def test_the_corpus_catches_in_compiled_stages(first: int) -> None:
    for mutation in [*COMPILED][first::PARTS]:
        assert_caught(f"compiled: {mutation}", COMPILED[mutation], "always")


def assert_caught(name: str, mutation: Mutation, compiled: CompiledMode) -> None:
    caught = CATCHES.get(name, "")
    if caught in CORPUS:
        digest = expected(caught)
        with mutated(mutation):
            if outcome(caught, compiled) != digest:
                return
    raise AssertionError(f"lane_catches.txt: {name!r} is caught by {another(mutation, compiled)!r}")


def another(mutation: Mutation, compiled: CompiledMode) -> str | None:
    """Return a scenario that catches a mutation, which is to be written down; None where none does."""
    digests = {name: expected(name) for name in CORPUS}
    with mutated(mutation):
        return next((name for name in CORPUS if outcome(name, compiled) != digests[name]), None)


def test_each_mutation_and_nothing_else_is_written_down_with_what_catches_it() -> None:
    assert list(CATCHES) == [f"lanes: {name}" for name in MUTATIONS] + [f"compiled: {name}" for name in COMPILED]
    assert set(CATCHES.values()) <= set(CORPUS)
