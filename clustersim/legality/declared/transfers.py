"""What one rank takes to send bytes to another one, or to its host: worked out from the route between them.

    alone = base + overhead of a step + Σ latency + T + ramp × T / (T + half),     T = bytes / (efficiency × capacity)

with the least capacity on the route and the constants of ``send`` of the kind of device that sends. A transfer never
takes less, and takes longer only where something else may be on a link of its route at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.collective.constants import family
from clustersim.legality.declared.setting import Pool, Setting, ranks
from clustersim.legality.declared.slowness import Window, windows
from clustersim.timeline.tables import HOST

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
COLLECTIVES, SEND, HAND_OVER, SWAP = range(4)
"""What may be on a link: the collectives of a stage, or from rank to rank its output, or K/V, also of a host."""
NOTHING_ELSE, MOVES, ANYTHING = range(3)
Pair = tuple[int, int]
"""Global ranks that something goes from and to; ``HOST`` for the host of the other one."""
User = tuple[int, int, int]
"""What kind of communication it is, and between which ranks; of collectives, of which replica and stage."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ways:
    """Transfers between pairs of ranks, a position in each array per pair.

    Parameters
    ----------
    fixed_s, ramp_s, half_s, byte_s : float arrays of shape (pairs,)
        What no byte takes, with the engine's launch where it has one; the ramp; and what a byte takes.
    meets : callable
        Position → what else may be on a link of the route at the same time: ``NOTHING_ELSE``, ``MOVES`` of K/V, or
        ``ANYTHING``.
    weak : tuple of (int, int, float array)
        Between two instants, what a byte takes over links as they are then.
    """

    fixed_s: FloatArray
    ramp_s: FloatArray
    half_s: FloatArray
    byte_s: FloatArray
    meets: Callable[[int], int]
    weak: tuple[Window, ...] = ()

    def ns(self, pair: Int64Array, carried: Int64Array, byte_s: FloatArray | None = None) -> FloatArray:
        """Return what transfers of so many bytes take alone, ns, not rounded."""
        taken = carried * (self.byte_s if byte_s is None else byte_s)[pair]
        found: FloatArray = self.fixed_s[pair] + taken + self.ramp_s[pair] * (taken / (taken + self.half_s[pair]))
        return found * NS_PER_S

    def bounds(
        self, pair: Int64Array, carried: Int64Array, times: tuple[Int64Array, ...], apart: BoolArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return what transfers take at least and at most, ns, not rounded.

        Parameters
        ----------
        pair, carried : int64 arrays
        times : tuple of int64 arrays
            When it was settled how weak the links are for each, and its start and end; where it shares links, these
            count as they are.
        apart : bool array, optional
            Which are under way when no other move of K/V is.
        """
        told, start, end = times
        alone = self.ns(pair, carried)
        least, weaker = alone.copy(), np.zeros(len(pair), bool)
        for since, until, byte_s in self.weak:
            strained = (told >= since) & (told < until)
            longer = np.maximum(alone, self.ns(pair, carried, byte_s))
            alone = np.where(strained, longer, alone)
            least = np.where(strained & (end <= until), longer, least)
            weaker |= strained & (end > until)
        shared = np.zeros(len(pair), bool)
        asked = np.flatnonzero(weaker | (end - start > alone))  # of others it makes no difference
        shared[asked] = self._shares(pair[asked], np.zeros(len(asked), bool) if apart is None else apart[asked])
        return np.where(weaker & ~shared, alone, least), np.where(shared, np.inf, alone)

    def _shares(self, pair: Int64Array, apart: BoolArray) -> BoolArray:
        """Return which transfers may meet anything on their routes."""
        distinct, of = np.unique(pair, return_inverse=True)
        meets = np.array([self.meets(one) for one in distinct.tolist()], np.int64)[of.reshape(-1)]
        found: BoolArray = (meets > NOTHING_ELSE) & ~(apart & (meets == MOVES))
        return found


class Carriage:
    """What a scenario declares of transfers from rank to rank.

    Parameters
    ----------
    setting : Setting
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._alone: dict[tuple[int, int], bool] = {}

    def pool_of(self, rank: int) -> Pool:
        """Return the pool of a global rank."""
        return next(pool for pool in reversed(self.setting.pools) if rank >= pool.first_rank)

    def device(self, rank: int) -> int:
        """Return the device of a global rank."""
        return self.pool_of(rank).device_of(rank)

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from a rank to another one, or to or from its host."""
        topology = self.setting.topology
        if HOST not in (source, target):
            return topology.route(self.device(source), self.device(target))
        hosts = topology.hosts
        assert hosts is not None
        return hosts.host_path(self.device(max(source, target)), out=target == HOST)

    def ways(self, kind: int, pairs: Iterable[Pair], launch_s: float = 0.0) -> Ways:
        """Return what transfers of a kind between pairs of ranks take, after ``launch_s`` of the engine."""
        listed = list(pairs)
        routes = [self.route(*pair) for pair in listed]
        told = [self._constants(pair, route) for pair, route in zip(listed, routes, strict=True)]
        fixed_s, ramp_s, half_s, efficiency = np.array(told, np.float64).reshape(-1, 4).T

        def byte_s(capacity: FloatArray) -> FloatArray:
            narrowest = [float(capacity[list(route)].min(initial=np.inf)) for route in routes]
            return 1.0 / (efficiency * np.array(narrowest, np.float64))

        return Ways(
            fixed_s=fixed_s + launch_s,
            ramp_s=ramp_s,
            half_s=half_s,
            byte_s=byte_s(self.setting.topology.link_capacity),
            meets=lambda at: self._meets((kind, *listed[at]), routes[at]),
            weak=tuple((since, until, byte_s(left)) for since, until, left in windows(self.setting)),
        )

    def sends(self, first_rank: int) -> Ways:
        """Return what the sends of each rank of a pool take to the next stage, those of the last one to nowhere."""
        pool = self.pool_of(first_rank)
        plan = pool.plan
        last = plan.pp - 1
        pairs = [
            (rank, rank + plan.stage_ranks * (rank // plan.stage_ranks % plan.pp < last)) for rank in range(plan.world)
        ]
        return self.ways(SEND, ((first_rank + one, first_rank + other) for one, other in pairs), pool.launch_s)

    @cached_property
    def ranks(self) -> int:
        """How many ranks there are."""
        return sum(pool.plan.world for pool in self.setting.pools)

    def alone(self, replica: int, stage: int) -> bool:
        """Return whether nothing may be on a link of a stage's collectives with one of them, not even another one."""
        if not any(replica in pool.replicas and stage < pool.plan.pp for pool in self.setting.pools):
            return False
        if (replica, stage) not in self._alone:
            setting, who = self.setting, (COLLECTIVES, replica, stage)
            pool = next(one for one in reversed(setting.pools) if replica >= one.first_replica)
            links: dict[tuple[int, ...], frozenset[int]] = {}
            for op, devices in setting.collectives_of(pool, replica, stage):
                links[devices] = links.get(devices, frozenset()) | setting.links(op, devices)
            own = any(
                set(one).isdisjoint(other) and not links[one].isdisjoint(links[other])
                for one, other in combinations(links, 2)
            )
            met = any(self._users[link] - {who} for each in links.values() for link in each)
            self._alone[replica, stage] = not own and not met
        return self._alone[replica, stage]

    def _constants(self, pair: Pair, route: tuple[int, ...]) -> tuple[float, float, float, float]:
        """Return what no byte takes, the ramp, and the efficiency."""
        topology = self.setting.topology
        source, target = (None if rank == HOST else self.device(rank) for rank in pair)
        here = source if source is not None else target
        assert here is not None
        sends = family(topology.seen_from(here).device, "send")
        near = source is None or target is None or topology.node_of[source] == topology.node_of[target]
        step_s, efficiency = (
            (sends.step_s, sends.efficiency) if near else (sends.network_step_s, sends.network_efficiency)
        )
        latency_s = float(topology.link_latency_s[list(route)].sum())
        return sends.base_s + step_s + latency_s, sends.ramp_s, sends.ramp_half_s, efficiency

    def _meets(self, who: User, route: tuple[int, ...]) -> int:
        """Return what may be under way together with a transfer on a link of its route."""
        others = (other[0] for link in route for other in self._users.get(link, ()) if not _in_turn(who, other))
        return max((MOVES if kind in (HAND_OVER, SWAP) else ANYTHING for kind in others), default=NOTHING_ELSE)

    @cached_property
    def _users(self) -> dict[int, set[User]]:
        """Link → what may be on it."""
        found: dict[int, set[User]] = {}
        for who, links in self._uses():
            for link in links:
                found.setdefault(link, set()).add(who)
        return found

    def _uses(self) -> Iterator[tuple[User, Iterable[int]]]:
        """Yield who may be on which links."""
        setting = self.setting
        for pool in setting.pools:
            plan = pool.plan
            for replica in pool.replicas:
                for stage in range(plan.pp):
                    links = [setting.links(op, devices) for op, devices in setting.collectives_of(pool, replica, stage)]
                    if replica == pool.first_replica or not plan.is_lockstep:  # whose passes are those of all
                        yield (COLLECTIVES, replica, stage), frozenset().union(*links)
                    first = pool.rank(replica, stage)
                    for rank in range(first, first + plan.stage_ranks):
                        if stage + 1 < plan.pp:
                            yield (SEND, rank, rank + plan.stage_ranks), self.route(rank, rank + plan.stage_ranks)
                        for pair in ((rank, HOST), (HOST, rank)) if pool.swaps else ():
                            yield (SWAP, *pair), self.route(*pair)
        for pair in self._hand_overs():
            yield (HAND_OVER, *pair), self.route(*pair)

    def _hand_overs(self) -> Iterator[Pair]:
        """Yield the ranks between which K/V may be handed over."""
        if len(self.setting.pools) < 2:
            return
        source, target = self.setting.pools
        for shard in self.setting.shards:
            reached = ranks(target, *shard.target)
            for rank in ranks(source, *shard.source):
                yield from ((rank, end) for end in reached)


def _in_turn(who: User, other: User) -> bool:
    """Return whether of two transfers one waits for the other: a rank hands over, and receives, one at a time."""
    if who == other:
        return True
    return who[0] == other[0] == HAND_OVER and (who[1] == other[1] or who[2] == other[2])
