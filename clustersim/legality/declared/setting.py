"""What a scenario declares of places: pools of replicas, the devices of their ranks, and the links between these.

Which collectives a stage takes part in is read off its step graphs, which level G judges; which links an algorithm of
a collective uses is a matter of ``collective``, and the way of a transfer one of the topology. A communication *may
use* every link of every algorithm that it may choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from clustersim.cluster.fault import Fault
from clustersim.cluster.topology import Topology
from clustersim.collective.algorithms import Kind, plan_collective
from clustersim.collective.price import CommPlan
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.reshard import Shard
from clustersim.values import dataclass

Groups = tuple[tuple[Kind, tuple[int, ...]], ...]
"""(operator, ranks within what takes a pass together) of every collective of a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas that are alike.

    Parameters
    ----------
    plan : ParallelPlan
    stages : callable
        Returns the collectives of each stage; of replicas that share experts those of all of them together.
    swaps : bool
        Whether sequences are copied to host memory and back.
    first_replica, first_rank : int
    launch_s : float
        The engine's own gap before each collective of a stage.
    send_launch_s : float
        The same before each send to the next stage, with what the host does there.
    token_bytes : float
        Hidden state of one token, as stages hand it on.
    """

    plan: ParallelPlan
    stages: Callable[[], tuple[Groups, ...]]
    swaps: bool = False
    first_replica: int = 0
    first_rank: int = 0
    launch_s: float = 0.0
    send_launch_s: float = 0.0
    token_bytes: float = 0.0

    @property
    def replicas(self) -> range:
        """Numbers of its replicas."""
        return range(self.first_replica, self.first_replica + self.plan.dp)

    def rank(self, replica: int, stage: int, local: int = 0) -> int:
        """Return the number of a rank of a stage among all."""
        plan = self.plan
        return self.first_rank + ((replica - self.first_replica) * plan.pp + stage) * plan.stage_ranks + local

    def device_of(self, rank: int) -> int:
        """Return the device of one of its ranks, by its number among all."""
        own, placement = rank - self.first_rank, self.plan.placement
        return own if placement is None else placement[own]

    def stage(self, replica: int, stage: int) -> tuple[int, ...]:
        """Return the devices of a stage of a replica, in order of its ranks; none behind the last one."""
        if stage >= self.plan.pp:
            return ()
        first = self.rank(replica, stage)
        return tuple(self.device_of(rank) for rank in range(first, first + self.plan.stage_ranks))

    def together(self, replica: int, stage: int) -> tuple[int, ...]:
        """Return the devices that take a pass together: those of all replicas where these share experts."""
        replicas = self.replicas if self.plan.is_lockstep else (replica,)
        return tuple(device for one in replicas for device in self.stage(one, stage))

    def devices(self, replica: int) -> frozenset[int]:
        """Return what a replica can't work without: its devices, and those of all that share experts with it."""
        return frozenset(device for stage in range(self.plan.pp) for device in self.together(replica, stage))

    def sends(self, replica: int, stage: int) -> tuple[tuple[int, int], ...]:
        """Return the devices between which each rank of a stage hands its output on."""
        return tuple(zip(self.together(replica, stage), self.together(replica, stage + 1), strict=False))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All pools of a scenario on its topology, and what breaks there.

    Parameters
    ----------
    topology : Topology
    pools : tuple of Pool
    collectives : mapping
        Operator → algorithm, where the scenario names one.
    faults : tuple of Fault
    shards : tuple of Shard
        What a prompt that was computed leaves by, where there are two pools: from which rank to which.
    """

    topology: Topology
    pools: tuple[Pool, ...]
    collectives: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    shards: tuple[Shard, ...] = ()
    _plans: dict[tuple[Kind, tuple[int, ...]], tuple[CommPlan, ...]] = field(default_factory=dict, repr=False)
    _groups: dict[int, tuple[Groups, ...]] = field(default_factory=dict, repr=False)

    def plans(self, op: Kind, devices: tuple[int, ...]) -> tuple[CommPlan, ...]:
        """Return every way in which a collective may run on some devices."""
        if (op, devices) not in self._plans:
            found = plan_collective(
                self.topology, op, devices, self.collectives.get(op, "auto") if isinstance(op, str) else "auto"
            )
            self._plans[op, devices] = found
        return self._plans[op, devices]

    def links(self, op: Kind, devices: tuple[int, ...]) -> frozenset[int]:
        """Return every link that a collective may use on some devices."""
        alike, higher = self.topology.in_first_copy(devices)
        return frozenset(link + higher for plan in self.plans(op, alike) for link in plan.links.tolist())

    def groups(self, pool: Pool) -> tuple[Groups, ...]:
        """Return the collectives of each stage of a pool, worked out when they are asked for."""
        if pool.first_replica not in self._groups:
            self._groups[pool.first_replica] = pool.stages()
        return self._groups[pool.first_replica]

    def collectives_of(self, pool: Pool, replica: int, stage: int) -> Iterator[tuple[Kind, tuple[int, ...]]]:
        """Yield operator and devices of every collective of a stage."""
        devices = pool.together(replica, stage)
        for op, members in self.groups(pool)[stage]:
            yield op, tuple(devices[member] for member in members)

    def hand_overs(self) -> Iterator[tuple[int, int]]:
        """Yield the devices between which K/V may be handed over."""
        if len(self.pools) < 2:
            return
        source, target = self.pools
        for shard in self.shards:
            reached = [target.device_of(rank) for rank in ranks(target, *shard.target)]
            for rank in ranks(source, *shard.source):
                yield from ((source.device_of(rank), device) for device in reached)

    def to_host(self, device: int) -> frozenset[int]:
        """Return the links between a device and its host, both ways."""
        hosts = self.topology.hosts
        assert hosts is not None
        return frozenset(link for out in (True, False) for link in hosts.host_path(device, out=out))

    def stage_links(self, pool: Pool, replica: int, stage: int) -> frozenset[int]:
        """Return every link that the collectives of a stage and its sends to the next one may use."""
        found = [self.links(op, devices) for op, devices in self.collectives_of(pool, replica, stage)]
        found += [frozenset(self.topology.route(*pair)) for pair in pool.sends(replica, stage)]
        return frozenset().union(*found)

    def replica_links(self, pool: Pool, replica: int) -> frozenset[int]:
        """Return every link that anything of a replica may use, hand-overs and copies to its host too."""
        found = [self.stage_links(pool, replica, stage) for stage in range(pool.plan.pp)]
        mine = pool.devices(replica)
        pairs = {(device, end) for device, end in self.hand_overs() if device in mine or end in mine}
        found += [frozenset(self.topology.route(*pair)) for pair in pairs]
        if pool.swaps:
            found += [self.to_host(device) for device in mine]
        return frozenset().union(*found)


def ranks(pool: Pool, stage: int, t: int) -> list[int]:
    """Return the global ranks that a TP rank of a stage is at every SP coordinate of every replica."""
    plan = pool.plan
    return [pool.rank(replica, stage, s * plan.tp + t) for replica in pool.replicas for s in range(plan.sp.degree)]
