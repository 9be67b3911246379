"""Pools of plans, as they are bounded and looked at: what a replica of each does, and how many others it stands for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from clustersim.plan.parallel import ParallelPlan, SequencePlan
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import Load
from clustersim.search.plans.bounds.limits import Member
from clustersim.search.plans.deployments import Candidate, Deployments
from clustersim.search.plans.looks.alone import PoolAlone
from clustersim.search.plans.pools.prefill_alone import PrefillAlone
from clustersim.search.plans.space import Replica
from clustersim.search.plans.trial import Trial


class PlanPool(NamedTuple):
    """One pool of a plan: which of how many it is, under which setting, and so many of which replica."""

    place: int
    pools: int
    setting: int
    replica: Replica
    replicas: int


class PlanPools:
    """What is to be known of the pools of plans.

    Parameters
    ----------
    deployments : Deployments
    load : Load
    stand_in : bool
        Whether a replica stands for others that get all requests of a trace in turn.
    """

    def __init__(self, deployments: Deployments, load: Load, *, stand_in: bool = True) -> None:
        self.deployments, self.load, self._stand_in = deployments, load, stand_in
        self._each_pool: dict[tuple[int, int], tuple[Scenario, ...]] = {}
        self._alone: dict[tuple[int, ParallelPlan, str | None, int, int], PrefillAlone] = {}
        self._stays = getattr(deployments.base.workload, "cancel_after", None) is None

    def of(self, candidate: Candidate) -> list[PlanPool]:
        """Return the pools of a plan."""
        each = zip(candidate.replicas, candidate.counts, strict=True)
        pools = len(candidate.replicas)
        return [PlanPool(place, pools, candidate.setting, *one) for place, one in enumerate(each)]

    def pool(self, setting: int, pools: int, place: int) -> Scenario:
        """Return the scenario of one of so many pools."""
        if (setting, pools) not in self._each_pool:
            both = self.deployments.settings[setting]
            scenario = both.single if pools == 1 else both.pools
            assert scenario is not None
            self._each_pool[setting, pools] = scenario.each_pool()
        return self._each_pool[setting, pools][place]

    def alone(self, side: PlanPool) -> Scenario:
        """Return the scenario of a pool with one replica of a plan: at sp 1, or of the SP ranks that share experts."""
        one, scenario = side.replica, self.pool(side.setting, side.pools, side.place)
        plain = replace(one.plan, sp=with_experts(one.plan, side.pools > 1 and side.place == 0) or SequencePlan())
        topology = scenario.topology
        if one.kind is not None:
            topology = topology.seen_from(topology.of_kind(one.kind)[0])
        return replace(scenario.with_entry(plan=plain), topology=topology)

    def member(self, side: PlanPool) -> Member:
        """Return what the bound of a pool depends on."""
        place, pools, setting, one, count = side
        scenario = self.pool(setting, pools, place)
        serving, plan = scenario.serving, one.plan
        lockstep = plan.dp if plan.is_lockstep else 1
        ranks = lockstep if lockstep > 1 else plan.sp.degree
        every = self.alike(scenario, plan, count) if pools == 1 else 1
        ordered = self._first_come(scenario) and self.in_turn(scenario, plan) and place == 0 and lockstep == 1
        owners = plan.sp.degree if plan.sp.decode == "dp" else 1
        return Member(
            duty="both" if pools == 1 else ("prefill", "decode")[place],
            ranks=ranks,
            scheme=plan.sp.scheme,
            decodes=lockstep > 1 or plan.sp.decode == "dp",
            tokens=serving.max_batch_tokens * lockstep,
            requests=serving.max_batch_requests * lockstep,
            kv_tokens=one.kv_blocks * serving.kv_block_tokens * owners * lockstep,
            replicas=1 if every > 1 else count,
            every=every,
            open_prompts=(0 if plan.pp == 1 else plan.pp) if ordered else None,
        )

    def pool_alone(self, side: PlanPool, *, plain: bool = False) -> PoolAlone | None:
        """Return a pool to be looked at by itself; None where its steps, or who it gets, are not known, and but for
        ``plain`` where one pool has neither SP nor stages: a run of that takes no longer."""
        place, pools, setting, one, count = side
        scenario = self.pool(setting, pools, place)
        simple = one.plan.sp.degree == one.plan.pp == 1 and not one.plan.is_lockstep
        if pools == 1 and ((simple and not plain) or scenario.serving.scheduler != "chunked_prefill"):
            return None
        together = count if self.is_by_load(side) else 1
        sp = one.plan.sp if one.plan.sp.degree > 1 else None
        known = sp is None or place == 0
        if not known or not self._first_come(scenario):
            return None
        member = self.member(side)
        if member.duty == "prefill":  # who decodes, and with what room, is of no account
            sp, member = None if sp is None else replace(sp, decode="idle"), replace(member, requests=1, kv_tokens=1)
        return PoolAlone(
            duty=member.duty,
            replicas=count // together,
            together=together,
            ranks=member.ranks * together,
            tokens=member.tokens * together,
            requests=member.requests * together,
            kv_tokens=member.kv_tokens * together,
            sp=sp,
        )

    def is_by_load(self, side: PlanPool) -> bool:
        """Whether which of its replicas gets a request depends on what these do, or on more than a trace has."""
        plan, scenario = side.replica.plan, self.pool(side.setting, side.pools, side.place)
        in_turn = self.in_turn(scenario, plan) and self._gets_all(side.replicas)
        return side.replicas > 1 and not plan.is_lockstep and not in_turn

    def all_finish(self, scenario: Scenario) -> bool:
        """Whether no request is given up, or lost."""
        serving = scenario.serving
        return serving.queue_limit is None and serving.queue_timeout_ns is None and self._stays and not scenario.faults

    def _first_come(self, scenario: Scenario) -> bool:
        """Whether requests are taken in the order in which they come, and none is given up."""
        serving = scenario.serving
        ordered = serving.scheduler in ("continuous", "chunked_prefill") and serving.order.by == "arrival"
        return ordered and self.all_finish(scenario)

    def every(self, one: Candidate) -> int:
        """Return how many parts of a plan one stands for: its replicas, or those of both pools in their ratio."""
        pools = len(one.replicas)
        each = [self.pool(one.setting, pools, place) for place in range(pools)]
        if pools == 1:
            return self.alike(each[0], one.replicas[0].plan, one.counts[0])
        if all(self.in_turn(each[place], one.replicas[place].plan) for place in range(pools)):
            return math.gcd(*one.counts) if self._gets_all(max(one.counts)) else 1
        return 1

    def alike(self, scenario: Scenario, plan: ParallelPlan, count: int) -> int:
        """Return how many of so many replicas one stands for: all, where each gets all requests of a trace in turn."""
        return count if self._stand_in and self._gets_all(count) and self.in_turn(scenario, plan) else 1

    def in_turn(self, scenario: Scenario, plan: ParallelPlan) -> bool:
        """Whether one of several replicas gets every so many-th request, whatever the others do."""
        return not plan.is_lockstep and scenario.serving.router == "round_robin" and not scenario.faults

    def _gets_all(self, count: int) -> bool:
        """Whether each of so many replicas gets all requests of a trace that is played again and again."""
        return self.load.part is None or count < self.load.part

    def prefill_alone(self, candidate: Candidate) -> PrefillAlone | None:
        """Return the prefill pool of a plan with two, by itself; None where it is not known which requests it gets.

        Which SP rank would keep a sequence is of no account. Where the least load decides, that of prompts does here.
        """
        if len(candidate.replicas) == 1:
            return None
        one, count = candidate.replicas[0], candidate.counts[0]
        scenario = self.pool(candidate.setting, 2, 0)
        by_least = scenario.serving.router == "least_outstanding" and not one.plan.is_lockstep and not scenario.faults
        if not by_least and not self.in_turn(scenario, one.plan):
            return None
        plan = replace(one.plan, sp=replace(one.plan.sp, decode=None))
        key = candidate.setting, plan, one.kind, one.kv_blocks, count
        if key not in self._alone:
            every = self.alike(scenario, one.plan, count)
            alone = self.deployments.prefill_alone(replace(candidate, counts=(count // every, candidate.counts[1])))
            trial = Trial(scenario=alone, load=self.load, step=0, every=every, prompts_only=True)
            self._alone[key] = PrefillAlone(trial=trial)
        return self._alone[key]


def with_experts(plan: ParallelPlan, prefills: bool = False) -> SequencePlan | None:
    """Return the SP of a plan whose experts are on several of its ranks: what one of these does by itself is no plan.

    Prompts are parted so that the first rank attends in the fewest rounds: what it does, each of them does at least.
    Who decodes is of no account in a pool that only ``prefills``.
    """
    if plan.sp.degree == 1 or plan.ep.degree == 1:
        return None
    return replace(plan.sp, partition="contiguous", decode="idle" if prefills else plan.sp.decode)
