"""Requests that change replicas: from the prefill pool, where their first token was sampled, to the decode pool.

::

    prefill replica   ──prompt──┤first token          blocks kept              ├ handed over: blocks back
    router                      └─► decode replica                             │
    decode replica                  arriving ───► blocks set aside ─transfers──┤ received ─► decodes

What happens at one instant is settled in the order of requests, after all that ends then (``instant.HAND_OVER``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simpy import Environment

from clustersim.replay.given import Prepared
from clustersim.replay.instant import HAND_OVER, at, now_ns
from clustersim.replay.kv_moves import KvMoves, Move
from clustersim.replay.network import Network
from clustersim.replay.replica import Replica
from clustersim.serving.disaggregated import DecodeScheduler, PrefillScheduler
from clustersim.serving.router import make_router
from clustersim.serving.sequence import Sequence
from clustersim.timeline.tables import ALL_LAYERS


@dataclass(slots=True, kw_only=True, eq=False)
class _Passage:
    """A request on its way: as it was, as it will be, from where to where, and what has not arrived yet."""

    left: Sequence
    sequence: Sequence
    source: int
    target: int = -1
    missing: int = 0


class HandOvers:
    """Everything between the two pools of a run.

    Parameters
    ----------
    env, network : Environment, Network
    prepared : Prepared
        Of a run with two pools.
    replicas : list of Replica
        Of both.
    """

    def __init__(self, env: Environment, network: Network, prepared: Prepared, replicas: list[Replica]) -> None:
        given = prepared.given
        assert given.hand_over is not None
        self.env = env
        self.prepared = prepared
        self.shards = given.hand_over.shards
        self.replicas = replicas
        self.prefill, self.decode = prepared.pools
        self.decoders = [replicas[index] for index in self.decode.replicas]
        self.router = make_router(given.hand_over.pool.serving, given.seed, stream="router of the decode pool")
        self.moves = KvMoves(env, network, given.comm, prepared.recorder, self._moved)
        self.outputs = given.requests.output_tokens
        self.passages: dict[int, _Passage] = {}
        self.leaving: dict[int, None] = {}
        self.landed: dict[int, None] = {}
        self.armed = False
        for replica in self.decoders:
            _decoder(replica).on_reserve = self._sender(replica.index)

    def _sender(self, index: int) -> Callable[[Sequence], None]:
        return lambda sequence: self._send(sequence, index)

    def refusal(self, sequence: Sequence) -> str | None:
        """Return why a request could never decode, or None."""
        reason = self.decoders[0].scheduler.refusal(sequence)
        return None if reason is None else f"to decode, it {reason}"

    def at_prefill(self, sequence: Sequence) -> Sequence:
        """Return what of a request its prefill replica is to do: its prompt and its first token."""
        if sequence.output_tokens > 1:
            sequence.output_tokens, sequence.hands_over = 1, True
        return sequence

    def leave(self, replica: int, left: Sequence) -> None:
        """Take a sequence whose prompt is computed and whose first token is sampled."""
        sequence = Sequence(
            request=left.request,
            prompt_tokens=left.prompt_tokens,
            output_tokens=int(self.outputs[left.request]),
            computed=left.computed,
            generated=left.generated,
            preemptions=left.preemptions,
            arrived_ns=left.arrived_ns,
            priority=left.priority,
        )
        self.passages[left.request] = _Passage(left=left, sequence=sequence, source=replica)
        self.leaving[left.request] = None
        self._arm()

    def _arm(self) -> None:
        if not self.armed:
            self.armed = True
            at(self.env, 0, HAND_OVER, self._settle)

    def _settle(self, _: None) -> None:
        """Let arrive what has arrived, route what leaves, and start transfers, each in the order of requests."""
        self.armed = False
        now = now_ns(self.env)
        landed, self.landed = sorted(self.landed), {}
        for request in landed:
            self._land(now, self.passages.pop(request))
        leaving, self.leaving = sorted(self.leaving), {}
        for request in leaving:
            passage = self.passages[request]
            passage.target = self.router.route(now, passage.sequence, self.decoders)
            self.replicas[passage.target].take_over(passage.sequence)
        self.moves.start()

    def _send(self, sequence: Sequence, target: int) -> None:
        """Ask for all transfers of a sequence that was given blocks."""
        passage = self.passages[sequence.request]
        passage.missing = len(self.shards)
        for shard in self.shards:
            self.moves.ask(
                Move(
                    request=sequence.request,
                    layer=ALL_LAYERS,
                    first=0,
                    tokens=sequence.computed,
                    source=self._end(passage.source, *shard.source, passage.left.owner),
                    target=self._end(target, *shard.target, sequence.owner),
                    payload_bytes=shard.token_bytes * sequence.computed,
                )
            )
        self._arm()

    def _end(self, replica: int, stage: int, t: int, owner: int) -> tuple[int, int, int]:
        """Return replica, global rank and device of a TP rank of the SP coordinate that keeps a sequence."""
        pool = self.prepared.pool_of(replica)
        local = owner * pool.given.plan.tp + t
        rank = pool.first_rank + pool.mesh.stage_base(replica - pool.first_replica, stage) + local
        return replica, rank, pool.stage_devices(replica, stage)[local]

    def _moved(self, move: Move) -> None:
        passage = self.passages[move.request]
        passage.missing -= 1
        if passage.missing == 0:
            self.landed[move.request] = None
        self._arm()

    def _land(self, now: int, passage: _Passage) -> None:
        source = self.replicas[passage.source]
        scheduler = source.scheduler
        assert isinstance(scheduler, PrefillScheduler)
        scheduler.handed_over(now, passage.left)
        source.flush()
        source.wake(source.index)
        self.replicas[passage.target].receive(passage.sequence)

    def story(self) -> list[str]:
        """Return who waits for what, a sentence each."""
        found = self.moves.story()
        for replica in self.decoders:
            arriving = _decoder(replica).arriving
            if arriving:
                found.append(
                    f"replica {replica.index} has no K/V blocks for {len(arriving)} prompts computed elsewhere"
                )
        return found


def _decoder(replica: Replica) -> DecodeScheduler:
    assert isinstance(replica.scheduler, DecodeScheduler)
    return replica.scheduler
