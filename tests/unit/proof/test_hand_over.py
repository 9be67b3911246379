"""Prompts computed under one plan and decoded under another: proven, and every mistake in between is caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from clustersim.plan import reshard
from clustersim.plan.reshard import Shard
from clustersim.simulation import replay_input as run_input
from clustersim.simulation.audit import audit_run
from clustersim.simulation.proof import ScenarioProof, prove_scenario
from clustersim.simulation.simulate import simulate
from tests.effort import is_whole
from tests.laws.random_scenarios import DEEPSEEK, GPT_OSS, LLAMA, MIXTRAL, scenario_of

FOUR_KV_HEADS = LLAMA | {"num_key_value_heads": 4}
SPLIT = {"degree": 2, "scheme": "ring", "partition": "zigzag"}


def document(prefill: dict[str, Any], decode: dict[str, Any], config: dict[str, Any] = FOUR_KV_HEADS) -> dict[str, Any]:
    return {
        "name": "handed-over",
        "topology": {"name": "dgx-a100", "nodes": 2},
        "model": {"name": "small", "source": "a test", "config": {"num_hidden_layers": 4} | config},
        "plan": {"prefill": prefill, "decode": decode},
        "serving": {"scheduler": "disaggregated", "kv_blocks": 100, "engine": "ideal"},
        "workload": {
            "arrivals": {"process": "all_at_once"}, "prompt_tokens": {"fixed": 20}, "output_tokens": {"fixed": 3},
            "requests": 2,
        },
        "run": {"horizon": None},
    }  # fmt: skip


def test_plans_are_proven_whose_engine_throws_the_first_token_away():
    given = document({"tp": 2}, {"tp": 1})
    given["serving"]["engine"] = {"name": "ideal", "first_token": "decode"}
    assert prove_scenario(scenario_of(given), orders=1).verdict.violations == ()


def proven(*plans: Any) -> ScenarioProof:
    return prove_scenario(scenario_of(document(*plans)), orders=1)


LIKE_OTHERS = [
    ({"tp": 4}, {"tp": 1}, FOUR_KV_HEADS),
    ({"tp": 1}, {"tp": 4}, FOUR_KV_HEADS),
    ({"pp": 4, "tp": 2}, {"pp": 2}, FOUR_KV_HEADS),
    ({"tp": 1}, {"tp": 8}, LLAMA),
    ({"tp": 2}, {"pp": 2, "tp": 4}, FOUR_KV_HEADS),
    ({"tp": 2, "sp": SPLIT | {"decode": "dp"}}, {"tp": 4}, FOUR_KV_HEADS),
    ({"tp": 2}, {"pp": 2}, GPT_OSS),
]
"""Pairs of which others are of the same kind, below or where mistakes are put into what is proven first."""


@pytest.mark.parametrize(
    ("prefill", "decode", "config"),
    [
        *(LIKE_OTHERS if is_whole() else ()),
        ({"tp": 8}, {"tp": 2}, LLAMA),  # more ranks than K/V heads: copies take turns
        ({"pp": 3, "stages": {"cuts": ["1.ffn", 3]}}, {"pp": 2, "stages": {"cuts": [1]}}, FOUR_KV_HEADS),
        ({"tp": 2, "sp": SPLIT | {"decode": "idle"}}, {"dp": 2}, FOUR_KV_HEADS),
        ({"tp": 4, "ep": 4}, {"tp": 2, "ep": 2}, MIXTRAL),
        ({"tp": 4, "pp": 2}, {"tp": 2}, DEEPSEEK),  # a latent that all ranks hold
    ],
)
def test_tokens_of_two_plans_are_those_of_the_unsharded_model(prefill, decode, config):
    found = proven(prefill, decode, config)
    assert found.verdict.violations == ()
    assert found.proof is not None
    assert (found.proof.tokens_equal, found.proof.max_relative_error < 1e-9) == (True, True)
    assert found.decode is not None


def fewer_heads(patch: pytest.MonkeyPatch) -> None:
    """Of the heads that a rank is to hold, the last one is not moved."""
    heads_of = reshard.kv_heads_of

    def fewer(attention: Any, tp: int, t: int) -> range:
        found = heads_of(attention, tp, t)
        return found[:-1] if tp == 1 else found

    patch.setattr(reshard, "kv_heads_of", fewer)


def others_heads(patch: pytest.MonkeyPatch) -> None:
    """A rank gets the heads of its neighbour."""
    heads_of = reshard.kv_heads_of
    patch.setattr(reshard, "kv_heads_of", lambda a, tp, t: heads_of(a, tp, (t + 1) % tp if tp == 2 else t))


def a_layer_further(patch: pytest.MonkeyPatch) -> None:
    """Stages are taken to begin a layer later than they do."""
    layers_of = reshard.cached_layers

    def shifted(model: Any, plan: Any) -> Any:
        found = layers_of(model, plan)
        if plan.pp == 1:
            return found
        return (found[0] + found[1][:1], found[1][1:], *found[2:])

    patch.setattr(reshard, "cached_layers", shifted)


def of_shards(change: Callable[[tuple[Shard, ...]], tuple[Shard, ...]]) -> Callable[[pytest.MonkeyPatch], None]:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        made = run_input.kv_shards
        patch.setattr(run_input, "kv_shards", lambda *given: change(made(*given)))

    return mutate


def wrong_rank(shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
    """Two sources send what the other one has."""
    return replace(shards[0], source=shards[-1].source), *shards[1:-1], replace(shards[-1], source=shards[0].source)


def wrong_target(shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
    first, last = shards[0], shards[-1]
    return replace(first, target=last.target), *shards[1:-1], replace(last, target=first.target)


MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], dict[str, Any], dict[str, Any]]] = {
    "a head stays behind": (fewer_heads, {"tp": 2}, {"tp": 1}),
    "heads of the neighbour": (others_heads, {"tp": 4}, {"tp": 2}),
    "layers of the next stage": (a_layer_further, {"tp": 2}, {"pp": 2}),
    "layers from the next stage": (a_layer_further, {"pp": 2}, {"tp": 2}),
    "from the wrong rank": (of_shards(wrong_rank), {"tp": 2}, {"tp": 2}),
    "to the wrong rank": (of_shards(wrong_target), {"tp": 2}, {"pp": 2}),
    "one rank is forgotten": (of_shards(lambda shards: shards[:-1]), {"tp": 2}, {"tp": 1}),
}


@cache
def is_legal(plans: str) -> bool:
    """Whether two plans prove without a mistake, worked out once for all mistakes."""
    return proven(*json.loads(plans)).verdict.violations == ()


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_in_what_moves_is_caught_where_decode_reads(name, monkeypatch):
    mutate, prefill, decode = MUTATIONS[name]
    assert is_legal(json.dumps((prefill, decode)))
    mutate(monkeypatch)
    found = proven(prefill, decode)
    (violation,) = found.verdict.violations
    assert violation.rule in ("KV-2", "PH-5")
    assert found.proof is not None
    assert not found.proof.max_relative_error <= 1e-9 or not found.proof.tokens_equal


@pytest.mark.parametrize("name", ["a head stays behind", "layers of the next stage"])
def test_the_audit_of_a_run_catches_it_too(name, monkeypatch):
    mutate, prefill, decode = MUTATIONS[name]
    mutate(monkeypatch)
    assert "DP-2" in {found.rule for found in audit_run(simulate(scenario_of(document(prefill, decode)))).violations}
