"""How often tokens visit each expert: evenly, by Zipf's law, or as measured.

A token visits ``top_k`` different experts of a layer, each with the probability that these frequencies give it; which
ones is a function of the token alone (rule EP-3), so that no plan, batch or order of steps changes it. What a step
takes is priced by the *expected* visits of its tokens. Drawing them token by token would add the noise of small batches
(a few tokens rarely spread as their frequencies say), but would make the cost of a step depend on who is in it, which
no measurement of a deployment tells; that noise is not modelled, for even frequencies either.

Zipf's law ranks the experts of each layer in an order of its own, a fixed shuffle that no plan or seed changes: without
it the most visited experts of all layers would be neighbours.
"""

from __future__ import annotations

from math import fsum
from typing import Final

from clustersim.values import dataclass

_ONE: Final = 2**40
"""Weights of Zipf's law are whole multiples of 1/_ONE: powers differ in their last bit from machine to machine."""
_MASK: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How often experts are visited, in proportion.

    Parameters
    ----------
    zipf : float
        The n-th most visited expert of a layer in proportion to n ** −zipf.
    frequencies : tuple of tuple of float or None
        In place of that, a number for each expert: one row for all layers, or a row for each layer with experts.
    """

    zipf: float = 0.0
    frequencies: tuple[tuple[float, ...], ...] | None = None

    def weights(self, num_experts: int, moe_layer: int) -> tuple[float, ...]:
        """Return how often each expert of a layer is visited, in proportion.

        Parameters
        ----------
        num_experts : int
        moe_layer : int
            Counted among the layers that have experts, from 0.
        """
        if self.frequencies is not None:
            return self.frequencies[moe_layer if len(self.frequencies) > 1 else 0]
        ranked = sorted(range(num_experts), key=lambda expert: (_mixed(moe_layer * num_experts + expert), expert))
        found = [0.0] * num_experts
        for place, expert in enumerate(ranked, start=1):
            found[expert] = round(float(place) ** -self.zipf * _ONE) / _ONE
        return tuple(found)


def visits(weights: tuple[float, ...], top_k: int) -> tuple[float, ...]:
    """Return the share of all tokens that visit each expert; they sum to ``top_k`` and none exceeds 1.

    In proportion to the weights, but a token visits an expert once: what is above 1 goes to the others, in proportion
    again. (Inclusion probabilities proportional to size: Tillé, "Sampling Algorithms", 2006, section 2.10.)

    Raises
    ------
    ValueError
        When fewer than ``top_k`` weights are above 0.
    """
    if sum(weight > 0 for weight in weights) < top_k:
        raise ValueError(f"a token visits {top_k} experts, and fewer are ever visited")
    full: set[int] = set()
    while True:
        rest = fsum(weight for expert, weight in enumerate(weights) if expert not in full)
        scale = (top_k - len(full)) / rest if len(full) < top_k else 0.0
        more = {expert for expert, weight in enumerate(weights) if expert not in full and weight * scale > 1.0}
        if not more:
            return tuple(1.0 if expert in full else weight * scale for expert, weight in enumerate(weights))
        full |= more


def _mixed(number: int) -> int:
    """Return a number's place in a shuffle: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    z = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
