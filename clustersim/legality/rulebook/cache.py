"""KV: the cache is append-only, whole, private, and fits."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule

CACHE: Final = (
    Rule(
        id="KV-1",
        levels=("G", "T"),
        statement=(
            "For each sequence, layer and K/V head the entries are appended in token order: no gap, no "
            "duplicate, no rewrite."
        ),
        why="Attention reads entry j as token j.",
        source="attention_mapping.md: KV Cache Interaction",
        example="skip, repeat or overwrite an index",
    ),
    Rule(
        id="KV-2",
        levels=("G", "T", "X"),
        statement=(
            "Attention reads an entry only after it was written and, if it was written on another rank, "
            "after it arrived."
        ),
        why="What is read earlier is whatever memory held before.",
        source="sequence_parallelism.md: Fundamental Legality Constraint",
        example="read before write; read before arrival",
    ),
    Rule(
        id="KV-3",
        levels=("T",),
        statement=(
            "A decode step adds exactly one entry per layer and sequence; a prefill chunk of n tokens adds exactly n."
        ),
        why="The cache grows with the tokens that were computed, and with nothing else.",
        source="sequence_parallelism.md: Interaction with KV Cache",
        example="add zero or two",
    ),
    Rule(
        id="KV-4",
        levels=("P", "G"),
        statement=(
            "The shards of all ranks together are the logical cache; each entry is held once, or replicated "
            "only where the plan declares it: grouped K/V heads with tp above their number, the latent of "
            "MLA, K/V exposed for SP."
        ),
        why=(
            "A head that no rank holds can't be attended; a copy that nobody declared is neither kept in "
            "step nor paid for."
        ),
        source="tensor_parallelism.md: Operator-Level Semantics, Attention Computation",
        example="an orphaned head; an undeclared copy",
    ),
    Rule(
        id="KV-5",
        levels=("G", "T"),
        statement=(
            "Entries are never shared across layers, sequences, micro-batches or replicas. The one "
            "exception is a shared prefix block: read-only, full, and identical by content hash."
        ),
        why="Another sequence's keys are another context.",
        source="attention_mapping.md: Failure-Prone Assumptions",
        example="cross-read another sequence; write into a shared block",
    ),
    Rule(
        id="KV-6",
        levels=("P", "T"),
        statement=(
            "Weights, live K/V, and activation and communication buffers never exceed device memory, nor what the "
            "engine's share of it may hold; live blocks never exceed the pool."
        ),
        why="A plan that does not fit does not run.",
        source="RULES.md: KV, the cache",
        example="over-admit",
    ),
    Rule(
        id="KV-7",
        levels=("T",),
        statement=(
            "Blocks return to the pool when their sequence ends, is preempted or is moved; at the end of a "
            "run none is lost."
        ),
        why="A pool that leaks runs dry.",
        source="RULES.md: KV, the cache",
        example="leak a block; free one twice",
    ),
)
