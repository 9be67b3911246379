"""Trees: latency that grows with log n. Double binary tree over domains, chains inside; recursive halving.

Double binary tree: Sanders, Speck & Träff, Two-tree algorithms for full bandwidth broadcast, reduction and
scan, Parallel Computing 35 (2009): two trees carry half of the payload each, and a member is a leaf in one
of them. NCCL 2.4 and later: binary between nodes, a chain inside each, one pair of trees per channel (NIC).
Recursive halving and doubling: Thakur, Rabenseifner & Gropp 2005, § 4.5 (Rabenseifner's algorithm).
"""

from __future__ import annotations

from clustersim.collective.group import Group
from clustersim.collective.ring import own_part
from clustersim.collective.traffic import Send, Step, Traffic


def double_tree(group: Group) -> Traffic:
    """Return the traffic of an all-reduce: up the trees and down again."""
    size = min(len(domain) for domain in group.domains)
    channels = size if group.is_even else 1
    sends: list[Send] = []
    for channel in range(channels):
        heads = [domain[channel] for domain in group.domains]
        for domain in group.domains:
            turn = [domain[(channel + i) % len(domain)] for i in range(len(domain))]
            sends += _both_ways(list(zip(turn[1:], turn[:-1], strict=True)), 1.0 / channels)
        for parents in two_trees(len(heads)):
            edges = [(heads[child], heads[up]) for child, up in enumerate(parents) if up >= 0]
            sends += _both_ways(edges, 0.5 / channels)
    longest = max(group.domains, key=len)
    steps: list[Step] = [(2, [pair]) for pair in zip(longest[1:], longest[:-1], strict=True)]
    heads = [domain[0] for domain in group.domains]
    deepest = max((_path_to_root(parents) for parents in two_trees(len(heads))), key=len)
    steps += [(2, [(heads[child], heads[up])]) for child, up in deepest]
    return Traffic(sends=sends, steps=steps)


def halving(group: Group, kinds: int) -> Traffic:
    """Return the traffic of reduce-scatter or all-gather (``kinds`` 1) or all-reduce (2), n a power of two.

    Half of the payload goes to the nearest partner, a quarter to the one two ranks away, and so on.
    """
    order = group.ranked
    sends: list[Send] = []
    steps: list[Step] = []
    distance, share = 1, 0.5
    while distance < len(order):
        pairs = [(member, order[rank ^ distance]) for rank, member in enumerate(order)]
        sends += [(source, target, kinds * share) for source, target in pairs]
        steps.append((kinds, pairs))
        distance, share = 2 * distance, share / 2
    return Traffic(sends=sends, steps=steps, own=own_part(group, kinds))


def two_trees(count: int) -> tuple[list[int], list[int]]:
    """Return the parents (−1: root) of both trees over ``count`` members.

    In the first tree member 0 is the root over the in-order tree on 1 … count − 1, in which a member's
    height is its number of trailing zero bits: odd members are leaves. The second tree is the first,
    mirrored (count even) or moved on by one (count odd), so that even members are leaves there.

    Examples
    --------
    >>> two_trees(4)
    ([-1, 2, 0, 2], [1, 3, 1, -1])
    """
    first = [_parent(member, count) for member in range(count)]
    second = [-1] * count
    for child, up in enumerate(first):
        if count % 2 == 0:
            second[count - 1 - child] = count - 1 - up if up >= 0 else -1
        else:
            second[(child + 1) % count] = (up + 1) % count if up >= 0 else -1
    return first, second


def _parent(member: int, count: int) -> int:
    """One bit higher than the member's lowest: on its right if that exists, else on its left; −1 for 0."""
    if member == 0:
        return -1
    low = member & -member
    right = (member - low) | 2 * low
    return right if right < count else member - low


def _path_to_root(parents: list[int]) -> list[tuple[int, int]]:
    """Return the (child, parent) edges from a deepest member to the root."""
    paths: list[list[tuple[int, int]]] = []
    for child in range(len(parents)):
        path, here = [], child
        while parents[here] >= 0:
            path.append((here, parents[here]))
            here = parents[here]
        paths.append(path)
    return max(paths, key=len)


def _both_ways(edges: list[tuple[int, int]], share: float) -> list[Send]:
    return [send for a, b in edges for send in ((a, b, share), (b, a, share))]
