"""Whose tokens reach which ranks, where collectives of some groups hand them on: what rule EP-8 asks on every level."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from clustersim.plan.parallel import ParallelPlan

FIX: Final = "let all ranks that experts are spread over take the dispatch and its combine together, in every layer"


def sharing(rank: int, *, stage_ranks: int, pp: int, replicas: int) -> tuple[int, ...]:
    """Return the ranks that share the experts of a stage with one, those of all replicas that do so among them.

    Examples
    --------
    >>> sharing(5, stage_ranks=2, pp=2, replicas=1), sharing(5, stage_ranks=2, pp=2, replicas=2)
    ((4, 5), (0, 1, 4, 5))
    """
    place = rank // stage_ranks
    places = [place] if replicas == 1 else range(place % pp, replicas * pp, pp)
    return tuple(one * stage_ranks + local for one in places for local in range(stage_ranks))


def sharing_in(plan: ParallelPlan, rank: int) -> tuple[int, ...]:
    """Return the ranks that share the experts of a stage with one in a plan."""
    replicas = plan.dp if plan.ep.scope == "global" else 1
    return sharing(rank, stage_ranks=plan.stage_ranks, pp=plan.pp, replicas=replicas)


def apart(ranks: Collection[int], rounds: Iterable[Sequence[Collection[int]]]) -> Mapping[int, frozenset[int]]:
    """Return the ranks that do not meet all others, or somebody else, too, and whom each of these meets.

    Parameters
    ----------
    ranks : collection of int
        Those that are to meet.
    rounds : iterable of sequence of collection of int
        Groups that meet at a time, one round after the other: what a rank has from a round it hands on in the next.

    Examples
    --------
    >>> apart(range(4), [[(0, 1), (2, 3)], [(0, 2), (1, 3)]])  # inside two nodes, then between them
    {}
    >>> apart(range(4), [[(0, 1), (2, 3)]])[0]
    frozenset({0, 1})
    """
    whole = frozenset(ranks)
    has: dict[int, frozenset[int]] = {rank: frozenset((rank,)) for rank in ranks}
    for groups in rounds:
        met: dict[int, frozenset[int]] = {}
        for group in groups:
            brought = frozenset().union(*(has.get(rank, frozenset((rank,))) for rank in group))
            for rank in group:
                met[rank] = met[rank] | brought if rank in met else brought
        has |= met
    return {rank: has[rank] for rank in ranks if has[rank] != whole}


def words(own: Collection[int], rank: int, met: Collection[int], group: Collection[int]) -> str:
    """Return what is wrong with some ranks that meet, of which one does not meet just those that share its experts."""
    missing = {*group} - {*met}
    if missing:
        count = f"joins {len(own)} rank{'s' if len(own) > 1 else ''} of the {len(group)} that experts are spread over"
        return f"{count}: rank {rank} never meets rank {min(missing)}"
    other = min({*met} - {*group})
    return f"joins rank {rank} with rank {other}, which is none of the {len(group)} that its experts are spread over"
