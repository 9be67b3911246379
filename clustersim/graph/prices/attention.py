"""Attention of single steps, in plain numbers where the roofline prices it, and by arrays where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clustersim.cost.attention import constants, decode_ns, prefill_ns, terms_of
from clustersim.cost.table import TableCost
from clustersim.graph.prices.pricer import LONGEST_S, Pricer
from clustersim.graph.prices.table import attention_shape, price_groups
from clustersim.graph.program import CostClass

DecodeNs = Callable[[int], int]
"""keys attended → ns"""
PrefillNs = Callable[[int, int, int], int]
"""(pairs, queries, keys) → ns"""


class Attention:
    """A class that attends.

    Parameters
    ----------
    pricer : Pricer
    cls : CostClass
    column : int
        Its place in the program.
    places : tuple of int
        Where counts have pairs, queries and keys, or sequences that decode and keys.
    graph : bool
    known : dict
        Prices of decodes by how many they are, of all classes that attend alike.
    """

    def __init__(
        self, pricer: Pricer, cls: CostClass, column: int, places: tuple[int, ...], known: dict[int, DecodeNs], *,
        graph: bool,
    ) -> None:  # fmt: skip
        self.pricer, self.cls, self.column, self.places, self.graph = pricer, cls, column, places, graph
        self.of_prefill = prefill_price(pricer, cls) if cls.node.op == "attention_prefill" else None
        self.known = known

    def decode(self, sequences: int) -> DecodeNs:
        """Return the price of so many sequences that decode."""
        found = self.known.get(sequences)
        if found is None:
            found = self.known[sequences] = decode_price(self.pricer, self.cls, sequences, graph=self.graph)
        return found

    def ns(self, counts: Sequence[int]) -> int:
        """Return nanoseconds in a step."""
        if self.of_prefill is not None:
            pairs, queries, keys = self.places
            return self.of_prefill(counts[pairs], counts[queries], counts[keys])
        sequences, keys = self.places
        return (self.known.get(counts[sequences]) or self.decode(counts[sequences]))(counts[keys])


def window_of(cls: CostClass) -> int | None:
    """Return the sliding window of a class of attention."""
    return cls.node.variant.window


def decode_price(pricer: Pricer, cls: CostClass, sequences: int, *, graph: bool) -> DecodeNs:
    """Return the price of a class of decode attention by the keys that so many sequences attend to."""
    groups, ((many, _),), feature = price_groups([cls]), cls.node.amount, f"decode_keys{cls.node.variant}"

    def by_arrays(keys: int) -> int:
        features = {name: (0.0,) * cls.s + (float(count),) for name, count in ((many, sequences), (feature, keys))}
        return int(pricer.price_groups(groups, features, graph=graph)[0])

    gap_s, numbers = pricer.gap_s(graph=graph), list[float]()
    found = constants(pricer.cost, "attention_decode", attention_shape(cls.node), gap_s, numbers, sequences)
    if not found:
        return by_arrays
    terms, cost = terms_of(found), pricer.cost

    def plain(keys: int) -> int:
        ns = decode_ns(terms, numbers, sequences, keys, gap_s, LONGEST_S)
        return ns if ns >= 0 else by_arrays(keys)

    def measured(keys: int) -> int:
        if keys < 1:
            return by_arrays(keys)
        terms.outside = 0
        ns = decode_ns(terms, numbers, sequences, keys, gap_s, LONGEST_S)
        if ns < 0:
            return by_arrays(keys)
        assert isinstance(cost, TableCost)
        cost.count_outside("attention_decode", terms.outside)
        return ns

    return measured if terms.curves else plain


def prefill_price(pricer: Pricer, cls: CostClass) -> PrefillNs:
    """Return the price of a class of prefill attention by pairs, queries and keys."""
    groups, ((many, _),), variant = price_groups([cls]), cls.node.amount, cls.node.variant

    def by_arrays(pairs: int, queries: int, keys: int) -> int:
        told = {many: queries, f"pairs{variant}": pairs, f"prefill_keys{variant}": keys}
        features = {name: (0.0,) * cls.s + (float(count),) for name, count in told.items()}
        return int(pricer.price_groups(groups, features, graph=False)[0])

    gap_s, numbers = pricer.gap_s(graph=False), list[float]()
    found = constants(pricer.cost, "attention_prefill", attention_shape(cls.node), gap_s, numbers)
    if not found:
        return by_arrays
    terms, cost = terms_of(found), pricer.cost

    def plain(pairs: int, queries: int, keys: int) -> int:
        ns = prefill_ns(terms, numbers, pairs, queries, keys, gap_s, LONGEST_S)
        return ns if ns >= 0 else by_arrays(pairs, queries, keys)

    def measured(pairs: int, queries: int, keys: int) -> int:
        if min(pairs, queries, keys) < 1:
            return by_arrays(pairs, queries, keys)
        terms.outside = 0
        ns = prefill_ns(terms, numbers, pairs, queries, keys, gap_s, LONGEST_S)
        if ns < 0:
            return by_arrays(pairs, queries, keys)
        assert isinstance(cost, TableCost)
        cost.count_outside("attention_prefill", terms.outside)
        return ns

    return measured if terms.curves else plain
