"""What decodes of so many sequences cost a lane with stages, step after step, but for the keys that they attend to.

In such a step all stages attend alike, and all ranks that send take equally long: two sums a stage, in place of prices
and sends rank by rank.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

from clustersim.graph.prices.attention import DecodeNs
from clustersim.graph.prices.steps import SplitPrices
from clustersim.replay.lanes.prices import LanePrices


class StageDecodes(NamedTuple):
    """What a stage does.

    Parameters
    ----------
    base_ns, times, number : int
        Without attention; how often it attends; the number of its row.
    send_ns, senders : int
        What a send takes, and how many ranks send.
    idle : list of int
        Zeros of the others.
    carried : list of int
        Bytes by rank, where they are told.
    """

    base_ns: int
    times: int
    number: int
    send_ns: int
    senders: int
    idle: list[int]
    carried: list[int]


class Decodes(NamedTuple):
    """What all stages do, and what it takes to attend to so many keys."""

    attention: DecodeNs
    stages: list[StageDecodes]


def decodes_of(prices: LanePrices, count: int, ranks: int) -> Decodes | None:
    """Return what a step of so many decodes is; None where stages attend differently, or ranks send differently long.

    Parameters
    ----------
    prices : LanePrices
    count, ranks : int
        Sequences; ranks of a stage.
    """
    if not prices.one_attention:
        return None
    found, last = [], len(prices.stages) - 1
    for stage, one in enumerate(prices.stages):
        price = one.decode(count)
        sends = price.sends if stage < last else ()
        if len(set(sends)) > 1:
            return None
        idle = [0] * (ranks - len(sends)) if stage < last else []
        told = isinstance(one, SplitPrices) and stage < last
        carried = [*one.decode_bytes((count, *prices.idle)), *idle] if told and isinstance(one, SplitPrices) else []
        found.append(
            StageDecodes(price.base_ns, price.counts[0], price.number, (*sends, 0)[0], len(sends), idle, carried)
        )
    return Decodes(prices.stages[0].decode(count).ns[0], found)


def pass_through(
    decodes: Decodes,
    took: int,
    at: int,
    free_at: MutableSequence[int],
    sent_at: Sequence[MutableSequence[int]],
) -> tuple[int, list[int], list[int], list[int]]:
    """Let a step start at an instant, and attention take so long; ranks that send have sent alike before.

    Returns
    -------
    (end, passes, sends, bytes)
        As :meth:`~clustersim.replay.lanes.log.LaneLog.step` takes them. When stages and boundaries are free is noted.
    """
    passes: list[int] = []
    sent: list[int] = []
    carried: list[int] = []
    for stage, (base, times, number, send, senders, idle, sizes) in enumerate(decodes.stages):
        at = max(at, free_at[stage])
        passes += (at, number)
        at = free_at[stage] = at + base + times * took
        if senders:
            free = sent_at[stage]
            at = max(at, free[0])
            sent += [at] * senders
            sent += idle
            at += send
            free[:senders] = ended = [at] * senders
            sent += ended
            sent += idle
            carried += sizes
    return at, passes, sent, carried
