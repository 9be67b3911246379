"""KV-4: the shards of the cache on all ranks make up the whole, without copies that nothing declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clustersim.legality.deployment import Deployment, counted
from clustersim.legality.layout import Layout
from clustersim.legality.plan_rules.tensor import head_repairs, layer_words, splits_evenly
from clustersim.legality.repair.candidates import Fault, Finding, Repair
from clustersim.model.architecture import Attention


def shards(deployment: Deployment, layout: Layout) -> Finding:
    """KV-4: every K/V head of every layer is kept once, or as often as the plan declares.

    Layers whose query heads do not divide have no shards to look at; TP-1 speaks of these.
    """
    looked_at = 0
    wrong: dict[str, list[int]] = {}
    known: dict[tuple[int, int], list[str]] = {}
    for index, layer in enumerate(deployment.model.layers):
        attention, held = layer.attention, layout.kv_heads[index]
        if splits_evenly(attention, deployment.plan.tp):
            looked_at += cached_heads(attention)
            alike = id(attention), id(held)  # layers share both
            if alike not in known:
                known[alike] = list(_shard_messages(attention, held, deployment.plan.tp))
            for message in known[alike]:
                wrong.setdefault(message, []).append(index)
    faults = [_shard_fault(deployment, message, layers) for message, layers in wrong.items()]
    return Finding(looked_at=looked_at, faults=(*faults, *_exposure_faults(deployment)))


def cached_heads(attention: Attention) -> int:
    """Return how many heads the cache of one layer has; MLA's latent is one."""
    return 1 if attention.kind == "mla" else attention.num_kv_heads


def declared_copies(attention: Attention, tp: int) -> int:
    """Return how often a plan declares to keep each head: tp times a latent, tp/heads times where tp exceeds heads."""
    return tp if attention.kind == "mla" else max(1, tp // attention.num_kv_heads)


def _shard_messages(attention: Attention, held: Sequence[Sequence[int]], tp: int) -> Iterator[str]:
    copies = declared_copies(attention, tp)
    heads = range(cached_heads(attention))
    holders = {head: [rank for rank, kept in enumerate(held) for one in kept if one == head] for head in heads}
    orphans = [head for head in heads if not holders[head]]
    if orphans:
        yield f"K/V head {orphans[0]} of {{layers}} is kept by no TP rank{_others(orphans)}"
    copied = [head for head in heads if holders[head] and len(holders[head]) != copies]
    if copied:
        ranks = ", ".join(map(str, holders[copied[0]]))
        yield (
            f"K/V head {copied[0]} of {{layers}} is kept on TP ranks {ranks}, where the plan declares to keep it "
            f"{counted(copies, 'time')}{_others(copied)}"
        )


def _others(heads: list[int]) -> str:
    return f" (and so {counted(len(heads) - 1, 'other')})" if len(heads) > 1 else ""


def _shard_fault(deployment: Deployment, message: str, layers: list[int]) -> Fault:
    return Fault(
        where="plan.tp",
        message=message.format(layers=layer_words(layers)),
        advice="give each head to one TP rank, or to tp / heads ranks where tp exceeds the heads",
        repairs=lambda: head_repairs(deployment),
    )


def _exposure_faults(deployment: Deployment) -> Iterator[Fault]:
    """Yield a fault where all-to-all would hand a K/V head to some of its SP ranks and not to others."""
    plan = deployment.plan
    if plan.sp.degree == 1 or plan.sp.scheme != "all_to_all":
        return
    kinds = [layer.attention for layer in deployment.model.layers if layer.attention.kind != "mla"]
    for attention in dict.fromkeys(kinds):
        here = max(1, attention.num_kv_heads // plan.tp)
        if here % plan.sp.degree and plan.sp.degree % here:
            yield Fault(
                where="plan.sp.scheme",
                message=f"all_to_all gives {here} K/V heads of a TP rank to {plan.sp.degree} SP ranks "
                f"({deployment.model.name}): some heads get a copy that nothing declares",
                advice="use another scheme",
                repairs=lambda: scheme_repairs(deployment, ("ring", "all_gather")),
            )


def scheme_repairs(deployment: Deployment, schemes: Iterable[str]) -> Iterable[Repair]:
    """Yield a repair for each scheme of sequence parallelism."""
    return [Repair(text=scheme, change=(("plan.sp.scheme", scheme),)) for scheme in schemes]
