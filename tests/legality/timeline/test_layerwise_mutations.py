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
from tests.legality.timeline.test_hand_over_mutations import DOCUMENT as WHOLE
from tests.legality.timeline.test_hand_over_mutations import changed, of_facts, of_moves, without
from tests.oracle.pools.hand_overs import HandOvers
from tests.oracle.pools.kv_parts import KvParts
from tests.oracle.pools.kv_transfers import KvTransfer

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


def all_layers_at_once(patch: pytest.MonkeyPatch) -> None:
    """Every layer leaves when the step starts."""
    launched = HandOvers._launched

    def hasty(self: HandOvers, replica: int, chunks: Any) -> None:
        passed = launched(self, replica, chunks)
        for layer in range(4) if passed is not None else ():
            passed(layer)

    patch.setattr(HandOvers, "_launched", hasty)


def one_layer_early(patch: pytest.MonkeyPatch) -> None:
    """A layer leaves when the one before it has been passed."""
    launched = HandOvers._launched

    def early(self: HandOvers, replica: int, chunks: Any) -> Any:
        passed = launched(self, replica, chunks)
        return passed and (lambda layer: passed((layer + 1) % 4))

    patch.setattr(HandOvers, "_launched", early)


def forgets_earlier_chunks(patch: pytest.MonkeyPatch) -> None:
    """Only what the last chunk computed moves."""
    count = KvParts.count

    def fewer(self: KvParts, transfer: KvTransfer) -> int:
        return count(self, transfer) - (len(self.shards) if transfer.start > 0 else 0)

    patch.setattr(KvParts, "count", fewer)
    patch.setattr(KvParts, "before", lambda self, transfer: iter(()))


def skips_a_layer(patch: pytest.MonkeyPatch) -> None:
    """Layer 1 is sent in place of layer 2."""
    ask = HandOvers._ask_layer
    patch.setattr(
        HandOvers, "_ask_layer", lambda self, transfer, layer: ask(self, transfer, 1 if layer == 0 else layer)
    )


def does_not_wait_for_the_last(patch: pytest.MonkeyPatch) -> None:
    """A sequence whose first token is sampled decodes when it has blocks, whatever of its K/V is on its way."""
    send, land = HandOvers._send, HandOvers._land
    hasty: set[int] = set()

    def sent(self: HandOvers, sequence: Any, target: int) -> None:
        send(self, sequence, target)
        if self.transfers[sequence.request].sampled:
            hasty.add(sequence.request)
            self.replicas[target].receive(sequence)

    def landed(self: HandOvers, now: int, transfer: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if transfer.sequence.request in hasty:
                inner.setattr(self.replicas[transfer.target], "receive", lambda _: None)
            land(self, now, transfer)

    patch.setattr(HandOvers, "_send", sent)
    patch.setattr(HandOvers, "_land", landed)


CODE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "all layers at once": (all_layers_at_once, {"DP-2"}),
    "one layer early": (one_layer_early, {"DP-2"}),
    "earlier chunks are forgotten": (forgets_earlier_chunks, {"DP-2"}),
    "one layer twice, another one never": (skips_a_layer, {"DP-2"}),
    "decode does not wait for the last layer": (does_not_wait_for_the_last, {"KV-2"}),
}


LOCKSTEP: Final = DOCUMENT | {
    "plan": {"prefill": {"dp": 2, "ep": {"degree": 2, "scope": "global"}}, "decode": {"pp": 2}},
    "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 4}},
}


@pytest.mark.usefixtures("oracle")
@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("replay", ["folded", "full"])
def test_audit_catches_mutated_code(name, replay, monkeypatch):
    mutate, rules = CODE[name]
    mutate(monkeypatch)
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
