"""Operators that join several ranks: each takes from every member what its kind says, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.proof.operators.cache import entries_of, entry_shape, keys_in
from clustersim.proof.operators.values import ALL, Arrival, Columns, Dense, Keys, Moved, Routed, Value, joined, nothing
from clustersim.proof.place import Place, part_of

Inputs = list[list[Arrival]]


def all_reduce(ats: list[Place], arrived: Inputs) -> list[Value]:
    """Sum the members' terms; every member has the sum."""
    if any(isinstance(one.value, Routed) for inputs in arrived for one in inputs):
        return _sum_of_pairs(arrived)
    total, rows = _total(ats, arrived), ats[0].rows
    columns = _columns(arrived)
    return [Dense(data=total, rows=rows, columns=columns) for _ in ats]


def _columns(arrived: Inputs) -> Columns:
    found = [one.value.columns for inputs in arrived for one in inputs if isinstance(one.value, Dense)]
    return found[0] if found else ALL


def _total(ats: list[Place], arrived: Inputs) -> FloatArray:
    width = ats[0].node.width
    total = ats[0].dense(arrived[0], width)
    for at, inputs in zip(ats[1:], arrived[1:], strict=True):
        total = total + at.dense(inputs, width)
    return total


def _sum_of_pairs(arrived: Inputs) -> list[Value]:
    found = [[one.value for one in inputs if isinstance(one.value, Routed)] for inputs in arrived]
    first = next(own[0] for own in found if own)
    total: FloatArray = np.zeros_like(first.data)
    for own in found:
        same = len(own) == 1 and np.array_equal(own[0].token, first.token)
        same = same and np.array_equal(own[0].expert, first.expert)
        total = total + (own[0].data if same else np.nan)
    whole = Routed(token=first.token, expert=first.expert, share=first.share, data=total)
    return [whole for _ in arrived]


def all_gather(ats: list[Place], arrived: Inputs) -> list[Value]:
    """Put the members' slices side by side: the i-th member has the i-th share of features (or of tokens)."""
    width, rows = ats[0].node.width, ats[0].rows
    whole = nothing(len(ats[0].tokens), width)
    for place, (at, inputs) in enumerate(zip(ats, arrived, strict=True)):
        part = at.dense(inputs, width)
        if at.node.name == "aggregate_all_gather":
            mine = at.share
            whole[mine] = part[mine]
        else:
            columns = part_of(width, place, len(ats))
            whole[:, columns] = part[:, columns]
    return [Dense(data=whole, rows=rows) for _ in ats]


def reduce_scatter(ats: list[Place], arrived: Inputs) -> list[Value]:
    """Sum the members' terms; the i-th member keeps the i-th share of features."""
    total, found = _total(ats, arrived), list[Value]()
    for place, at in enumerate(ats):
        halves = 2 if at.gated and at.node.name.split("_reduce")[0].endswith("_up") else 1
        columns = part_of(at.node.width, place, len(ats), halves)
        kept = nothing(*total.shape)
        kept[:, columns] = total[:, columns]
        found.append(Dense(data=kept, rows=at.rows, columns=columns))
    return found


def _exposed(at: Place, arrived: list[Arrival]) -> FloatArray:
    """Return what one rank shows of a layer's K/V: its segments of this step, and the context that it keeps."""
    new = entries_of(at, arrived, at.tokens.rows("prefill_tokens", at.s))
    context = np.where(at.tokens.in_prefill[:, None, None], keys_in(at, arrived, own=True), np.nan)
    return joined([new, context], entry_shape(at))


def _others(shown: list[FloatArray], place: int) -> FloatArray:
    return joined([part for index, part in enumerate(shown) if index != place], shown[0].shape)


def kv_all_gather(ats: list[Place], arrived: Inputs) -> list[Value]:
    """Bring every rank the K/V of the others."""
    shown = [_exposed(at, inputs) for at, inputs in zip(ats, arrived, strict=True)]
    found = [Keys(entries=_others(shown, place), own=False) for place in range(len(ats))]
    _count(ats, found)
    return list(found)


def _count(ats: list[Place], found: list[Keys]) -> None:
    brought = sum(int((~np.isnan(one.entries).all(axis=(1, 2))).sum()) for one in found)
    ats[0].memory.counts["exposed"] += brought


