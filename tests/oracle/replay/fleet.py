"""The replicas of all pools: each with its scheduler and its pipeline, as it is at the start and after a failure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from clustersim.plan.mesh import Mesh
from clustersim.replay.events.pipeline import Pipeline
from clustersim.replay.events.swaps import Swaps
from clustersim.replay.events.wiring import MicroBatch, Shapes, StageWiring, wirings_of
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.prepared import Prepared, PreparedPool
from tests.oracle.events.lockstep import Lockstep, Member
from tests.oracle.events.replica import Replica
from tests.oracle.replay.replica import ClockReplica
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.make import make_pool, make_scheduler
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence

if TYPE_CHECKING:
    from simpy import Environment

OnDone = Callable[[int, tuple[Sequence, ...]], None]
"""Called with (replica, sequences that ended)."""


class Fleet:
    """Makes replicas, and lets them fail.

    Parameters
    ----------
    env, network : Environment, Network
    prepared : Prepared
    on_done : callable
    wake : callable
        Asks for a scheduling decision of a replica at this instant.

    Attributes
    ----------
    replicas : list of ClockReplica
        Of all pools, by their numbers.
    """

    def __init__(
        self,
        env: Environment,
        network: Network,
        prepared: Prepared,
        on_done: OnDone,
        wake: Callable[[int], None],
    ) -> None:
        self.env = env
        self.network = network
        self.prepared = prepared
        self.on_done = on_done
        self.wake = wake
        self.schedulers = [self.new_scheduler(replica) for replica in prepared.replicas]
        self.replicas: list[ClockReplica] = []
        self.wirings: dict[int, list[StageWiring]] = {}
        for pool in prepared.pools:
            shapes: Shapes = {}
            if pool.input.plan.is_lockstep:
                self.replicas += self._lockstep(pool, shapes).members
                continue
            for index in pool.replicas:
                self.wirings[index] = wirings_of(self.prepared, pool, index, shapes)
                self.replicas.append(self._replica(index, pool))

    def restart(self, replica: ClockReplica) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Let a replica fail, and give it a scheduler and a pipeline for when it is back; see :meth:`Replica.fail`."""
        return replica.fail(self.new_scheduler(replica.index))

    def new_scheduler(self, index: int) -> Scheduler:
        """Return a scheduler with nothing in it, as a replica has it at the start and when it comes back."""
        inputs = self.prepared.pool_of(index).input
        plan, owners, host = inputs.plan, inputs.owners, inputs.host
        tokens = inputs.serving.kv_block_tokens
        return make_scheduler(
            inputs.serving,
            make_pool(inputs.serving, blocks=inputs.kv_blocks, owners=owners),
            stages=plan.pp,
            decode_overlap=plan.decode_overlap == "per_sequence",
            host=None if host is None else BlockPool(blocks=host.blocks, block_tokens=tokens, owners=owners),
        )

    def _replica(self, index: int, pool: PreparedPool) -> Replica:
        replica = Replica(
            self.env,
            index,
            self.schedulers[index],
            pool.input.pricer,
            self.prepared.recorder,
            pool.numbers,
            jumps=pool.input.plan.pp == 1 and not self.wirings[index][0].as_events,
            on_done=self.on_done,
            wake=self.wake,
            experts=pool.input.plan.ep,
        )
        replica.equip = partial(self._equip, replica)
        replica.equip()
        return replica

    def _equip(self, replica: Replica) -> None:
        """Give a replica a pipeline, and a way to its host."""
        replica.swaps = self._swaps(replica)
        replica.attach(self._pipeline(replica))

    def _lockstep(self, pool: PreparedPool, shapes: Shapes) -> Lockstep:
        """Return all replicas of a pool as one: those that share their experts."""
        prepared = self.prepared
        first = pool.first_replica
        (wiring,) = self.wirings[first] = wirings_of(prepared, pool, first, shapes)

        def member(index: int) -> Member:
            return Member(
                self.env, index, self.schedulers[index], pool.input.pricer, prepared.recorder, pool.numbers,
                jumps=False, on_done=self.on_done, wake=self.wake, experts=pool.input.plan.ep,
            )  # fmt: skip

        together = Lockstep([member(index) for index in pool.replicas], jumps=not wiring.as_events)
        for one in together.members:
            one.equip = partial(self._equip_member, one)
            one.equip()
        return together

    def _equip_member(self, member: Member) -> None:
        """Give a replica in lockstep a way to its host; the first one brings the pipeline of all."""
        member.swaps = self._swaps(member)
        if member is member.group.members[0]:
            member.group.attach(self._pipeline(member, member.group.step_ended))

    def _swaps(self, replica: Replica) -> Swaps | None:
        inputs, found = self.prepared.input, self.prepared.pool_of(replica.index)
        pool = found.input
        if pool.host is None:
            return None
        mesh = Mesh(plan=pool.plan)  # where each replica is, also one of a group that takes its steps together
        number = replica.index - found.first_replica
        return Swaps(
            self.env, self.network, self.prepared.recorder, inputs.topology, pool.host, replica.index,
            [mesh.stage_devices(number, stage) for stage in range(pool.plan.pp)], pool.plan.tp,
            on_end=replica.end_swaps,
        )  # fmt: skip

    def _pipeline(self, replica: Replica, on_step: Callable[[MicroBatch], None] | None = None) -> Pipeline:
        return Pipeline(
            self.env, self.network, self.prepared.input.comm, replica.index, self.wirings[replica.index],
            on_free=lambda: self.wake(replica.index), on_step=on_step or replica.step_ended,
            slowdowns=self.prepared.slowdowns(replica.index),
        )  # fmt: skip
