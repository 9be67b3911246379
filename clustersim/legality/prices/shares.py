"""What prompt chunks come to: tokens, pairs that attend and keys, as a whole and by the SP rank that has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clustersim.clock import FloatArray, Int64Array

Prompts = Mapping[str, FloatArray]
"""Name → values by chunk."""


class Positions(NamedTuple):
    """Positions of tokens of each chunk: the first one, how many, and how far they are apart."""

    first: Int64Array
    many: Int64Array
    apart: int = 1

    def before(self, bound: Int64Array) -> Int64Array:
        """Return how many lie before a bound."""
        found: Int64Array = np.clip(-((self.first - bound) // self.apart), 0, self.many)
        return found


def prompts_of(start: Int64Array, count: Int64Array, window: int | None) -> Prompts:
    """Return new tokens, context, pairs and keys of chunks [start, start + count)."""
    end, none = start + count, np.zeros(len(count), np.int64)
    found = {"new": count, "chunks": np.ones(len(count)), "context": start}
    found["pairs"] = attended(Positions(start, count), Positions(none, end), window)
    found["keys"] = end if window is None else np.minimum(end, count + window - 1)
    return {name: values.astype(np.float64) for name, values in found.items()}


def attended(queries: Positions, keys: Positions, window: int | None) -> Int64Array:
    """Return the pairs of queries and keys with the key at the query or before it, and within the window."""
    found = _up_to(queries, keys, 0)
    return found if window is None else found - _up_to(queries, keys, window)


def _up_to(queries: Positions, keys: Positions, back: int) -> Int64Array:
    """Sum over queries the keys up to ``back`` before them: with each query there are as many more, until all are."""
    more = queries.apart // keys.apart
    at_first = (queries.first - back - keys.first) // keys.apart + 1
    begin = np.clip(-at_first // more + 1, 0, queries.many)
    full = np.clip(-((at_first - keys.many) // more), begin, queries.many)
    growing = (full - begin) * at_first + more * (full * (full - 1) - begin * (begin - 1)) // 2
    found: Int64Array = np.where(keys.many > 0, growing + (queries.many - full) * keys.many, 0)
    return found


def split_prompts(
    start: Int64Array,
    count: Int64Array,
    ranks: int,
    partition: str,
    window: int | None,
    *,
    by_source: bool,
    owned: bool,
) -> Mapping[str, FloatArray]:
    """Return what each SP rank has of chunks: arrays of shape (chunks, ranks).

    With ``by_source`` there are ``pairs#`` and ``prefill_keys#``, by (rank, rank whose keys they are), of shape
    (chunks, ranks · ranks). What was cached before is with rank 0 where it is ``owned``; else nothing is known of a
    chunk of which there is some (NaN).
    """
    held = _held(start, count, ranks, partition)
    end, none = start + count, np.zeros(len(count), np.int64)
    found: dict[str, list[Int64Array]] = {
        name: [] for name in ("new", "last", "pairs", "prefill_keys", "pairs#", "prefill_keys#")
    }
    for mine in held:
        works = np.sum([run.many for run in mine], axis=0)
        lasts = [np.where(run.many > 0, run.first + (run.many - 1) * run.apart + 1, 0) for run in mine]
        top = np.max(lasts, axis=0)
        floor = np.min([np.where(run.many > 0, run.first, end) for run in mine], axis=0)
        floor = none if window is None else np.maximum(0, floor - window + 1)
        found["new"].append(works)
        found["last"].append((top == end).astype(np.int64))
        found["pairs"].append(np.sum([attended(run, Positions(none, end), window) for run in mine], axis=0))
        found["prefill_keys"].append(np.where(works > 0, top - floor, 0))
        for source in range(ranks if by_source else 0):
            theirs = [*held[source], *([Positions(none, start)] if source == 0 else [])]
            pairs = [attended(run, keys, window) for run in mine for keys in theirs]
            reads = [np.maximum(0, keys.before(top) - keys.before(floor)) for keys in theirs]
            found["pairs#"].append(np.sum(pairs, axis=0))
            found["prefill_keys#"].append(np.where(works > 0, np.sum(reads, axis=0), 0))
    made = {name: np.stack(columns, axis=1).astype(np.float64) for name, columns in found.items() if columns}
    for name in ("pairs#", "prefill_keys#"):
        if name in made and not owned:
            made[name][start > 0] = np.nan
    return made


def _held(start: Int64Array, count: Int64Array, ranks: int, partition: str) -> list[list[Positions]]:
    """Return the tokens of chunks that each rank has: a run of them, one from either end, or every so many."""
    if partition == "striped":
        return [[Positions(start + s, np.maximum(0, -((s - count) // ranks)), ranks)] for s in range(ranks)]
    parts = 2 * ranks if partition == "zigzag" else ranks
    each, longer = count // parts, count % parts
    runs = [Positions(start + part * each + np.minimum(part, longer), each + (part < longer)) for part in range(parts)]
    return [[runs[s], runs[parts - 1 - s]] if partition == "zigzag" else [runs[s]] for s in range(ranks)]
