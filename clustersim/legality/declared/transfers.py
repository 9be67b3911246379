"""What one rank takes to send bytes to another one, or to its host: worked out from the route between them.

    alone = base + overhead of a step + Σ latency + T + ramp × T / (T + half),     T = bytes / (efficiency × capacity)

with the least capacity on the route and the constants of ``send`` of the kind of device that sends. A transfer never
takes less, and takes longer only where something else may be on a link of its route at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.collective.constants import family
from clustersim.legality.declared.setting import Pool, Setting
from clustersim.legality.declared.slowness import Window, windows
from clustersim.legality.declared.users import MOVES, NOTHING_ELSE, SEND, Pair, Users
from clustersim.legality.prices.links import Loads
from clustersim.timeline.tables import HOST
from clustersim.values import dataclass

AT_A_TIME: Final = 1 << 15
"""Transfers that are looked at together: what they take stays near the processor."""
BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Constants(NamedTuple):
    """What no byte of a transfer takes, its ramp, and the share of the narrowest link that its bytes get."""

    fixed_s: float
    ramp_s: float
    half_s: float
    efficiency: float


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
    loads : callable
        Position → bytes that a byte takes of the capacity of each link of the route.
    weak : tuple of (int, int, float array)
        Between two instants, what a byte takes over links as they are then.
    """

    fixed_s: FloatArray
    ramp_s: FloatArray
    half_s: FloatArray
    byte_s: FloatArray
    meets: Callable[[int], int]
    loads: Callable[[int], Loads]
    weak: tuple[Window, ...] = ()

    def ns(self, pair: Int64Array, carried: Int64Array, byte_s: FloatArray | None = None) -> FloatArray:
        """Return what transfers of so many bytes take alone, ns, not rounded."""
        found = np.empty(len(pair))
        for first in range(0, len(pair), AT_A_TIME):
            some = slice(first, first + AT_A_TIME)
            taken = carried[some] * (self.byte_s if byte_s is None else byte_s)[pair[some]]
            found[some] = self.silent_ns(pair[some], taken) + taken * NS_PER_S
        return found

    def silent_ns(self, pair: Int64Array, taken: FloatArray) -> FloatArray:
        """Return what transfers whose bytes take so many seconds take before one of these is on a link, ns."""
        found: FloatArray = self.fixed_s[pair] + self.ramp_s[pair] * (taken / (taken + self.half_s[pair]))
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
        least, weaker = alone, np.zeros(len(pair), bool)
        for since, until, byte_s in self.weak:
            slowed = (told >= since) & (told < until)
            longer = np.maximum(alone, self.ns(pair, carried, byte_s))
            alone = np.where(slowed, longer, alone)
            least = np.where(slowed & (end <= until), longer, least)
            weaker |= slowed & (end > until)
        asked = np.flatnonzero(weaker | (end - start > alone))  # of others it makes no difference
        found = self.may_share(pair[asked], None if apart is None else apart[asked])
        if not (found.any() or weaker.any()):
            return least, alone
        shared = np.zeros(len(pair), bool)
        shared[asked] = found
        return np.where(weaker & ~shared, alone, least), np.where(shared, np.inf, alone)

    def may_share(self, pair: Int64Array, apart: BoolArray | None = None) -> BoolArray:
        """Return which transfers may meet anything on their routes; parameters are those of :meth:`bounds`."""
        distinct, of = np.unique(pair, return_inverse=True)
        meets = np.array([self.meets(one) for one in distinct.tolist()], np.int64)[of.reshape(-1)]
        found: BoolArray = (meets > NOTHING_ELSE) & ~((False if apart is None else apart) & (meets == MOVES))
        return found


class Carriage:
    """What a scenario declares of transfers from rank to rank.

    Parameters
    ----------
    setting : Setting
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.users = Users(setting, self.route)

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
            meets=lambda at: self.users.meets((kind, *listed[at]), routes[at]),
            loads=lambda at: dict.fromkeys(routes[at], 1.0 / float(efficiency[at])),
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
        return self.ways(SEND, ((first_rank + one, first_rank + other) for one, other in pairs), pool.send_launch_s)

    @cached_property
    def ranks(self) -> int:
        """How many ranks there are."""
        return sum(pool.plan.world for pool in self.setting.pools)

    def alone(self, replica: int, stage: int) -> bool:
        """Return whether nothing may be on a link of a stage's collectives with one of them, not even another one."""
        for pool in self.setting.pools:
            if replica in pool.replicas and stage < pool.plan.pp:
                return self.users.alone(pool.first_replica if pool.plan.is_lockstep else replica, stage)
        return False

    def _constants(self, pair: Pair, route: tuple[int, ...]) -> Constants:
        """Return what a transfer between two ranks takes beside its bytes, and how well it uses its route."""
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
        return Constants(sends.base_s + step_s + latency_s, sends.ramp_s, sends.ramp_half_s, efficiency)
