"""TP-1 and TP-9: what TP splits divides, and put together again it is what it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Final

from clustersim.legality.deployment import Deployment, divisors
from clustersim.legality.layout import Layout
from clustersim.legality.repair.candidates import Fault, Finding, Repair, degree_change, degree_repairs, degree_words
from clustersim.model.architecture import Attention, Ffn, Moe
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """A dimension, and into how many shards the plan cuts it; ``path`` is the degree that does it."""

    size: int
    noun: str
    degree: int
    path: str = "plan.tp"
    replicates: bool = False

    @property
    def divides(self) -> bool:
        """Whether the shards are equal, or the dimension is replicated evenly where it may be."""
        return self.size % self.degree == 0 or (self.replicates and self.degree % self.size == 0)

    def message(self, model: str) -> str:
        """Say what does not divide."""
        if self.replicates:
            return f"{self.degree} neither divides {self.size} {self.noun} ({model}) nor is a multiple of them"
        return f"{self.degree} does not divide {self.size} {self.noun} ({model})"


def divides(deployment: Deployment, layout: Layout) -> Finding:
    """TP-1: only decomposable dimensions are split, and they divide."""
    plan = deployment.plan
    if plan.tp == 1 and deployment.expert_tp == 1:
        return Finding(looked_at=0)
    by_layer = [part for layer in deployment.model.layers for part in (layer.attention, layer.ffn)]
    distinct = {id(part): part for part in by_layer}  # layers share them
    kinds = {key: tuple(splits_of(deployment, part)) for key, part in distinct.items()}
    ends = tuple(_ends(deployment))
    looked_at = sum(len(kinds[id(part)]) for part in by_layer) + len(ends)
    splits = dict.fromkeys([split for found in kinds.values() for split in found] + list(ends))
    faults = [_fault(deployment, split) for split in _telling(deployment, splits)]
    return Finding(looked_at=looked_at, faults=(*_undecomposable(deployment), *faults))


DIMENSIONS: Final = {
    "embedding": ("vocab", "hidden"),
    "attention_out": ("rows", "columns"),
    "ffn_up": ("columns", "rows"),
    "ffn_down": ("rows", "columns"),
    "lm_head": ("vocab", "hidden"),
}
"""Operator → the dimensions along which its parts can be put together again by a sum or side by side."""


def _undecomposable(deployment: Deployment) -> Iterator[Fault]:
    """Yield what is split along another dimension: a softmax over a part of its keys, say, is no part of the whole."""
    split = deployment.plan.split
    for field in fields(split):
        dimension = getattr(split, field.name)
        if dimension not in DIMENSIONS[field.name]:
            yield _undecomposable_fault(field.name, dimension)


def _undecomposable_fault(name: str, dimension: str) -> Fault:
    path, choices = f"plan.tp.{name}", DIMENSIONS[name]
    repairs = [Repair(text=one, change=((path, one),), distance=at) for at, one in enumerate(choices)]
    return Fault(
        where=path,
        message=f"{name.replace('_', ' ')} can't be split by {dimension}: neither the sum of the parts nor their "
        "concatenation is the whole",
        advice="use another dimension",
        repairs=lambda: repairs,
    )


def splits_of(deployment: Deployment, part: Attention | Ffn | Moe) -> Iterator[Split]:
    """Yield what TP splits in one module."""
    tp, split, hidden = deployment.plan.tp, deployment.plan.split, deployment.model.hidden
    if isinstance(part, Attention):
        yield Split(part.num_heads, "attention heads", tp)
        if part.kind != "mla":
            yield Split(part.num_kv_heads, "K/V heads", tp, replicates=True)
        if split.attention_out == "columns":
            yield Split(hidden, "hidden features of the attention output", tp)
    elif isinstance(part, Moe):
        path = "plan.tp" if deployment.plan.ep.degree == 1 else "plan.ep"
        yield Split(part.expert_intermediate, "intermediate features of an expert", deployment.expert_tp, path)
        if part.shared_intermediate:
            yield Split(part.shared_intermediate, "intermediate features of the shared experts", tp)
    else:
        if split.ffn_up == "columns" or split.ffn_down == "rows":
            yield Split(part.intermediate, "intermediate features of the FFN", tp)
        if split.ffn_up == "rows" or split.ffn_down == "columns":
            yield Split(hidden, "hidden features of the FFN", tp)


def _ends(deployment: Deployment) -> Iterator[Split]:
    model, plan = deployment.model, deployment.plan
    for name, axis in (("embedding", plan.split.embedding), ("LM head", plan.split.lm_head)):
        if axis == "vocab":
            yield Split(model.vocab, f"tokens of the vocabulary in the {name}", plan.tp)
        else:
            yield Split(model.hidden, f"hidden features of the {name}", plan.tp)


def _telling(deployment: Deployment, splits: Iterable[Split]) -> list[Split]:
    """Return the broken splits, without those that are mended by whatever mends the ones before them.

    6 divides neither 64 heads nor 28,672 features, but every divisor of 64 divides both: one violation says it.
    """
    found: list[Split] = []
    left = head_divisors(deployment)
    for split in splits:
        if split.divides:
            continue
        if split.path != "plan.tp":
            found.append(split)
            continue
        still = [degree for degree in left if replace(split, degree=degree).divides]
        if len(still) < len(left) or not any(known.path == "plan.tp" for known in found):
            found.append(split)
        left = still
    return found


def _fault(deployment: Deployment, split: Split) -> Fault:
    def repairs() -> Iterator[Repair]:
        if split.path == "plan.ep":
            yield from degree_repairs(deployment, "ep", deployment.expert_degrees, deployment.plan.ep.degree)
            yield without_split(deployment)
        else:
            yield from head_repairs(deployment)

    return Fault(
        where=split.path,
        message=split.message(deployment.model.name),
        advice="use plan.tp 1 and plan.ep 1",
        repairs=repairs,
    )


def head_repairs(deployment: Deployment) -> Iterator[Repair]:
    """Yield every tp that divides the heads; where other rules refuse all of them, no split at all."""
    yield from degree_repairs(deployment, "tp", head_divisors(deployment), deployment.plan.tp)
    yield without_split(deployment)


def without_split(deployment: Deployment) -> Repair:
    """Return the repair to tp 1 and ep 1, with a scheme that asks nothing of the heads."""
    plan = deployment.plan
    degrees = {"tp": 1} if plan.ep.degree == 1 else {"tp": 1, "ep": 1}
    change = degree_change(deployment, **degrees)
    if plan.sp.scheme == "all_to_all":
        scheme = "all_gather" if deployment.model.layers[0].attention.kind == "mla" else "ring"
        change = (*change, ("plan.sp.scheme", scheme))
    return Repair(text=degree_words(change), change=change, last_resort=True)


def head_divisors(deployment: Deployment) -> list[int]:
    """Return the degrees that divide every layer's attention heads; only these can be a legal tp."""
    heads = dict.fromkeys(layer.attention.num_heads for layer in deployment.model.layers)
    return [degree for degree in divisors(min(heads)) if all(count % degree == 0 for count in heads)]


