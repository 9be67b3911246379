"""K/V entries on their way where they can meet nothing: what is known to come is worked out ahead, not move by move.

The streams and their order are those of :mod:`clustersim.replay.pools.kv_moves`. Between ranks whose moves meet nothing
on their links, and with lanes that tell beforehand when a step passes each layer, all moves of a request are known when
it is given blocks. So they are planned at once, up to their ends; what has not started when others are asked for is
planned anew. One event remains of all moves of a request: the end of the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from clustersim.clock import Int64Array, to_ns
from clustersim.collective.communications import CommTable
from clustersim.plan.reshard import Shard
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.pools.kv_transfers import KvTransfer
from clustersim.replay.pools.move_log import MoveLog
from clustersim.timeline.tables import ALL_LAYERS, MOVE_COLUMNS

if TYPE_CHECKING:
    from simpy import Environment

End = tuple[int, int, int]
"""Replica, global rank and device."""
Chains = list[tuple[int, Int64Array]]
"""Rank → moves that it takes one after the other."""
WHEN_PASSED, ASKED = 0, 1
"""What is asked for when a layer is passed comes before what is when blocks are given."""
PLAN: Final = ("instant", "how", "who", "place", "shard", "ns", *MOVE_COLUMNS)
"""Columns of moves: when each is asked for, its place among those of that instant, how long it takes, its record."""
INSTANT, HOW, WHO, PLACE, SHARD, NS = range(6)
REQUEST, FROM, TO, LAYER, FIRST, TOKENS, BYTES, START, END = (
    PLAN.index(name)
    for name in ("request", "from_rank", "to_rank", "layer", "first", "tokens", "bytes", "start_ns", "end_ns")
)
MOST_KINDS: Final = 10_000
"""Pairs of replicas whose moves are remembered; they can be worked out again."""


class Moves:
    """All moves from one replica to another: of whole shards, or of single layers, by layer and then by shard.

    Parameters
    ----------
    comm : CommTable
    ends : sequence of (End, End)
        By shard.
    parts : sequence of (int, int, int, int, float)
        Shard, layer, first head, heads and bytes of a token of each.
    """

    def __init__(
        self, comm: CommTable, ends: Sequence[tuple[End, End]], parts: Sequence[tuple[int, int, int, int, float]]
    ) -> None:
        self.comm = comm
        self.rows = np.zeros((len(parts), len(PLAN)), np.int64)
        self.token_bytes = np.array([token_bytes for *_, token_bytes in parts])
        kinds: dict[tuple[int, float], int] = {}
        of = []
        for row, (shard, layer, head, heads, token_bytes) in zip(self.rows, parts, strict=True):
            (replica, rank, device), (to_replica, to_rank, to_device) = ends[shard]
            row[PLACE], row[SHARD] = 1 + layer, shard
            row[REQUEST + 1 : FIRST] = replica, rank, to_replica, to_rank, layer, head, heads
            of.append(kinds.setdefault((comm.number("send", (device, to_device)), token_bytes), len(kinds)))
        self.kinds, self.of = tuple(kinds), np.array(of, np.int64)
        self.chains = _chains(self.rows, _column(self.rows))

    def of_tokens(self, request: int, first: int, tokens: int) -> Int64Array:
        """Return these moves of some tokens of a request."""
        found = self.rows.copy()
        ns = [to_ns(self.comm.seconds(number, token_bytes * tokens)) for number, token_bytes in self.kinds]
        found[:, NS] = np.array(ns, np.int64)[self.of]
        found[:, REQUEST], found[:, FIRST], found[:, TOKENS] = request, first, tokens
        found[:, BYTES] = np.rint(self.token_bytes * tokens)
        return found


class KvForecast:
    """The streams of all ranks.

    Parameters
    ----------
    env, comm, log, shards
    ends_of : callable
        Returns both ends of a shard of a transfer.
    on_moved : callable
        Called with each request of which all moves have ended.
    """

    def __init__(
        self,
        env: Environment,
        comm: CommTable,
        log: MoveLog,
        shards: Sequence[Shard],
        ends_of: Callable[[KvTransfer, Shard], tuple[End, End]],
        on_moved: Callable[[int], None],
    ) -> None:
        self.env = env
        self.comm = comm
        self.log = log
        self.shards = shards
        self.ends_of = ends_of
        self.on_moved = on_moved
        self.whole = [(n, ALL_LAYERS, *one.head_range(ALL_LAYERS), one.token_bytes) for n, one in enumerate(shards)]
        self.single = [
            (n, layer, *one.head_range(layer), size)
            for n, one in enumerate(shards)
            for layer, size in zip(one.layers, one.layer_bytes, strict=True)
        ]
        self.single.sort(key=itemgetter(1, 0))
        self.known: dict[tuple[End, ...], tuple[Moves, Moves]] = {}
        """Both ends of all shards → moves of whole shards, and of single layers."""
        self.planned = np.empty((0, len(PLAN)), np.int64)
        """Moves that are not recorded, in the order of asking but for those that have started."""
        self.ends: dict[int, int] = {}
        """Request → when the last one of its moves ends."""
        self._asked = 0
        self._version = 0

    def plan(self, transfer: KvTransfer) -> None:
        """Plan all moves of a request that is given blocks now: some are asked for when a step passes a layer."""
        now, start, request = now_ns(self.env), transfer.start, transfer.sequence.request
        whole, single = self._moves(transfer)
        self._asked += 1
        found = []
        if start:
            found.append((whole, whole.of_tokens(request, 0, start)))
        if start < transfer.sequence.computed:
            assert transfer.passes is not None  # a step with its last chunk is under way
            found.append((single, single.of_tokens(request, start, transfer.sequence.computed - start)))
            found[-1][1][:, INSTANT] = transfer.passes[found[-1][1][:, LAYER]]
        for _, moves in found:
            moves[:, WHO] = request
            present = int(np.searchsorted(moves[:, INSTANT], now, side="right"))
            moves[:present, INSTANT:PLACE] = now, ASKED, self._asked
        self.record(now)
        if len(found) == 1 and not len(self.planned):
            ((kind, self.planned),) = found
            _plan(self.planned, kind.chains, {})
        else:
            self._replan(now, np.concatenate([moves for _, moves in found]))
        self.ends = {}
        for one, end in self.planned[:, [REQUEST, END]].tolist():
            self.ends[one] = max(end, self.ends.get(one, 0))
        self._arm()

    def _moves(self, transfer: KvTransfer) -> tuple[Moves, Moves]:
        """Return all moves of whole shards, and of single layers, between the replicas of a transfer."""
        ends = [self.ends_of(transfer, shard) for shard in self.shards]
        key = *(one for one, _ in ends), *(other for _, other in ends)
        if key not in self.known:
            if len(self.known) >= MOST_KINDS:
                self.known.clear()
            self.known[key] = Moves(self.comm, ends, self.whole), Moves(self.comm, ends, self.single)
        return self.known[key]

    def _replan(self, now: int, moves: Int64Array) -> None:
        """Plan what has not started, and other moves, in the order in which they are asked for."""
        waits = self.planned[:, START] > now
        started, coming = self.planned[~waits], np.concatenate([self.planned[waits], moves])
        coming = coming[np.lexsort(coming[:, INSTANT:NS].T[::-1])]
        free = {rank: end for *ranks, end in started[:, [FROM, TO, END]].tolist() for rank in ranks}
        _plan(coming, _chains(coming, _column(np.concatenate([started, coming]))), free)
        self.planned = np.concatenate([started, coming])

    def _arm(self) -> None:
        """Wait for the end of the first request whose moves all end."""
        self._version += 1
        if self.ends:
            at(self.env, min(self.ends.values()) - now_ns(self.env), COMPLETION, self._ended, self._version)

    def _ended(self, version: int) -> None:
        if version != self._version:
            return
        now = now_ns(self.env)
        self.record(now)
        for request in [request for request, end in self.ends.items() if end == now]:
            del self.ends[request]
            self.on_moved(request)
        self._arm()

    def record(self, now: int) -> None:
        """Record what has ended."""
        ended = self.planned[:, END] <= now
        if ended.any():
            self.log.add(self.planned[ended][:, REQUEST:])
            self.planned = self.planned[~ended]


def _column(moves: Int64Array) -> int | None:
    """Return the column of ranks that take their moves in the order of asking; None where some may overtake others.

    Ranks that are reached do so where each rank sends to one, and ranks that send where each is reached by one.
    """
    pairs = {(source, target) for source, target in moves[:, [FROM, TO]].tolist()}
    if len(pairs) == len({source for source, _ in pairs}):
        return TO
    return FROM if len(pairs) == len({target for _, target in pairs}) else None


def _chains(moves: Int64Array, column: int | None) -> Chains | None:
    """Return which moves each of these ranks takes, in order."""
    if column is None:
        return None
    return [(rank, np.flatnonzero(moves[:, column] == rank)) for rank in sorted(set(moves[:, column].tolist()))]


def _plan(moves: Int64Array, chains: Chains | None, free: dict[int, int]) -> None:
    """Work out when moves start and end, that are in the order of asking; ``free`` has when ranks are."""
    if chains is None:
        _in_turn(moves, free)
        return
    for rank, mine in chains:
        ns = moves[mine, NS]
        after = ns.cumsum()
        asked = np.maximum(moves[mine, INSTANT], free.get(rank, 0))
        moves[mine, END] = end = after + np.maximum.accumulate(asked - (after - ns))
        moves[mine, START] = end - ns


def _in_turn(moves: Int64Array, free: dict[int, int]) -> None:
    """Plan moves of which some may overtake others: the first of each rank that sends starts when it can.

    Of those that can reach a rank at one instant the one goes first that was asked for first.
    """
    queues: dict[int, deque[tuple[int, ...]]] = {}
    for number, (instant, ns, source, target) in enumerate(moves[:, [INSTANT, NS, FROM, TO]].tolist()):
        queues.setdefault(source, deque()).append((number, instant, ns, source, target))
    while queues:
        start, number, ns, source, target = min(
            (max(instant, free.get(source, 0), free.get(target, 0)), number, ns, source, target)
            for number, instant, ns, source, target in [queue[0] for queue in queues.values()]
        )
        moves[number, START], moves[number, END] = start, start + ns
        free[source] = free[target] = start + ns
        queues[source].popleft()
        if not queues[source]:
            del queues[source]
