"""Which keys each token of a chunk attends to by one node, as its variant declares: as a matrix, and counted.

Of long prompts pairs are counted, and the matrix is that of a shorter prompt with segments of the same order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.batch import Chunk
from clustersim.graph.variant import Variant
from clustersim.legality.graph_rules.views.graph import BoolArray
from clustersim.legality.graph_rules.views.tokens import chunk_segments
from clustersim.plan.parallel import ParallelPlan

MOST_TOKENS: Final = 2048
"""Of longer prompts (of graphs from outside) pairs are counted, and the matrix is that of a shorter prompt."""
FEWEST_PIECES: Final = 4
"""Tokens per SP rank that a prompt keeps where it is shortened, so that every rank has what it would have."""


def positions_of(chunk: Chunk, plan: ParallelPlan, s: int) -> Int64Array:
    """Return the positions in its sequence of the chunk's tokens that an SP rank has."""
    runs = chunk_segments(chunk, plan)[s]
    return np.concatenate([chunk.start + np.arange(*run) for run in runs] or [np.zeros(0, np.int64)])


def shortened(chunks: tuple[Chunk, ...], plan: ParallelPlan) -> tuple[Chunk, ...]:
    """Return chunks of at most :data:`MOST_TOKENS` in all, or of as few as leave every SP rank its segments.

    Which segments a node attends to, and which of them it has edges for, does not depend on how long they are.
    """
    if sum(chunk.start + chunk.count for chunk in chunks) <= MOST_TOKENS:
        return chunks
    most = max(MOST_TOKENS // (2 * len(chunks)), FEWEST_PIECES * plan.sp.degree)
    return tuple(replace(one, start=min(one.start, most), count=min(one.count, most)) for one in chunks)


def _queries_and_keys(
    chunk: Chunk, variant: Variant, s: int, plan: ParallelPlan, by_heads: bool
) -> tuple[Int64Array, Int64Array]:
    """Return the positions of the tokens that a node queries for, and of the keys that it has, as it declares."""
    total = chunk.start + chunk.count
    queries = np.arange(chunk.start, total) if by_heads else positions_of(chunk, plan, s)
    if variant.hop is None:
        return queries, np.arange(total)
    sender = (s - variant.hop) % plan.sp.degree
    cached = np.arange(chunk.start if sender == chunk.owner else 0)
    return queries, np.sort(np.concatenate((cached, positions_of(chunk, plan, sender))))


def pairs_of(chunk: Chunk, variant: Variant, s: int, plan: ParallelPlan, *, by_heads: bool) -> int:
    """Return how many keys the tokens of a chunk attend to by one node, as its variant declares."""
    queries, keys = _queries_and_keys(chunk, variant, s, plan, by_heads)
    seen = np.searchsorted(keys, queries, "right")
    if variant.window is not None:
        seen -= np.searchsorted(keys, queries - variant.window, "right")
    return int(seen.sum())


def block_of(chunk: Chunk, variant: Variant, s: int, plan: ParallelPlan, *, by_heads: bool) -> BoolArray:
    """Return which keys each token of a chunk attends to by one node, as its variant declares."""
    queries, there = _queries_and_keys(chunk, variant, s, plan, by_heads)
    total = chunk.start + chunk.count
    keys = np.zeros(total, bool)
    keys[there] = True
    position = np.arange(total)
    seen = keys & (position <= queries[:, None])
    if variant.window is not None:
        seen &= position > queries[:, None] - variant.window
    block = np.zeros((chunk.count, total), bool)
    block[queries - chunk.start] = seen
    return block


def difference(matrix: BoolArray, chunk: Chunk, window: int | None) -> str | None:
    position = np.arange(chunk.start + chunk.count)
    query = np.arange(chunk.start, chunk.start + chunk.count)[:, None]
    wanted = position <= query
    if window is not None:
        wanted &= position > query - window
    wrong = np.argwhere(matrix != wanted)
    if not len(wrong):
        return None
    at, key = map(int, wrong[0])
    token = chunk.start + at
    if matrix[at, key]:
        return f"token {token} attends to token {key}, which it may not see"
    return f"token {token} does not attend to token {key} of its sequence ({len(wrong)} entries of the matrix differ)"
