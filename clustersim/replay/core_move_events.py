"""Moves of K/V that the core starts and that run by events: each is a transfer on the links of SimPy's clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from clustersim.clock import to_ns
from clustersim.replay.core_pools import KvRoutes
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.prepared import Prepared
from clustersim.values import dataclass

if TYPE_CHECKING:
    from simpy import Environment


@dataclass(slots=True, kw_only=True, eq=False)
class MoveUnderWay:
    """What a rank sends: the version of its path, and whether what it leaves or reaches has failed."""

    version: int
    dead: bool = False


class MoveEvents:
    """Those of all ranks.

    Parameters
    ----------
    env, network, prepared
    routes : KvRoutes
    lists : callable
        Returns the paths of moves and the lists of hand-overs.
    tell : callable
        Called with the path, and its version, of a move that has ended.
    """

    def __init__(
        self, env: Environment, network: Network, prepared: Prepared, routes: KvRoutes,
        lists: Callable[[], tuple[Any, Any]], tell: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.env = env
        self.network = network
        self.comm = prepared.input.comm
        self.routes = routes
        self.lists = lists
        self.tell = tell
        self.alone = frozenset[tuple[int, int]]() if network.weak else prepared.contention.alone
        self.under_way: dict[int, MoveUnderWay] = {}

    def begin(self) -> None:
        """Begin what the core has started."""
        n, h = self.lists()
        streams, first_path = h.streams[0], h.hand_overs[0].first_path
        begun, streams.begun = [h.senders[at].begun for at in range(streams.begun)], 0
        for sender in begun:
            under_way, version = self.under_way.get(sender), n.paths[first_path + sender].version
            if h.senders[sender].is_sending and (under_way is None or under_way.version != version):
                self.under_way[sender] = MoveUnderWay(version=version)
                self._begin(sender, first_path + sender, h.moves[h.senders[sender].first])

    def _begin(self, sender: int, path: int, move: Any) -> None:
        routes, under_way = self.routes, self.under_way[sender]
        pair = routes.devices[sender], routes.to_devices[move.receiver]
        payload_bytes = float(routes.token_bytes[move.shard, 1 + move.layer] * move.tokens)
        duration = to_ns(self.comm.seconds(self.comm.number("send", pair), payload_bytes))
        done = partial(self._ended, sender, path)
        if pair in self.alone:
            at(self.env, duration, COMPLETION, done, under_way)
            return
        plan, weak = self.comm.chosen("send", pair, payload_bytes), self.network.weak
        if weak is not None:
            plan, duration = weak.slowdown(now_ns(self.env)).communication(plan, payload_bytes, duration)
        self.network.begin(plan, payload_bytes, duration, done, under_way, foreign=True, owner=under_way)

    def _ended(self, sender: int, path: int, under_way: MoveUnderWay) -> None:
        if not under_way.dead:
            del self.under_way[sender]
            self.tell(path, under_way.version)

    def drop(self) -> None:
        """Forget the moves of replicas that have failed, which the core has dropped."""
        n, h = self.lists()
        first_path = h.hand_overs[0].first_path
        for sender, one in [*self.under_way.items()]:
            if n.paths[first_path + sender].version != one.version:
                one.dead = True
                self.network.drop(one)
                del self.under_way[sender]
