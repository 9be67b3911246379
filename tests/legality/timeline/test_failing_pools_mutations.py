"""Replay code of two pools with one mistake about faults in it, and the rule that notices."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.replay.instant import at
from clustersim.serving.decision import PREEMPTED
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.test_hand_over_mutations import DOCUMENT
from tests.oracle.events.replica import Replica
from tests.oracle.events.run import EventReplay
from tests.oracle.pools.hand_overs import HandOvers
from tests.oracle.pools.kv_moves import KvMoves, Move
from tests.oracle.replay.admission import Admission
from tests.oracle.replay.fleet import Fleet
from tests.oracle.replay.instant import DEPARTURE, HAND_OVER
from tests.oracle.serving.decision import Decision
from tests.oracle.serving.members import Members
from tests.oracle.serving.routers import RoundRobin
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence

Patch = pytest.MonkeyPatch


def keeps_what_was_set_aside(patch: Patch) -> None:
    """Blocks that were set aside for a prompt stay taken when its prefill replica fails."""

    real = Scheduler.give_up

    def give_up(self: Scheduler, now: int, sequence: Sequence) -> None:
        sequence.blocks = 0
        real(self, now, sequence)

    patch.setattr(Scheduler, "give_up", give_up)


def says_nothing_of_what_was_set_aside(patch: Patch) -> None:
    """Blocks that were set aside come back, and no fact says so."""
    real = Scheduler.give_up

    def silent(self: Scheduler, now: int, sequence: Sequence) -> None:
        real(self, now, sequence)
        self.facts.pop()

    patch.setattr(Scheduler, "give_up", silent)


def transfers_survive(patch: Patch) -> None:
    """Transfers go on when what they leave or reach has failed."""

    def drop(self: KvMoves, request: int) -> None:
        for queue in self.queues.values():
            for move in [move for move in queue if move.request == request and move.start_ns == 0]:
                queue.remove(move)

    moved = HandOvers._moved

    def known(self: HandOvers, move: Move) -> None:
        transfer = self.transfers.get(move.request)
        if transfer is not None and transfer.reserved and transfer.target == move.target[0]:
            moved(self, move)

    patch.setattr(KvMoves, "drop", drop)
    patch.setattr(HandOvers, "_moved", known)


def keeps_the_lost_cache(patch: Patch) -> None:
    """A prompt is sent on from a prefill replica that has failed."""

    def break_off(self: HandOvers, failing: Replica) -> tuple[list[Sequence], list[Sequence]]:
        for request in sorted(self.transfers):
            transfer = self.transfers[request]
            if failing.index in (transfer.source, transfer.target):
                self._take_back(transfer)
                transfer.left.blocks = 0  # the scheduler that had them is gone
                self.leaving[request] = None
        self._arm()
        return [], []

    patch.setattr(HandOvers, "break_off", break_off)


def decodes_on(patch: Patch) -> None:
    """What decoded on a replica that has failed is received by another one, with the cache that it had."""
    anew = HandOvers.anew

    def moved(self: HandOvers, sequence: Sequence) -> Sequence:
        arrived = self.there.get(sequence.request)
        found = anew(self, sequence)
        if arrived is not None:
            found.computed = found.prompt_tokens
        return found

    patch.setattr(HandOvers, "anew", moved)


def loses_silently(patch: Patch) -> None:
    """Of what nobody takes over nothing is said."""
    patch.setattr(Admission, "tell", lambda self, now, kind, replica, sequence: None)


def counts_too_much_of_what_comes_in_vain(patch: Patch) -> None:
    """What is given back in vain is told with one token more."""
    real = Scheduler.give_up

    def give_up(self: Scheduler, now: int, sequence: Sequence) -> None:
        real(self, now, sequence)
        time, kind, request, tokens, used = self.facts[-1]
        self.facts[-1] = (time, kind, request, tokens + 1, used)

    patch.setattr(Scheduler, "give_up", give_up)


def forgets_tokens(patch: Patch) -> None:
    """What decoded on a replica that has failed begins anew with the token of its prompt alone."""
    anew = HandOvers.anew

    def once(self: HandOvers, sequence: Sequence) -> Sequence:
        sequence.generated = min(sequence.generated, 1)
        return anew(self, sequence)

    patch.setattr(HandOvers, "anew", once)


def keeps_blocks_of_what_failed(patch: Patch) -> None:
    """Blocks in use are told of a decode replica that has failed."""
    real = Members._note

    def note(self: Members, now: int, kind: int, sequence: Sequence, tokens: int) -> None:
        real(self, now, kind, sequence, tokens)
        if kind == PREEMPTED:
            self.facts[-1] = (*self.facts[-1][:4], self.facts[-1][4] + 1)

    patch.setattr(Members, "_note", note)


def loses_a_block(patch: Patch) -> None:
    """A decode replica comes back with a block less."""
    real = Fleet.restart

    def restart(self: Fleet, replica: Replica) -> Any:
        found = real(self, replica)
        replica.scheduler.pool.take(0, 1)
        return found

    patch.setattr(Fleet, "restart", restart)


def sends_again_late(patch: Patch) -> None:
    """What was on its way to a replica that fails is sent to another one a millisecond later."""
    real = HandOvers.break_off

    def break_off(self: HandOvers, failing: Replica) -> tuple[list[Sequence], list[Sequence]]:
        found = real(self, failing)
        kept, self.leaving = self.leaving, {}

        def later(_: None) -> None:
            self.leaving |= kept
            self._arm()

        at(self.env, 1_000_000, HAND_OVER, later)
        return found

    patch.setattr(HandOvers, "break_off", break_off)


def computes_anew_late(patch: Patch) -> None:
    """What loses its replica goes to another one a millisecond later."""
    real = EventReplay._retry

    def retry(self: EventReplay, sequence: Sequence) -> None:
        at(self.env, 1_000_000, DEPARTURE, lambda _: real(self, sequence))

    patch.setattr(EventReplay, "_retry", retry)


def computes_anew_on_the_first(patch: Patch) -> None:
    """What loses its replica goes to the first one that lives, whoever's turn it is."""

    def retry(self: EventReplay, sequence: Sequence) -> None:
        index = self.admission.living[0].index
        self.replica_of[sequence.request] = index
        self.replicas[index].add_again(sequence)

    patch.setattr(EventReplay, "_retry", retry)


