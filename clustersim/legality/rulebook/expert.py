"""EP: experts are spread, tokens find theirs, and nothing else changes."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule

EXPERT: Final = (
    Rule(
        id="EP-1",
        levels=("P",),
        statement=(
            "EP touches MoE modules only; every expert lives on exactly one EP rank (or on declared "
            "replicas); experts divide by ep."
        ),
        why="A token that is routed to an expert must find it, at one place.",
        source="moe_mapping.md: Applicable Parallel Primitives, Expert Parallelism",
        example="ep on a dense model; an expert nowhere",
    ),
    Rule(
        id="EP-2",
        levels=("G", "T", "X"),
        statement=(
            "A token reaches exactly the top-k experts that were selected for it and no other: dispatched = "
            "combined = tokens × k, per layer and step."
        ),
        why="Only selected experts process a token.",
        source="moe_mapping.md: Applicable Parallel Primitives, Expert Parallelism",
        example="lose, duplicate or misroute one token",
    ),
    Rule(
        id="EP-3",
        levels=("T", "X"),
        statement=(
            "Routing is a function of the token (and the seed) alone: the same under any degree of TP, EP, "
            "PP and DP, and in any order of batches or steps."
        ),
        why="The router reads the token's hidden state, which no plan changes.",
        source="moe_mapping.md: Phase-Specific Summary",
        example="seed by rank",
    ),
    Rule(
        id="EP-4",
        levels=("G", "T"),
        statement=(
            "Gate, dispatch, expert, combine, next operator: in this order, synchronous within one step; no "
            "edge crosses a step."
        ),
        why="The next operator needs the aggregate of all selected experts.",
        source="moe_mapping.md: MoE Module Components",
        example="expert before dispatch; combine in the next step",
    ),
    Rule(
        id="EP-5",
        levels=("G", "T"),
        statement=(
            "Experts see a token only after that token's attention in that layer and step: routing can't "
            "bypass causality or the phase."
        ),
        why="The router's input is the output of attention.",
        source="moe_mapping.md: Failure-Prone Assumptions",
        example="feed experts from the previous step",
    ),
    Rule(
        id="EP-6",
        levels=("P", "G"),
        statement=(
            "TP inside an expert stays inside one group and is deterministic; the map from experts to "
            "devices is the same on all ranks."
        ),
        why="Ranks that disagree send tokens to experts that are not there.",
        source=("moe_mapping.md: Applicable Parallel Primitives, Tensor Parallelism; Failure-Prone Assumptions"),
        example="two ranks with different maps",
    ),
    Rule(
        id="EP-7",
        levels=("G",),
        statement="EP leaves attention and K/V as they were.",
        why="It spreads experts and touches nothing else.",
        source="moe_mapping.md: KV Cache Interaction",
        example="a property: compare attention and K/V with and without ep",
    ),
    Rule(
        id="EP-8",
        levels=("P", "G", "T"),
        statement=(
            "A dispatch and its combine are taken by all ranks of the EP group that the plan declares, the same "
            "for both, in every layer: tokens can reach every expert, and come back. Split over sub-groups they may be "
            "only where the parts together are the same exchange."
        ),
        why="A token whose expert is on a rank that does not take part never gets there, or never returns.",
        source="moe_mapping.md: Applicable Parallel Primitives, Expert Parallelism",
        example="each rank alone in a group of one; two halves of the group; another group for the combine",
    ),
)
