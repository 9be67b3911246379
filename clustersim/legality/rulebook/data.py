"""DP: replicas are whole and have nothing to do with each other."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule

DATA: Final = (
    Rule(
        id="DP-1",
        levels=("P",),
        statement=(
            "A replica holds the full model, split inside it by the other primitives. A plan that states its number of "
            "devices uses exactly that."
        ),
        why="It serves whole sequences by itself.",
        source="attention_mapping.md and ffn_mapping.md: Data Parallelism",
        example="half a replica; 32 devices stated, 8 used",
    ),
    Rule(
        id="DP-2",
        levels=("T",),
        statement=(
            "A sequence lives on one replica from its first step to its last, unless a declared hand-over "
            "(from the prefill pool to the decode pool, or a retried preemption) moved its whole cache: every "
            "(layer, head, token) once."
        ),
        why="Its cache is there and nowhere else.",
        source="attention_mapping.md: Applicable Parallel Primitives, Data Parallelism",
        example="migrate silently",
    ),
    Rule(
        id="DP-3",
        levels=("G", "T"),
        statement=(
            "No edge goes between replicas. The one declared exception is EP over the ranks of all replicas "
            "(ep scope global): then only dispatch and combine cross."
        ),
        why="Sequences are independent.",
        source="ffn_mapping.md: Phase-Specific Summary",
        example="a K/V edge between replicas",
    ),
    Rule(
        id="DP-4",
        levels=("T",),
        statement="DP changes no sequence's steps or tokens.",
        why="It decides where a sequence runs, not what it is.",
        source="ffn_mapping.md: Failure-Prone Assumptions",
        example="a property: compare each sequence under different dp",
    ),
)
