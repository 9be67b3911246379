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
class MoveFlight:
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
        self.in_flight: dict[int, MoveFlight] = {}

    def begin(self) -> None:
        """Begin what the core has started."""
        n, h = self.lists()
        streams, first_path = h.streams[0], h.hand_overs[0].first_path
        begun, streams.begun = [h.senders[at].begun for at in range(streams.begun)], 0
        for sender in begun:
            in_flight, version = self.in_flight.get(sender), n.paths[first_path + sender].version
            if h.senders[sender].is_sending and (in_flight is None or in_flight.version != version):
                self.in_flight[sender] = MoveFlight(version=version)
                self._begin(sender, first_path + sender, h.moves[h.senders[sender].first])

    def _begin(self, sender: int, path: int, move: Any) -> None:
        routes, in_flight = self.routes, self.in_flight[sender]
        pair = routes.devices[sender], routes.to_devices[move.receiver]
        payload_bytes = float(routes.token_bytes[move.shard, 1 + move.layer] * move.tokens)
        duration = to_ns(self.comm.seconds(self.comm.number("send", pair), payload_bytes))
        done = partial(self._ended, sender, path)
        if pair in self.alone:
            at(self.env, duration, COMPLETION, done, in_flight)
            return
        plan, weak = self.comm.chosen("send", pair, payload_bytes), self.network.weak
        if weak is not None:
            plan, duration = weak.slowdown(now_ns(self.env)).communication(plan, payload_bytes, duration)
        self.network.begin(plan, payload_bytes, duration, done, in_flight, foreign=True, owner=in_flight)

    def _ended(self, sender: int, path: int, in_flight: MoveFlight) -> None:
        if not in_flight.dead:
            del self.in_flight[sender]
            self.tell(path, in_flight.version)

    def drop(self) -> None:
        """Forget the moves of replicas that have failed, which the core has dropped."""
        n, h = self.lists()
        first_path = h.hand_overs[0].first_path
        for sender, one in [*self.in_flight.items()]:
            if n.paths[first_path + sender].version != one.version:
                one.dead = True
                self.network.drop(one)
                del self.in_flight[sender]
