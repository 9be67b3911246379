"""Which replicas can be lanes, decided by analysis before anything runs, and the lanes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Final

from clustersim.graph.prices.pricer import payload_bytes
from clustersim.graph.prices.steps import SplitPrices, StepPrices, step_prices
from clustersim.replay.lanes.lane import Lane
from clustersim.replay.lanes.log import LaneLog, StepLog
from clustersim.replay.lanes.pipelines.split_shared_lane import SplitSharedLane
from clustersim.replay.lanes.pipelines.split_shared_pipe import SplitSharedPipe
from clustersim.replay.lanes.pipelines.split_stage import SplitStage
from clustersim.replay.links.sharing_by_lanes import SharedFlows
from clustersim.replay.links.within_replica import SharedLinks, Users, find_shared_links, users_of
from clustersim.replay.prepared import Prepared, PreparedPool
from clustersim.serving.scheduler import Scheduler

CORE_DOES: Final = "no SP ranks send where their own collectives are"


class LaneBuilder:
    """Makes replicas of one run into lanes: those whose SP ranks send on links of their own.

    All others the core simulates. A lane needs passes and sends that nothing stretches, or that only stretch one
    another (``replay.links.within_replica``), passes of which ranks of one group do the same, and a token budget
    that every decoding sequence has its share of.

    Parameters
    ----------
    prepared : Prepared
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.of_pools = [self._of_pool(pool) for pool in prepared.pools]
        """Why no replica of a pool can be a lane."""
        self._shared: dict[int, SharedLinks] = {}

    @cached_property
    def obstacle(self) -> str:
        """Why not all replicas can be lanes; empty if they can."""
        pools = self.prepared.pools
        for name, pool in zip(("prefill", "decode"), pools, strict=False):
            found = next(filter(None, map(self.obstacle_of, pool.replicas)), "")
            if found:
                return f"in the {name} pool, {found}" if len(pools) > 1 else found
        return ""

    def obstacle_of(self, replica: int) -> str:
        """Return why a replica can't be a lane; empty if it can."""
        prepared = self.prepared
        found = self.of_pools[prepared.pools.index(prepared.pool_of(replica))]
        return found or next(filter(None, self._of_replica(replica)), "")

    def _of_pool(self, pool: PreparedPool) -> str:
        inputs = pool.input
        if self.prepared.input.mode == "full":
            return "every operator is an event"
        if self.prepared.input.requests.sessions is not None:
            return "turns of a session wait for the one before them"
        if inputs.plan.sp.degree == 1:
            return CORE_DOES
        if self.prepared.input.needs_clock or inputs.host is not None:
            return "more than loads and lengths decides what replicas do"
        return inputs.serving.decided_singly

    def _of_replica(self, replica: int) -> Iterator[str]:
        prepared, pool = self.prepared, self.prepared.pool_of(replica)
        stages = [(replica, stage) for stage in range(pool.input.plan.pp)]
        meets = prepared.contention.stages | prepared.contention.boundaries
        if not meets.isdisjoint(stages):
            yield "collectives can meet on a link" if len(stages) == 1 else self.shared(replica).obstacle
        if meets.isdisjoint(stages):
            yield CORE_DOES
        if not all(isinstance(one, SplitPrices) and one.supported for one in self.prices_of(replica)):
            yield "experts are on all SP ranks, or ranks of one group differ"

    def shared(self, replica: int) -> SharedLinks:
        """Return how sends of a replica share links with its collectives."""
        if replica not in self._shared:
            self._shared[replica] = find_shared_links(self.prepared, replica, self._users)
        return self._shared[replica]

    @cached_property
    def sends_differ(self) -> bool:
        """Whether sends of ranks of a stage may meet different things on links."""
        contention = self.prepared.contention
        if not (contention.stages or contention.boundaries):
            return False
        return any(self.shared(replica).obstacle for pool in self.prepared.pools for replica in pool.replicas)

    @cached_property
    def _users(self) -> Users:
        return users_of(self.prepared)

    def lane(self, replica: int, scheduler: Scheduler, log: LaneLog) -> Lane:
        """Return a replica in its first state."""
        return self._pipe(replica, scheduler, self.prices_of(replica), log)

    def log(self, replica: int) -> LaneLog:
        """Return what records a replica."""
        prepared, pool = self.prepared, self.prepared.pool_of(replica)
        plan = pool.input.plan
        if plan.is_lockstep:
            return StepLog(replica, prepared.schedulers[replica].pool.total, prepared.recorder)
        kinds = [pool.programs[replica, stage] for stage in range(plan.pp)]
        templates = [{kind: pool.numbers[program.key] for kind, program in one.items()} for one in kinds]
        rows = [one.rows for one in self.prices_of(replica)]
        senders = [one["decode"] for one in kinds[:-1]]
        token_bytes = [payload_bytes(one, {"tokens": (1.0,)}, one.template.send_classes[0]) for one in senders]
        blocks = prepared.schedulers[replica].pool.total
        return LaneLog(replica, templates, rows, blocks, plan.stage_ranks, token_bytes, prepared.recorder)

    def prices_of(self, replica: int) -> list[StepPrices]:
        """Return the prices of each stage, the same object for replicas that are placed alike."""
        pool = self.prepared.pool_of(replica)
        stages = range(pool.input.plan.pp)
        return [step_prices(pool.input.pricer, pool.programs[replica, stage]) for stage in stages]

    def _pipe(self, replica: int, scheduler: Scheduler, prices: list[StepPrices], log: LaneLog) -> Lane:
        """Return a replica with stages whose sends may meet its collectives."""
        inputs, pool = self.prepared.input, self.prepared.pool_of(replica)
        count = pool.input.plan.pp
        devices = [pool.stage_devices(replica, stage) for stage in range(count + 1)]
        split = [
            SplitStage(price, pool.programs[replica, stage], inputs.comm, mine, after)
            for stage, (price, (mine, after)) in enumerate(zip(prices, pairwise(devices), strict=True))
            if isinstance(price, SplitPrices)  # all of them
        ]
        flows = SharedFlows(inputs.topology.link_capacity)
        pipe = SplitSharedPipe(split, log.ranks, self.shared(replica).meets, flows)
        return SplitSharedLane(scheduler, prices, log, pipe)