def forgets_who_is_back(patch: Patch) -> None:
    """Nothing is sent to a decode replica that has failed once, while there is another one."""
    settle, fail = HandOvers._settle, Replica.fail
    failed: set[int] = set()

    def noted(self: Replica, successor: Any) -> Any:
        failed.add(self.index)
        return fail(self, successor)

    def to_others(self: HandOvers, nothing: None) -> None:
        every = self.decoders
        self.decoders = [one for one in every if one.index not in failed] or every
        settle(self, nothing)
        self.decoders = every

    patch.setattr(Replica, "fail", noted)
    patch.setattr(HandOvers, "_settle", to_others)


def begins_turns_anew(patch: Patch) -> None:
    """Prompts that leave go to the first decode replica that lives."""
    settle = HandOvers._settle

    def first(self: HandOvers, nothing: None) -> None:
        self.router = RoundRobin()
        settle(self, nothing)

    patch.setattr(HandOvers, "_settle", first)


def breaks_off_what_is_sound(patch: Patch) -> None:
    """Everything that is on its way is sent anew when a replica fails."""
    real = HandOvers.break_off

    def break_off(self: HandOvers, failing: Replica) -> tuple[list[Sequence], list[Sequence]]:
        found = real(self, failing)
        for request in sorted(self.transfers):
            if self.transfers[request].reserved:
                self._take_back(self.transfers[request])
                self.leaving[request] = None
        self._arm()
        return found

    patch.setattr(HandOvers, "break_off", break_off)


def computes_what_it_has(patch: Patch) -> None:
    """A prompt is computed anew that was on its way to a replica which fails, though its own still has it."""
    real = HandOvers.break_off

    def break_off(self: HandOvers, failing: Replica) -> tuple[list[Sequence], list[Sequence]]:
        lost, gone = real(self, failing)
        for request in sorted(self.leaving):
            transfer = self.transfers[request]
            self._close(transfer)
            self.replicas[transfer.source].lose(transfer.left)
            lost.append(self._again(transfer.left))
        self.leaving.clear()
        return lost, gone

    patch.setattr(HandOvers, "break_off", break_off)


def waits_for_what_is_on_its_way(patch: Patch) -> None:
    """A decode replica runs no step while something is on its way to it, though it has the blocks."""
    real = Scheduler.schedule

    def schedule(self: Scheduler, now: int) -> Decision | None:
        return real(self, now) if not self.receiving else None

    patch.setattr(Scheduler, "schedule", schedule)


