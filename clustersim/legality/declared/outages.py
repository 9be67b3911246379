"""When which replicas are down: those with a device that has failed, or that may use a link that has.

Replicas that share experts are down together. Outages of one replica that overlap or touch are one; what it served is
lost where the fault says so that begins first (of several at one instant, any).
"""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.clock import LATEST_NS
from clustersim.cluster.fault import Fault
from clustersim.legality.declared.faults import Outage
from clustersim.legality.declared.setting import Pool, Setting

"""Replica, and the two instants between which it is down, ns."""


Broken = tuple[tuple[Outage, ...], tuple[tuple[int, int], ...]]
"""All outages; and replica and instant of those that lose what was served."""


def down(setting: Setting) -> Broken:
    """Return all outages, in order of replicas and instants, and the (replica, instant) at which requests are lost."""
    outages: list[Outage] = []
    losing: list[tuple[int, int]] = []
    for pool in setting.pools:
        for replica in pool.replicas:
            for since, until, loses in _joined(_hits(setting, pool, replica)):
                outages.append(Outage(replica, since, until))
                if loses:
                    losing.append((replica, since))
    return tuple(outages), tuple(losing)


def _hits(setting: Setting, pool: Pool, replica: int) -> Iterator[tuple[int, int, bool]]:
    devices, links = pool.devices(replica), None
    for fault in setting.faults:
        if fault.slowdown is not None or fault.share > 0.0:
            continue
        if fault.links and links is None:
            links = setting.replica_links(pool, replica)
        if devices & set(fault.devices) or (links or frozenset()) & set(fault.links):
            yield fault.at_ns, ends_at(fault), fault.loses


def _joined(hits: Iterator[tuple[int, int, bool]]) -> Iterator[tuple[int, int, bool]]:
    now: tuple[int, int, bool] | None = None
    for since, until, loses in sorted(hits, key=lambda hit: (hit[0], not hit[2])):
        if now is None or since > now[1]:
            if now is not None:
                yield now
            now = since, until, loses
        else:
            now = now[0], max(now[1], until), now[2]
    if now is not None:
        yield now


def ends_at(fault: Fault) -> int:
    """Return when a fault is over; one that is for good ends after all that can be."""
    return LATEST_NS if fault.until_ns is None else fault.until_ns
