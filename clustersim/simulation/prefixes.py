"""How much of the prompts a prefix cache gave, and how much one without limits would have given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import constant, parts
from clustersim.legality.history import ADMITTED, REUSED
from clustersim.timeline.columns import is_any
from clustersim.timeline.tables import Table
from clustersim.workload.requests import Requests

Figures = dict[str, float | int | None]


def first_of(facts: Table, kinds: tuple[int, ...], count: int) -> Int64Array:
    """Return the instant of the first fact of some kinds of each request, −1 where there is none; rows in any order.

    A request that is handed over while its prompt is computed is admitted twice: first where that is.
    """
    never = np.iinfo(np.int64).max
    found = np.full(count, never, np.int64)
    for some in parts(len(facts["kind"]), 8):
        rows = some.start + np.flatnonzero(is_any(facts["kind"][some], kinds))
        np.minimum.at(found, facts["request"][rows], facts["time_ns"][rows])
    found[found == never] = -1
    return found


def cached_tokens(facts: Table, count: int) -> Int64Array:
    """Return how many tokens each request took over when it was first admitted.

    What it finds of its own after a preemption is not counted, as vLLM does not.

    Parameters
    ----------
    facts : Table
        Of a timeline.
    count : int
        Requests.
    """
    request, time = facts["request"], facts["time_ns"]
    rows = np.flatnonzero(facts["kind"] == REUSED)
    found: Int64Array = np.zeros(count, np.int64) if len(rows) else constant(np.int64(0), count)
    if not len(rows):
        return found
    first = first_of(facts, (ADMITTED,), count)
    rows = rows[time[rows] == first[request[rows]]]
    found[request[rows]] = facts["value"][rows]
    return found


def prefix_figures(requests: Requests, columns: Mapping[str, Any], block_tokens: int) -> Figures:
    """Return what a summary says of the prefix cache; None where there is nothing to divide by.

    ``hit_rate`` is the share of prompt tokens that admitted requests took over (vLLM: ``prefix_cache_hits`` over
    ``prefix_cache_queries``). ``block_hit_rate`` counts their blocks as the trace hashes them (Mooncake's: 512 tokens),
    the last one, which may be partial, too: a block counts as found when all of it was taken over that can be, which
    is full blocks of the pool, and not the last token. ``infinite_block_hit_rate`` is the share of these same blocks
    that came before, with all blocks before them: what a cache would give that forgets nothing and computes at once.

    Parameters
    ----------
    requests : Requests
    columns : mapping
        ``request``, ``admitted_ns`` and ``cached_tokens`` of those that arrived; NaN where one was not admitted.
    block_tokens : int
        Tokens per block of the pool.
    """
    known = ~np.isnan(np.asarray(columns["admitted_ns"], np.float64))
    came = np.asarray(columns["request"])
    chosen, cached = came[known], np.asarray(columns["cached_tokens"])[known].astype(np.int64)
    prompts = requests.prompt_tokens[chosen]
    total, rows, size = int(prompts.sum()), requests.prefix_hashes, requests.hash_block_tokens
    figures: Figures = {
        "cached_tokens": int(cached.sum()),
        "hit_rate": int(cached.sum()) / total if total else None,
        "block_hit_rate": None,
        "infinite_block_hit_rate": None,
    }
    if rows is None or size is None:
        return figures
    lengths = np.array([len(row) for row in rows], np.int64)[chosen]
    blocks = int((-(-prompts // size)).sum())
    most = np.minimum(prompts - 1, lengths * size) // block_tokens * block_tokens
    last = (cached == most) & (most > (lengths - 1) * size) & (lengths > 0)
    found = int(np.where(last, lengths, cached // size).sum())
    if blocks:
        figures["block_hit_rate"] = found / blocks
        figures["infinite_block_hit_rate"] = _leading([rows[at] for at in chosen.tolist()]) / blocks
    return figures


def _leading(rows: list[Int64Array]) -> int:
    """Return how many hashes came before in an earlier row, behind the same hashes."""
    seen: dict[tuple[int, int], int] = {}
    found = 0
    for row in rows:
        before, new = -1, len(seen)
        for value in row.tolist():
            before = seen.setdefault((before, value), len(seen))
            found += before < new
    return found
