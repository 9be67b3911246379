"""Requests that change replicas: from the prefill pool, where their first token was sampled, to the decode pool.

``core.hand_overs`` says how.

What happens at one instant is settled in the order of requests, after all that ends then (``instant.HAND_OVER``). What
ends early, or fails, is in ``replay.pools.kv_transfers``.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequences
from functools import cached_property, partial
from typing import TYPE_CHECKING

from clustersim.replay.events.wiring import OnLayer
from clustersim.replay.instant import now_ns
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.outages import NO_DECODERS
from clustersim.replay.prepared import Prepared
from tests.oracle.pools.kv_moves import KvMoves, Move
from tests.oracle.pools.kv_parts import KvParts
from tests.oracle.pools.kv_transfers import NOBODY, KvTransfer, KvTransfers, OnDone
from tests.oracle.replay.replica import ClockReplica
from tests.oracle.serving.routers import Router, make_router
from tests.oracle.serving.sequence import Sequence

if TYPE_CHECKING:
    from simpy import Environment


class HandOvers(KvTransfers):
    """Everything between the two pools of a run; nothing, where it has one.

    Parameters
    ----------
    env, network : Environment, Network
    prepared : Prepared
    replicas : sequence of ClockReplica
        Of all pools.
    on_done : callable
        Called with (replica, sequences that their clients gave up, and that are gone).
    lose : callable
        Called with (replica, sequence, reason) for one that nobody will ever decode.
    """

    def __init__(
        self,
        env: Environment,
        network: Network,
        prepared: Prepared,
        replicas: Sequences[ClockReplica],
        *,
        on_done: OnDone,
        lose: Callable[[int, Sequence, str], None],
    ) -> None:
        inputs = prepared.input
        alone = frozenset[tuple[int, int]]() if network.weak else prepared.contention.alone
        moves = KvMoves(env, network, inputs.comm, prepared.recorder, self._moved, alone, network.weak)
        super().__init__(env, prepared, replicas, moves, on_done, lose)
        self.parts = KvParts(prepared)
        self.layerwise = inputs.entry.serving.transfer == "layerwise"
        self.passed: dict[tuple[int, int], None] = {}
        self.landed: dict[int, None] = {}
        for replica in self.decoders:
            self.attach(replica)
        if self.decoders and self.layerwise:
            for index in prepared.pools[0].replicas:
                replicas[index].on_launch = self._launched

    @cached_property
    def router(self) -> Router:
        """Chooses among the replicas that decode."""
        seed = self.prepared.input.seed
        return make_router(self.decode.input.serving, seed, stream="router of the decode pool")

    def _sender(self, index: int) -> Callable[[Sequence], None]:
        return lambda sequence: self._send(sequence, index)

    def attach(self, replica: ClockReplica) -> None:
        """Learn of the blocks that a new scheduler of a replica sets aside for what comes from here."""
        replica.scheduler.on_reserve = self._sender(replica.index)

    def refusal(self, now: int, sequence: Sequence) -> str | None:
        """Return why a request could never decode, or None."""
        if not self.decoders:
            return None
        if sequence.output_tokens > 1 and self._hopeless(now):
            return NO_DECODERS
        reason = self.decoders[0].scheduler.refusal(sequence)
        return None if reason is None else f"to decode, it {reason}"

    def at_prefill(self, sequence: Sequence) -> Sequence:
        """Return what of a request its prefill replica is to do: its prompt and its first token."""
        if self.decoders and sequence.output_tokens > 1:
            sequence.output_tokens, sequence.hands_over = 1, True
        return sequence

    def _launched(
        self,
        replica: int,
        chunks: Sequences[tuple[Sequence, int]],
    ) -> OnLayer | None:
        """Let prompts leave, layer by layer, that a step is about to compute to their end."""
        last = [s for s, count in chunks if s.hands_over and count == s.to_compute]
        if not last:
            return None
        for sequence in last:
            self._open(replica, sequence, sequence.computed)
        transfers = [self.transfers[sequence.request] for sequence in last]
        return partial(self._pass, transfers)

    def _pass(self, transfers: Sequences[KvTransfer], layer: int) -> None:
        """Take note that the step with the last chunks of some prompts has passed a layer."""
        self.passed |= dict.fromkeys((one.left.request, layer) for one in self._of(transfers))
        self._arm()

    def _of(self, transfers: Sequences[KvTransfer]) -> list[KvTransfer]:
        """Return those transfers that are still on their way."""
        return [one for one in transfers if self.transfers.get(one.left.request) is one]

    def _open(self, replica: int, left: Sequence, start: int) -> None:
        """Let a sequence begin to leave, as it will be when its prompt is computed and its first token is sampled."""
        sequence = Sequence(
            request=left.request,
            prompt_tokens=left.prompt_tokens,
            output_tokens=int(self.outputs[left.request]),
            computed=left.prompt_tokens + left.output_tokens - 1,
            generated=left.output_tokens,
            admitted=True,
            preemptions=left.preemptions,
            arrived_ns=left.arrived_ns,
            priority=left.priority,
        )
        self.transfers[left.request] = KvTransfer(left=left, sequence=sequence, source=replica, start=start)
        self.stranded.pop(left.request, None)
        self.leaving[left.request] = None
        self._arm()

    def leave(self, replica: int, left: Sequence) -> None:
        """Take a sequence whose prompt is computed and whose first token is sampled."""
        if left.request not in self.transfers:  # all of it leaves now, also where a decode step computed its last token
            self._open(replica, left, left.computed)
        transfer = self.transfers[left.request]
        transfer.sampled = True
        self._check(transfer)
        if transfer.target == NOBODY:
            self._arm()

    def _settle(self, _: None) -> None:
        """Let arrive what has arrived, route what leaves, and start transfers, each in the order of requests."""
        self.armed = False
        now = now_ns(self.env)
        landed, self.landed = sorted(self.landed), {}
        for request in landed:
            self._land(now, self.transfers.pop(request))
        leaving, self.leaving = sorted(self.leaving), {}
        living = [replica for replica in self.decoders if replica.alive] if self.prepared.outages else self.decoders
        for request in leaving:
            if not living:
                self.stranded[request] = None
            elif request in self.transfers:
                transfer = self.transfers[request]
                transfer.target = self.router.route(now, transfer.sequence, living)
                self.replicas[transfer.target].take_over(transfer.sequence)
        if self.stranded:
            self._lose_stranded(now)
        passed, self.passed = sorted(self.passed), {}
        for request, layer in passed:
            transfer = self.transfers[request]
            transfer.passed.append(layer)
            if transfer.reserved:
                self._ask_layer(transfer, layer)
        self.moves.start()

    def _send(self, sequence: Sequence, target: int) -> None:
        """Ask for the transfers of a sequence that was given blocks, as far as they can begin."""
        transfer = self.transfers[sequence.request]
        transfer.target, transfer.reserved = target, True
        transfer.missing = self.parts.count(transfer)
        for move in self.parts.before(transfer):
            self.moves.ask(move)
        for layer in transfer.passed:
            self._ask_layer(transfer, layer)
        self._arm()

    def _ask_layer(self, transfer: KvTransfer, layer: int) -> None:
        """Ask for the moves of what the last chunk adds to a layer."""
        for move in self.parts.of_layer(transfer, layer):
            self.moves.ask(move)

    def _moved(self, move: Move) -> None:
        transfer = self.transfers[move.request]
        transfer.missing -= 1
        self._check(transfer)
        self._arm()

    def _check(self, transfer: KvTransfer) -> None:
        """Let a sequence arrive of which nothing is missing."""
        if transfer.reserved and transfer.sampled and transfer.missing == 0:
            self.landed[transfer.sequence.request] = None
            self._arm()

    def _land(self, now: int, transfer: KvTransfer) -> None:
        self.replicas[transfer.source].hand_over(transfer.left)
        target, sequence = self.replicas[transfer.target], transfer.sequence
        target.receive(sequence)
        if sequence.leaving:
            target.cancel(sequence)
            self.on_done(target.index, (sequence,))
        else:
            self.there[sequence.request] = transfer

    def story(self) -> list[str]:
        """Return who waits for what, a sentence each."""
        found = self.moves.story()
        for replica in self.decoders:
            arriving = replica.scheduler.arriving
            if arriving:
                found.append(
                    f"replica {replica.index} has no K/V blocks for {len(arriving)} prompts computed elsewhere"
                )
        return found