def splits_evenly(attention: Attention, tp: int) -> bool:
    """Whether every TP rank has the same number of query heads."""
    return attention.num_heads % tp == 0


def conserves(deployment: Deployment, layout: Layout) -> Finding:
    """TP-9: the ranks' shards in rank order, copies dropped, are the logical cache of one device."""
    tp = deployment.plan.tp
    if tp == 1:
        return Finding(looked_at=0)
    layers = deployment.model.layers
    looked = [index for index, layer in enumerate(layers) if splits_evenly(layer.attention, tp)]
    wrong: dict[tuple[int, ...], list[int]] = {}
    known: dict[int, tuple[int, ...]] = {}
    for index in looked:
        shards = layout.kv_heads[index]  # layers share them
        if id(shards) not in known:
            known[id(shards)] = tuple(dict.fromkeys(head for held in shards for head in held))
        together = known[id(shards)]
        if together != tuple(sorted(together)):
            wrong.setdefault(together, []).append(index)
    faults = [
        Fault(
            where="plan.tp",
            message=f"the TP ranks of {layer_words(indices)} together keep the K/V heads in the order "
            f"{', '.join(map(str, order))}, which is not that of one device",
            advice="give each rank the next heads in order",
        )
        for order, indices in wrong.items()
    ]
    return Finding(looked_at=len(looked), faults=tuple(faults))


def layer_words(layers: list[int]) -> str:
    """Return how messages name layers: ``layer 3``, ``layers 0 … 31``, ``12 layers from 0 on``."""
    first, last = layers[0], layers[-1]
    if first == last:
        return f"layer {first}"
    whole = last - first + 1 == len(layers)
    return f"layers {first} … {last}" if whole else f"{len(layers)} layers from {first} on"
