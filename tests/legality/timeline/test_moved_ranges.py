"""What a hand-over moves, by layer, head and token: mistakes in the code that moves it, found by audit and by proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clustersim.replay.events.swaps import Swaps
from clustersim.replay.pools.kv_moves import KvMoves, Move
from clustersim.simulation import replay_input as run_input
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.proof import prove_scenario
from clustersim.simulation.simulate import simulate
from clustersim.timeline.tables import ALL_LAYERS
from tests.laws.random_scenarios import DEEPSEEK, LLAMA, scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.test_hand_over_mutations import DOCUMENT as WHOLE
from tests.legality.timeline.test_replay_mutations import document as of_one_pool

Patch = pytest.MonkeyPatch
SPLIT = {"degree": 2, "scheme": "all_gather", "partition": "zigzag"}


def document(plan: dict[str, Any], config: dict[str, Any] = LLAMA, **serving: Any) -> dict[str, Any]:
    return WHOLE | {
        "plan": plan,
        "model": {"name": "tiny", "source": "a test", "config": config | {"num_hidden_layers": 4}},
        "serving": WHOLE["serving"] | serving,
        "workload": WHOLE["workload"] | {"requests": 4},
    }


GROUPED = document({"prefill": {"tp": 2}, "decode": {"pp": 2}})
STRAIGHT = document({"prefill": {"tp": 2}, "decode": {"tp": 2}})
COPIES = document({"prefill": {"tp": 2, "pp": 2}, "decode": {"tp": 4}}, LLAMA | {"num_key_value_heads": 2})
LATENT = document({"prefill": {"tp": 2}, "decode": {"tp": 2}}, DEEPSEEK)
SEGMENTS = document({"prefill": {"sp": SPLIT | {"decode": "dp"}, "tp": 2}, "decode": {"pp": 2}})
IDLE = document({"prefill": {"sp": SPLIT | {"decode": "idle"}}, "decode": {"tp": 2}})
LAYERS = document({"prefill": {"tp": 2}, "decode": {"pp": 2}}, transfer="layerwise")
LEGAL = {
    "grouped": GROUPED, "copies": COPIES, "latent": LATENT, "segments": SEGMENTS, "idle": IDLE, "layers": LAYERS,
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_what_moves_is_legal_and_proves(name):
    scenario = scenario_of(LEGAL[name])
    assert audit_run(simulate(scenario)).violations == ()
    proof = prove_scenario(scenario, orders=0)
    assert proof.verdict.violations == ()
    assert proof.proof is not None
    assert proof.proof.max_relative_error < 1e-9


def asked(change: Callable[[Move], Move]) -> Callable[[Patch], None]:
    """Move something else than what was asked for; bytes follow from the tokens."""

    def mutate(patch: Patch) -> None:
        ask = KvMoves.ask

        def other(self: KvMoves, move: Move) -> None:
            each = move.payload_bytes / move.tokens
            changed = change(move)
            ask(self, replace(changed, payload_bytes=each * changed.tokens))

        patch.setattr(KvMoves, "ask", other)

    return mutate


def last_layers(move: Move) -> Move:
    return replace(move, layer=3 if move.layer == ALL_LAYERS else move.layer)


def neighbour(side: str, by: int) -> Callable[[Move], Move]:
    """Take the rank beside one end; what it has, or is to have, is something else."""

    def other(move: Move) -> Move:
        replica, rank, device = getattr(move, side)
        return replace(move, **{side: (replica, rank ^ by, device ^ by)})

    return other


def shards(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    def mutate(patch: Patch) -> None:
        made = run_input.kv_shards
        patch.setattr(run_input, "kv_shards", lambda *given: tuple(map(change, made(*given))))

    return mutate


def heads_beside(shard: Any) -> Any:
    """Heads of the rank beside are sent in place of those that the rank has."""
    return replace(shard, heads=tuple(tuple(head ^ 1 for head in heads) for heads in shard.heads))


def a_layer_less(shard: Any) -> Any:
    return replace(shard, layers=shard.layers[:-1], heads=shard.heads[:-1], layer_bytes=shard.layer_bytes[:-1])


MISTAKES: dict[str, tuple[Callable[[Patch], None], dict[str, Any]]] = {
    "the first token stays behind": (asked(lambda m: replace(m, first=m.first + 1, tokens=m.tokens - 1)), GROUPED),
    "the last token stays behind": (asked(lambda m: replace(m, tokens=m.tokens - 1)), COPIES),
    "tokens are counted from one": (asked(lambda m: replace(m, first=m.first + 1)), GROUPED),
    "half of the tokens": (asked(lambda m: replace(m, tokens=m.tokens // 2)), LATENT),
    "what an earlier chunk computed, again with each layer": (
        asked(lambda m: replace(m, first=0, tokens=m.first + m.tokens)), LAYERS,
    ),
    "only the last layer": (asked(last_layers), GROUPED),
    "from the rank beside": (asked(neighbour("source", 1)), GROUPED),
    "to the rank beside": (asked(neighbour("target", 1)), STRAIGHT),
    "the heads beside": (shards(heads_beside), GROUPED),
    "from the SP rank beside": (asked(neighbour("source", 1)), IDLE),
    "from an SP rank that keeps other sequences": (asked(neighbour("source", 2)), SEGMENTS),
    "a layer less": (shards(a_layer_less), LATENT),
    "the layer beside": (asked(lambda m: replace(m, layer=m.layer ^ 1 if m.layer >= 0 else m.layer)), LAYERS),
    "what a chunk adds begins a token late": (
        asked(lambda m: replace(m, first=m.first + 1, tokens=m.tokens - 1) if m.layer >= 0 else m), LAYERS,
    ),
}  # fmt: skip


@pytest.mark.usefixtures("without_core")
@pytest.mark.parametrize("name", MISTAKES)
def test_audit_and_proof_find_a_mistake_in_what_moves(name, monkeypatch):
    mutate, given = MISTAKES[name]
    mutate(monkeypatch)
    scenario = scenario_of(given)
    assert "DP-2" in broken(simulate(scenario), ("DP-2",))
    assert prove_scenario(scenario, orders=0).verdict.violations


SWAPPED = of_one_pool(
    plan={"tp": 2, "sp": SPLIT | {"decode": "dp"}},
    serving={"kv_blocks": 26, "preemption": "swap", "host_kv": "1 GiB"},
    workload={"output_tokens": {"uniform": {"low": 20, "high": 40}}},
)


@pytest.mark.usefixtures("without_core")
def test_audit_finds_copies_of_an_sp_rank_that_does_not_keep_the_sequence(monkeypatch):
    legal = simulate(scenario_of(SWAPPED))
    assert len(legal.timeline.moves["request"])
    assert audit_run(legal).violations == ()
    begin = Swaps.begin

    def beside(self: Swaps, swap: Any) -> None:
        swap.sequence.owner ^= 1
        begin(self, swap)
        swap.sequence.owner ^= 1

    monkeypatch.setattr(Swaps, "begin", beside)
    assert "DP-2" in broken(simulate(scenario_of(SWAPPED)), ("DP-2",))


@pytest.mark.parametrize("column", ["replica", "request", "time_ns", "owner"])
def test_audit_finds_an_sp_rank_that_is_told_of_another_admission(column):
    history = history_of_run(simulate(scenario_of(SEGMENTS)))
    assert history.folded is not None
    values = history.folded.owners[column].copy()
    values[0] += 1
    told = replace(history.folded, owners={**history.folded.owners, column: values})
    assert "DP-2" in broken(replace(history, folded=told), ("DP-2",))
