"""What both replays prepare alike before anything happens: programs, their templates, and what can meet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cluster.fault import Fault
from clustersim.collective.communications import CommTable
from clustersim.graph.prices.steps import StepPrices, step_prices
from clustersim.plan.mesh import Mesh
from clustersim.replay.input import PoolInput, ReplayInput
from clustersim.replay.links.contention import StageLinks, find_contention
from clustersim.replay.links.host_copies import copies_ns
from clustersim.replay.outages import Outage, links_of_stage, outages
from clustersim.replay.programs import programs_of
from clustersim.replay.slowdown import Slowdowns
from clustersim.serving.capacity import ReplicaCapacity
from clustersim.serving.prefix_keys import PrefixKeys
from clustersim.timeline.layout import Layout, PoolShape
from clustersim.timeline.record import Recorder


class PreparedPool:
    """The programs of replicas that are alike, and the numbers of their templates.

    Parameters
    ----------
    inputs : PoolInput
    comm : CommTable
    first_replica, first_rank, first_template : int
        How many there are in the pools before.
    """

    def __init__(
        self, inputs: PoolInput, comm: CommTable, first_replica: int = 0, first_rank: int = 0, first_template: int = 0
    ) -> None:
        self.input = inputs
        self.first_replica = first_replica
        self.first_rank = first_rank
        self.mesh = Mesh(plan=inputs.plan.lockstep)
        compiled = programs_of(inputs, comm)
        self.programs = {(first_replica + replica, stage): kinds for (replica, stage), kinds in compiled.items()}
        """(replica, stage) → kind of step, or its halves' → program."""
        self.distinct = {p.key: p for kinds in compiled.values() for p in kinds.values()}
        self.numbers = {key: first_template + number for number, key in enumerate(self.distinct)}
        """``StageProgram.key`` → number of its template."""

    def prices_of(self, replica: int) -> list[StepPrices]:
        """Return the prices of each stage, the same object for replicas that are placed alike."""
        stages = range(self.input.plan.pp)
        return [step_prices(self.input.pricer, self.programs[replica, stage]) for stage in stages]

    @property
    def replicas(self) -> range:
        """Numbers of its replicas."""
        return range(self.first_replica, self.first_replica + self.input.plan.dp)

    @property
    def meshes(self) -> range:
        """Numbers of its replicas that run by themselves: those in lockstep are one, with the number of the first."""
        return self.replicas[:1] if self.input.plan.is_lockstep else self.replicas

    @property
    def together(self) -> int:
        """How many of its replicas take their steps together."""
        return len(self.replicas) if self.input.plan.is_lockstep else 1

    def is_even(self, replica: int, stage: int) -> bool:
        """Whether ranks of one group do the same work on a stage."""
        return all(program.even for program in self.programs[replica, stage].values())

    def stage_devices(self, replica: int, stage: int) -> tuple[int, ...]:
        """Return the devices of a stage's ranks, in rank order; none behind the last stage."""
        return self.mesh.stage_devices(replica - self.first_replica, stage) if stage < self.input.plan.pp else ()

    def ranks_of(self, replica: int, stage: int, t: int) -> tuple[tuple[int, int], ...]:
        """Return (global rank, device) of a TP rank of every SP coordinate of a stage."""
        plan, together = self.input.plan, self.input.plan.is_lockstep
        devices = self.stage_devices(self.first_replica if together else replica, stage)
        base = self.mesh.stage_base(0 if together else replica - self.first_replica, stage)
        first = (replica - self.first_replica) * plan.tp if together else 0  # its own, of those of the group
        own = range(first + t, first + plan.stage_ranks, plan.tp)
        return tuple((self.first_rank + base + local, devices[local]) for local in own)

    @property
    def shape(self) -> PoolShape:
        """Which ranks its replicas have."""
        plan = self.input.plan
        return PoolShape(
            sp=plan.sp.degree,
            tp=plan.tp,
            stages=plan.pp,
            first_replica=self.first_replica,
            first_rank=self.first_rank,
            lockstep=plan.dp if plan.is_lockstep else 1,
        )

    @property
    def capacity(self) -> ReplicaCapacity:
        """What each of its replicas holds."""
        inputs, plan = self.input, self.input.plan
        return ReplicaCapacity(
            config=inputs.serving, blocks=inputs.kv_blocks, owners=inputs.owners, stages=plan.pp,
            decode_overlap=plan.decode_overlap == "per_sequence",
        )  # fmt: skip


