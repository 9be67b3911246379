"""The K/V cache: what a rank writes, what it reads of earlier steps, and when moved entries are its own.

A cache is an array of slots, one for each position of each sequence, per rank and layer; NaN where there is no entry.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.proof.operators.values import Arrival, Keys, Moved, joined, nothing, per_head
from clustersim.proof.place import Place, kv_range


def entry_shape(at: Place) -> tuple[int, int, int]:
    """Return the shape of one layer's cache: slots, heads, width of an entry."""
    a = at.attention
    width = (a.kv_lora_rank or 0) + (a.qk_rope_head_dim or 0) if a.kind == "mla" else a.head_dim + a.v_head_dim
    return at.tokens.slots, a.num_kv_heads, width


def entries_of(at: Place, arrived: list[Arrival], rows: Int64Array) -> FloatArray:
    """Return the cache entries of some rows: keys and values of the rank's heads, or latents."""
    a, shape = at.attention, entry_shape(at)
    found = np.full(shape, np.nan)
    if a.kind == "mla":
        found[at.tokens.slot[rows], 0] = at.dense(arrived, shape[2])[rows]
        return found
    q_width, k_width = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    x = at.dense(arrived, q_width + k_width + a.num_kv_heads * a.v_head_dim)[rows]
    keys = per_head(x[:, q_width : q_width + k_width], a.num_kv_heads)
    values = per_head(x[:, q_width + k_width :], a.num_kv_heads)
    found[at.tokens.slot[rows]] = np.concatenate((keys, values), axis=2)
    return found


def kv_write(at: Place, arrived: list[Arrival]) -> Keys:
    """Append the entries of the rank's tokens and heads to its cache."""
    entries = entries_of(at, arrived, at.rows)
    if at.attention.kind != "mla":
        heads = kv_range(at)
        entries[:, : heads.start] = np.nan
        entries[:, heads.stop :] = np.nan
    cache = at.memory.caches.get((at.rank, at.layer))
    kept = entries if cache is None else np.where(np.isnan(entries), cache, entries)
    at.memory.caches[at.rank, at.layer] = kept
    at.memory.counts["written"] += len(at.rows)
    return Keys(entries=entries, own=True)


def kv_read(at: Place, arrived: list[Arrival]) -> Keys:
    """Read what earlier steps left in the rank's cache."""
    del arrived
    cache = at.memory.caches.get((at.rank, at.layer))
    if cache is None:
        return Keys(entries=np.full(entry_shape(at), np.nan), own=True)
    return Keys(entries=np.where(at.tokens.context[:, None, None], cache, np.nan), own=True)


def keys_in(at: Place, arrived: list[Arrival], own: bool) -> FloatArray:
    """Return the entries that arrived from the rank's own cache, or by communication."""
    parts = [one.value.entries for one in arrived if isinstance(one.value, Keys) and one.value.own == own]
    return joined(parts, entry_shape(at))


def boundary(at: Place, arrived: list[Arrival]) -> None:
    """Let decode read what was moved: entries that arrived are kept, those that left are gone."""
    for one in arrived:
        if not isinstance(one.value, Moved):
            continue
        for layer, slots in one.value.leaving.items():
            cache = at.memory.caches.get((at.rank, layer))
            if cache is not None:
                cache = cache.copy()
                cache[slots] = np.nan
                at.memory.caches[at.rank, layer] = cache
        for layer, (slots, entries) in one.value.arriving.items():
            shape = (at.tokens.slots, *entries.shape[1:])
            cache = at.memory.caches.get((at.rank, layer), nothing(1, 1)).copy()
            cache = cache if cache.shape == shape else np.full(shape, np.nan)
            cache[slots] = entries
            at.memory.caches[at.rank, layer] = cache
