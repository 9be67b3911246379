"""What a graph in a file declares beside its operators goes with what these say that they do, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from foreign_cases import Document, document_of
from graph_cases_small import RING
from plans import model
from single_changes import document, verdict_of

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.plan.parallel import ParallelPlan
from tests.laws.graph_cases import Case

FIVE = StepBatch(chunks=(Chunk(request=0, start=0, count=5),))
"""Of which two ranks have as many tokens in stripes as from both ends, and the same one has the last."""


def segments(partition: str, scheme: str) -> Document:
    sp = replace(RING, degree=2, partition=partition, scheme=scheme)
    return document_of(
        Case(model=model(layers=2), plan=ParallelPlan(sp=sp), batch=FIVE, prefills=(), decodes=())
    )  # fmt: skip


def in_values(found: Document) -> Document:
    """Say amounts as other programs do: numbers for this step."""
    for node in found["nodes"]:
        if "amount" in node:
            node["amount"] = {"value": node["amount"]["value"]}
    return found


@pytest.mark.parametrize("written", [lambda found: found, in_values], ids=["terms", "values"])
@pytest.mark.parametrize("scheme", ["ring", "all_gather"])
@pytest.mark.parametrize(("partition", "other"), [("striped", "zigzag"), ("zigzag", "striped")])
def test_a_partition_is_that_of_the_attention_of_each_rank_where_counts_are_equal(
    partition: str, other: str, scheme: str, written: Callable[[Document], Document]
) -> None:
    found = written(segments(partition, scheme))
    assert verdict_of(found) == "legal"
    found["plan"]["sp"]["partition"] = other
    assert verdict_of(found) == "refused"


def put(*place: Any, value: Any) -> Callable[[Document], None]:
    def change(found: Any) -> None:
        *way, last = place
        for key in way:
            found = found[key]
        found[last] = value

    return change


JUDGED = [
    ("dense", "mixed", put("precision", "weights", value="bf16"), "refused"),
    ("dense", "mixed", put("precision", value={}), "refused"),
    ("dense", "mixed", put("precision", "kv_cache", value="bf16"), "refused"),
    ("latent", "prefill", put("precision", "activations", value="fp8"), "refused"),
    ("dense", "mixed", put("precision", "multiply", value="bf16"), "legal"),  # which takes time, and is no structure
    ("dense", "decode", put("step", "decode_keys", value=[20]), "refused"),
    ("dense", "decode", put("step", "decode_keys", value=[1]), "refused"),
    ("dense", "prefill", put("step", "decode_keys", value=[1]), "refused"),
    ("windows", "decode", put("step", "windowed_keys", value={"4": [9]}), "refused"),
    ("gather", "prefill", put("step", "chunks", 0, "owner", value=1), "legal"),
    ("ring", "prefill", put("step", "chunks", 0, "owner", value=1), "refused"),
    ("ring", "mixed", put("step", "chunks", 0, "owner", value=1), "illegal"),
    ("dense", "mixed", put("step", "chunks", 0, "request", value=9), "legal"),  # another sequence
    ("dense", "mixed", put("step", "chunks", 0, "request", value=1), "illegal"),  # which is in the step
]


@pytest.mark.parametrize(("name", "kind", "change", "verdict"), JUDGED)
def test_one_declaration_alone_is_judged_against_what_operators_say(
    name: str, kind: str, change: Callable[[Document], None], verdict: str
) -> None:
    found = document(name, kind)
    assert verdict_of(found) == "legal"
    change(found)
    assert verdict_of(found) == verdict


@pytest.mark.parametrize("figure", ["flops", "bytes"])
def test_programs_may_count_the_work_of_attention_as_they_like(figure: str) -> None:
    found = in_values(document("dense", "mixed"))
    for node in found["nodes"]:
        if node["op"].startswith("attention"):
            node[figure] *= 2
    assert verdict_of(found) == "legal"
    one = next(node for node in found["nodes"] if node["op"] == "attention_decode")
    one[figure] *= 2
    assert verdict_of(found) == "legal"


def test_numbers_that_are_not_said_are_not_judged() -> None:
    found = document("dense", "mixed")
    for node in found["nodes"]:
        node.pop("flops", None)
        node.pop("bytes", None)
    found["precision"]["weights"] = "bf16"
    found["step"]["decode_keys"] = [20]
    assert verdict_of(found) == "legal"
    assert verdict_of({**found, "step": {**found["step"], "decode_keys": [0]}}) == "legal"


@pytest.mark.parametrize("name", ["o_proj", "lm_head", "ffn_up"])
def test_a_collective_with_the_name_of_a_product_is_illegal(name: str) -> None:
    found = document("by heads", "prefill")
    next(node for node in found["nodes"] if node["name"] == "out_all_to_all")["name"] = name
    assert verdict_of(found) == "illegal"
