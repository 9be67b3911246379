"""What DeepEP sends between the ranks of experts: bytes per payload byte, which is what one rank sends to all ranks."""

from __future__ import annotations

from math import fsum

from clustersim.legality.prices.algorithms import direct
from clustersim.legality.prices.exchange import share_reached
from clustersim.legality.prices.sent import Members, Sent
from clustersim.plan.exchange import Exchange


def to_experts(group: Members, way: Exchange) -> Sent:
    """Return what a dispatch sends, or, the other way round, a combine."""
    if way.way == "deepep_low_latency":
        straight = direct(group, 1.0 / len(group.all))
        return Sent(bytes=straight.bytes, steps=straight.steps)
    sent, each = Sent(), len(group.given) // way.ranks
    owner = {device: place // each for place, device in enumerate(group.given)}
    shares = [share_reached(way, [rank]) for rank in range(way.ranks)]
    total = fsum(shares)
    back = way.towards == "tokens"

    def send(source: int, target: int, share: float) -> None:
        sent.send([(target, source) if back else (source, target)], share / total)

    arriving = []
    for node in group.domains:
        there = {owner[device] for device in node}
        arriving.append(share_reached(way, there) * (len(node) / (len(there) * each) if back else 1.0 / each))
    for source in group.all:
        home = int(group.topology.node_of[source])
        for node, arrives in zip(group.domains, arriving, strict=True):
            here = node.index(source) if source in node else _place(group, source) % len(node)
            first = node[here]
            if int(group.topology.node_of[first]) != home:
                send(source, first, arrives)
            for device in node:
                if device != first:
                    send(first, device, shares[owner[device]] / each)
    node_of = group.topology.node_of
    across = [pair for pair in sent.bytes if node_of[pair[0]] != node_of[pair[1]]]
    within = [pair for pair in sent.bytes if node_of[pair[0]] == node_of[pair[1]]]
    sent.steps = [(1, pairs) for pairs in (across, within) if pairs]
    return sent


def _place(group: Members, device: int) -> int:
    """Return which of its node's members a device is."""
    return next(node.index(device) for node in group.domains if device in node)
