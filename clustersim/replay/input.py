"""What a replay is a function of, and what it brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from clustersim.clock import Int64Array
from clustersim.cluster.fault import Fault
from clustersim.cluster.topology import Topology
from clustersim.collective.communications import CommTable
from clustersim.cost.engine import FirstToken
from clustersim.graph.blueprint import Blueprint
from clustersim.graph.prices.pricer import Pricer
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.reshard import Shard
from clustersim.replay.links.contention import Contention
from clustersim.serving.config import ServingConfig
from clustersim.serving.user_class import UserClass
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass
from clustersim.workload.requests import Requests

Mode = Literal["full", "folded"]
Progress = Callable[[int, int, int], None]
"""(now in ns, requests accounted for, requests)"""

SHARED_CLOCK: Final = "all replicas share one clock"
"""Why one process does it all where more than replicas of one pool happens."""
UNREACHED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPool:
    """Host memory for K/V.

    Parameters
    ----------
    blocks : int
        Blocks of each owner's pool.
    block_bytes : tuple of int
        Bytes of a block on a rank of each stage.
    """

    blocks: int
    block_bytes: tuple[int, ...]


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
        Blocks of each owner's K/V pool.
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
class ReplayInput:
    """Everything that a replay is a function of.

    Parameters
    ----------
    topology : Topology
    pools : tuple of PoolInput
        All replicas. Requests arrive at those of the first pool; where there is a second one, the first computes their
        prompts, and they go on there.
    comm : CommTable
        The one that the pricers price with.
    requests : Requests
    mode : str
        ``full`` or ``folded``.
    horizon_ns : int or None
        Nothing after this instant is simulated.
    seed : int
        Of the scenario.
    shards : tuple of Shard
        What goes from which rank of a replica of the first pool to which of one of the second; none where there is one.
    faults : tuple of Fault
        What fails or gets slower when.
    first_token : str
        Where a client's first token comes from, where there are two pools.
    behind_s : float
        Seconds of work, as expected, that this process had with runs before.
    """

    topology: Topology
    pools: tuple[PoolInput, ...]
    comm: CommTable
    requests: Requests
    mode: Mode = "folded"
    horizon_ns: int | None = None
    seed: int = 0
    shards: tuple[Shard, ...] = ()
    faults: tuple[Fault, ...] = ()
    first_token: FirstToken = "prefill"
    behind_s: float = 0.0

    @property
    def entry(self) -> PoolInput:
        """The pool at which requests arrive."""
        return self.pools[0]

    @property
    def of_replicas(self) -> ReplayInput:
        """What replicas are asked for: a token more, where nobody gets the one that the prefill pool samples."""
        if self.first_token != "decode":
            return self
        asked = self.requests.output_tokens
        return replace(
            self,
            requests=replace(self.requests, output_tokens=asked + (asked > 0)),
            pools=tuple(replace(one, serving=replace(one.serving, discarded_tokens=1)) for one in self.pools),
        )

    @property
    def decides(self) -> str:
        """Which key decides, besides lengths and loads, what the replicas do at which requests arrive; empty: none."""
        serving, cancels = self.entry.serving, self.requests.cancel_after_ns
        each = {
            f"serving.order: {serving.order.by}": serving.order.by != "arrival",
            f"serving.router: {serving.router}": serving.router not in ("round_robin", "least_outstanding"),
            "serving.prefix_caching": serving.prefix_caching,
            "serving.queue_limit": serving.queue_limit is not None,
            "serving.scheduler": isinstance(serving.scheduler, UserClass),
            "serving.queue_timeout": serving.queue_timeout_ns is not None,
            "workload.cancel_after": cancels is not None and bool((cancels >= 0).any()),
        }
        return next((key for key, decides in each.items() if decides), "")


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
        Why the core could not simulate the run by itself; empty where it did.
    processes : int
        How many processes took part.
    undivided : str
        Why there were not more; empty where there was one per replica.
    calls : int
        What its clock was told to do; 0 without one.
    """

    timeline: Timeline
    replica: Int64Array
    reasons: dict[int, str]
    arrived_ns: Int64Array
    preemptions: Int64Array
    contention: Contention
    obstacle: str
    processes: int = 1
    undivided: str = SHARED_CLOCK
    calls: int = 0
