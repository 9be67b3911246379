"""A timeline of this program as a history, and its audit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from clustersim.legality.audit import check_history
from clustersim.legality.held import kv_declared
from clustersim.legality.history import Given, History, Outcome
from clustersim.legality.rule import Verdict, Violation, together
from clustersim.legality.timeline_rules.reading import Reading
from clustersim.legality.timeline_rules.tensor import outcome_of
from clustersim.model.architecture import Moe
from clustersim.plan.mesh import Mesh
from clustersim.replay.given import Prepared
from clustersim.run.legality import check_scenario, deployment_of
from clustersim.run.simulate import RunResult, host_pool, kv_blocks, replay_input
from clustersim.run.weak_links import weak_groups, weak_hosts, weak_sends
from clustersim.scenario.scenario import Scenario
from clustersim.timeline.timeline import Timeline
from clustersim.workload.limits import MAX_NS


def given_of(scenario: Scenario, blocks: int, first_replica: int = 0, first_rank: int = 0) -> Given:
    """Return what a scenario of one pool declares.

    Parameters
    ----------
    scenario : Scenario
    blocks : int
        K/V blocks of each owner's pool.
    first_replica, first_rank : int
        Where its replicas begin.
    """
    plan, serving = scenario.plan, scenario.serving
    owners = plan.sp.degree if plan.sp.decode == "dp" else 1
    host = host_pool(scenario)
    visited = {layer.ffn.top_k for layer in scenario.model.layers if isinstance(layer.ffn, Moe)}
    return Given(
        tp=plan.tp,
        sp=plan.sp.degree,
        pp=plan.pp,
        dp=plan.dp,
        ep=plan.ep.degree,
        sp_scheme=plan.sp.scheme,
        sp_decode=plan.sp.decode,
        ep_scope=plan.ep.scope,
        decode_overlap=plan.decode_overlap,
        block_tokens=serving.kv_block_tokens,
        pool_blocks=blocks * owners,
        max_batch_tokens=serving.max_batch_tokens,
        max_batch_requests=serving.max_batch_requests,
        top_k=min(visited) if len(visited) == 1 else None,
        horizon_ns=scenario.run.horizon_ns,
        first_replica=first_replica,
        first_rank=first_rank,
        prefix_caching=serving.prefix_caching,
        down=_down(scenario) if scenario.faults else (),
        slow=_slow(scenario),
        host_blocks=None if host is None else host.blocks * owners,
        host_block_bytes=None if host is None else host.block_bytes,
        host_bytes_per_s=None if host is None else _to_host(scenario),
        weak=weak_sends(scenario),
        weak_groups=weak_groups(scenario),
        weak_hosts=() if host is None else weak_hosts(scenario, first_rank),
    )


def _down(scenario: Scenario) -> tuple[tuple[int, int, int], ...]:
    """Return when which replicas are down, as the faults of a scenario say."""
    prepared = Prepared(replay_input(scenario, scenario.requests()))
    return tuple((one.replica, one.at_ns, MAX_NS if one.until_ns is None else one.until_ns) for one in prepared.outages)


def _slow(scenario: Scenario) -> tuple[tuple[int, int, int, float], ...]:
    """Return when which ranks are slow, and how much, as the faults of a scenario say."""
    mesh, plan = Mesh(plan=scenario.plan), scenario.plan
    placed = [mesh.stage_devices(replica, stage) for replica in range(plan.dp) for stage in range(plan.pp)]
    devices = [device for stage in placed for device in stage]
    return tuple(
        (rank, fault.at_ns, MAX_NS if fault.until_ns is None else fault.until_ns, fault.slowdown)
        for fault in scenario.faults
        if fault.slowdown is not None
        for rank, device in enumerate(devices)
        if device in fault.devices
    )


def _to_host(scenario: Scenario) -> float:
    """Return what the fastest link between a device and its host carries, in bytes per second."""
    topology = scenario.topology
    assert topology.hosts is not None
    devices = range(len(topology.devices))
    paths = [topology.hosts.host_path(device, out=out) for device in devices for out in (True, False)]
    return max(float(topology.link_capacity[list(path)].min()) for path in paths)


def pools_of(scenario: Scenario, blocks: int) -> tuple[Given, ...]:
    """Return what a scenario declares of each of two pools, and which K/V each of their ranks is to hold."""
    found: list[Given] = []
    replicas = ranks = 0
    for number, one in enumerate(scenario.each_pool() if scenario.pools else ()):
        given = given_of(one, blocks if number == 0 else kv_blocks(one), replicas, ranks)
        found.append(replace(given, **kv_declared(deployment_of(one))))
        replicas, ranks = replicas + one.plan.dp, ranks + one.plan.world
    if not scenario.faults:
        return tuple(found)
    down = _down(scenario)
    return tuple(
        replace(
            given,
            down=down,
            slow=tuple((given.first_rank + one[0], *one[1:]) for one in given.slow),
            weak_groups=tuple(
                (one[0], given.first_rank + one[1], given.first_rank + one[2], *one[3:]) for one in given.weak_groups
            ),
        )
        for given in found
    )


def history_of(
    scenario: Scenario, timeline: Timeline, blocks: int, explained: Collection[int] | None = None
) -> History:
    """Return a timeline with what its scenario declares.

    Parameters
    ----------
    scenario : Scenario
    timeline : Timeline
    blocks : int
        K/V blocks of each owner's pool.
    explained : collection of int, optional
        Requests whose rejection has a reason.
    """
    requests = scenario.requests()
    told = {"prompt_tokens": requests.prompt_tokens, "output_tokens": requests.output_tokens}
    if requests.concurrency is None:
        told["arrives_ns"] = requests.arrived_at_ns
    cancels = requests.cancel_after_ns
    told["cancels_ns"] = np.full(len(requests), -1, np.int64) if cancels is None else cancels
    if explained is not None:
        reasons = np.zeros(len(requests), np.int64)
        reasons[list(explained)] = 1
        told["explained"] = reasons
    hashed = requests.prefix_hashes is not None
    hash_tokens = requests.hash_block_tokens if hashed else 1
    given = replace(given_of(scenario, blocks), hash_tokens=hash_tokens)
    pools = tuple(replace(pool, hash_tokens=hash_tokens) for pool in pools_of(scenario, blocks))
    return History(
        given=pools[0] if pools else given,
        pools=pools,
        requests=told,
        steps=timeline.steps,
        chunks=timeline.chunks,
        decodes=timeline.decodes,
        facts=timeline.facts,
        moves=timeline.moves,
        folded=timeline,
        prefixes=requests.prefix_hashes if hashed else (np.empty(0, np.int64),) * len(requests),
    )


def history_of_run(result: RunResult) -> History:
    """Return what a run recorded, as a history."""
    return history_of(result.scenario, result.timeline, result.kv_blocks, result.replayed.reasons)


def audit_run(result: RunResult) -> Verdict:
    """Check what a run recorded against every rule of level T."""
    return check_history(history_of_run(result))


def check_run(result: RunResult) -> Verdict:
    """Check a run by every rule that can be asked: of its plan (P), its step graphs (G) and what it recorded (T)."""
    return together((check_scenario(result.scenario), audit_run(result)))


def violation_line(violation: Violation) -> str:
    """Return a violation as a line of text."""
    return f"{violation.rule}: {violation.where}: {violation.message}; {violation.fix}"


def outcome(history: History) -> Outcome | None:
    """Return what the requests of a history came to, to compare another plan with; None where that is not recorded."""
    found = outcome_of(Reading(history))
    return None if found is None else Outcome(given=history.given, tokens=found[0], entries=found[1])


def against(history: History, other: History) -> History:
    """Return a history together with what another run of the same requests came to."""
    return replace(history, other=outcome(other))


__all__ = ["against", "audit_run", "check_run", "given_of", "history_of", "history_of_run", "outcome", "violation_line"]
