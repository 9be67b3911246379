"""The nearest legal plan against every plan in its neighbourhood: none that is legal is nearer.

What a distance is, and which values a field may take, is written here once more, from the table in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from math import log2
from typing import Any

import pytest
from illegal_plans import FAST, PLANS

from clustersim.legality.check import examine
from clustersim.legality.deployment import Deployment
from clustersim.legality.repair.candidates import changed
from clustersim.plan.built import built_schemes, unbuilt
from clustersim.run.legality import check_scenario, deployment_of
from clustersim.run.repair.fix import Fix, fix_scenario
from clustersim.scenario.flow import flow
from clustersim.scenario.load import load
from clustersim.scenario.scenario import Scenario
from tests.effort import is_long

MOST_CHANGED = 3
"""Fields beside declarations that are changed at once."""
ROUNDED = 1e-3
ALL = PLANS if is_long() else FAST
Change = tuple[int, str, Any]
"""Pool (0 where there is one), path as of a plan alone, value."""


def scenario_of(name: str) -> Scenario:
    (base, given), written = PLANS[name]
    return load(base, (*given, *written))


def fixed(name: str, alternatives: int = 1) -> Fix:
    return fix_scenario(scenario_of(name), alternatives=alternatives)


def octaves(one: float, other: float) -> float:
    return abs(log2(one / other))


def far(now: Deployment, path: str, value: Any) -> float:
    """Return the distance of one change, by the table."""
    plan, limits = now.plan, now.limits
    degrees = {"plan.pp": plan.pp, "plan.tp.degree": plan.tp, "plan.sp.degree": plan.sp.degree,
               "plan.ep.degree": plan.ep.degree}  # fmt: skip
    if path in degrees:
        had = degrees[path]
        dearer = (0.5 if value > had else 0) + (1 if had == 1 or value == 1 else 0)
        return 1 + octaves(value, had) + dearer + 0.01 * len(undeclared(now) if path == "plan.sp.degree" else ())
    if path == "plan.dp":
        return 0.5 + octaves(value, plan.dp) / 2 + (0.5 if value > plan.dp else 0)
    if path in ("plan.sp.scheme", "plan.sp.partition", "plan.sp.decode"):
        return 0.01 if getattr(plan.sp, path[8:]) is None else 2
    if path == "plan.ep.redundant":
        return 0.25 + octaves(value + 1, plan.ep.redundant + 1) / 4
    if path == "plan.devices":
        return 3 + octaves(value, plan.devices or 1)
    if path.startswith("serving."):
        return 2 + octaves(value, getattr(limits, path[8:])) / 4
    fixed_distances = {"plan.stages": 0.2 if value == "balanced" else 0.1, "plan.ep.scope": 0.5, "plan.placement": 0.5,
                       "plan.ep.placement": 0.5, "precision.weights": 4 if value == "fp8" else 5}  # fmt: skip
    return fixed_distances[path]


def undeclared(now: Deployment) -> dict[str, Any]:
    """Return what SP would have to be said where there is none yet."""
    if now.plan.sp.degree > 1:
        return {}
    usual = {"scheme": built_schemes(now.model)[0], "partition": "zigzag", "decode": "idle"}
    return {name: value for name, value in usual.items() if getattr(now.plan.sp, name) is None}


def values(now: Deployment, told: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every change of one field: any degree up to the devices, any choice, limits halved."""
    plan, limits = now.plan, now.limits
    for path in ("plan.dp", "plan.pp", "plan.tp.degree", "plan.sp.degree", "plan.ep.degree"):
        yield from ((path, value) for value in range(1, now.num_devices + 1))
    if plan.sp.degree > 1:
        yield from (("plan.sp.scheme", value) for value in ("ring", "all_gather", "all_to_all"))
        yield from (("plan.sp.partition", value) for value in ("zigzag", "contiguous", "striped"))
        yield from (("plan.sp.decode", value) for value in ("idle", "dp"))
    yield from (("plan.ep.scope", value) for value in ("global", "replica"))
    if plan.stages is not None:
        yield "plan.stages", "balanced"
        for cuts in permutations([cut.layer for cut in plan.stages]):
            yield "plan.stages", {"cuts": list(cuts)}
    if plan.placement is not None:
        yield "plan.placement", "packed"
    if isinstance(plan.ep.placement, tuple):
        yield from (("plan.ep.placement", value) for value in ("contiguous", "strided"))
    if plan.ep.redundant:
        yield from (("plan.ep.redundant", value) for value in range(2 * plan.ep.redundant))
    if plan.devices is not None:
        yield from (("plan.devices", value) for value in range(1, now.num_devices + 1))
    for name in ("max_batch_tokens", "kv_block_tokens", "max_batch_requests", "kv_blocks"):
        limit = getattr(limits, name)
        if limit is not None:
            yield from ((f"serving.{name}", limit >> shift) for shift in range(1, limit.bit_length()))
    if "serving.kv_blocks" in told:
        yield "serving.kv_blocks", told["serving.kv_blocks"] + 1
    yield from (("precision.weights", value) for value in ("fp8", "fp4"))


