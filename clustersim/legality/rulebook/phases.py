"""PH: prefill before decode, one token at a time, nothing looks ahead."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule

PHASES: Final = (
    Rule(
        id="PH-1",
        levels=("G", "T"),
        statement=(
            "A sequence decodes only after its whole prompt is prefilled on every stage; the edge from "
            "prefill to decode goes through an explicit boundary node, and none goes beside it."
        ),
        why="The first decode step attends to every token of the prompt on every layer.",
        source="sequence_parallelism.md: Phase-Dependent Semantics",
        example="drop the boundary; start decode before the last chunk ends on the last stage",
    ),
    Rule(
        id="PH-2",
        levels=("G", "T"),
        statement=("A decode step carries exactly one new token of each sequence in it, and no sequence twice."),
        why="The next token does not exist before this one is sampled.",
        source="attention_mapping.md: KV Cache Interaction",
        example="a decode step with two tokens of one sequence",
    ),
    Rule(
        id="PH-3",
        levels=("G", "T"),
        statement=(
            "Step t+1 of a sequence starts only after step t has sampled its token and every layer on every "
            "stage has committed its K/V."
        ),
        why="A step that starts earlier reads a token, or a cache, that is not there yet.",
        source="attention_mapping.md: Failure-Prone Assumptions",
        example="overlap two steps of a sequence across stages",
    ),
    Rule(
        id="PH-4",
        levels=("T",),
        statement=(
            "No plan changes how many steps a sequence takes: output tokens are the same under every degree "
            "of TP, SP, PP, EP and DP, and each after the first has a decode step of its own."
        ),
        why="Parallelism shortens a step; it can't remove the dependence of a token on the one before.",
        source="tensor_parallelism.md: Failure-Prone Assumptions",
        example="lose or merge a step",
    ),
    Rule(
        id="PH-5",
        levels=("G", "X"),
        statement=(
            "Token i attends to every token j ≤ i of its sequence and to none j > i: the matrix of token "
            "dependencies is lower-triangular and prefix-complete."
        ),
        why="That is what causal attention computes; any other matrix is another model.",
        source="sequence_parallelism.md: Interaction with Causal Attention",
        example="drop one K/V dependency; add a forward one",
    ),
)
