"""What prompt chunks come to: tokens, pairs that attend and keys, as a whole and by the SP rank that has them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clustersim.clock import FloatArray, Int64Array

Prompts = Mapping[str, FloatArray]
"""Name → values by chunk."""


def prompts_of(start: Int64Array, count: Int64Array, window: int | None) -> Prompts:
    """Return new tokens, context, pairs and keys of chunks [start, start + count)."""
    end = start + count
    found = {"new": count, "chunks": np.ones(len(count)), "context": start}
    found["pairs"] = attended(start, end, np.zeros(len(count), np.int64), end, window)
    found["keys"] = end if window is None else np.minimum(end, count + window - 1)
    return {name: values.astype(np.float64) for name, values in found.items()}


def attended(first: Int64Array, last: Int64Array, low: Int64Array, high: Int64Array, window: int | None) -> Int64Array:
    """Return the pairs of queries [first, last) and keys [low, high) with the key at the query or before it."""

    def below(bound: Int64Array) -> Int64Array:
        """Sum over queries before a bound of the keys that are not after them."""
        reach = np.clip(np.minimum(bound, high) - low, 0, None)
        found: Int64Array = reach * (reach + 1) // 2 + np.clip(bound - np.maximum(high, low), 0, None) * (high - low)
        return found

    found = below(last) - below(first)
    if window is not None:
        found = found - (below(last - window) - below(first - window))
    return found


def split_prompts(
    start: Int64Array, count: Int64Array, ranks: int, zigzag: bool, window: int | None, *, by_source: bool, owned: bool
) -> Mapping[str, FloatArray]:
    """Return what each SP rank has of chunks: arrays of shape (chunks, ranks).

    With ``by_source`` there are ``pairs#`` and ``prefill_keys#``, by (rank, rank whose keys they are), of shape
    (chunks, ranks · ranks). What was cached before is with rank 0 where it is ``owned``; else nothing is known of a
    chunk of which there is some (NaN).
    """
    parts = 2 * ranks if zigzag else ranks
    each, longer = count // parts, count % parts
    bounds = [start + part * each + np.minimum(part, longer) for part in range(parts + 1)]
    cut = [(bounds[part], bounds[part + 1]) for part in range(parts)]
    mine = [[cut[s], cut[parts - 1 - s]] if zigzag else [cut[s]] for s in range(ranks)]
    end, none = start + count, np.zeros(len(count), np.int64)
    found: dict[str, list[Int64Array]] = {
        name: [] for name in ("new", "last", "pairs", "prefill_keys", "pairs#", "prefill_keys#")
    }
    for s in range(ranks):
        has = sum(((b - a) for a, b in mine[s]), start=none)
        found["new"].append(has)
        found["last"].append(sum((((b > a) & (b == end)).astype(np.int64) for a, b in mine[s]), start=none))
        top = np.max([np.where(b > a, b, 0) for a, b in mine[s]], axis=0)
        floor = np.min([np.where(b > a, a, end) for a, b in mine[s]], axis=0)
        floor = none if window is None else np.maximum(0, floor - window + 1)
        works = has > 0
        found["pairs"].append(sum((attended(a, b, none, end, window) for a, b in mine[s]), start=none))
        found["prefill_keys"].append(np.where(works, top - floor, 0))
        for source in range(ranks if by_source else 0):
            theirs = [*mine[source], *([(none, start)] if source == 0 else [])]
            pairs = [attended(a, b, low, high, window) for a, b in mine[s] for low, high in theirs]
            reads = [np.clip(np.minimum(high, top) - np.maximum(low, floor), 0, None) for low, high in theirs]
            found["pairs#"].append(np.sum(pairs, axis=0))
            found["prefill_keys#"].append(np.where(works, np.sum(reads, axis=0), 0))
    made = {name: np.stack(columns, axis=1).astype(np.float64) for name, columns in found.items() if columns}
    for name in ("pairs#", "prefill_keys#"):
        if name in made and not owned:
            made[name][start > 0] = np.nan
    return made
