"""The pools of a scenario, one at a time and beside each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.scenario.scenario import Pool, Scenario
from clustersim.units import plural

_PLAN: Final = re.compile(r"\bplan\.(dp|pp|tp|sp|ep|stages|placement|devices)\b")


def in_each_pool(
    scenario: Scenario, check: Callable[[Scenario, Pool], Verdict], between: tuple[Violation, ...] = ()
) -> Verdict:
    """Check each pool by itself, and return the verdicts as one.

    Parameters
    ----------
    scenario : Scenario
    check : callable
        Checks a scenario of one pool, with that pool.
    between : tuple of Violation
        What is wrong between the pools.
    """
    violations = list(between)
    looked: dict[tuple[str, str], LookedAt] = {}
    for pool, one in zip(scenario.pools, scenario.each_pool(), strict=True):
        verdict = check(one, pool)
        violations += [
            replace(
                found,
                where=in_pool(pool.name, found.where),
                fix=_PLAN.sub(rf"{pool.place}.\1", found.fix),
            )
            for found in verdict.violations
        ]
        for rule in verdict.rules:
            known = looked.get((rule.level, rule.id))
            looked[rule.level, rule.id] = (
                rule if known is None else replace(rule, looked_at=known.looked_at + rule.looked_at)
            )
    return Verdict(violations=tuple(violations), rules=tuple(looked.values()))


def in_pool(pool: str, where: str) -> str:
    """Return where a value of one pool is written, such as ``plan.decode.tp``; other places as they are."""
    head, dot, rest = where.partition(".")
    return f"{head}.{pool}.{rest}" if pool and dot and head in ("plan", "serving") else where


def apart(scenario: Scenario) -> Iterator[Violation]:
    """Yield what is wrong where two pools share devices, or there are not enough for both (rule DP-1)."""
    if not scenario.hands_over:
        return
    prefill, decode = (pool.plan for pool in scenario.pools)
    topology = scenario.topology
    devices, world = len(topology.devices), prefill.world + decode.world
    if max(prefill.world, decode.world) > devices:
        return  # which is told of that pool
    if world > devices:
        yield Violation(
            rule="DP-1",
            level="P",
            where="plan.decode.dp",
            message=f"prefill has {plural(prefill.world, 'rank')} and decode {decode.world}, but "
            f"{topology.name} has {plural(devices, 'device')}",
            fix="use fewer replicas, or a larger topology",
        )
        return
    used, also = (set(range(plan.world) if plan.placement is None else plan.placement) for plan in (prefill, decode))
    for device in sorted(used & also):
        yield Violation(
            rule="DP-1",
            level="P",
            where="plan.decode.placement",
            message=f"device {topology.devices[device] if device < devices else device} has a rank of both pools",
            fix="place each rank on a device of its own",
        )
