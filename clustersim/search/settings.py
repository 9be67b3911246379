"""Limits that have a number: from which value to which it may go, what sets it, and by what a value is enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from clustersim.report.metrics.latencies import targets_ns
from clustersim.report.why.lifted import BINDS, METRICS, met
from clustersim.scenario.scenario import Scenario
from clustersim.search.lifts import Lift, as_resolved, pools_of, roomy_topology
from clustersim.search.point import Row
from clustersim.simulation.legality import memory_blocks, pool_blocks, scenario_memory
from clustersim.units import format_bytes
from clustersim.values import dataclass

MOST_TIMES: Final = 16
"""The value of the scenario, so many times, is the most that is tried."""
_UTILIZATIONS: Final = tuple(number / 100 for number in range(1, 99))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A limit that has a number.

    Parameters
    ----------
    now : int
        Its value, which is too little.
    first : int
        The value that is tried first.
    most : int
        No larger one is tried.
    changes : callable
        Value → ``PATH=VALUE`` each.
    words : callable
        Value → how it is told.
    is_enough : callable
        Tells by a row whether a value is enough.
    only_first : bool
        Whether no smaller value is looked for.
    """

    now: int
    first: int
    most: int
    changes: Callable[[int], tuple[str, ...]]
    words: Callable[[int], str]
    is_enough: Callable[[Row], bool]
    only_first: bool = False


def setting_of(scenario: Scenario, requests: int, lift: Lift, row: Row) -> Setting | None:
    """Return the setting of a limit of a scenario of so many requests; None where nothing of it is enough.

    Parameters
    ----------
    scenario : Scenario
    requests : int
    lift : Lift
    row : Row
        Of the run without the limit.
    """
    limits = targets_ns(scenario.targets)

    def meets(one: Row) -> bool:
        return met(one["numbers"], limits)

    if lift.name == "memory":
        return _blocks(scenario, row, meets if limits and meets(row) else lambda one: _as_good(one, row))
    if not limits or (lift.name != "replicas" and not meets(row)):
        return None
    if lift.name == "replicas":
        return _replicas(scenario, lift, meets)
    key = {"batch": "max_batch_requests", "tokens": "max_batch_tokens"}.get(lift.name)
    return _serving(scenario, key, meets, requests) if key is not None else None


def _as_good(row: Row, best: Row) -> bool:
    """Tell whether no metric is worse than in another run."""
    for name, (_, better) in METRICS.items():
        value, wanted = row["numbers"].get(name), best["numbers"].get(name)
        if wanted is not None and (value is None or better * (value - wanted) < -BINDS * abs(wanted)):
            return False
    return True


def _serving(scenario: Scenario, key: str, is_enough: Callable[[Row], bool], requests: int) -> Setting:
    """Return the setting of a limit of ``serving``; pools have at least as much."""
    own = {at: int(getattr(one.serving, key)) for at, one in pools_of(scenario)}
    most = max(requests, 2) if key == "max_batch_requests" else 2 * max(own.values())

    def changes(value: int) -> tuple[str, ...]:
        return tuple(f"serving.{at}{key}={max(value, now)}" for at, now in own.items())

    now = min(own.values())
    return Setting(
        now=now, first=min(most, 2 * now), most=most, changes=changes,
        words=lambda value: _typed(changes(value)), is_enough=is_enough,
    )  # fmt: skip


def _replicas(scenario: Scenario, lift: Lift, is_enough: Callable[[Row], bool]) -> Setting:
    at = lift.key.removeprefix("plan.").removesuffix("dp")
    pools = dict(pools_of(scenario))
    own = pools[at].plan
    others = sum(one.plan.world for one in pools.values()) - own.world
    here, nodes = len(scenario.topology.devices), scenario.portable["topology"].get("nodes")
    room = (here - others) // (own.world // own.dp)

    def changes(value: int) -> tuple[str, ...]:
        used = others + value * (own.world // own.dp)
        more = (f"topology.nodes={math.ceil(used / (here // nodes))}",) if nodes and used > here else ()
        return (f"{lift.key}={value}", *more)

    most = MOST_TIMES * own.dp if nodes else min(room, MOST_TIMES * own.dp)
    return Setting(
        now=own.dp, first=own.dp + 1, most=most, changes=changes,
        words=lambda value: f"{_typed(changes(value))} ({others + value * (own.world // own.dp):,} devices)",
        is_enough=is_enough,
    )  # fmt: skip


def _typed(changes: Sequence[str]) -> str:
    return " ".join(f"--set {one}" for one in changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """A pool's K/V blocks: of a replica now and at most where there are plenty, and how they can be had."""

    at: str
    scenario: Scenario
    now: int
    held: int

    @property
    def owners(self) -> int:
        sp = self.scenario.plan.sp
        return sp.degree if sp.decode == "dp" else 1

    def change(self, blocks: int) -> tuple[str, str]:
        """Return the change of a value by which a replica has so many blocks; without one, and in words."""
        each = math.ceil(blocks / self.owners)
        for share in (None, *_UTILIZATIONS):
            key = "kv_blocks" if share is None else "memory_utilization"
            if share is None and self.scenario.serving.kv_blocks is None:
                continue
            found = memory_blocks(self.scenario, share)
            if found >= each and (share is None or share > self.scenario.serving.memory_utilization):
                return f"serving.{self.at}{key}={each if share is None else share}", ""
        rank = max(one.kv_bytes_per_token for one in scenario_memory(self.scenario))
        lacks = (each - memory_blocks(self.scenario, None)) * rank * self.scenario.serving.kv_block_tokens
        whose = f"a {self.at[:-1]} replica" if self.at else "a replica"
        return "", f"{blocks:,} K/V blocks of {whose}, for which each device needs {format_bytes(lacks)} more"


def _blocks(scenario: Scenario, roomy: Row, is_enough: Callable[[Row], bool]) -> Setting | None:
    """Return the setting of K/V blocks: of the pool that lacks most, and of others as many times what they hold."""
    pools = list(_held(scenario, roomy))
    short = max(pools, key=lambda one: one.held / one.now, default=None)
    if short is None or short.held <= short.now:
        return None
    limits = targets_ns(scenario.targets)

    def blocks(value: int) -> Iterator[tuple[_Pool, int]]:
        for one in pools:
            yield one, value if one is short else max(one.now, math.ceil(one.held * value / short.held))

    def changes(value: int) -> tuple[str, ...]:
        more = [(one, number, *one.change(number)) for one, number in blocks(value) if number > one.now]
        if all(change for _, _, change, _ in more):
            return tuple(change for _, _, change, _ in more)
        told = tuple(f"serving.{one.at}kv_blocks={math.ceil(number / one.owners)}" for one, number in blocks(value))
        return (roomy_topology(scenario), *as_resolved(scenario), *told)

    def words(value: int) -> str:
        more = [(one, *one.change(number)) for one, number in blocks(value) if number > one.now]
        return " and ".join(f"--set {change}" if change else told for _, change, told in more)

    return Setting(
        now=short.now, first=short.held, most=MOST_TIMES * short.now, changes=changes, words=words,
        is_enough=is_enough, only_first=not (limits and met(roomy["numbers"], limits)),
    )  # fmt: skip


def _held(scenario: Scenario, roomy: Row) -> Iterator[_Pool]:
    for at, one in pools_of(scenario):
        held: Any = roomy["numbers"].get(f"kv_held.{at[:-1] or 'all'}")
        pool = _Pool(at=at, scenario=one, now=1, held=int(held or 0))
        now = pool_blocks(one, scenario_memory(one)) * pool.owners
        yield replace(pool, now=max(1, now))
