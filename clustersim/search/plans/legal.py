"""Every legal plan on some devices, as candidates: one pool, and two with every ratio of their replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from clustersim.plan.parallel import SequencePartition
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.deployments import Candidate, Setting
from clustersim.search.plans.room import Room
from clustersim.search.plans.space import PARTITIONS, Refused, Replica, replicas


def candidates(
    settings: Sequence[Setting], room: Room, refused: Refused, partitions: Sequence[SequencePartition] = PARTITIONS
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
    """
    for number, setting in enumerate(settings):
        if setting.single is not None:
            for one in _of_each_kind(setting.single, room, refused, partitions):
                yield from _largest(one, number, room)
        if setting.pools is not None:
            prefill, decode = setting.pools.each_pool()
            counted = refused if setting.single is None else Refused()  # what one pool can't have, two can't either
            firsts, seconds = (_of_each_kind(one, room, counted, partitions) for one in (prefill, decode))
            known: dict[object, list[tuple[tuple[int, int], int]]] = {}
            for first in firsts:
                for second in seconds:
                    alike = tuple((one.devices, one.kind, one.plan.is_lockstep) for one in (first, second))
                    if alike not in known:
                        known[alike] = list(_ratios(first, second, room))
                    for counts, same in known[alike]:
                        yield Candidate(replicas=(first, second), counts=counts, setting=number), same


def _of_each_kind(
    scenario: Scenario, room: Room, refused: Refused, partitions: Sequence[SequencePartition]
) -> list[Replica]:
    found = []
    for kind, devices in room.of_kind.items():
        here = scenario
        if kind is not None:
            here = replace(scenario, topology=scenario.topology.seen_from(scenario.topology.of_kind(kind)[0]))
        found += replicas(here, min(devices, room.devices), kind, refused, partitions)
    return found


def _largest(one: Replica, setting: int, room: Room) -> Iterator[tuple[Candidate, int]]:
    most = 1 if one.plan.is_lockstep else room.devices // one.devices
    made = (Candidate(replicas=(one,), counts=(count,), setting=setting) for count in range(1, most + 1))
    fitting = [candidate for candidate in made if room.holds(candidate)]
    if fitting:
        yield fitting[-1], len(fitting)


def _ratios(first: Replica, second: Replica, room: Room) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the most replicas of both pools in each ratio, and how many numbers of them have that ratio."""
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
                yield fitting[-1], len(fitting)
