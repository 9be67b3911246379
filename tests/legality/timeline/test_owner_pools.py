"""KV-6 where SP ranks keep whole sequences each: one that lends more than its share is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.rule import Verdict
from clustersim.serving.blocks import BlockPool
from clustersim.simulation.audit import audit_run
from clustersim.simulation.declared import history_of
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.test_replay_mutations import document

Patch = pytest.MonkeyPatch

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


def one_lends_for_all(patch: Patch) -> None:
    """The first SP rank lends the blocks of all."""
    make = BlockPool.__init__

    def greedy(self: BlockPool, *, blocks: int, block_tokens: int, owners: int = 1) -> None:
        make(self, blocks=blocks, block_tokens=block_tokens, owners=owners)
        self.free = [blocks * owners] + [0] * (owners - 1)

    def give(self: BlockPool, owner: int, blocks: int) -> None:
        self.free[owner] += blocks

    patch.setattr(BlockPool, "__init__", greedy)
    patch.setattr(BlockPool, "give", give)
    patch.setattr(BlockPool, "emptiest", lambda _: 0)


def fullest(patch: Patch) -> None:
    patch.setattr(BlockPool, "emptiest", lambda pool: min(range(len(pool.free)), key=lambda owner: pool.free[owner]))


def first(patch: Patch) -> None:
    patch.setattr(BlockPool, "emptiest", lambda _: 0)


def nothing(_: Patch) -> None:
    """Leave all as it is."""


def verdict(mutate: Callable[[Patch], None]) -> Verdict:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        return audit_run(simulate(scenario_of(document(**GIVEN))))


def test_rank_that_lends_more_than_it_has_is_noticed() -> None:
    found = verdict(one_lends_for_all)
    assert {one.rule for one in found.violations} == {"KV-6"}
    assert "SP rank 0" in found.violations[0].where


def test_record_that_has_all_sequences_at_one_rank_is_noticed() -> None:
    run = simulate(scenario_of(document(**GIVEN)))
    owners = {name: column.copy() for name, column in run.timeline.owners.items()}
    owners["owner"][:] = 1
    found = check_history(history_of(run.scenario, replace(run.timeline, owners=owners), []))
    assert "KV-6" in {one.rule for one in found.violations}


@pytest.mark.parametrize("mutate", [nothing, first, fullest])
def test_whoever_keeps_a_sequence_within_its_share_is_legal(mutate: Callable[[Patch], None]) -> None:
    assert not verdict(mutate).violations
