"""The named scenarios of the lanes catch what they are for: each mutation of the lanes changes the outcome of one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from clustersim.replay.input import CompiledMode
from clustersim.replay.replay import replay
from tests.laws.lane_cases import by_events, case_input
from tests.laws.lane_corpus import CORPUS
from tests.laws.lane_mutations import COMPILED, MUTATIONS, Mutation, mutated

ORDER = list(CORPUS)
"""What caught something last is asked first, since neighbours have like faults."""


@cache
def expected() -> dict[str, str]:
    """Digest of each scenario, by events alone."""
    return {name: by_events(case_input(case)).timeline.digest for name, case in CORPUS.items()}


def outcome(name: str, compiled: CompiledMode) -> str:
    """The digest of a scenario, or what a replay broke with."""
    try:
        return replay(replace(case_input(CORPUS[name]), compiled=compiled)).timeline.digest
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_corpus_catches(mutation: str) -> None:
    assert_caught(MUTATIONS[mutation], "auto")


@pytest.mark.parametrize("mutation", COMPILED)
def test_the_corpus_catches_in_compiled_stages(mutation: str) -> None:
    assert_caught(COMPILED[mutation], "always")


def assert_caught(mutation: Mutation, compiled: CompiledMode) -> None:
    digests = expected()
    with mutated(mutation):
        caught = next((name for name in ORDER if outcome(name, compiled) != digests[name]), None)
    assert caught is not None
    ORDER.remove(caught)
    ORDER.insert(0, caught)