class Prepared:
    """Programs, their templates and what can meet, before anything happens.

    Parameters
    ----------
    inputs : ReplayInput
    """

    def __init__(self, inputs: ReplayInput) -> None:
        self.input = inputs
        self.pools: list[PreparedPool] = []
        replicas = ranks = templates = 0
        for pool in inputs.pools:
            found = PreparedPool(pool, inputs.comm, replicas, ranks, templates)
            self.pools.append(found)
            replicas, ranks = replicas + pool.plan.dp, ranks + pool.plan.world
            templates += len(found.distinct)
        stages = {
            at: StageLinks(
                programs=tuple(kinds.values()),
                devices=pool.stage_devices(*at),
                after=pool.stage_devices(at[0], at[1] + 1),
            )
            for pool in self.pools
            for at, kinds in pool.programs.items()
        }
        hosts = None if all(pool.host is None for pool in inputs.pools) else inputs.topology.hosts
        self.contention = find_contention(stages, inputs.comm, self.hand_over_pairs(), hosts)
        shown = [program.template for pool in self.pools for program in pool.distinct.values()]
        self.recorder = Recorder(shown, slots=lambda replica: self.pool_of(replica).input.plan.pp)
        self.layout = Layout(pools=tuple(pool.shape for pool in self.pools))

    def pool_of(self, replica: int) -> PreparedPool:
        """Return the pool of a replica."""
        return next(pool for pool in reversed(self.pools) if replica >= pool.first_replica)

    def hand_over_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the devices between which K/V may move."""
        for shard in self.input.shards:
            source, target = self.pools
            (stage, t), (to_stage, to_t) = shard.source, shard.target
            for replica in source.replicas:
                for _, device in source.ranks_of(replica, stage, t):
                    for other in target.replicas:
                        for _, end in target.ranks_of(other, to_stage, to_t):
                            yield device, end

    @property
    def links_on_the_way(self) -> frozenset[int]:
        """Links that K/V may use from replica to replica, or to and from a host."""
        found = [self.input.comm.links("send", pair) for pair in dict.fromkeys(self.hand_over_pairs())]
        for pool in self.pools:
            devices = [device for replica in pool.meshes for device in self._devices_of(replica)]
            found += self._host_paths(pool, devices)
        return frozenset().union(*found)

    def _devices_of(self, replica: int) -> list[int]:
        pool = self.pool_of(replica)
        stages = range(pool.input.plan.pp)
        return list(dict.fromkeys(device for stage in stages for device in pool.stage_devices(replica, stage)))

    def _host_paths(self, pool: PreparedPool, devices: Iterable[int]) -> list[frozenset[int]]:
        hosts = self.input.topology.hosts
        if pool.input.host is None or hosts is None:
            return []
        return [frozenset(hosts.host_path(device, out=out)) for device in devices for out in (True, False)]

    @property
    def replicas(self) -> range:
        """Numbers of the replicas of all pools."""
        return range(self.pools[-1].replicas.stop)

    @cached_property
    def prefix_keys(self) -> PrefixKeys | None:
        """What says which blocks of prompts are equal; None where nobody asks."""
        inputs = self.input
        if not inputs.entry.serving.prefix_caching or inputs.requests.prefix_hashes is None:
            return None
        return PrefixKeys(inputs.requests, inputs.entry.serving.kv_block_tokens)

    @cached_property
    def copies_of_stages(self) -> list[tuple[Int64Array, ...] | None]:
        """What copies in from hosts and out there take on each stage of each pool, by blocks.

        None where nobody copies, where others change that, or where it differs between ranks.
        """
        return [self._copies_of_stages(pool) for pool in self.pools]

    def _copies_of_stages(self, pool: PreparedPool) -> tuple[Int64Array, ...] | None:
        if pool.input.host is None or self.contention.copies_meet:
            return None
        found = []
        for stage, block_bytes in enumerate(pool.input.host.block_bytes):
            devices = [device for replica in pool.meshes for device in pool.stage_devices(replica, stage)]
            payloads = np.arange(pool.input.kv_blocks + 1) * block_bytes
            found.append(copies_ns(self.input.topology, devices, payloads))
        return tuple(one for one in found if one is not None) if all(one is not None for one in found) else None

    @cached_property
    def outages(self) -> tuple[Outage, ...]:
        """When which replicas are down: all that share experts together."""
        found: list[Outage] = []
        for pool in self.pools:
            mine = outages(self.input.faults, pool.mesh, self.links_of, pool.first_replica)
            if pool.input.plan.is_lockstep:
                mine = tuple(replace(one, replica=replica) for replica in pool.replicas for one in mine)
            found += mine
        return tuple(found)

    @cached_property
    def slowing(self) -> tuple[Fault, ...]:
        """Faults that slow something down, which works all the same."""
        return tuple(fault for fault in self.input.faults if not fault.fails)

    def slowdowns(self, replica: int) -> Slowdowns | None:
        """Return what slows a replica down; None when nothing ever does."""
        if not self.slowing:
            return None
        pool = self.pool_of(replica)
        stages = range(pool.input.plan.pp)
        return Slowdowns(
            self.slowing,
            [pool.stage_devices(replica, stage) for stage in stages],
            [self.links_of_stage(replica, stage) for stage in stages],
            self.input.topology.link_capacity,
        )

    def links_of(self, replica: int) -> frozenset[int]:
        """Return every link that the communications of a replica, its hand-overs or its copies to a host may use."""
        pool = self.pool_of(replica)
        devices = self._devices_of(replica)
        found = [self.links_of_stage(replica, stage) for stage in range(pool.input.plan.pp)]
        found += [
            self.input.comm.links("send", pair) for pair in self.hand_over_pairs() if not set(devices).isdisjoint(pair)
        ]
        found += self._host_paths(pool, devices)
        return frozenset().union(*found)

    def links_of_stage(self, replica: int, stage: int) -> frozenset[int]:
        """Return every link that a stage's collectives, or its sends, may use."""
        pool = self.pool_of(replica)
        programs = list(pool.programs[replica, stage].values())
        return links_of_stage(pool.mesh, programs, self.input.comm, replica - pool.first_replica, stage)
