"""Two levels: inside the scale-up domains, and between them on rails (member i of each domain, one NIC each).

::

    all-reduce      reduce-scatter inside → all-reduce on each rail → all-gather inside
    all-gather      all-gather on each rail → all-gather inside            (reduce-scatter: the reverse)
    all-to-all      to the own rail's member of the target's domain → inside that domain to the target

Chunks are pipelined through the stages, so loads of the stages run at the same time and their steps add up.
All stages are rings, but the all-to-all's, which are direct: Thakur, Rabenseifner & Gropp 2005 for the
stages; NCCL's PXN and DeepEP's normal kernels for the all-to-all over rails.
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.collective.group import Group, group_of
from clustersim.collective.pairs import direct
from clustersim.collective.ring import own_part, ring
from clustersim.collective.traffic import Traffic, merged, scaled


def two_level(group: Group, laps: int) -> Traffic:
    """Return the traffic of all-gather or reduce-scatter (``laps`` 1) or all-reduce (2)."""
    rails = _rails(group)
    # A rail works on the part of the payload that its member owns.
    between = [scaled(ring(rail, laps), 1.0 / len(rails)) for rail in rails]
    inside = [ring(group_of(group.topology, domain), laps) for domain in group.domains]
    return replace(merged([_together(between), _together(inside)]), own=own_part(group, laps))


def two_level_all_to_all(group: Group) -> Traffic:
    """Return the traffic of an all-to-all whose messages between domains stay on rails."""
    rails = _rails(group)
    between = [direct(rail, 1.0 / len(group.domains)) for rail in rails]
    inside = [
        direct(group_of(group.topology, domain), len(group.domains) / len(group.ranked)) for domain in group.domains
    ]
    return replace(merged([_together(between), _together(inside)]), own=1.0 / len(group.ranked))


def _rails(group: Group) -> list[Group]:
    return [group_of(group.topology, members) for members in zip(*group.domains, strict=True)]


def _together(groups: list[Traffic]) -> Traffic:
    """Return the traffic of groups that are alike and work at the same time: steps count once."""
    return Traffic(
        sends=[send for traffic in groups for send in traffic.sends],
        steps=groups[0].steps,
        peers=groups[0].peers,
    )