SLOW = {"name": "l40s-node", "nodes": 1}
LONG = DOCUMENT["workload"] | {"arrivals": {"process": "constant", "rate": "1000/s"}}
POOLS = DOCUMENT | {"topology": SLOW, "workload": LONG, "plan": {"prefill": {"dp": 2}, "decode": {"dp": 2}}}


def with_faults(*faults: dict[str, Any]) -> dict[str, Any]:
    return POOLS | {"faults": list(faults)}


SOURCE = with_faults({"device": 0, "at": "6090 us", "until": "6400 us"})
"""While the first prompt is on its way from replica 0 to replica 2."""
TARGET = with_faults({"device": 2, "at": "6090 us", "until": "6400 us"})
DECODING = with_faults({"device": 2, "at": "8 ms", "until": "9 ms"})
DECODED = with_faults({"device": 3, "at": "13 ms", "until": "14 ms"})
NO_DECODE = with_faults({"device": 2, "at": "3 ms"}, {"device": 3, "at": "3 ms"})
CORNERED = POOLS | {
    "plan": {"prefill": {"dp": 1}, "decode": {"dp": 1}},
    "serving": POOLS["serving"] | {"max_batch_requests": 3, "kv_block_tokens": 4, "kv_blocks": 8},
    "workload": {
        "arrivals": {"process": "all_at_once"}, "prompt_tokens": {"uniform": {"low": 1, "high": 16}},
        "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 30,
    },
    "faults": [{"device": 7, "at": "1 ms"}],
}  # fmt: skip
"""Where a sequence that decodes often lacks a block while all others are set aside for what is on its way."""
TWO_FAIL = with_faults({"device": 2, "at": "8 ms", "until": "9.5 ms"}, {"device": 3, "at": "7.9 ms", "until": "9.7 ms"})
ON_THE_WAY = with_faults({"device": 1, "at": "6090 us", "until": "6400 us"})
"""While the first prompt is on its way between others."""
MISTAKES = [
    (waits_for_what_is_on_its_way, CORNERED, "RUN-3"),
    (waits_for_what_is_on_its_way, CORNERED | {"seed": 2}, "RUN-3"),
    (keeps_what_was_set_aside, SOURCE, "KV-7"),
    (says_nothing_of_what_was_set_aside, SOURCE, "RUN-4"),
    (transfers_survive, SOURCE, "RUN-3"),
    (transfers_survive, TARGET, "RUN-3"),
    (keeps_the_lost_cache, SOURCE, "DP-2"),
    (decodes_on, DECODING, "KV-7"),
    (loses_silently, NO_DECODE, "RUN-4"),
    (counts_too_much_of_what_comes_in_vain, TARGET, "RUN-4"),
    (forgets_tokens, DECODED, "RUN-4"),
    (keeps_blocks_of_what_failed, DECODING, "KV-7"),
    (keeps_blocks_of_what_failed, TARGET, "KV-7"),
    (loses_a_block, DECODING, "KV-7"),
    (sends_again_late, TARGET, "RUN-3"),
    (computes_anew_late, SOURCE, "RUN-3"),
    (computes_anew_on_the_first, TWO_FAIL, "RUN-3"),
    (forgets_who_is_back, DECODING, "RUN-3"),
    (begins_turns_anew, DECODING, "RUN-3"),
    (breaks_off_what_is_sound, ON_THE_WAY, "RUN-3"),
    (computes_what_it_has, TARGET, "RUN-3"),
]


LEGAL: list[dict[str, Any]] = []
"""Scenarios that were found to be legal without any mistake."""


def assert_legal(given: dict[str, Any]) -> None:
    if given not in LEGAL:
        assert audit_run(simulate(scenario_of(given))).violations == ()
        LEGAL.append(given)


@pytest.mark.parametrize(("mistake", "given", "rule"), MISTAKES, ids=[one[0].__name__ for one in MISTAKES])
@pytest.mark.usefixtures("oracle")
def test_a_mistake_about_failing_pools_is_caught(mistake: Any, given: dict[str, Any], rule: str) -> None:
    assert_legal(given)
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        assert rule in broken(simulate(scenario_of(given)), (rule,))


@pytest.mark.parametrize("given", [SOURCE, TARGET, DECODING, NO_DECODE])
def test_both_replays_agree_on_failing_pools(given: dict[str, Any]) -> None:
    folded, full = (simulate(scenario_of(given, replay=replay)) for replay in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
