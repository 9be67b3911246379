"""Bounds on capacity hold: no step is shorter than its column, and no simulated plan serves more than its bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import SequencePlan
from clustersim.replay.programs import compile_programs
from clustersim.search.plans import grid
from clustersim.search.plans.bounds import limits, prices, stage_times, token_rates
from clustersim.search.plans.bounds.columns import columns_of, spread
from clustersim.search.plans.bounds.demand import demand_of
from clustersim.search.plans.bounds.exposure import attentions, exposed
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.pools.plan_pools import with_experts
from clustersim.search.plans.trial import Trial, try_rate
from clustersim.simulation.priced import priced
from clustersim.simulation.replay_input import cost_models
from tests.effort import some, times
from tests.unit.search.searching import SMALL, bounded, deployments, search

TOKENS, REQUESTS, CONTEXT = 1024, 64, 700.0
PLANS = {
    "one": {"tp": 1},
    "stages": {"tp": 2, "pp": 3},
    "experts": {"tp": 2, "ep": 2},
    "wide": {"tp": 2, "ep": 4, "dp": 2},
    "measured decodes": {"tp": 1},
    "measured prompts": {"tp": 1},
    "measured experts": {"tp": 1, "ep": 1},
    **{
        f"{scheme}-{decode}": {"tp": 1, "sp": SequencePlan(degree=2, scheme=scheme, partition="zigzag", decode=decode)}
        for scheme in ("ring", "all_gather", "all_to_all")
        for decode in ("idle", "dp")
    },
    **{
        f"{scheme}-{decode}-experts": {
            "tp": tp,
            "ep": 2 * tp,
            "sp": SequencePlan(degree=2, scheme=scheme, partition="zigzag", decode=decode),
        }
        for scheme, decode, tp in (
            ("ring", "idle", 2),
            ("ring", "dp", 1),
            ("all_gather", "idle", 1),
            ("all_to_all", "dp", 2),
        )
    },
}


MEASURED = {
    "measured decodes": ("dgx-a100", "llama-3.1-8b"),
    "measured prompts": ("l40s-node", "llama-3.1-8b"),
    "measured experts": ("dgx-a100", "mixtral-8x7b"),
}
"""Devices whose files have grids, and models that take their points."""


def _plan(base, degrees):
    ep = degrees.get("ep", 1)
    scope = "global" if "dp" in degrees else "replica"
    plain = {name: degrees[name] for name in ("tp", "pp", "sp", "dp") if name in degrees}
    return replace(base, ep=replace(base.ep, degree=ep, scope=scope), **plain)


def _batch(rng, plan):
    """Return some step within the budgets of each coordinate that keeps sequences."""
    together = plan.lockstep
    owners = together.sp.degree if together.sp.whole or together.sp.decode == "dp" else 1
    room = [TOKENS] * owners if together.sp.whole else [TOKENS]
    most = REQUESTS if together.sp.whole else REQUESTS // owners
    decodes = [int(rng.integers(0, most + 1)) if rng.random() < 0.7 else 0 for _ in range(owners)]
    keys = [count * int(rng.integers(1, 1500)) for count in decodes]
    chunks = []
    for owner in range(len(room)) if rng.random() < 0.7 else ():
        left = room[owner] - (decodes[owner] if together.sp.whole else sum(decodes))
        for _ in range(int(rng.integers(0, 4))):
            count = int(rng.integers(1, 500))
            if count <= left:
                left -= count
                at = owner if together.sp.whole else int(rng.integers(0, owners))
                chunks.append(Chunk(request=len(chunks), start=int(rng.integers(0, 900)), count=count, owner=at))
    if not chunks and not any(decodes):
        return None
    return StepBatch(chunks=tuple(chunks), decode_sequences=tuple(decodes), decode_keys=tuple(keys))


@pytest.mark.parametrize("name", [name for name in PLANS if name.endswith("-experts")])
def test_no_step_of_prompts_is_cheaper_by_token_than_the_cheapest_column(tmp_path, name):
    text = SMALL.replace("llama-2-7b", "mixtral-8x7b")
    scenario = deployments(tmp_path, text, devices=8).settings[0].single
    plan = _plan(scenario.plan, PLANS[name])
    lone = scenario.with_entry(plan=replace(plan, sp=with_experts(plan)))
    found = priced(lone, cost_models(lone))
    columns = columns_of(
        lone.plan, found, tokens=TOKENS, requests=REQUESTS, context=CONTEXT, apart=True, duty="prefill"
    )
    columns = spread(exposed(columns, lone.plan, lone, found, attentions(lone)), plan.sp.degree, decodes=True)
    here = scenario.with_entry(plan=plan)
    ((blueprints, pricer),) = (found := priced(here, cost_models(here))).pools
    program = compile_programs(Mesh(plan=plan), blueprints, found.comm)[0, 0]["prefill"]
    none = (0,) * (plan.sp.degree if plan.sp.decode == "dp" else 1)
    for count in (1, 7, 100, 600, 1500, 2 * TOKENS):
        chunk = Chunk(request=0, start=0, count=count, owner=0)
        batch = StepBatch(chunks=(chunk,), decode_sequences=none, decode_keys=none)
        took = program.template.pass_times(pricer.durations(program, batch, pricer.features(batch)))[0]
        assert took >= count * (columns.stage_ns[0] / columns.prompt).min()


@pytest.mark.parametrize("name", PLANS)
def test_no_step_is_shorter_than_its_column(tmp_path, name):
    topology, model = MEASURED.get(name, ("dgx-h100", "mixtral-8x7b" if "ep" in PLANS[name] else "llama-2-7b"))
    text = SMALL.replace("dgx-h100", topology).replace("llama-2-7b", "deepseek-v3" if name == "wide" else model)
    scenario = deployments(tmp_path, text, devices=8).settings[0].single
    plan = _plan(scenario.plan, PLANS[name])
    sp = plan.sp.degree
    lone = scenario.with_entry(plan=replace(plan, sp=with_experts(plan) or SequencePlan()))
    found = priced(lone, cost_models(lone))
    columns = columns_of(lone.plan, found, tokens=TOKENS, requests=REQUESTS, context=CONTEXT, apart=sp > 1)
    if with_experts(plan):
        columns = exposed(columns, lone.plan, lone, found, attentions(lone))
    columns = spread(columns, sp, decodes=plan.sp.decode == "dp") if sp > 1 else columns
    here = scenario.with_entry(plan=plan)
    ((blueprints, pricer),) = (found := priced(here, cost_models(here))).pools
    programs = compile_programs(Mesh(plan=plan.lockstep), blueprints, found.comm)
    plain = replace(pricer, engine=replace(pricer.engine, graph_sizes=()), memory={}, groups={})
    ranks = plan.lockstep.sp.degree if plan.is_lockstep else 1
    rng, looked, longer = np.random.default_rng(5), 0, 0
    for _ in range(times(240)):
        batch = _batch(rng, plan)
        if batch is None:
            continue
        carried = sum(chunk.count for chunk in batch.chunks) / ranks, sum(batch.decode_sequences) / ranks
        pairs = sum(chunk.count * chunk.start + chunk.count * (chunk.count + 1) // 2 for chunk in batch.chunks)
        column = np.flatnonzero((columns.prompt >= carried[0]) & (columns.decodes >= carried[1]))[0]
        latency = 0
        for stage in range(plan.pp):
            program = programs[0, stage][batch.kind]
            padded, took = (
                program.template.pass_times(one.durations(program, batch, one.features(batch)))[0]
                for one in (pricer, plain)
            )
            assert padded >= took  # which more tokens never make shorter
            longer += padded > took
            latency += took
            ends = sorted({0, plan.pp - 1})
            if stage in ends:
                at = ends.index(stage)
                least = columns.stage_ns[at, column] + columns.key_ns[at, column] * sum(batch.decode_keys)
                assert took >= least + columns.pair_ns[at] * pairs
                looked += 1
        if plan.pp == 1:  # else sends come between
            assert latency >= columns.latency_ns[column]
    assert looked > 10
    assert longer


SHARED = "shared_prefixes: {groups: 1, tokens: 2000}"
LOADS = {
    "both": SMALL,
    "tight": SMALL.replace("25 ms", "9 ms"),
    "measured": SMALL.replace("dgx-h100", "dgx-a100").replace("llama-2-7b", "llama-3.1-8b"),
    "prompts": SMALL.replace("low: 5, high: 40", "low: 1, high: 2"),
    "tokens": SMALL.replace("low: 200, high: 1200", "low: 10, high: 40"),
    "experts": SMALL.replace("llama-2-7b", "mixtral-8x7b").replace("25 ms", "60 ms"),
    "no tpot": SMALL.replace(", tpot: 25 ms", ""),
    "shared": SMALL.replace("requests: 40", f"requests: 40\n  {SHARED}"),
    "more keys than the pool has": SMALL.replace("requests: 32", "requests: 64, memory_utilization: 0.25")
    .replace("{uniform: {low: 200, high: 1200}}", f"2020\n  {SHARED}")
    .replace("low: 5, high: 40", "low: 100, high: 120"),
    "two prefill replicas": SMALL.replace("low: 5, high: 40", "low: 2, high: 3").replace("25 ms", "200 ms"),
    "in any order": SMALL.replace("max_batch_requests: 32", "max_batch_requests: 32, router: least_outstanding"),
    "wide decodes": SMALL.replace("dgx-h100", "dgx-h200").replace("llama-2-7b", "gpt-oss-20b")
    .replace("low: 200, high: 1200", "low: 10, high: 60").replace("low: 5, high: 40", "low: 30, high: 60")
    .replace("25 ms", "12 ms"),
}  # fmt: skip

LOADS_OF = {"two prefill replicas": (3, (2, 1)), "wide decodes": (3, (1, 1))}


@pytest.mark.parametrize("load", LOADS)
def test_no_plan_serves_more_than_its_bound(tmp_path, load):
    devices, counts = LOADS_OF.get(load, (2, None))
    with search(tmp_path, LOADS[load], devices=devices) as found:
        standings = [one for one in found.standings() if all(r.plan.sp.degree == 1 for r in one.candidate.replicas)]
        standings = [one for one in standings if counts in (None, one.candidate.counts)]
        if load == "wide decodes":
            standings = [one for one in standings if one.candidate.replicas[-1].plan.is_lockstep]
        standings = bounded(found, standings)
        limited = [one for one in standings if one.bound.why == limits.RATE and one.bound.step is not None]
        looked = 0
        for one in some(limited):
            scenario, every = found.trial(one)
            for step in (one.bound.step, one.bound.step + 20)[: 2 if load == "both" else 1]:
                row = try_rate(Trial(scenario=scenario, load=found.load, step=step, every=every))
                assert row["numbers"]["goodput.share"] < 0.9, (one.words, rate_of(step))
                if step == one.bound.step and row["numbers"]["requests.finished"] == row["numbers"]["requests.arrived"]:
                    tokens, gap_ms = (row["numbers"][key] for key in ("throughput.output_tokens_per_s", "itl_ms.mean"))
                    assert all(tokens * every <= most for most in most_tokens(found, one, step, 1e3 / gap_ms)), (
                        one.words
                    )
            looked += 1
        assert looked


def most_tokens(found, one, step, user_rate):
    """Return the most tokens per second of each pool, whatever users get, and where they get so many."""
    for side in found.sides.of(one.candidate):
        asked = [(found.sides.member(side), step)]
        whatever, fast = token_rates.most_tokens_all(found.sides.alone(side), found.load, asked, (0.0, user_rate))[0]
        assert fast <= whatever * (1.0 + 1e-9)
        yield fast


def test_a_bound_that_takes_too_little_time_for_granted_is_seen(tmp_path, monkeypatch):
    best = prices._Dual.best

    def dearer(self):
        value, found = best(self)
        return 3.0 * value, 3.0 * found

    monkeypatch.setattr(prices._Dual, "best", dearer)
    with pytest.raises(AssertionError, match="tp 1"):
        test_no_plan_serves_more_than_its_bound(tmp_path, "both")
    monkeypatch.undo()
    least = token_rates._least_by_token
    monkeypatch.setattr(token_rates, "_least_by_token", lambda *args: 4.0 * least(*args))
    with pytest.raises(AssertionError, match="tp 1 × dp 2"):
        test_no_plan_serves_more_than_its_bound(tmp_path, "both")


def test_no_other_prices_that_hold_make_a_mean_request_dearer(tmp_path):
    scenario = deployments(tmp_path, devices=8).settings[0].single
    lone = scenario.with_entry(plan=_plan(scenario.plan, PLANS["stages"]))
    columns = columns_of(
        lone.plan, priced(lone, cost_models(lone)), tokens=TOKENS, requests=REQUESTS, context=CONTEXT, ratio=1.5
    )
    demand = demand_of(lone.requests(), {"ttft": 3e8, "tpot": 2.5e7}, 0.0, cached=False)
    work = np.array([demand.prompt.mean(), demand.decodes.mean(), demand.keys.mean()])
    dual = prices._Dual(columns, 1, work, demand, 2.5e7, 40_000.0, 64.0)
    most, found = dual.best()
    assert most == pytest.approx(work @ found)
    rng = np.random.default_rng(7)
    for _ in range(300):
        shares, (mu, nu, rho) = rng.dirichlet((0.5, 0.5, 0.5)), rng.dirichlet((0.3, 0.3, 0.3)) * rng.random()
        time = dual.ns + np.array([mu, nu, rho]) @ dual.more
        with np.errstate(divide="ignore"):
            assert (time / ((shares / work) @ dual.carried)).min() <= most * (1.0 + 1e-9)


def test_replicas_in_lockstep_that_decode_alike_take_next_to_their_column(tmp_path):
    """Keys of each, and the path through all streams, are in it."""
    scenario = deployments(tmp_path, SMALL.replace("llama-2-7b", "deepseek-v3"), devices=8).settings[0].single
    here = scenario.with_entry(plan=_plan(scenario.plan, {"tp": 2, "ep": 4, "dp": 4}))
    ((blueprints, pricer),) = (found := priced(here, cost_models(here))).pools
    program = compile_programs(Mesh(plan=here.plan.lockstep), blueprints, found.comm)[0, 0]["decode"]
    columns = columns_of(here.plan, found, tokens=256, requests=256, context=CONTEXT, duty="decode", ratio=1.002)
    for many, each in ((8, 400), (64, 1000), (256, 3000)):
        batch = StepBatch(decode_sequences=(many,) * 4, decode_keys=(many * each,) * 4)
        took = program.template.pass_times(pricer.durations(program, batch, pricer.features(batch)))[0]
        column = np.flatnonzero(columns.decodes >= many)[0]
        least = columns.stage_ns[0, column] + columns.key_ns[0, column] * 4 * many * each
        assert 0.93 * took < least <= took


def test_a_queue_of_prompts_that_counts_those_of_other_replicas_is_seen(tmp_path, monkeypatch):
    alone = prices._queued
    monkeypatch.setattr(prices, "_queued", lambda prompts, arrived, replicas: alone(prompts, arrived, 1))
    with pytest.raises(AssertionError, match=r"dp 2 \| tp 1"):
        test_no_plan_serves_more_than_its_bound(tmp_path, "two prefill replicas")


def test_no_two_pools_do_better_than_their_prefill_pool_by_itself(tmp_path):
    with search(tmp_path, devices=3) as found:
        pairs = [(one, found.sides.prefill_alone(one.candidate)) for one in bounded(found)]
        plain = [pair for pair in pairs if not any(r.plan.sp.degree > 1 for r in pair[0].candidate.replicas)]
        looked = 0
        for one, alone in some([pair for pair in plain if pair[1] is not None and pair[0].bound.why == limits.RATE]):
            for step in (one.bound.step - 8, one.bound.step + 20):
                prompts, whole = (
                    try_rate(replace(t, step=step)) for t in (alone.trial, found.trial_at(one, step, 0.0))
                )
                assert whole["numbers"]["goodput.share"] <= prompts["numbers"]["goodput.share"], (one.words, step)
                looked += whole["numbers"]["goodput.share"] < 1.0
        assert looked


def test_a_bound_that_has_prompts_computed_that_are_cached_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "demand_of", lambda *args, cached: demand_of(*args, cached=False))
    monkeypatch.setattr(grid, "_CACHED_DEMANDS", (grid._demand, grid._demand))  # what is kept is of others
    with pytest.raises(AssertionError, match="tp 1"):
        test_no_plan_serves_more_than_its_bound(tmp_path, "shared")


def test_a_bound_that_counts_keys_that_are_shared_once_is_seen(tmp_path, monkeypatch):
    known = limits.best_prices
    monkeypatch.setattr(limits, "best_prices", lambda *args, **most: known(*args, **most | {"kv_tokens": 11_328}))
    with pytest.raises(AssertionError, match="tp 1"):
        test_no_plan_serves_more_than_its_bound(tmp_path, "more keys than the pool has")


def test_a_column_at_the_size_of_a_captured_graph_is_seen(tmp_path, monkeypatch):
    known = stage_times._axes

    def padded(asked, here, kind):
        found = known(asked, here, kind)
        return found | {"tokens": np.where(asked.prompt[here] == 0, -(-found["tokens"] // 8) * 8, found["tokens"])}

    monkeypatch.setattr(stage_times, "_axes", padded)
    with pytest.raises(AssertionError, match=">= "):
        test_no_step_is_shorter_than_its_column(tmp_path, "one")
