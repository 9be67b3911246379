"""Requests on their way from pool to pool, and what ends a way early: clients that give up, and replicas that fail.

A client may give a request up on its way. Before a decode replica has set blocks aside nothing has moved, and it is
gone at once. Later its transfers run to their end, since what an RDMA read was asked for is not called back: then it
has arrived, and is let go with its blocks in both pools, as vLLM frees those of an aborted request when its connector
tells that it has finished receiving.

When a replica fails, what is on its way from it has lost its K/V and is computed anew in the prefill pool; so is what
decodes there, with the tokens that it has got: that prefill samples the next one. What is on its way to it is sent
again to another decode replica, since the prefill replica still has it, or waits for one to come back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Sequences
from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from clustersim.replay.instant import at
from clustersim.replay.prepared import Prepared
from clustersim.values import dataclass
from tests.oracle.pools.kv_moves import KvMoves
from tests.oracle.replay.instant import HAND_OVER
from tests.oracle.replay.replica import ClockReplica
from tests.oracle.serving.sequence import Sequence

if TYPE_CHECKING:
    from simpy import Environment

OnDone = Callable[[int, tuple[Sequence, ...]], None]
"""Called with (replica, sequences that ended)."""
NOBODY: Final = -1
_BEGINNING: Final = attrgetter("at_ns")


@dataclass(slots=True, kw_only=True, eq=False)
class KvTransfer:
    """A request on its way: as it was, as it will be, from where to where, and what has not arrived yet.

    ``start`` is the first token of what leaves layer by layer; ``passed`` has the layers that can leave.
    """

    left: Sequence
    sequence: Sequence
    source: int
    target: int = NOBODY
    start: int = 0
    passed: list[int] = field(default_factory=list)
    reserved: bool = False
    sampled: bool = False
    missing: int = 0


class KvTransfers(ABC):
    """All requests that are on their way, or have arrived.

    Parameters
    ----------
    env : Environment
    prepared : Prepared
    replicas : sequence of ClockReplica
        Of all pools.
    moves : KvMoves
    on_done : callable
        Called with (replica, sequences that their clients gave up, and that are gone).
    lose : callable
        Called with (replica, sequence, reason) for one that nobody will ever decode.
    """

    def __init__(
        self,
        env: Environment,
        prepared: Prepared,
        replicas: Sequences[ClockReplica],
        moves: KvMoves,
        on_done: OnDone,
        lose: Callable[[int, Sequence, str], None],
    ) -> None:
        self.env = env
        self.prepared = prepared
        self.replicas = replicas
        self.moves = moves
        self.on_done = on_done
        self.lose = lose
        self.decode = prepared.pools[-1]
        self.decoders = [replicas[index] for pool in prepared.pools[1:] for index in pool.replicas]
        """Nobody, where requests stay in one pool: then nothing here ever has anything to do."""
        self.outputs = prepared.input.requests.output_tokens
        self.transfers: dict[int, KvTransfer] = {}
        self.there: dict[int, KvTransfer] = {}
        """Those that have arrived, and not ended."""
        self.leaving: dict[int, None] = {}
        """Requests for which a decode replica is to be chosen at this instant."""
        self.stranded: dict[int, None] = {}
        """Requests that leave, and for which no decode replica lives."""
        self.armed = False
        """Whether something has come up at this instant."""

    def _arm(self) -> None:
        """Settle what has come up when it has its turn at this instant."""
        if not self.armed and self.decoders:
            self.armed = True
            at(self.env, 0, HAND_OVER, self._settle)

    @abstractmethod
    def _settle(self, _: None) -> None:
        """Carry out what has come up at this instant."""

    @property
    def on_the_way(self) -> list[Sequence]:
        """Sequences that are between the pools, as they left."""
        return [transfer.left for transfer in self.transfers.values()]

    def has(self, request: int) -> bool:
        """Return whether a request is on its way, or has arrived and not ended."""
        return request in self.transfers or request in self.there

    def cancel(self, request: int) -> tuple[int, Sequence] | None:
        """Let a request go that is on its way or has arrived.

        Returns
        -------
        (int, Sequence) or None
            Where it was, and as what; None: it goes when its transfers, or the step that carries it, have ended.
        """
        transfer = self.transfers.get(request)
        if transfer is None:
            arrived = self.there[request]
            gone = self.replicas[arrived.target].cancel(arrived.sequence)
            return (arrived.target, arrived.sequence) if gone else None
        if transfer.reserved:
            transfer.sequence.leaving = True
            return None
        self._close(transfer)
        source = self.replicas[transfer.source]
        if not transfer.sampled:  # the step with its last chunk is under way
            source.cancel(transfer.left)
            return None
        source.discard(transfer.left)
        return transfer.source, transfer.sequence

    def _close(self, transfer: KvTransfer) -> None:
        """Forget a request that was on its way to nobody, or to a replica that has set no blocks aside."""
        del self.transfers[transfer.left.request]
        self.stranded.pop(transfer.left.request, None)
        if transfer.target != NOBODY:
            self.replicas[transfer.target].expect_no_more(transfer.sequence)

    def break_off(self, failing: ClockReplica) -> tuple[list[Sequence], list[Sequence]]:
        """Stop what is on its way from or to a replica that is about to fail.

        Returns
        -------
        (sequences, sequences)
            Those that are computed on it, with their K/V lost, and are to be computed anew; those of them that their
            clients had given up.
        """
        lost, gone = [], []
        for request in sorted(self.transfers):
            transfer = self.transfers[request]
            if failing.index not in (transfer.source, transfer.target):
                continue
            self._take_back(transfer)
            left, leaving, source = transfer.left, transfer.sequence.leaving, self.replicas[transfer.source]
            if source is not failing and not leaving:
                self.leaving[request] = None
                continue
            self._close(transfer)
            if not transfer.sampled:  # its step is under way, so that its scheduler has it
                if source is failing:
                    left.leaving = leaving
                else:
                    source.cancel(left)
            elif leaving:
                source.discard(left)
                gone.append(left)
            else:
                source.lose(left)
                lost.append(self._again(left))
        self._arm()
        return lost, gone

    def _take_back(self, transfer: KvTransfer) -> None:
        """Stop the moves of a transfer, so that it is on its way to nobody."""
        self.moves.drop(transfer.left.request)
        if transfer.reserved:
            self.replicas[transfer.target].give_up(transfer.sequence)
            transfer.left.preemptions += 1
        elif transfer.target != NOBODY:
            self.replicas[transfer.target].expect_no_more(transfer.sequence)
        transfer.reserved, transfer.target, transfer.missing = False, NOBODY, 0

    def anew(self, sequence: Sequence) -> Sequence:
        """Return what a prefill replica is to do of a sequence whose K/V is lost: all tokens so far, and the next."""
        arrived = self.there.pop(sequence.request, None)
        if arrived is None:  # it was still being computed
            return sequence
        left = arrived.left
        left.computed, left.generated, left.preemptions = 0, sequence.generated, sequence.preemptions
        return self._again(left)

    def _again(self, left: Sequence) -> Sequence:
        left.output_tokens = left.generated + 1
        left.hands_over = left.output_tokens < int(self.outputs[left.request])
        return left

    def rouse(self) -> None:
        """Let those leave for whom no decode replica lived."""
        self.leaving |= self.stranded
        self.stranded = {}
        self._arm()

    def _hopeless(self, now: int) -> bool:
        """Return whether no decode replica lives, or ever will."""
        dead = {one.replica for one in self.prepared.outages if one.until_ns is None and one.at_ns <= now}
        return dead.issuperset(self.decode.replicas)

    def _lose_stranded(self, now: int) -> None:
        """End those that are computed and will find no decode replica."""
        if not self._hopeless(now):
            return
        last = max((one for one in self.prepared.outages if one.replica in self.decode.replicas), key=_BEGINNING)
        for request in sorted(self.stranded):
            transfer = self.transfers[request]
            if transfer.sampled:
                self._close(transfer)
                self.replicas[transfer.source].lose(transfer.left)
                self.lose(transfer.source, transfer.left, f"{last.words}, and no decode replica was left")

    def ended(self, request: int) -> None:
        """Forget a request that has ended."""
        self.there.pop(request, None)
