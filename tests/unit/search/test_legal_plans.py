"""Which plans are enumerated: exactly those that the rules of level P call legal, and that are built."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from clustersim.interop.launch.launch import refusal_of
from clustersim.limits import Limits
from clustersim.plan.built import unbuilt
from clustersim.plan.parallel import ExpertPlan, SequencePlan
from clustersim.scenario.parts import load_topology
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.legal import candidates
from clustersim.search.plans.room import AskedLaunch, room_of
from clustersim.search.plans.space import Refused, replicas
from clustersim.search.runs import Variants
from clustersim.simulation.legality import check_scenario_plan
from tests.unit.search.searching import SMALL, deployments
from tests.unit.search.searching import search as searching

MIXTURE = SMALL.replace("llama-2-7b", "mixtral-8x7b")
SEQUENCES = [SequencePlan(), *(
    SequencePlan(degree=degree, scheme=scheme, partition=partition, decode=decode)
    for degree in (2, 3)
    for scheme in ("ring", "all_gather", "all_to_all")
    for partition in ("contiguous", "zigzag", "striped")
    for decode in ("idle", "dp")
)]  # fmt: skip


def key(plan):
    return plan.tp, plan.pp, plan.dp, plan.sp, plan.ep.degree, plan.ep.scope if plan.is_lockstep else "replica"


@pytest.mark.parametrize("text", [SMALL, MIXTURE], ids=["dense", "experts"])
def test_plans_of_a_replica_are_those_that_rules_find_legal(tmp_path, text):
    setting = deployments(tmp_path, text, devices=3).settings[0]
    scenario = setting.single
    found = {key(one.plan) for one in replicas(scenario, 3, None, Refused())}
    legal = set()
    experts = [ExpertPlan(), *(ExpertPlan(degree=ep, exchange_by_engine=True) for ep in (2, 3))]
    experts += [ExpertPlan(degree=ep, scope="global", exchange_by_engine=True) for ep in (2, 3)]
    for tp, pp, sp, ep in product(range(1, 4), range(1, 4), SEQUENCES, experts):
        for dp in range(1, 4) if ep.scope == "global" else (1,):
            plan = replace(scenario.plan, tp=tp, pp=pp, dp=dp, sp=sp, ep=ep)
            built = not plan.is_lockstep or pp == sp.degree == 1
            shared = ep.scope == "replica" or plan.is_lockstep
            if plan.world > 3 or not built or not shared or unbuilt(plan, scenario.model) is not None:
                continue
            if not check_scenario_plan(scenario.with_entry(plan=plan)).violations:
                legal.add(key(plan))
    assert found == legal


def test_each_plan_is_the_scenario_that_its_changes_make(tmp_path):
    made = deployments(tmp_path, devices=4, knobs=("serving.max_batch_tokens=512,1024",))
    room, _ = room_of(made.variants.scenario(), devices=4, exactly=False, usd=None)
    found = [one for one, _ in candidates(made.settings, room, Refused())]
    assert {len(one.replicas) for one in found} == {1, 2}
    for one in found[:: len(found) // 12]:
        ours, written = made.scenario(one), made.variants.scenario(made.changes(one))
        assert ours.pools == written.pools
        assert ours.precision == written.precision
        assert ours.topology.devices == written.topology.devices


def test_replicas_stand_for_fewer_of_the_same_and_ratios_for_their_fractions(tmp_path):
    made = deployments(tmp_path, devices=4)
    room, _ = room_of(made.variants.scenario(), devices=4, exactly=False, usd=None)
    found = {one.words(): same for one, same in candidates(made.settings, room, Refused())}
    assert found["tp 1 × dp 4"] == 4
    assert found["tp 1 × dp 2 | tp 1 × dp 2"] == 2
    assert found["tp 1 × dp 3 | tp 1 × dp 1"] == 1
    exact, _ = room_of(made.variants.scenario(), devices=4, exactly=True, usd=None)
    assert all(one.devices == 4 for one, _ in candidates(made.settings, exact, Refused()))


def test_where_an_engine_has_to_start_them_the_most_replicas_that_it_does_stand_for_fewer(tmp_path):
    with searching(tmp_path, SMALL.replace("nodes: 1", "nodes: 2"), devices=10) as opened:
        launch = AskedLaunch(name="vllm", refusal=lambda one, beside: refusal_of(one, "vllm", beside=beside))
        opened.question = replace(opened.question, room=replace(opened.question.room, launch=launch))
        found = {one.words: one.same for one in opened.standings()}
        every = candidates(opened.deployments.settings, opened.question.room, Refused(), ("zigzag",), every=True)
        made = opened.deployments.scenario
        started = {one.words() for one, _ in every if refusal_of(made(one), "vllm") is None}
    assert found.keys() <= started  # where all of their ranks are, beside those of the other pool
    assert sum(found.values()) == len(started)
    assert found["tp 2 × dp 4"] == 4  # of 5, one of which would be on two nodes
    assert found["tp 1 × dp 4 | tp 1 × dp 4"] == 4
    assert opened.refused.counts["vllm"] > 0


@pytest.mark.parametrize("asked", ["prefill", "decode"])
def test_what_is_known_of_one_pool_stands_only_for_those_that_an_engine_can_not_tell_from_it(tmp_path, asked):
    text = SMALL.replace("nodes: 1", "nodes: 2")
    with searching(tmp_path, text, devices=10, knobs=("serving.max_batch_requests=8,32",)) as opened:
        node_of = opened.base.topology.node_of

        def seen(pool, beside):
            """Refuse every pool that is asked about, with all that an engine is told of it."""
            plan, home = pool.plan, node_of[list(pool.plan.placement or range(pool.plan.world))]
            local = (plan.placement or (0,))[0] - list(node_of).index(home[0])
            degrees = plan.tp, plan.pp, plan.dp, plan.sp.degree
            told = pool.pools[0].name, pool.serving.max_batch_requests, degrees, local, list(home - home[0]), beside
            return None if told[0] not in ("", asked) else str(told)

        launch = AskedLaunch(name="vllm", refusal=seen)
        opened.question = replace(opened.question, room=replace(opened.question.room, launch=launch))
        room = replace(opened.question.room, launch=None)
        plans = [one for one, _ in candidates(opened.deployments.settings, room, Refused(), ("zigzag",), every=True)]
        kept = [opened._unplaced(one) for one in plans]
        for one, reason in zip(plans, kept, strict=True):
            opened._placed.clear()
            assert opened._unplaced(one) == reason, one.words()
    assert len(set(kept)) < len(plans)


def test_pools_are_on_every_kind_of_device(tmp_path):
    text = SMALL.replace("{name: dgx-h100, nodes: 1}", "h100-and-a100")
    made = deployments(tmp_path, text, devices=2)
    room, _ = room_of(made.variants.scenario(), devices=2, exactly=True, usd=None)
    kinds = {tuple(each.kind for each in one.replicas) for one, _ in candidates(made.settings, room, Refused())}
    names = load_topology("h100-and-a100").device_names()
    assert kinds == {*((name,) for name in names), *product(names, names)}
    one = next(one for one, _ in candidates(made.settings, room, Refused()) if len(one.replicas) == 2)
    assert made.scenario(one).pools == made.variants.scenario(made.changes(one)).pools


@pytest.mark.parametrize(
    ("scenario", "devices", "exactly"),
    [("quickstart", 8, False), ("quickstart", 24, True), ("mixtral-ep", 16, False), ("splitwise-h100-a100", 16, False)],
)
def test_it_is_known_beforehand_how_many_plans_two_pools_have(scenario: str, devices: int, exactly: bool) -> None:
    variants = Variants(scenario, ("targets.ttft=1 s",), limits=Limits())
    room, always = room_of(variants.scenario(), devices=devices, exactly=exactly, usd=None)
    settings = Deployments(variants, [], always).settings
    told: list[int] = []
    found = [one for one, _ in candidates(settings, room, Refused(), allow=told.append)]
    assert told[-1] == sum(len(one.replicas) > 1 for one in found) > 100
