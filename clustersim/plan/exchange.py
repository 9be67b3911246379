"""How tokens get to experts on other ranks and back, and how many ranks and nodes one of them reaches.

==================== ==========================================================================================
all_reduce           not at all: every rank of a TP group has all tokens, takes those of its experts, and the
                     all-reduce that ends the layer adds up what all of them made (engines without attention DP)
all_gather           every rank gets all tokens, takes those of its experts, and what all ranks made of them is summed
                     by a reduce-scatter (vLLM's ``allgather_reducescatter``, TensorRT-LLM without an all-to-all)
all_to_all           a copy for each expert that a token visits, in the format of activations (NCCL, pplx)
deepep_normal        a copy for each node that has one of these experts, over the sender's rail, and there one for
                     each rank, over NVLink; back likewise, summed on each rank and on each node
deepep_low_latency   a message for each expert, straight from rank to rank
==================== ==========================================================================================

The last two are DeepEP's kernels (deepseek-ai/DeepEP@dd758caf: csrc/kernels/layout.cu, internode.cu and
internode_ll.cu); they dispatch in a format of their own (``precision.dispatch``).

Where experts are visited evenly, the groups that a token may visit are any ``groups_per_token`` of ``groups``, and its
experts any ``top_k`` of those in them. With c_g experts of group g in some places, and groups of m experts, a token
reaches none of these with the probability

    mean over all sets T of groups_per_token groups of C(groups_per_token·m − Σ_{g in T} c_g, top_k) / C(…·m, top_k)
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from math import comb
from typing import Final, Literal

from clustersim.values import dataclass

ExpertExchange = Literal["all_to_all", "all_reduce", "all_gather", "deepep_normal", "deepep_low_latency"]
DEEPEP: Final[tuple[ExpertExchange, ...]] = ("deepep_normal", "deepep_low_latency")
SUMMED: Final[tuple[ExpertExchange, ...]] = ("all_gather", "deepep_normal")
"""Those that bring back one sum for each token and rank, and not what each of its experts made of it."""
MESSAGE_BYTES: Final = 16
"""Of each message of the low-latency dispatch, beside the token (``internode_ll.cu``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One dispatch or combine of DeepEP: what tells its links from those of another one.

    Parameters
    ----------
    way : str
        ``deepep_normal`` or ``deepep_low_latency``.
    towards : str
        ``experts`` (dispatch) or ``tokens`` (combine).
    num_experts, top_k, groups, groups_per_token : int
        As in :class:`~clustersim.model.architecture.Moe`.
    ranks : int
        EP ranks.
    placement : str or tuple of int
        As in :class:`~clustersim.plan.parallel.ExpertPlan`; of experts with copies ``contiguous``.
    """

    way: ExpertExchange
    towards: Literal["experts", "tokens"]
    num_experts: int
    top_k: int
    groups: int
    groups_per_token: int
    ranks: int
    placement: Literal["contiguous", "strided"] | tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of its operator."""
        return "dispatch" if self.towards == "experts" else "combine"

    @property
    def family(self) -> str:
        """Family of its constants."""
        return f"{self.way.removeprefix('deepep_')}_{self.name}"

    def reached(self, ranks: Collection[int]) -> float:
        """Return the share of tokens that visit an expert on one of some EP ranks, where experts are visited evenly."""
        held = _held(self.num_experts, self.groups, self.ranks, self.placement)
        counts = tuple(map(sum, zip(*(held[rank] for rank in ranks), strict=True)))
        return _reached(counts, self.num_experts // self.groups, self.top_k, self.groups_per_token)


@lru_cache(maxsize=256)
def _held(
    num_experts: int, groups: int, ranks: int, placement: Literal["contiguous", "strided"] | tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return how many experts of each group each EP rank has."""
    held = [[0] * groups for _ in range(ranks)]
    for expert in range(num_experts):
        if placement == "contiguous":
            rank = expert * ranks // num_experts
        elif placement == "strided":
            rank = expert % ranks
        else:
            rank = int(placement[expert])
        held[rank][expert * groups // num_experts] += 1
    return tuple(map(tuple, held))


@lru_cache(maxsize=4096)
def _reached(counts: tuple[int, ...], size: int, top_k: int, visited: int) -> float:
    """Return the share of tokens that visit one of so many experts of each group of ``size``."""
    ways: dict[tuple[int, int], int] = {(0, 0): 1}
    """(groups chosen, experts held in them) → sets of groups"""
    for count in counts:
        for (chosen, held), many in list(ways.items()):
            if chosen < visited:
                key = chosen + 1, held + count
                ways[key] = ways.get(key, 0) + many
    whole = comb(len(counts), visited) * comb(visited * size, top_k)
    missed = sum(
        many * comb(visited * size - held, top_k) for (chosen, held), many in ways.items() if chosen == visited
    )
    return (whole - missed) / whole


def visited_as_often(share: float, times: float) -> float:
    """Return the share of tokens that reach a place ``times`` as visited as one that ``share`` of them reach.

    As if it were so many such places that are reached independently; the fraction is taken linearly, and the power by
    multiplication, which gives the same bits on every machine.
    """
    whole, missed = int(times), 1.0
    for _ in range(whole):
        missed *= 1.0 - share
    return 1.0 - missed * (1.0 - (times - whole) * share)
