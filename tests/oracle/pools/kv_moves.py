"""K/V entries on their way from rank to rank: transfers through the network, one at a time on each stream.

A rank has a stream on which entries leave it and one on which they reach it. Transfers from a rank go in the order in
which they were asked for; the first of each rank starts when the stream of the other end is free as well, the one that
was asked for first before the others. Only ranks are looked at that became free, or for which another transfer came to
be the first of its rank. One that can meet nothing on its links (``links.contention``) takes what it costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from clustersim.clock import to_ns
from clustersim.collective.communications import CommTable
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.slowdown import WeakLinks
from clustersim.timeline.record import Recorder
from clustersim.values import dataclass

if TYPE_CHECKING:
    from simpy import Environment


@dataclass(slots=True, kw_only=True, eq=False)
class Move:
    """One transfer.

    Parameters
    ----------
    request, layer, head, heads, first, tokens : int
        As in ``timeline.tables.MOVE_COLUMNS``.
    source, target : (int, int, int)
        Replica, global rank and device.
    payload_bytes : float
    serial, start_ns : int
        Its place in the order of asking, and when it started.
    dead : bool
        Whether what it leaves or reaches has failed.
    """

    request: int
    layer: int
    head: int
    heads: int
    first: int
    tokens: int
    source: tuple[int, int, int]
    target: tuple[int, int, int]
    payload_bytes: float
    serial: int = 0
    start_ns: int = 0
    dead: bool = False


class KvMoves:
    """The streams of all ranks.

    Parameters
    ----------
    env, network, comm, recorder
    on_moved : callable
        Called with each transfer that has ended.
    alone : set of (int, int)
        Pairs of devices between which transfers meet nothing.
    weak : WeakLinks, optional
        Links that carry less at times: a transfer that starts then takes as much longer.
    """

    def __init__(
        self,
        env: Environment,
        network: Network,
        comm: CommTable,
        recorder: Recorder,
        on_moved: Callable[[Move], None],
        alone: AbstractSet[tuple[int, int]] = frozenset(),
        weak: WeakLinks | None = None,
    ) -> None:
        self.env = env
        self.network = network
        self.comm = comm
        self.recorder = recorder
        self.on_moved = on_moved
        self.alone = alone
        self.weak = weak
        self.numbers: dict[tuple[int, int], int] = {}
        """Pair of devices → its number in ``comm``."""
        self.asked = 0
        self.queues: dict[int, deque[Move]] = {}
        """By the rank that they leave; the first may be under way."""
        self.sending: set[int] = set()
        self.reached: set[int] = set()
        self.firsts: dict[int, list[tuple[int, Move]]] = {}
        """By the rank that they are to reach: a heap of (serial, transfer) of those that nothing is in front of."""
        self.changed: dict[int, None] = {}
        """Ranks to be reached by something that may be able to start now."""

    def ask(self, move: Move) -> None:
        """Queue a transfer; :meth:`start` starts it."""
        self.asked += 1
        move.serial = self.asked
        queue = self.queues.setdefault(move.source[1], deque())
        queue.append(move)
        if len(queue) == 1:
            self._is_first(move)

    def _is_first(self, move: Move) -> None:
        """Take note that nothing is in front of a transfer any more."""
        rank = move.target[1]
        heappush(self.firsts.setdefault(rank, []), (move.serial, move))
        self.changed[rank] = None

    def start(self) -> None:
        """Start what can start now."""
        starting: list[tuple[int, Move]] = []
        for rank in self.changed:
            firsts = self.firsts.get(rank, ())
            while firsts and firsts[0][1].dead:
                heappop(firsts)
            if firsts and rank not in self.reached:
                starting.append(heappop(firsts))
        self.changed.clear()
        for _, move in sorted(starting):
            self._begin(move)

    def _begin(self, move: Move) -> None:
        (_, rank, device), (_, to_rank, to_device) = move.source, move.target
        self.sending.add(rank)
        self.reached.add(to_rank)
        move.start_ns = now_ns(self.env)
        pair = device, to_device
        if pair not in self.numbers:
            self.numbers[pair] = self.comm.number("send", pair)
        duration = to_ns(self.comm.seconds(self.numbers[pair], move.payload_bytes))
        if pair in self.alone:
            at(self.env, duration, COMPLETION, self._ended, move)
            return
        plan = self.comm.chosen("send", pair, move.payload_bytes)
        if self.weak is not None:
            plan, duration = self.weak.slowdown(move.start_ns).communication(plan, move.payload_bytes, duration)
        self.network.begin(
            plan,
            move.payload_bytes,
            duration,
            self._ended,
            move,
            foreign=True,
            owner=move,
        )

    def drop(self, request: int) -> None:
        """Forget the transfers of a request: what they leave or reach has failed. :meth:`start` starts others."""
        for rank, queue in self.queues.items():
            mine = [move for move in queue if move.request == request]
            if not mine:
                continue
            first = queue[0]
            if mine[0] is first and rank in self.sending:
                self.network.drop(first)
                self._free(first)
            for move in mine:
                move.dead = True
                queue.remove(move)
            if queue and queue[0] is not first:
                self._is_first(queue[0])

    def _free(self, move: Move) -> None:
        """Let others use the streams of a transfer."""
        rank, to_rank = move.source[1], move.target[1]
        self.sending.remove(rank)
        self.reached.remove(to_rank)
        self.changed[to_rank] = None

    def _ended(self, move: Move) -> None:
        if move.dead:
            return
        queue = self.queues[move.source[1]]
        queue.popleft()
        self._free(move)
        if queue:
            self._is_first(queue[0])
        self.recorder.move(*_row(move, now_ns(self.env)))
        self.on_moved(move)

    def story(self) -> list[str]:
        """Return what waits, a sentence each."""
        return [
            f"rank {rank} has {len(queue)} transfers of K/V queued, the first of request {queue[0].request}"
            for rank, queue in sorted(self.queues.items())
            if queue
        ]


def _row(move: Move, end: int) -> tuple[int, ...]:
    """Return what is recorded of a transfer."""
    (replica, rank, _), (to_replica, to_rank, _) = move.source, move.target
    return (
        move.request, replica, rank, to_replica, to_rank, move.layer, move.head, move.heads, move.first, move.tokens,
        round(move.payload_bytes), move.start_ns, end,
    )  # fmt: skip
