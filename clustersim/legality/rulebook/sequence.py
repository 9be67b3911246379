"""SP: the tokens of one prompt are split in prefill; decode has nothing to split."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule

SEQUENCE: Final = (
    Rule(
        id="SP-1",
        levels=("P", "G"),
        statement=(
            "The segments of a sequence are disjoint and cover its prompt, contiguous or in a declared "
            "logical order: zigzag, or striped (token i of a chunk on rank i mod sp). A plan with sp > 1 declares "
            "that order, and the scheme by which its ranks then expose K/V."
        ),
        why="A token in no segment is never computed, one in two is computed twice.",
        source="sequence_parallelism.md: Definition",
        example="overlap; gap",
    ),
    Rule(
        id="SP-2",
        levels=("G", "T", "X"),
        statement=(
            "Before a rank attends from a token, the K/V of every earlier token that it needs is "
            "materialised there: from its own segment, or communicated."
        ),
        why="Token i may be computed only when every j ≤ i that it attends to is available.",
        source="sequence_parallelism.md: Fundamental Legality Constraint",
        example="drop one segment's K/V",
    ),
    Rule(
        id="SP-3",
        levels=("P", "G", "T"),
        statement=(
            "SP acts in prefill only. A plan with sp > 1 says what its SP ranks do in decode: idle, or dp "
            "(whole sequences spread over them); no decode operator carries an SP partition, and no decode "
            "step is split by tokens. A pool that only decodes has sp 1."
        ),
        why="A decode step has one new token of a sequence: there is no sequence dimension to split.",
        source="sequence_parallelism.md: Phase-Dependent Semantics, Decode Phase",
        example="an SP operator inside a decode step; a plan that is silent about decode",
    ),
    Rule(
        id="SP-4",
        levels=("G",),
        statement=(
            "The K/V that is exposed has the right volume: proportional to the prompt's length and to K/V "
            "heads × head width, as the scheme (all-gather, ring, all-to-all by heads) prescribes."
        ),
        why="Less would leave tokens without their context.",
        source="sequence_parallelism.md: Communication Requirements, Dependency Materialization",
        example="halve the bytes",
    ),
    Rule(
        id="SP-5",
        levels=("G", "T"),
        statement=(
            "K/V is exposed in order along the sequence; the synchronisation sits at attention, in prefill only."
        ),
        why="Attention is the only operator that looks across tokens.",
        source="sequence_parallelism.md: Communication Requirements, Synchronization Characteristics",
        example="attend before the segment arrives; a synchronisation at the FFN",
    ),
    Rule(
        id="SP-6",
        levels=("G",),
        statement=(
            "The partition of tokens is the same through both FFN projections and from layer to layer; "
            "nothing reshards in between."
        ),
        why="The second projection works on what the first made, token by token.",
        source="ffn_mapping.md: Applicable Parallel Primitives, Sequence Parallelism",
        example="reshard between the two projections",
    ),
    Rule(
        id="SP-7",
        levels=("P",),
        statement=(
            "SP works inside one sequence and is orthogonal to batching: a batch of legal sequences stays "
            "legal, and batching does not excuse an illegal one."
        ),
        why="Tokens of different sequences do not attend to each other.",
        source="sequence_parallelism.md: Batch Semantics",
        example="a property: a segment that reaches into the next sequence of the batch",
    ),
    Rule(
        id="SP-8",
        levels=("G", "T", "X"),
        statement=(
            "After an SP prefill the cache is in token order and complete where decode will read it; moving "
            "it there is a transfer that costs time, before the boundary node."
        ),
        why="Decode reads the whole prefix on one rank (or one TP group).",
        source="sequence_parallelism.md: Interaction with KV Cache",
        example="decode reads a segment that was never moved",
    ),
    Rule(
        id="SP-9",
        levels=("P",),
        statement=(
            "SP is not TP: it splits tokens, so each SP rank holds all the weights of its TP shard; memory "
            "and cost say so."
        ),
        why="Every token passes every weight.",
        source="sequence_parallelism.md: Failure-Prone Assumptions",
        example="divide the weights by sp",
    ),
)