def pools_of(scenario: Scenario) -> list[Deployment]:
    """Return the deployment of each pool, on devices of its own unless it names some."""
    if not scenario.pools:
        return [deployment_of(scenario)]
    found = [deployment_of(one) for one in scenario.each_pool()]
    return [replace(one, plan=replace(one.plan, placement=None)) for one in found]


def is_legal(pools: list[Deployment]) -> bool:
    """Whether every rule of level P holds, and graphs can be expanded."""
    if sum(one.plan.world for one in pools) > pools[0].num_devices:
        return False
    for one in pools:
        plan = one.plan
        if (plan.is_lockstep and (plan.pp > 1 or plan.sp.degree > 1)) or unbuilt(plan, one.model):
            return False
        if any(finding.faults for finding in examine(one).values()):
            return False
    return True


def nearer(pools: list[Deployment], told: dict[str, Any], most: float) -> Iterator[tuple[float, list[Change]]]:
    """Yield every combination of changes whose distance is less."""
    single: list[tuple[float, Change]] = []
    for number, pool in enumerate(pools):
        for path, value in values(pool, told):
            if changed(pool, ((path, value),)) != pool and (path != "precision.weights" or number == 0):
                single.append((far(pool, path, value), (number, path, value)))
    single = sorted((one for one in single if one[0] < most), key=lambda one: (one[1][:2], one[0]))
    used = min(sum(one.plan.world for one in pools), pools[0].num_devices)

    def following(start: int, distance: float, chosen: list[Change], left: int) -> Iterator[tuple[float, list[Change]]]:
        for at in range(start, len(single)):
            step, change = single[at]
            if (
                (chosen and chosen[-1][:2] == change[:2])
                or distance + step >= most - ROUNDED
                or (step > 0.01 and not left)
            ):
                continue
            together = [*chosen, change]
            world = sum(one.plan.world for one in after(pools, together))
            total = distance + step + max(0.0, log2(used / world)) / 4
            if total < most - ROUNDED:
                yield total, together
            yield from following(at + 1, distance + step, together, left - (step > 0.01))

    yield from following(0, 0.0, [], MOST_CHANGED)


def after(pools: list[Deployment], changes: list[Change]) -> list[Deployment]:
    """Return the pools with changes; number formats are those of both."""
    found = []
    for number, pool in enumerate(pools):
        one = changed(pool, tuple((path, value) for at, path, value in changes if at == number or path[:4] == "prec"))
        found.append(replace(one, plan=replace(one.plan, sp=replace(one.plan.sp, **undeclared(pool)))))
    return found


@pytest.mark.parametrize("name", ALL)
def test_no_legal_plan_is_nearer(name: str) -> None:
    scenario = scenario_of(name)
    (best,) = fixed(name).alternatives
    pools, told = pools_of(scenario), {change.path: change.new for change in best.changes}
    assert not is_legal(pools)
    for total, changes in nearer(pools, told, best.distance):
        assert not is_legal(after(pools, changes)), f"{changes} at {total:.3f} rather than {best}"


@pytest.mark.parametrize("name", PLANS)
def test_changes_applied_as_they_are_told_make_the_plan_legal(name: str) -> None:
    (base, given), written = PLANS[name]
    fix = fixed(name, alternatives=3 if name in ALL else 1)
    distances = [one.distance for one in fix.alternatives]
    assert distances == sorted(distances)
    for one in fix.alternatives:
        sets = [f"{change.path}={flow(change.new)}" for change in one.changes]
        assert check_scenario(load(base, (*given, *written, *sets))).verdict == "legal"


def test_a_declaration_is_added_rather_than_a_degree_lowered() -> None:
    (best,) = fixed("sp that says nothing").alternatives
    assert best.distance == 0.03
    assert {change.path for change in best.changes} == {"plan.sp.scheme", "plan.sp.partition", "plan.sp.decode"}


def test_experts_over_the_ranks_of_all_replicas_are_offered_where_these_are_what_ep_divides() -> None:
    (best, second, *_) = fixed("ep over dp", alternatives=3).alternatives
    assert [(change.path, change.new) for change in best.changes] == [("plan.ep.scope", "global")]
    assert [(change.path, change.new) for change in second.changes] == [("plan.ep.degree", 4)]


def test_a_search_that_gives_up_still_finds_a_legal_plan_and_says_that_it_may_not_be_the_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clustersim.legality.repair.nearest.MOST_EXAMINED", 10)
    (found,) = fixed("stages and replicas").alternatives
    assert "nothing shows that it is the nearest" in found.why
    monkeypatch.undo()
    (best,) = fixed("stages and replicas").alternatives
    assert best.distance < found.distance
