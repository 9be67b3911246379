"""Hand-overs layer by layer: legal as they are, and with one mistake in them, in the record or in the code, noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import HANDED_OVER, RECEIVED, History
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.tables import ALL_LAYERS
from tests.laws.random_scenarios import MIXTRAL, scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.source_mutations import Change
from tests.legality.timeline.source_mutations import changed as change_source
from tests.legality.timeline.test_hand_over_mutations import DOCUMENT as WHOLE
from tests.legality.timeline.test_hand_over_mutations import changed, of_facts, of_moves, without

DOCUMENT: dict[str, Any] = WHOLE | {"serving": WHOLE["serving"] | {"transfer": "layerwise"}}


@pytest.fixture(scope="module")
def result() -> RunResult:
    return simulate(scenario_of(DOCUMENT))


@pytest.fixture
def history(result: RunResult) -> History:
    return history_of_run(result)


def of_layer(moves: Any, layer: int) -> int:
    return int(np.flatnonzero(moves["layer"] == layer)[0])


def test_layers_leave_while_later_ones_are_computed(result, history):
    assert check_history(history).violations == ()
    moves, facts = result.timeline.moves, result.timeline.facts
    whole = moves["layer"] == ALL_LAYERS
    assert set(moves["layer"][~whole].tolist()) == {0, 1, 2, 3}
    assert (moves["first"][whole] == 0).all()  # what earlier chunks computed
    sampled = {
        int(request): int(time)
        for request, time in zip(result.requests["request"], result.requests["first_token_ns"], strict=True)
    }
    early = [end < sampled[request] for request, end in zip(moves["request"], moves["end_ns"], strict=True)]
    assert np.array(early)[moves["layer"] == 0].any()
    assert (facts["kind"] == HANDED_OVER).sum() == len(np.unique(moves["request"]))


def test_decode_begins_sooner_than_after_whole_transfers(result):
    def second_token_gaps(found: RunResult) -> int:
        facts = found.timeline.facts
        rows = np.flatnonzero(facts["kind"] == RECEIVED)
        came = dict(zip(facts["request"][rows].tolist(), facts["time_ns"][rows].tolist(), strict=True))
        first = dict(zip(found.requests["request"].tolist(), found.requests["first_token_ns"].tolist(), strict=True))
        return sum(came[request] - first[request] for request in came)

    assert second_token_gaps(result) < second_token_gaps(simulate(scenario_of(WHOLE)))


RECORDS: dict[str, tuple[Callable[[History], History], set[str]]] = {
    "a layer leaves before it is written": (
        of_moves(lambda moves: changed(moves, "start_ns", of_layer(moves, 3), -10_000_000)), {"DP-2"},
    ),
    "a layer is missing": (of_moves(lambda moves: without(moves, of_layer(moves, 2))), {"DP-2"}),
    "a layer is told as another one": (
        of_moves(lambda moves: changed(moves, "layer", of_layer(moves, 0), 1)), {"DP-2"},
    ),
    "a layer that the model does not have": (
        of_moves(lambda moves: changed(moves, "layer", of_layer(moves, 0), 50)), {"DP-2"},
    ),
    "what an earlier chunk computed is missing": (
        of_moves(lambda moves: without(moves, of_layer(moves, ALL_LAYERS))), {"DP-2"},
    ),
    "what an earlier chunk computed moves with a layer again": (
        of_moves(lambda moves: changed(moves, "first", _follows(moves), -1)), {"DP-2"},
    ),
    "half of the bytes of a layer": (
        of_moves(lambda moves: changed(moves, "bytes", of_layer(moves, 1), -500)), {"DP-2"},
    ),
    "decode reads before the last layer has arrived": (
        of_moves(lambda moves: changed(moves, "end_ns", of_layer(moves, 3), 10**9)), {"KV-2", "KV-7"},
    ),
    "blocks are freed before the last layer has left": (
        of_facts(HANDED_OVER, lambda facts, row: changed(facts, "time_ns", row, -1)), {"KV-7"},
    ),
}  # fmt: skip


def _follows(moves: Any) -> int:
    """Return a move of a layer behind a chunk that moved before."""
    return int(np.flatnonzero((moves["layer"] >= 0) & (moves["first"] > 0))[0])


@pytest.mark.parametrize("name", RECORDS)
def test_audit_catches_a_changed_record(history, name):
    change, rules = RECORDS[name]
    assert rules <= broken(change(history), rules)


HAND_OVERS: Final = "clustersim.core.hand_overs"
BEGUN: Final = "for number in range(way.passed):\n"
TWICE: Final = "(len(h.layers) - way.passed) * (owner.most - owner.shards) // len(h.layers)"
AT_ONCE: Final = f"way.missing += {TWICE}\n    for number in range(len(h.layers)):\n"
PASSED: Final = "h.layers[s.sequences[one].passed - 1]"
ASKED: Final = "ask_move(s, h, one, shard, ALL_LAYERS, 0, way.start)"
OF_LAYER: Final = "shard, layer, way.start, tokens)"
ALL_HERE: Final = "if seq.reserved and seq.sampled and seq.missing == 0:"
NOT_THE_LAST: Final = ALL_HERE.replace("== 0", "<= 1 and seq.is_on_way")
CODE: Final[dict[str, tuple[Change, set[str]]]] = {
    "all layers at once": (Change(HAND_OVERS, BEGUN, AT_ONCE), {"DP-2"}),
    "one layer early": (
        Change("clustersim.core.pools", PASSED, "h.layers[s.sequences[one].passed % len(h.layers)]"), {"DP-2"},
    ),
    "earlier chunks are forgotten": (Change(HAND_OVERS, ASKED, "way.missing -= 1"), {"DP-2"}),
    "one layer twice, another one never": (
        Change(HAND_OVERS, OF_LAYER, OF_LAYER.replace("layer", "1 if layer == 0 else layer")), {"DP-2"},
    ),
    "decode does not wait for the last layer": (Change(HAND_OVERS, ALL_HERE, NOT_THE_LAST), {"KV-2"}),
}  # fmt: skip


LOCKSTEP: Final = DOCUMENT | {
    "plan": {"prefill": {"dp": 2, "ep": {"degree": 2, "scope": "global"}}, "decode": {"pp": 2}},
    "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 4}},
}


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("replay", ["folded", "full"])
def test_audit_catches_mutated_code(name, replay, monkeypatch):
    change, rules = CODE[name]
    change_source(monkeypatch, change)
    assert rules <= broken(simulate(scenario_of(DOCUMENT, replay=replay)), rules)


def test_of_replicas_in_lockstep_the_pass_of_the_first_tells_when_layers_were_written():
    history = history_of_run(simulate(scenario_of(LOCKSTEP)))
    moves = history.moves
    row = int(np.flatnonzero((moves["layer"] == 3) & (moves["from_replica"] == 1))[0])
    early = of_moves(lambda moves: changed(moves, "start_ns", row, -1_000_000))(history)
    assert check_history(history).violations == ()
    assert broken(early, {"DP-2"}) == {"DP-2"}


def test_a_hand_over_cut_at_the_horizon_is_legal_and_the_same_in_both_replays(result):
    moves = result.timeline.moves
    for row in (of_layer(moves, 0), of_layer(moves, 3)):
        middle = int(moves["start_ns"][row] + moves["end_ns"][row]) // 2
        cut, full = (simulate(scenario_of(DOCUMENT, horizon=f"{middle} ns", replay=one)) for one in ("folded", "full"))
        assert audit_run(cut).violations == ()
        assert cut.timeline.digest == full.timeline.digest
