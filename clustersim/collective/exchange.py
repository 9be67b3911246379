"""DeepEP's kernels between the ranks of experts: what of a payload goes where.

The payload is what one rank sends where each of its tokens goes once to every rank that it reaches, each of those that
share an expert, itself included (combine: where each of these sends its part of what it made of the tokens).

::

    normal, dispatch    source → its rail's member of each node reached → every rank there that is reached
    normal, combine     the same backwards: sums of a rank, then of a node
    low latency         as an all-to-all with all pairs at once, a message for each expert

Messages are pipelined from the rail to NVLink, so both are busy at the same time and their steps add up.
"""

from __future__ import annotations

from math import fsum

from clustersim.collective.group import Group
from clustersim.collective.pairs import direct
from clustersim.collective.traffic import Traffic
from clustersim.plan.exchange import Exchange


def exchange_traffic(group: Group, exchange: Exchange) -> Traffic:
    """Return the traffic of a dispatch or combine over a group, whose ranks are in order of those of experts."""
    if exchange.way == "deepep_low_latency":
        straight = direct(group, 1.0 / len(group.given))
        return Traffic(sends=straight.sends, steps=straight.steps)
    return _normal(group, exchange)


def _normal(group: Group, exchange: Exchange) -> Traffic:
    shared = len(group.given) // exchange.ranks
    rank_of = {device: place // shared for place, device in enumerate(group.given)}
    reached = [exchange.reached([rank]) for rank in range(exchange.ranks)]
    total = fsum(reached)
    sends: dict[tuple[int, int], float] = {}
    for domain in group.domains:
        ranks = [rank_of[device] for device in domain]
        arriving = exchange.reached(sorted(set(ranks))) / total
        # What comes to an expert comes to all that share it; what it made, each of them has a part of.
        once = 1.0 / shared if exchange.towards == "experts" else len(domain) / (len(set(ranks)) * shared)
        relayed = [1] * len(domain)
        for other in group.domains:
            if other is not domain:
                for place, source in enumerate(other):
                    relay = place % len(domain)
                    relayed[relay] += 1
                    sends[source, domain[relay]] = arriving * once
        for relay, many in zip(domain, relayed, strict=True):
            for device, rank in zip(domain, ranks, strict=True):
                if device != relay:
                    sends[relay, device] = many * reached[rank] / (total * shared)
    if exchange.towards == "tokens":
        sends = {(target, source): share for (source, target), share in sends.items()}
    node_of = {device: number for number, domain in enumerate(group.domains) for device in domain}
    far = [pair for pair in sends if node_of[pair[0]] != node_of[pair[1]]]
    near = [pair for pair in sends if node_of[pair[0]] == node_of[pair[1]]]
    return Traffic(
        sends=[(*pair, share) for pair, share in sends.items()], steps=[(1, pairs) for pairs in (far, near) if pairs]
    )