def ring_shift(ats: list[Place], arrived: Inputs) -> list[Value]:
    """Bring every rank what its predecessor has: its own K/V in the first step, later what came to it before."""
    shown = []
    for at, inputs in zip(ats, arrived, strict=True):
        passing = any(isinstance(one.value, Keys) and not one.value.own for one in inputs)
        shown.append(keys_in(at, inputs, own=False) if passing else _exposed(at, inputs))
    found = [Keys(entries=shown[place - 1], own=False) for place in range(len(ats))]
    _count(ats, found)
    return list(found)


def qkv_all_to_all(ats: list[Place], arrived: Inputs) -> list[Value]:
    """Bring every rank the queries of its heads from all tokens, and the K/V that these attend with."""
    a, plan = ats[0].attention, ats[0].setting.plan
    shown = [_exposed(at, inputs) for at, inputs in zip(ats, arrived, strict=True)]
    q_width = a.num_heads * a.head_dim
    width = q_width + a.num_kv_heads * (a.head_dim + a.v_head_dim)
    queries = joined(
        [at.dense(inputs, width)[:, :q_width] for at, inputs in zip(ats, arrived, strict=True)],
        (len(ats[0].tokens), q_width),
    )
    each, found = a.num_heads // plan.tp // len(ats), list[Keys]()
    for place, at in enumerate(ats):
        first = at.t * (a.num_heads // plan.tp) + place * each
        mine = nothing(*queries.shape)
        columns = slice(first * a.head_dim, (first + each) * a.head_dim)
        mine[:, columns] = queries[:, columns]
        entries = _others(shown, place).copy()
        share = a.num_heads // a.num_kv_heads
        entries[:, : first // share] = np.nan
        entries[:, (first + each - 1) // share + 1 :] = np.nan
        found.append(Keys(entries=entries, own=False, queries=mine))
    _count(ats, found)
    return list(found)


def out_all_to_all(ats: list[Place], arrived: Inputs) -> list[Value]:
    """Bring every rank the attention output of its own tokens, from the ranks that had their heads."""
    width = ats[0].attention.num_heads * ats[0].attention.v_head_dim
    together = joined([at.dense(inputs, width) for at, inputs in zip(ats, arrived, strict=True)], _shape(ats, width))
    found = list[Value]()
    for at in ats:
        rows = at.tokens.rows("prefill_tokens", at.s)
        mine = nothing(*together.shape)
        mine[rows] = together[rows]
        columns = part_of(width, at.t, at.setting.plan.tp)
        found.append(Dense(data=mine, rows=rows, columns=columns))
    return found


def _shape(ats: list[Place], width: int) -> tuple[int, int]:
    return len(ats[0].tokens), width


def kv_move(ats: list[Place], arrived: Inputs) -> list[Value]:
    """Take the K/V that the step wrote on every rank to where decode will read it: the owner of each sequence."""
    tokens = ats[0].tokens
    goal = tokens.owner if ats[0].node.op == "all_to_all" else np.zeros_like(tokens.owner)
    found: list[Value] = []
    for place, at in enumerate(ats):
        arriving: dict[int, tuple[Int64Array, FloatArray]] = {}
        for layer in at.cached_layers:
            parts = [
                (tokens.slot[rows], _kept(other, layer)[tokens.slot[rows]])
                for sender, other in enumerate(ats)
                if sender != place and layer in other.cached_layers
                for rows in [np.flatnonzero(tokens.prefill & (tokens.s == sender) & (goal == place))]
            ]
            if not parts:
                continue
            slots, entries = (np.concatenate(part) for part in zip(*parts, strict=True))
            arriving[layer] = slots, entries
            at.memory.counts["moved"] += len(slots)
        gone = tokens.slot[tokens.prefill & (tokens.s == place) & (goal != place)]
        found.append(Moved(arriving=arriving, leaving=dict.fromkeys(at.cached_layers, gone)))
    return found


def _kept(at: Place, layer: int) -> FloatArray:
    a = replace(at, layer=layer)
    cache = at.memory.caches.get((at.rank, layer))
    return np.full(entry_shape(a), np.nan) if cache is None else cache
