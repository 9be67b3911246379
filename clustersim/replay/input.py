"""What a replay is a function of, and what it brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from clustersim.clock import Int64Array
from clustersim.cluster.fault import Fault
from clustersim.cluster.topology import Topology
from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import Blueprint
from clustersim.graph.prices.pricer import Pricer
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.reshard import Shard
from clustersim.replay.events.swaps import HostPool
from clustersim.replay.links.contention import Contention
from clustersim.serving.config import ServingConfig
from clustersim.timeline.timeline import Timeline
from clustersim.workload.requests import Requests

Mode = Literal["full", "folded"]
Progress = Callable[[int, int, int], None]
"""(now in ns, requests accounted for, requests)"""

UNREACHED: Final = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolInput:
    """Replicas that are alike.

    Parameters
    ----------
    plan : ParallelPlan
    blueprints : dict
        Kind of step, or its halves' → its blueprint.
    pricer : Pricer
    serving : ServingConfig
    kv_blocks : int
        Blocks of each owner's pool.
    host : HostPool or None
        Host memory that sequences are swapped to; None: a preempted one is computed anew.
    """

    plan: ParallelPlan
    blueprints: dict[str, Blueprint]
    pricer: Pricer
    serving: ServingConfig
    kv_blocks: int
    host: HostPool | None = None

    @property
    def owners(self) -> int:
        """SP coordinates that keep sequences, each with a pool of its own."""
        return self.plan.sp.degree if self.plan.sp.decode == "dp" else 1

    @property
    def replica_blocks(self) -> int:
        """K/V blocks of a replica."""
        return self.kv_blocks * self.owners


@dataclass(frozen=True, kw_only=True, eq=False)
class HandOver:
    """Where requests go once their prompts are computed.

    Parameters
    ----------
    pool : PoolInput
        The replicas that decode; those of the replay's own plan prefill.
    shards : tuple of Shard
        What goes from which rank of a replica of one to which of the other.
    layerwise : bool
        Whether the K/V of a layer leaves when the last step of its prompt has passed that layer; else all of it when
        that step has ended.
    """

    pool: PoolInput
    shards: tuple[Shard, ...]
    layerwise: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayInput:
    """Everything that a replay is a function of.

    Parameters
    ----------
    topology : Topology
    plan : ParallelPlan
    blueprints : dict
        Kind of step, or its halves' → its blueprint.
    pricer : Pricer
    comm : CommTable
        The one that the pricer prices with.
    serving : ServingConfig
    kv_blocks : int
        Blocks of each owner's pool.
    requests : Requests
    mode : str
        ``full`` or ``folded``.
    horizon_ns : int or None
        Nothing after this instant is simulated.
    seed : int
        Of the scenario.
    hand_over : HandOver or None
        Where requests are handed over to once their prompts are computed; None: nowhere.
    faults : tuple of Fault
        What fails or gets slower when.
    """

    topology: Topology
    plan: ParallelPlan
    blueprints: dict[str, Blueprint]
    pricer: Pricer
    comm: CommTable
    serving: ServingConfig
    kv_blocks: int
    requests: Requests
    mode: Mode = "folded"
    horizon_ns: int | None = None
    seed: int = 0
    hand_over: HandOver | None = None
    faults: tuple[Fault, ...] = ()
    host: HostPool | None = None

    @property
    def pools(self) -> tuple[PoolInput, ...]:
        """All replicas, those first at which requests arrive."""
        own = PoolInput(
            plan=self.plan,
            blueprints=self.blueprints,
            pricer=self.pricer,
            serving=self.serving,
            kv_blocks=self.kv_blocks,
            host=self.host,
        )
        return (own,) if self.hand_over is None else (own, self.hand_over.pool)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayResult:
    """What a replay brought.

    Parameters
    ----------
    timeline : Timeline
    replica : int64 array of shape (requests,)
        Where each request went; −1 for those that did not arrive.
    reasons : dict
        Request → why it was rejected, given up or lost.
    arrived_ns : int64 array of shape (requests,)
        −1 for those that did not arrive before the horizon.
    preemptions : int64 array of shape (requests,)
    contention : Contention
    obstacle : str
        Why the replicas could not be replayed as lanes (``replay.lanes.run``); empty where they were.
    processes : int
        How many processes took part.
    undivided : str
        Why there were not more; empty where there was one per replica.
    """

    timeline: Timeline
    replica: Int64Array
    reasons: dict[int, str]
    arrived_ns: Int64Array
    preemptions: Int64Array
    contention: Contention
    obstacle: str
    processes: int = 1
    undivided: str = "the events of all replicas are in one queue"
