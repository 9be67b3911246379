"""Which K/V entries have to go from which rank to which when a sequence moves to a replica with another plan.

::

    prefill, tp 2            decode, pp 2 × tp 1
    rank 0  heads 0-3  ──────► stage 0  layers 0-15   (from both: heads 0-7)
    rank 1  heads 4-7  ──┴───► stage 1  layers 16-31

A rank gets the heads and layers that it is to hold (rule KV-4), each from one rank that holds them; where several do
(more TP ranks than K/V heads, or a latent that all heads share), they take turns. Pure arithmetic on plans.
"""

from __future__ import annotations

import math

from clustersim.model.architecture import Attention, ModelSpec
from clustersim.model.kv import kv_elements_per_token
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.stages import stage_layers
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one rank sends another of every token.

    Parameters
    ----------
    source, target : (int, int)
        Stage and TP rank.
    layers : tuple of int
    heads : tuple of tuple of int
        K/V heads of each of these layers.
    layer_bytes : tuple of float
        Bytes of one token in each of them.
    """

    source: tuple[int, int]
    target: tuple[int, int]
    layers: tuple[int, ...]
    heads: tuple[tuple[int, ...], ...]
    layer_bytes: tuple[float, ...]

    @property
    def token_bytes(self) -> float:
        """Bytes of one token in all of its layers."""
        return math.fsum(self.layer_bytes)

    def head_range(self, layer: int) -> tuple[int, int]:
        """Return the first K/V head and how many follow it, of a layer or (−1) of all; −1 where layers differ."""
        found = set(self.heads if layer < 0 else (self.heads[self.layers.index(layer)],))
        if len(found) > 1:
            return -1, -1
        (heads,) = found
        return heads[0], len(heads)


def kv_heads_of(attention: Attention, tp: int, t: int) -> range:
    """Return the K/V heads that a TP rank holds; a latent counts as one head that all ranks hold."""
    heads = kv_heads(attention)
    if heads >= tp:
        return range(t * heads // tp, (t + 1) * heads // tp)
    return range(t * heads // tp, t * heads // tp + 1)


def kv_heads(attention: Attention) -> int:
    """Return how many parts the entries of one token in one layer have that can be on different ranks."""
    return 1 if attention.kind == "mla" else attention.num_kv_heads


def kv_shards(model: ModelSpec, source: ParallelPlan, target: ParallelPlan, kv_bytes: float) -> tuple[Shard, ...]:
    """Return all transfers that move the K/V of a token from one replica to another.

    Parameters
    ----------
    model : ModelSpec
    source, target : ParallelPlan
    kv_bytes : float
        Bytes of one element of the cache.
    """
    found: dict[tuple[tuple[int, int], tuple[int, int]], dict[int, list[int]]] = {}
    held_by = {layer: stage for stage, layers in enumerate(cached_layers(model, source)) for layer in layers}
    for stage, layers in enumerate(cached_layers(model, target)):
        for t in range(target.tp):
            for layer in layers:
                attention = model.layers[layer].attention
                for head in kv_heads_of(attention, target.tp, t):
                    holders = [s for s in range(source.tp) if head in kv_heads_of(attention, source.tp, s)]
                    pair = (held_by[layer], holders[t % len(holders)]), (stage, t)
                    found.setdefault(pair, {}).setdefault(layer, []).append(head)
    return tuple(
        Shard(
            source=pair[0],
            target=pair[1],
            layers=tuple(by_layer),
            heads=tuple(map(tuple, by_layer.values())),
            layer_bytes=tuple(_bytes(model, layer, len(heads), kv_bytes) for layer, heads in by_layer.items()),
        )
        for pair, by_layer in sorted(found.items())
    )


def _bytes(model: ModelSpec, layer: int, heads: int, kv_bytes: float) -> float:
    """Return the bytes of one token in so many heads of a layer."""
    attention = model.layers[layer].attention
    return heads * (kv_elements_per_token(attention) / kv_heads(attention) * kv_bytes)


def cached_layers(model: ModelSpec, plan: ParallelPlan) -> tuple[tuple[int, ...], ...]:
    """Return the layers whose entries each stage keeps: those whose attention it has."""
    return tuple(
        tuple(layer for layer, part in modules if part == "attention") for modules in stage_layers(model, plan)
    )
