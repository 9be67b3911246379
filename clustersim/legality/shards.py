"""Which K/V heads, tokens and experts a rank takes under a plan, derived from the plan alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from clustersim.model.architecture import Attention
from clustersim.plan.parallel import ParallelPlan

Segment = tuple[int, int] | tuple[int, int, int]
"""Token positions as ``range`` takes them: first, end (excluded), and of stripes the step."""

MOST_SEGMENTS: Final = 1024
"""Beyond so many SP ranks (a typing error, more likely than a wish) nobody looks at every segment."""


@lru_cache(maxsize=256)  # asked for every layer of every plan that a search looks at
def kv_heads_held(attention: Attention, tp: int) -> tuple[tuple[int, ...], ...]:
    """Return the K/V heads that each TP rank keeps: those that its query heads attend with.

    Query heads are cut into tp runs; K/V head j serves the query heads j·g … (j+1)·g−1 of its group of g (Ainslie
    et al., "GQA", arXiv:2305.13245, section 2.2).

    Examples
    --------
    >>> gqa = Attention(kind="gqa", num_heads=8, num_kv_heads=2, head_dim=4, v_head_dim=4)
    >>> kv_heads_held(gqa, 4)
    ((0,), (0,), (1,), (1,))
    """
    heads = attention.num_heads
    tp = min(tp, heads)  # the ranks beyond that have no query heads
    group = -(-heads // attention.num_kv_heads)
    held = []
    for rank in range(tp):
        first, end = rank * heads // tp, (rank + 1) * heads // tp
        held.append(tuple(range(first // group, -(-end // group))) if end > first else ())
    return tuple(held)


def segments_of(tokens: int, plan: ParallelPlan) -> tuple[tuple[Segment, ...], ...]:
    """Return the runs of tokens of each SP rank: one each, or for zigzag runs r and 2·sp−1−r of 2·sp.

    The first ``tokens mod runs`` runs are one token longer. Stripes are every sp-th token, rank r from token r on.
    """
    sp = plan.sp.degree
    if plan.sp.partition == "striped":
        return tuple(((rank, tokens, sp),) for rank in range(sp))
    runs = 2 * sp if plan.sp.partition == "zigzag" else sp
    short, longer = divmod(tokens, runs)
    ends = [(run + 1) * short + min(run + 1, longer) for run in range(runs)]
    cut = [(end - short - (run < longer), end) for run, end in enumerate(ends)]
    return tuple((cut[rank],) if runs == sp else (cut[rank], cut[runs - 1 - rank]) for rank in range(sp))


def probe_lengths(plan: ParallelPlan) -> tuple[int, ...]:
    """Return prompt lengths at which a partition shows what it does: around its number of runs, and a prime."""
    sp = plan.sp.degree
    return tuple(dict.fromkeys((1, 2 * sp - 1, 2 * sp, 2 * sp + 1, 997))) if 1 < sp <= MOST_SEGMENTS else ()


def expert_map(num_experts: int, plan: ParallelPlan) -> tuple[int, ...]:
    """Return the EP rank of each expert as the plan places it."""
    return _expert_map(num_experts, plan.ep.placement, plan.ep.degree)


@lru_cache(maxsize=256)
def _expert_map(num_experts: int, placement: str | tuple[int, ...], ep: int) -> tuple[int, ...]:
    if placement == "strided":
        return tuple(expert % ep for expert in range(num_experts))
    if placement == "contiguous":
        each = max(1, num_experts // ep)
        return tuple(min(expert // each, ep - 1) for expert in range(num_experts))
    return tuple(map(int, placement))
