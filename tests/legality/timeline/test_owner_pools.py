"""Where SP ranks keep whole sequences each: which one keeps what, no more than it has, and what serving declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clustersim.legality.audit import check_history
from clustersim.replay.core_replicas import CoreReplicas
from clustersim.simulation.audit import audit_run, check_run
from clustersim.simulation.declared import history_of
from clustersim.simulation.simulate import simulate
from tests.laws import mutations
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.test_policy_mutations import (
    last_first,
    lazy_decodes,
    next_victims,
    other_victims,
    reluctant,
    two_victims,
)
from tests.legality.timeline.test_replay_mutations import (
    EVENTS,
    FOLDED,
    broken_by,
    crowded_stage,
    document,
    nothing,
    unreturned_block,
)
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.prefix_cache import CachingPool
from tests.oracle.serving.sequence import Sequence

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]

GIVEN: dict[str, Any] = {
    "model": {"name": "llama-3.1-8b", "config": {"num_hidden_layers": 2}},
    "topology": {"name": "dgx-h100", "nodes": 1},
    "plan": {"tp": 2, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}},
    "serving": {"max_batch_tokens": 400, "kv_blocks": 40, "kv_block_tokens": 16, "max_batch_requests": 64},
    "workload": {
        "arrivals": {"process": "poisson", "rate": "2000/s"},
        "prompt_tokens": {"uniform": {"low": 50, "high": 300}},
        "output_tokens": {"uniform": {"low": 5, "high": 40}},
        "requests": 24,
    },
}


STAGES = GIVEN | {"plan": GIVEN["plan"] | {"tp": 1, "pp": 2}}
APART = GIVEN | {
    "plan": {"prefill": {"tp": 2}, "decode": GIVEN["plan"] | {"tp": 1}},
    "serving": GIVEN["serving"] | {"scheduler": "disaggregated"},
}
FEW = GIVEN | {"serving": GIVEN["serving"] | {"max_batch_requests": 3}}
CACHED = GIVEN | {"serving": GIVEN["serving"] | {"prefix_caching": True}}
PREFIXES = {"shared_prefixes": {"groups": 3, "tokens": 48}}
CRAMPED = GIVEN | {"serving": GIVEN["serving"] | {"kv_blocks": 20}}


ONE_LENDS_FOR_ALL = mutations.Mutation(
    CoreReplicas, "_fill", '"free", pool.blocks)', '"free", pool.total if owner == 0 else 0)'
)
"""The first SP rank lends the blocks of all."""


def fullest(patch: Patch) -> None:
    patch.setattr(BlockPool, "emptiest", lambda pool: min(range(len(pool.free)), key=lambda owner: pool.free[owner]))


def first(patch: Patch) -> None:
    patch.setattr(BlockPool, "emptiest", lambda _: 0)


def fullest_of_prefixes(patch: Patch) -> None:
    """Of ranks that have equally much of a prompt cached, the fullest one keeps the sequence."""

    def longest(pool: CachingPool, sequence: Sequence) -> int:
        return max(range(len(pool.free)), key=lambda owner: (pool.cached_blocks(owner, sequence), -pool.free[owner]))

    patch.setattr(CachingPool, "longest", longest)


def test_rank_that_lends_more_than_it_has_is_noticed() -> None:
    with mutations.mutated(ONE_LENDS_FOR_ALL):
        found = audit_run(simulate(scenario_of(document(**GIVEN))))
    assert {one.rule for one in found.violations} == {"KV-6"}
    assert "SP rank 0" in found.violations[0].where


def test_record_that_has_all_sequences_at_one_rank_is_noticed() -> None:
    run = simulate(scenario_of(document(**GIVEN)))
    owners = {name: column.copy() for name, column in run.timeline.owners.items()}
    owners["owner"][:] = 1
    found = check_history(history_of(run.scenario, replace(run.timeline, owners=owners), []))
    assert "KV-6" in {one.rule for one in found.violations}


@pytest.mark.parametrize("mutate", [first, fullest])
@pytest.mark.parametrize("changes", [GIVEN, STAGES, APART, CACHED])
def test_sequence_that_goes_to_another_rank_is_noticed(mutate: Mutation, changes: dict[str, Any]) -> None:
    """RUN-5: the rank with most free blocks keeps it, the first of equals."""
    assert broken_by(mutate, changes, EVENTS, ("RUN-5",)) == ["RUN-5"]


@pytest.mark.parametrize("more", [{}, {"kv_blocks": 1000}])
def test_which_rank_keeps_sequences_that_share_prefixes_is_said_to_be_open(more: dict[str, Any]) -> None:
    shares = CACHED | {"serving": CACHED["serving"] | more, "workload": GIVEN["workload"] | PREFIXES}
    verdict = check_run(simulate(scenario_of(document(**shares))))
    assert verdict.violations == ()
    lacks = [text for rule in verdict.rules for text in rule.lacks]
    assert "whether all that is cached is taken over (each SP rank has a cache of its own)" in lacks
    assert any("which SP rank keeps a sequence" in text for text in lacks)


def test_sequence_whose_prompt_nobody_shares_goes_to_the_rank_with_most_free_blocks() -> None:
    """RUN-5: hashes that are all different are those of prompts that no rank has cached."""
    own = {"shared_prefixes": {"groups": 1_000_000, "tokens": 48}}
    changes = CACHED | {"serving": CACHED["serving"] | {"kv_blocks": 400}, "workload": GIVEN["workload"] | own}
    assert broken_by(fullest_of_prefixes, changes, EVENTS, ("RUN-5",)) == ["RUN-5"]
    assert broken_by(nothing, changes, EVENTS) == []


def test_of_prompts_without_hashes_an_audit_leaves_nothing_open_that_is_cached() -> None:
    verdict = check_run(simulate(scenario_of(document(**CACHED))))
    assert not any("cached" in text or "which SP rank" in text for rule in verdict.rules for text in rule.lacks)


def test_which_rank_keeps_sequences_of_a_static_batch_is_said_to_be_open() -> None:
    static = GIVEN | {"serving": GIVEN["serving"] | {"scheduler": "static"}}
    verdict = check_run(simulate(scenario_of(document(**static))))
    assert verdict.violations == ()
    assert any("which SP rank keeps a sequence" in text for rule in verdict.rules for text in rule.lacks)


MUTATIONS: dict[str, tuple[Mutation, dict[str, Any], str]] = {
    "a stage takes two micro-batches": (crowded_stage, STAGES, "RUN-3"),
    "a block does not come back": (unreturned_block, GIVEN, "KV-7"),
}
OF_THE_CORE: dict[str, tuple[Mutation, dict[str, Any], str]] = {
    "a sequence that could decode is left out": (lazy_decodes, GIVEN, "RUN-5"),
    "the queue is a stack": (last_first, FEW, "RUN-5"),
    "a place of the batch stays empty": (reluctant, FEW, "RUN-5"),
    "the first sequence gives way": (other_victims, CRAMPED, "RUN-5"),
    "the next sequence gives way": (next_victims, CRAMPED, "RUN-5"),
    "more give way than has to": (two_victims, CRAMPED, "RUN-5"),
}


@pytest.mark.parametrize("name", [*MUTATIONS, *OF_THE_CORE])
def test_serving_that_ignores_what_is_declared_is_noticed_on_ranks_of_their_own(name: str) -> None:
    mutate, changes, rule = (MUTATIONS | OF_THE_CORE)[name]
    run = EVENTS if name in MUTATIONS else FOLDED
    assert broken_by(mutate, changes, run, (rule,)) == [rule]
    assert broken_by(nothing, changes, run) == []
