"""Every legal plan on some devices, as candidates: one pool, and two with every ratio of their replicas."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, TypeVar

import numpy as np

from clustersim.clock import Int64Array
from clustersim.plan.parallel import SequencePartition
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.deployments import Candidate, Setting
from clustersim.search.plans.room import AskedLaunch, Room
from clustersim.search.plans.space import PARTITIONS, Refused, Replica, replicas

_One = TypeVar("_One")
_GRID: Final = 1 << 14
"""Pairs of numbers of replicas that are counted one by one; of more, as many share no factor as in the plane."""


def candidates(
    settings: Sequence[Setting],
    room: Room,
    refused: Refused,
    partitions: Sequence[SequencePartition] = PARTITIONS,
    allow: Callable[[int], None] | None = None,
    *,
    every: bool = False,
    unplaced: Callable[[Candidate], str | None] = lambda _: None,
) -> Iterator[tuple[Candidate, int]]:
    """Yield plans that no other one has more of the same replicas of, and how many legal plans each stands for.

    Parameters
    ----------
    settings : sequence of Setting
    room : Room
    refused : Refused
        Where plans are counted that are not legal.
    partitions : sequence of str
        Those of prompts over SP ranks that are enumerated.
    allow : callable, optional
        Told of about how many plans there are as soon as that is known, before those with two pools are made.
    every : bool
        Yield those with fewer of the same replicas, too.
    unplaced : callable
        Returns why a plan can't be started where its ranks are; None where it can.
    """

    def placed(made: list[Candidate]) -> list[Candidate]:
        reasons = [unplaced(one) for one in made]
        for one, reason in zip(made, reasons, strict=True):
            if reason is not None:
                assert room.launch is not None
                refused.add(room.launch.name, one.plans[0], reason)
        return [one for one, reason in zip(made, reasons, strict=True) if reason is None]

    many = 0
    for number, setting in enumerate(settings):
        if setting.single is not None:
            for one in _of_each_kind(setting.single, room, refused, partitions):
                yield from _standing_for(placed(_fitting(one, number, room)), every)
        if setting.pools is not None:
            prefill, decode = setting.pools.each_pool()
            counted = refused if setting.single is None else Refused()  # what one pool can't have, two can't either
            firsts, seconds = (_of_each_kind(one, room, counted, partitions) for one in (prefill, decode))
            many += _about(firsts, seconds, room)
            if allow is not None:
                allow(many)
            known: dict[object, list[list[tuple[int, int]]]] = {}
            for first in firsts:
                for second in seconds:
                    alike = _alike(first), _alike(second)
                    if alike not in known:
                        known[alike] = list(_ratios(first, second, room))
                    for fitting in known[alike]:
                        made = [Candidate(replicas=(first, second), counts=one, setting=number) for one in fitting]
                        yield from _standing_for(placed(made), every)


_Alike = tuple[int, str | None, bool]


def _alike(one: Replica) -> _Alike:
    """Return what decides how many of a replica there may be."""
    return one.devices, one.kind, one.plan.is_lockstep


def _about(firsts: Sequence[Replica], seconds: Sequence[Replica], room: Room) -> int:
    """Return about how many plans have a replica of each of two lists: those of each shape times their ratios."""
    each = [Counter(map(_alike, some)) for some in (firsts, seconds)]
    return sum(
        many * others * _coprime(one, other, room) for one, many in each[0].items() for other, others in each[1].items()
    )


def _coprime(first: _Alike, second: _Alike, room: Room) -> int:
    """Return about how many numbers of two replicas share no factor and fit; of all devices, how many take them all."""
    rooms: list[tuple[float, float, float]] = [(room.devices, first[0], second[0])]
    if room.usd is not None:
        usd = [one[0] * room.price.get(one[1], 0.0) for one in (first, second)]
        rooms.append((room.usd, usd[0], usd[1]))
    for kind, most in room.of_kind.items():
        if kind is not None or most < room.devices:
            rooms.append((most, first[0] * (first[1] == kind), second[0] * (second[1] == kind)))
    some = np.arange(1, (1 if first[2] else room.devices // first[0]) + 1)
    fitting = np.full(len(some), 1 if second[2] else room.devices // second[0])
    for holds, each, every in rooms:
        left = holds - some * each
        fitting = np.where(left < 0, 0, np.minimum(fitting, left // every) if every else fitting).astype(np.int64)
    if room.exactly:
        need = room.devices - some * first[0]
        return int(((need % second[0] == 0) & (need > 0) & (need // second[0] <= fitting)).sum())
    many = int(fitting.max(initial=0))
    if len(some) * many > _GRID:
        return int(fitting.sum() * 6 / math.pi**2)
    return int(_coprime_up_to(len(some).bit_length(), many.bit_length())[some, fitting].sum())


@cache
def _coprime_up_to(rows: int, columns: int) -> Int64Array:
    """Return ``[number, most]``: how many from 1 to ``most`` share no factor with a number; so many bits of each."""
    table = np.gcd.outer(np.arange(1 << rows), np.arange(1 << columns)) == 1
    table[:, 0] = False
    return np.cumsum(table, axis=1)


def _of_each_kind(
    scenario: Scenario, room: Room, refused: Refused, partitions: Sequence[SequencePartition]
) -> list[Replica]:
    found = []
    for kind, devices in room.of_kind.items():
        here = scenario
        if kind is not None:
            here = replace(scenario, topology=scenario.topology.seen_from(scenario.topology.of_kind(kind)[0]))
        legal = replicas(here, min(devices, room.devices), kind, refused, partitions)
        found += legal if room.launch is None else list(_launched(here, legal, room.launch, refused))
    return found


def _launched(scenario: Scenario, legal: Sequence[Replica], launch: AskedLaunch, refused: Refused) -> Iterator[Replica]:
    """Yield the replicas that can be started: those on the first devices, which other places of them may not be."""
    known: dict[object, str | None] = {}
    for one in legal:
        plan = one.plan
        alike = plan.tp, plan.pp, plan.dp, plan.ep, plan.sp.degree > 1
        if alike not in known:
            known[alike] = launch.refusal(scenario.with_entry(plan=plan), False)
        reason = known[alike]
        if reason is None:
            yield one
        else:
            refused.add(launch.name, plan, reason)


def _standing_for(fitting: Sequence[_One], every: bool) -> Iterator[tuple[_One, int]]:
    """Yield the largest and how many it stands for; or each, for itself."""
    if every:
        yield from ((one, 1) for one in fitting)
    elif fitting:
        yield fitting[-1], len(fitting)


def _fitting(one: Replica, setting: int, room: Room) -> list[Candidate]:
    """Return so many replicas as fit, fewest first."""
    most = 1 if one.plan.is_lockstep else room.devices // one.devices
    made = (Candidate(replicas=(one,), counts=(count,), setting=setting) for count in range(1, most + 1))
    return [candidate for candidate in made if room.holds(candidate)]


def _ratios(first: Replica, second: Replica, room: Room) -> Iterator[list[tuple[int, int]]]:
    """Yield the numbers of replicas of both pools that have a ratio, fewest first, of each ratio."""
    most = (room.devices - second.devices) // first.devices, (room.devices - first.devices) // second.devices
    counts = [1 if one.plan.is_lockstep else many for one, many in zip((first, second), most, strict=True)]
    for prefill in range(1, counts[0] + 1):
        for decode in range(1, counts[1] + 1):
            if math.gcd(prefill, decode) > 1:
                continue
            fitting = []
            times = 1
            while prefill * times <= counts[0] and decode * times <= counts[1]:
                made = Candidate(replicas=(first, second), counts=(prefill * times, decode * times), setting=0)
                if made.devices > room.devices:
                    break
                if room.holds(made):
                    fitting.append((prefill * times, decode * times))
                times += 1
            if fitting:
                yield fitting
