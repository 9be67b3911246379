"""What the steps of a lane cost, stage by stage: the sums over a batch that prices are functions of, and the prices.

The prices themselves are :class:`~clustersim.graph.prices.steps.StepPrices`'. Not here: when a stage is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from clustersim.graph.prices.decodes import DecodePrice
from clustersim.graph.prices.steps import SplitPrice, SplitPrices, StepPrice, StepPrices
from clustersim.graph.program import CostClass
from clustersim.plan.segments import causal_pairs
from clustersim.serving.grouped.batch import Batch, Chunks
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.owner_group import OwnerGroup

Price = TypeVar("Price", StepPrice, SplitPrice)


class LanePrices:
    """The prices of one replica.

    Parameters
    ----------
    stages : sequence of StepPrices
        One per stage.

    Attributes
    ----------
    windows : tuple of int
        Sliding windows of the model.
    alike : bool
        Whether decodes attend at the same prices on every stage …
    one_attention : bool
        … and at one alone.
    """

    def __init__(self, stages: Sequence[StepPrices]) -> None:
        self.stages = stages
        self.distinct = list(dict.fromkeys(stages))
        self.of_stage = [self.distinct.index(one) for one in stages]
        """Which of the distinct prices are those of each stage."""
        self.split = [one for one in self.distinct if isinstance(one, SplitPrices)]
        """The distinct prices where prompts are split over SP ranks."""
        self.idle = (0,) * (stages[0].pricer.sp.degree - 1)
        """Decodes on SP ranks that have none."""
        self.ranks = range(stages[0].pricer.sp.degree)
        self.windows = stages[0].pricer.windows
        attention = [_attention(one) for one in stages]
        self.alike = all(classes == attention[0] for classes in attention)
        self.one_attention = self.alike and len(attention[0]) == 1 and not self.windows

    def leaving(self, batch: Batch) -> tuple[int, int, list[SplitPrice]]:
        """Return the new prompt tokens of a step, its context and attended tokens, and its price by stage."""
        group, decodes = batch.group, batch.decodes
        attended = 0 if group is None else group.computed + decodes
        if batch.chunks:
            return self._split(batch.chunks, group, attended)
        assert group is not None
        if isinstance(group, OwnerGroup):
            keys = {one: tuple([group.keys(s, one)[0] for s in self.ranks]) for one in (None, *self.windows)}
            first = self.split[0].decoded(group.counts, keys)
            known = first[2] if self.alike else ()
            others = [one.decoded(group.counts, keys, known) for one in self.split[1:]]
            return 0, attended, self._by_stage([first, *others])
        sequences = group.count, *self.idle
        sizes = [one.decode_bytes(sequences) for one in self.stages if isinstance(one, SplitPrices)]
        priced = zip(self._decodes(group), sizes, strict=True)
        return 0, attended, [(*one, (one[0],) * len(one[3]), some) for one, some in priced]

    def _split(self, chunks: Chunks, group: DecodeGroup | None, attended: int) -> tuple[int, int, list[SplitPrice]]:
        """Return what :meth:`leaving` does of a step with prompts."""
        told = [(sequence.computed, count, sequence.owner) for sequence, count in chunks]
        keys: dict[int | None, tuple[int, ...]]
        if isinstance(group, OwnerGroup):
            beside = group.counts
            keys = {one: tuple([group.keys(s, one)[0] for s in self.ranks]) for one in (None, *self.windows)}
        else:
            beside = (0 if group is None else group.count, *self.idle)
            keys = {window: (within(window, [], group)[2],) for window in self.windows}
            keys[None] = (attended,)
        context = sum([start for start, _, _ in told])
        priced = [one.split(told, beside, keys) for one in self.split]
        return sum([count for _, count, _ in told]), context + attended, self._by_stage(priced)

    def _decodes(self, group: DecodeGroup) -> list[StepPrice]:
        if not self.one_attention:
            return self._by_stage([_price_decodes(prices, group) for prices in self.distinct])
        count = group.count
        prices = [one.decode(count) for one in self.distinct]
        took = prices[0].ns[0](group.computed + count)
        ns = (took,)
        priced: list[StepPrice] = [
            (price.base_ns + price.counts[0] * took, price.number, ns, price.sends) for price in prices
        ]
        return self._by_stage(priced)

    def _by_stage(self, priced: list[Price]) -> list[Price]:
        return priced if len(priced) == len(self.stages) else [priced[place] for place in self.of_stage]


def prompt_sums(chunks: Chunks) -> tuple[int, int, int, int]:
    """Return new tokens, those computed before, pairs that attend, and keys, each summed over prompt chunks."""
    new = context = pairs = keys = 0
    for sequence, count in chunks:
        start = sequence.computed
        new += count
        context += start
        pairs += count * start + count * (count + 1) // 2
        keys += start + count
    return new, context, pairs, keys


def decode_classes(price: DecodePrice, group: DecodeGroup) -> list[tuple[Callable[[int], int], int, int, int]]:
    """Return (ns of keys, instances, keys in the next step, keys more with every step) of each class that attends."""
    found = []
    sums = {one.window: one for one in group.windows}
    for attention, instances, window in zip(price.ns, price.counts, price.windows, strict=True):
        keys, growth = group.computed + group.count, group.count
        if window is not None:
            keys, growth = sums[window].keys(group.count, group.clock), sums[window].growth
        found.append((attention, instances, keys, growth))
    return found


def _price_decodes(prices: StepPrices, group: DecodeGroup) -> StepPrice:
    """Return the price of one step that only decodes, on one stage."""
    price = prices.decode(group.count)
    if group.windows:
        ns = tuple([attention(keys) for attention, _, keys, _ in decode_classes(price, group)])
    else:
        keys = group.computed + group.count
        ns = tuple([attention(keys) for attention in price.ns])
    total = price.base_ns
    for took, instances in zip(ns, price.counts, strict=True):
        total += instances * took
    return total, price.number, ns, price.sends


def within(window: int, chunks: Chunks, group: DecodeGroup | None) -> tuple[int, int, int]:
    """Return the pairs and prefill keys of chunks, and the keys of decodes, within a sliding window."""
    pairs = keys = 0
    for sequence, count in chunks:
        start = sequence.computed
        pairs += causal_pairs((start, start + count), (0, start + count), window)
        keys += min(start + count, count + window - 1)
    sums = [] if group is None else [one for one in group.windows if one.window == window]
    return pairs, keys, sum(one.keys(group.count, group.clock) for one in sums if group is not None)


def _attention(prices: StepPrices) -> list[CostClass]:
    """Return the classes of a stage by which decodes attend."""
    return [cls for cls in prices.programs["decode"].classes if cls.node.op == "attention_decode"]
