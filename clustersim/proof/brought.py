"""What a hand-over brings to the ranks of the second plan: K/V entries by layer, head and token, and who sends them.

They are those that a run recorded, row by row (``of_moves``); where nothing is recorded, those that the simulator
would send, by ``plan.reshard.kv_shards`` (``planned``). Whoever decodes has nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.model.architecture import ModelSpec
from clustersim.model.kv import kv_elements_per_token
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.reshard import cached_layers, kv_heads, kv_heads_of, kv_shards
from clustersim.proof.script import Script, owner_of
from clustersim.timeline.tables import ALL_HEADS, ALL_LAYERS, Table
from clustersim.values import dataclass

Caches = dict[tuple[int, int], FloatArray]
"""(rank, layer) → entries, as in ``place.Memory``."""
ROUNDED: Final = 0.501
"""Bytes by which a transfer may fall short: they are rounded to whole ones."""
Plans = tuple[ParallelPlan, ParallelPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Entries of tokens [first, past) of a sequence, in one layer, of the heads [head, past_head).

    ``source`` and ``target`` are ranks of one replica of each plan.
    """

    sequence: int
    source: int
    target: int
    layer: int
    head: int
    past_head: int
    first: int
    past: int


def planned(model: ModelSpec, plans: Plans, script: Script) -> tuple[Brought, ...]:
    """Return what the simulator would send of all sequences, whole."""
    source, target = plans
    return tuple(
        Brought(
            sequence=sequence,
            source=_rank(source, shard.source, owner_of(sequence, source)),
            target=_rank(target, shard.target, owner_of(sequence, target)),
            layer=layer,
            head=heads[0],
            past_head=heads[-1] + 1,
            first=0,
            past=len(prompt),
        )
        for shard in kv_shards(model, source, target, 1.0)
        for layer, heads in zip(shard.layers, shard.heads, strict=True)
        for sequence, prompt in enumerate(script.prompts)
    )


def _rank(plan: ParallelPlan, place: tuple[int, int], owner: int) -> int:
    stage, t = place
    return stage * plan.stage_ranks + owner * plan.tp + t


def of_moves(
    model: ModelSpec, plans: Plans, moves: Table, first_ranks: tuple[int, int], read_from_ns: Mapping[int, int],
    kv_bytes: float,
) -> tuple[Brought, ...]:  # fmt: skip
    """Return what the transfers of a run brought before it was read; what comes later is not there.

    A transfer of fewer bytes than what it names has brought the first ones of its tokens.

    Parameters
    ----------
    model : ModelSpec
    plans : (ParallelPlan, ParallelPlan)
    moves : Table
        ``MOVE_COLUMNS``, from replica 0 to replica 1.
    first_ranks : (int, int)
        First global rank of each replica.
    read_from_ns : mapping
        When the first step of each sequence that reads the entries starts.
    kv_bytes : float
        Of one element of the cache.
    """
    found = []
    names = ("request", "from_rank", "to_rank", "layer", "head", "heads", "first", "tokens", "bytes", "end_ns")
    for request, left, reached, layer, head, heads, first, tokens, carried, end in zip(
        *(moves[name].tolist() for name in names), strict=True
    ):
        if end > read_from_ns.get(request, end):
            continue
        ends = left - first_ranks[0], reached - first_ranks[1]
        stages = [cached_layers(model, plan)[rank // plan.stage_ranks] for plan, rank in zip(plans, ends, strict=True)]
        layers = (
            [one for one in stages[0] if one in stages[1]]
            if layer == ALL_LAYERS
            else [layer][: layer < len(model.layers)]
        )
        parts = []
        for one in layers:
            of, held = model.layers[one].attention, range(head, head + heads)
            if head == ALL_HEADS:
                mine, theirs = (
                    kv_heads_of(of, plan.tp, rank % plan.tp) for plan, rank in zip(plans, ends, strict=True)
                )
                held = range(max(mine.start, theirs.start), min(mine.stop, theirs.stop))
            parts.append((one, held, len(held) * kv_elements_per_token(of) / kv_heads(of) * kv_bytes))
        due = sum(size for _, _, size in parts)
        came = min(tokens, math.floor((carried + ROUNDED) / due)) if due else 0
        found += [
            Brought(
                sequence=request, source=ends[0], target=ends[1], layer=one, head=held.start, past_head=held.stop,
                first=first, past=first + came,
            )
            for one, held, _ in parts
        ]  # fmt: skip
    return tuple(found)


def twice(brought: Sequence[Brought]) -> Brought | None:
    """Return what brings entries of which some have been brought before; None where each comes once."""
    seen: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
    for one in brought:
        for head in range(one.head, one.past_head):
            there = seen.setdefault((one.sequence, one.target, one.layer, head), [])
            if any(one.first < past and first < one.past for first, past in there):
                return one
            there.append((one.first, one.past))
    return None


def resharded(brought: Sequence[Brought], caches: Caches, model: ModelSpec, script: Script) -> Caches:
    """Return what the ranks of the second plan get of the caches of the first: nothing but what is brought."""
    found: Caches = {}
    for one in brought:
        left = caches.get((one.source, one.layer))
        if left is None:
            continue
        start = one.sequence * script.positions
        slots = slice(start + one.first, start + min(one.past, script.positions))
        here = found.setdefault((one.target, one.layer), np.full(left.shape, np.nan))
        heads = slice(one.head, min(one.past_head, kv_heads(model.layers[one.layer].attention)))
        here[slots, heads] = left[slots, heads]
    return found


__all__ = ["Brought", "Caches", "Plans", "of_moves", "planned", "resharded", "twice"]
