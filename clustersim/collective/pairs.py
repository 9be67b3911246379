"""Algorithms in which ranks talk straight to each other: all pairs at once, or pair after pair, or one pair.

Custom all-reduces for small messages: one-shot (each rank reads all tensors and adds them) and two-shot
(reduce-scatter, then all-gather, both all pairs at once), as in vLLM's csrc/custom_all_reduce.cuh and
TensorRT-LLM's customAllReduceKernels. Pairwise exchange: Thakur, Rabenseifner & Gropp 2005, § 4.6.
"""

from __future__ import annotations

from clustersim.collective.group import Group
from clustersim.collective.traffic import Traffic, merged


def direct(group: Group, share: float) -> Traffic:
    """Every rank sends ``share`` of the payload to every other, all at once."""
    pairs = [(a, b) for a in group.ranked for b in group.ranked if a != b]
    return Traffic(
        sends=[(source, target, share) for source, target in pairs],
        steps=[(1, pairs)],
        peers=len(group.ranked) - 1,
        own=share if share < 1.0 else 0.0,
    )


def one_shot(group: Group) -> Traffic:
    """Every rank reads the whole tensor of every other and reduces it by itself."""
    return direct(group, 1.0)


def two_shot(group: Group) -> Traffic:
    """Direct reduce-scatter, then direct all-gather."""
    stage = direct(group, 1.0 / len(group.ranked))
    return merged([stage, stage])


def pairwise(group: Group) -> Traffic:
    """All-to-all in n − 1 steps: in step k every rank sends to the one k places on."""
    order = group.ranked
    count = len(order)
    shifts = [[(order[i], order[(i + k) % count]) for i in range(count)] for k in range(1, count)]
    return Traffic(
        sends=[(source, target, 1.0 / count) for pairs in shifts for source, target in pairs],
        steps=[(1, pairs) for pairs in shifts],
        own=1.0 / count,
    )


def gather(group: Group) -> Traffic:
    """Every rank sends its part to the first of the given order."""
    root = group.given[0]
    pairs = [(member, root) for member in group.given[1:]]
    share = 1.0 / len(group.given)
    return Traffic(sends=[(source, target, share) for source, target in pairs], steps=[(1, pairs)], peers=len(pairs))


def broadcast_direct(group: Group) -> Traffic:
    """The first of the given order sends the tensor to every other."""
    root = group.given[0]
    pairs = [(root, member) for member in group.given[1:]]
    return Traffic(sends=[(source, target, 1.0) for source, target in pairs], steps=[(1, pairs)], peers=len(pairs))


def send(group: Group) -> Traffic:
    """The first of the given order sends to the second."""
    source, target = group.given
    return Traffic(sends=[(source, target, 1.0)], steps=[(1, [(source, target)])])


def ring_shift(group: Group) -> Traffic:
    """Every rank sends to the next of the given order, the last to the first."""
    pairs = list(zip(group.given, (*group.given[1:], group.given[0]), strict=True))
    return Traffic(sends=[(source, target, 1.0) for source, target in pairs], steps=[(1, pairs)])
