"""Bounds of the pools of plans, and the rates at which they fail by themselves, worked out on an executor.

Pools with their prices in common are one call, so that these are worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clustersim.errors import InputError, Problem
from clustersim.search.executors import Executors
from clustersim.search.outcomes import Lost, outcomes
from clustersim.search.plans.bounds.limits import Bound, bound_all
from clustersim.search.plans.bounds.token_rates import most_tokens_all
from clustersim.search.plans.looks.alone import failing_all
from clustersim.search.plans.looks.served import served_all
from clustersim.search.plans.looks.two_pools import failing_both
from clustersim.search.plans.pools.plan_pools import PlanPool, PlanPools, with_experts


def bounds_of(sides: PlanPools, asked: Iterable[PlanPool], share: float, executors: Executors) -> dict[PlanPool, Bound]:
    """Return the bound of each pool."""
    found: dict[PlanPool, Bound] = {}
    prices: dict[tuple[int, int, int], str] = {}
    groups: dict[Any, list[PlanPool]] = {}
    for side in asked:
        groups.setdefault(_prices_of(sides, side, prices), []).append(side)
    members = [{side: sides.member(side) for side in mine} for mine in groups.values()]
    unique = [list(dict.fromkeys(mine.values())) for mine in members]
    calls = [
        (sides.alone(next(iter(mine))), sides.load, share, each) for mine, each in zip(members, unique, strict=True)
    ]
    for number, bounds in _called(executors, bound_all, calls, "a bound could not be worked out"):
        by_member = dict(zip(unique[number], bounds, strict=True))
        found |= {side: by_member[member] for side, member in members[number].items()}
    return found


def most_tokens_of(
    sides: PlanPools, asked: Mapping[PlanPool, int], user_rates: Sequence[float], executors: Executors
) -> dict[PlanPool, tuple[float, ...]]:
    """Return the most output tokens per second of each pool, at the rates that users get at least.

    Parameters
    ----------
    sides : PlanPools
    asked : mapping
        Pool → a step of the grid at which it fails.
    user_rates : sequence of float
    executors : Executors
    """
    found: dict[PlanPool, tuple[float, ...]] = {}
    prices: dict[tuple[int, int, int], str] = {}
    groups: dict[Any, list[PlanPool]] = {}
    for side in asked:
        groups.setdefault(_prices_of(sides, side, prices), []).append(side)
    members = list(groups.values())
    calls = [
        (sides.alone(mine[0]), sides.load, [(sides.member(side), asked[side]) for side in mine], user_rates)
        for mine in members
    ]
    for number, most in _called(executors, most_tokens_all, calls, "a bound could not be worked out"):
        found |= dict(zip(members[number], most, strict=True))
    return found


def failing_of(
    sides: PlanPools,
    ends: dict[PlanPool, tuple[int, int]],
    share: float,
    executors: Executors,
    compiled: bool = False,
    *,
    plain: bool = False,
) -> dict[PlanPool, int | None]:
    """Return the lowest step at which each pool fails by itself; None where that is not known.

    Parameters
    ----------
    sides : PlanPools
    ends : dict
        Pool → the lowest step that is of interest, and one at which it is known to fail.
    share : float
    executors : Executors
    compiled : bool
        Whether replays are compiled.
    plain : bool
        Whether also where a run takes no longer.
    """
    pools = {side: sides.pool_alone(side, plain=plain) for side in ends}
    members = _alike([side for side in ends if pools[side] is not None])
    calls = [
        (sides.alone(mine[0]), sides.load, share, [(pools[one], *ends[one]) for one in mine], compiled)
        for mine in members
    ]
    failing: dict[PlanPool, int | None] = dict.fromkeys(ends)
    for number, found in _called(executors, failing_all, calls, "a pool could not be looked at"):
        failing |= dict(zip(members[number], found, strict=True))
    return failing


def failing_both_of(
    sides: PlanPools,
    asked: Mapping[tuple[PlanPool, PlanPool], tuple[int, int, int]],
    share: float,
    executors: Executors,
    compiled: bool = False,
) -> dict[tuple[PlanPool, PlanPool], int | None]:
    """Return the lowest step at which two pools fail together; None where that is not known.

    Parameters
    ----------
    sides, share, executors, compiled
        See :func:`failing_of`.
    asked : mapping
        Two pools → how many parts of the plan one stands for, the lowest step that is of interest, and one at which
        they are known to fail.
    """
    found: dict[tuple[PlanPool, PlanPool], int | None] = dict.fromkeys(asked)
    known = {both: tuple(map(sides.pool_alone, both)) for both in asked}
    left = [both for both, pools in known.items() if None not in pools]
    calls = [
        (tuple(map(sides.alone, both)), sides.load, share, (*known[both], asked[both][0]), asked[both][1:], compiled)
        for both in left
    ]
    for number, failed in _called(executors, failing_both, calls, "two pools could not be looked at"):
        found[left[number]] = failed
    return found


def served_of(
    sides: PlanPools, asked: Iterable[tuple[PlanPool, int]], executors: Executors, compiled: bool = False
) -> dict[tuple[PlanPool, int], tuple[float, float] | None]:
    """Return what each pool serves by itself at a step of the grid: output tokens per second, and seconds between two
    of a request; None where that is not known."""
    found: dict[tuple[PlanPool, int], tuple[float, float] | None] = dict.fromkeys(asked)
    pools = {side: sides.pool_alone(side, plain=True) for side, _ in found}
    steps: dict[PlanPool, list[int]] = {}
    for side, step in found:
        steps.setdefault(side, []).append(step)
    members = _alike([side for side in steps if pools[side] is not None])
    each = [[(side, step) for side in mine for step in steps[side]] for mine in members]
    calls = [
        (sides.alone(mine[0][0]), sides.load, [(pools[side], step) for side, step in mine], compiled) for mine in each
    ]
    for number, served in _called(executors, served_all, calls, "a pool could not be looked at"):
        found |= dict(zip(each[number], served, strict=True))
    return found


def _alike(asked: Iterable[PlanPool]) -> list[list[PlanPool]]:
    """Return pools by their replica: what its steps take is worked out once."""
    groups: dict[Any, list[PlanPool]] = {}
    for side in asked:
        groups.setdefault((side.pools, side.place, side.setting, side.replica), []).append(side)
    return list(groups.values())


def _called(
    executors: Executors, call: Callable[..., Any], calls: Sequence[tuple[Any, ...]], what: str
) -> Iterable[tuple[int, Any]]:
    """Yield the number of each call with what it returned; one that is lost ends the search."""
    for number, found in outcomes(executors, call, iter(enumerate(calls))):
        if isinstance(found, Lost):
            raise InputError(Problem(message=f"{what}: {found.reason}"))
        yield number, found


def _prices_of(sides: PlanPools, side: PlanPool, known: dict[tuple[int, int, int], str]) -> object:
    """Return what pools have in common whose prices are the same."""
    plan, pool = side.replica.plan, (side.place, side.pools, side.setting)
    if pool not in known:
        scenario = sides.pool(side.setting, side.pools, side.place)
        known[pool] = repr((scenario.precision, scenario.engine, scenario.serving.prefix_caching))
    sp = with_experts(plan, side.pools > 1 and side.place == 0)
    return plan.tp, plan.pp, plan.ep, plan.dp, sp, side.replica.kind, known[pool]
