"""TP: tensors are split where they may be, and put together deterministically inside a layer and a step."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule

TENSOR: Final = (
    Rule(
        id="TP-1",
        levels=("P",),
        statement=(
            "Only decomposable dimensions are split, and they divide: projections by output (columns) or "
            "input (rows), attention by head, FFN by intermediate, embedding and LM head by vocabulary or "
            "hidden. K/V heads divide by tp, or tp is a multiple of them and replicates each."
        ),
        why="Softmax and uneven heads don't decompose: the parts would not recombine into the whole.",
        source="tensor_parallelism.md: Fundamental Constraint; Applicable Tensor Dimensions",
        example="tp 3 on 8 heads; split softmax",
    ),
    Rule(
        id="TP-2",
        levels=("G", "X"),
        statement=(
            "Partial results are recombined deterministically: a column split by concatenation (all-gather) "
            "unless the consumer takes that very partition, a row split by a sum (all-reduce, or "
            "reduce-scatter with a matching all-gather). Nobody reads a partial sum as if it were whole."
        ),
        why="A term of a sum is not the sum.",
        source="tensor_parallelism.md: Operator-Level Semantics, Linear Layers",
        example="drop an all-reduce; swap sum and concatenation",
    ),
    Rule(
        id="TP-3",
        levels=("G",),
        statement=(
            "Element-wise operators (activation, gate multiply) inherit their producer's partition, with no "
            "collective between."
        ),
        why=("They act on each feature alone; a collective there pays for nothing and ends the pairing of splits."),
        source="ffn_mapping.md: Applicable Parallel Primitives, Tensor Parallelism",
        example="insert or move a collective inside",
    ),
    Rule(
        id="TP-4",
        levels=("G",),
        statement=(
            "Scores, softmax and aggregation of values are local to a shard of heads; it is the output "
            "projection that aggregates."
        ),
        why="Heads are independent before the output projection.",
        source="tensor_parallelism.md: Applicable Tensor Dimensions, Attention Head Dimension",
        example="a collective between score and softmax under a split by heads",
    ),
    Rule(
        id="TP-5",
        levels=("G", "T"),
        statement=(
            "TP collectives sit at fixed operator boundaries; every rank of the group takes part once, all "
            "in the same order."
        ),
        why="A rank that is missing, or comes in another order, deadlocks or mixes results.",
        source="tensor_parallelism.md: Communication Semantics, Collective Operations",
        example="one rank missing; two collectives reordered on one rank",
    ),
    Rule(
        id="TP-6",
        levels=("T",),
        statement=(
            "A collective is synchronous within its step: it starts only when its last rank has arrived, "
            "and no dependent operator on any rank starts before it is complete."
        ),
        why="What is read earlier is incomplete.",
        source="tensor_parallelism.md: Communication Semantics, Collective Operations",
        example="start a dependent early",
    ),
    Rule(
        id="TP-7",
        levels=("G", "T"),
        statement="TP synchronisation never spans a layer boundary or a step.",
        why="It would tie work together that the single-device model keeps in order.",
        source="tensor_parallelism.md: Communication Semantics, Synchronization Points",
        example="an all-reduce whose members lie in two layers or steps",
    ),
    Rule(
        id="TP-8",
        levels=("G",),
        statement=(
            "TP keeps the execution graph: with each TP group contracted and its collectives dropped, what "
            "remains is the graph of a single device."
        ),
        why="TP splits computations; it neither adds nor removes any.",
        source="tensor_parallelism.md: Definition",
        example="any extra or missing edge",
    ),
    Rule(
        id="TP-9",
        levels=("P", "G", "T", "X"),
        statement=(
            "TP changes neither the number of decode steps, nor the logical cache, nor the result; the "
            "batch size is free."
        ),
        why="TP reduces the work inside a step, not the number of steps; it composes with batching.",
        source="tensor_parallelism.md: Batch Semantics; Failure-Prone Assumptions",
        example="a property: sweep tp and the batch",
    ),
)
