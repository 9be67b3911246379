"""PP: stages hold runs of modules and pass on activations, in order."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule

PIPELINE: Final = (
    Rule(
        id="PP-1",
        levels=("P",),
        statement=(
            "Stages are non-empty and contiguous and cover every module once, in order: the embedding on "
            "the first, the LM head on the last. A cut falls between layers, or between a layer's attention "
            "and its FFN or MoE."
        ),
        why="A module that is left out, repeated or out of order is another model.",
        source="attention_mapping.md and ffn_mapping.md: Pipeline Parallelism",
        example="reorder; leave out; place twice",
    ),
    Rule(
        id="PP-2",
        levels=("G", "T"),
        statement=(
            "A stage starts on a micro-batch only after the output of the stage before it (of attention, "
            "FFN, or aggregated experts) has arrived; the payload is tokens × hidden × bytes."
        ),
        why="It has nothing else to work on.",
        source="moe_mapping.md: Applicable Parallel Primitives, Pipeline Parallelism",
        example="start before arrival; a wrong payload",
    ),
    Rule(
        id="PP-3",
        levels=("T",),
        statement=(
            "Decode is layer-only: within one step stages follow in order, and two steps of a sequence "
            "never overlap on any stages. decode_overlap none is stricter: at most one decode step of a "
            "replica in flight; per_sequence lets disjoint micro-batches fill the stages."
        ),
        why="A decode step needs the token of the step before.",
        source="attention_mapping.md: Failure-Prone Assumptions",
        example="overlap two steps",
    ),
    Rule(
        id="PP-4",
        levels=("G", "T"),
        statement=("Micro-batches partition the batch: no sequence is in two, and no edge goes from one to another."),
        why="A sequence in two micro-batches writes its cache twice.",
        source="RULES.md: PP, pipeline parallelism",
        example="duplicate a sequence",
    ),
    Rule(
        id="PP-5",
        levels=("G",),
        statement=("Sends and receives match and can't deadlock: the graph with edges for each rendezvous is acyclic."),
        why="Two stages that wait for each other wait for ever.",
        source="RULES.md: PP, pipeline parallelism",
        example="cross the order of two sends",
    ),
    Rule(
        id="PP-6",
        levels=("G", "T"),
        statement="Layer l of a step runs after layer l−1 of that step, on every rank.",
        why="It reads what the layer before it wrote.",
        source="ffn_mapping.md: Phase-Specific Summary",
        example="swap two layers",
    ),
)
