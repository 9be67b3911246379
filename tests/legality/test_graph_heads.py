"""Whatever the head of a graph in a file says instead: the verdict is another one, or it is a graph of that, too.

``pytest tests/legality/test_graph_heads.py --long=20`` tries every other value of every field.
"""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest
from foreign_cases import Document, document_of, holder
from graph_cases_small import RING
from harmless import _declared as is_of_what_it_declares
from harmless import _read as read
from heads import of_head
from plans import EXPERTS, model
from single_changes import GRAPHS, STEPS, WRITTEN, document, verdict_of

from clustersim.errors import InputError
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan
from clustersim.simulation.foreign.graph import check_read, left_out_line
from clustersim.simulation.foreign.graph_file import graph_in
from clustersim.simulation.graph_legality import batch_of
from tests.effort import times
from tests.laws.graph_cases import Case

CHANGES: Final = times(240)
"""In all."""
NO_GRAPH_SHOWS: Final = {
    "plan.ep.routing": "tokens choose their experts; how often each is chosen is no structure",
    "plan.sp.scheme": "of a step without prompts; with latent attention it is not expanded",
}
"""Field → why another value is as right, where clustersim would write other figures, or nothing at all."""


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in WRITTEN))
def test_another_head_has_another_verdict_or_is_of_the_same_graph(name: str) -> None:
    random = Random(name)
    kind = random.choice([kind for graph, kind in WRITTEN if graph == name and kind != "long prefill"])
    text = json.dumps(document(name, kind))
    every = list(of_head(json.loads(text)))
    for place, other in random.sample(every, min(len(every), CHANGES // len(GRAPHS))):
        found = json.loads(text)
        holder(found, place)[place[-1]] = other
        if verdict_of(found) == "legal":
            field = ".".join(key for key in place if isinstance(key, str))
            assert is_of_what_it_declares(read(found), found) or field in NO_GRAPH_SHOWS, (field, other)


def changed(found: Document, **changes: Any) -> str:
    """Return the verdict on a document with other values by dotted key (``__`` for a dot)."""
    found = json.loads(json.dumps(found))
    for key, value in changes.items():
        *way, last = key.split("__")
        part: Any = found
        for name in way:
            part = part[int(name) if isinstance(part, list) else name]
        part[last] = value
    return verdict_of(found)


TWO_BATCH: Final = {"plan__ep__overlap": "two_batch"}


def test_a_step_in_one_piece_is_none_of_two_batches() -> None:
    several, single = document("latent", "mixed"), document("latent", "prefill")
    assert changed(several) == "legal"
    assert changed(several, **TWO_BATCH) == "illegal"  # 4 sequences
    assert changed(several, **TWO_BATCH, plan__ep__overlap_prefill_tokens=18) == "illegal"
    assert changed(several, **TWO_BATCH, plan__ep__overlap_prefill_tokens=19) == "legal"  # which 18 tokens don't reach
    assert changed(single, **TWO_BATCH) == "legal"  # one sequence is not split
    violation = check_read(graph_in(json.dumps(several | {"plan": several["plan"] | {
        "ep": several["plan"]["ep"] | {"overlap": "two_batch"}}}), "graph.json")).violations[0]  # fmt: skip
    assert violation.rule == "PP-4"
    assert "4 sequences are one micro-batch" in violation.message


def test_a_step_of_two_halves_says_what_to_write_instead() -> None:
    found = document("experts", "decode")
    found["step"]["halves"] = [{"decode_sequences": [1]}] * 2
    with pytest.raises(InputError) as refused:
        graph_in(json.dumps(found), "graph.json")
    assert "step.halves" in str(refused.value)
    assert "write each half as a graph of its own" in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        TWO_BATCH,
        {"plan__ep__overlap_decode_tokens": 3},
        {"plan__ep__exchange": "deepep_normal"},
        {"plan__ep__dispatch": "fp8"},
        {"plan__ep__routing": {"zipf": 1.0}},
        {"plan__sp__whole": True},
        {"step__halves": []},
        {"step__windowed_keys": {"7": [0]}},
        {"replica": 1},
        {"model__layers__0__attention__kind": "mha"},
        {"model__layers__0__attention__kv_lora_rank": 8},
    ],
    ids=str,
)
def test_a_head_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    assert changed(document("dense", "prefill")) == "legal"
    assert changed(document("dense", "prefill"), **change) == "refused"


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": 9, "num_experts": 8},
        {"groups": 3},
        {"groups": 2, "groups_per_token": 3},
        {"groups": 8, "groups_per_token": 1},
        {"shared_intermediate": 8},
        {"shared_gate": True},
    ],
    ids=str,
)
def test_experts_that_no_token_could_choose_are_refused(change: dict[str, Any]) -> None:
    found = document("experts", "decode")
    made = {f"model__layers__0__moe__{key}": value for key, value in change.items()}
    assert changed(found, model__layers__0__moe__groups=4, model__layers__0__moe__groups_per_token=2) == "legal"
    assert changed(found, **made) == "refused"


def test_all_reduce_among_experts_hides_nothing() -> None:
    plan = ParallelPlan(tp=4, ep=ExpertPlan(degree=2, exchange="all_reduce"))
    spec = model(ffn=EXPERTS, layers=2)
    case = Case(model=spec, plan=plan, batch=batch_of(STEPS["mixed"], plan, spec), prefills=(), decodes=())
    assert changed(document_of(case)) == "legal"
    assert changed(document_of(case), **TWO_BATCH) == "refused"


def of_placed(**changes: Any) -> Document:
    plan = ParallelPlan(tp=2, pp=2, dp=2, stages=(Cut(layer=1),), placement=(3, 1, 0, 2, 4, 5, 6, 7))
    spec = model(layers=2)
    batch = batch_of(STEPS["mixed"], plan, spec)
    return document_of(Case(model=spec, plan=plan, batch=batch, prefills=(), decodes=())) | changes


NAMED: Final = {"topology": {"devices": [f"n{at}" for at in range(8)]}}


@pytest.mark.parametrize(
    ("verdict", "changes"),
    [
        ("legal", {"devices": [3, 1, 0, 2]}),
        ("legal", {"devices": [4, 5, 6, 7]}),  # of the other replica
        ("legal", {"devices": [4, 5, 6, 7], "replica": 1}),
        ("illegal", {"devices": [4, 5, 6, 7], "replica": 0}),
        ("illegal", {"devices": [1, 3, 0, 2]}),
        ("illegal", {"devices": [3, 1, 0, 9]}),
        ("legal", {"devices": [3, 1, 0, 2, 4, 5, 6, 7]}),
        ("illegal", {"devices": [3, 1, 0, 2, 4, 5, 7, 6]}),
        ("legal", {"devices": ["b", "a", "d", "c"]}),  # names of which nobody knows the number
        ("legal", NAMED | {"devices": ["n3", "n1", "n0", "n2"]}),
        ("illegal", NAMED | {"devices": ["n1", "n3", "n0", "n2"]}),
        ("illegal", NAMED | {"devices": ["n3", "n1", "n0", "other"]}),
        ("illegal", {"topology": {"devices": ["n0", "n1", "n2"]}, "devices": ["n1", "n2", "n0"]}),
        ("illegal", {"topology": {"devices": ["n0", "n1", "n2", "n3"]}, "devices": ["n3", "n1", "n0", "n2"]}),
        ("refused", {"topology": {"devices": ["n0", "n0"]}}),
        ("refused", {"topology": {"devices": [True]}}),
        ("refused", {"topology": ["n0"]}),
    ],
)
def test_devices_are_those_of_the_placement(verdict: str, changes: dict[str, Any]) -> None:
    assert verdict_of(of_placed(**changes)) == verdict


def test_packed_ranks_are_held_to_a_topology_alone() -> None:
    found = of_placed(devices=["n1", "n0", "n2", "n3"])
    found["plan"]["placement"] = None
    assert verdict_of(found) == "legal"
    assert verdict_of(found | NAMED) == "illegal"
    assert verdict_of(found | NAMED | {"devices": ["n4", "n5", "n6", "n7"], "replica": 1}) == "legal"


@pytest.mark.parametrize("kind", ["prefill", "mixed", "decode"])
def test_attention_to_all_keys_is_illegal_where_the_model_has_a_window(kind: str) -> None:
    found = document("windows", kind)
    assert verdict_of(found) == "legal"
    for node in found["nodes"]:
        node.pop("variant", None)
        node.pop("flops", None)
        node.pop("bytes", None)
        node.get("amount", {}).pop("value", None)
    verdict = check_read(graph_in(json.dumps(found), "graph.json"))
    assert {one.rule for one in verdict.violations} == {"PH-5"}
    assert (
        "attends to all keys, where its layer has a window of 4: expected variant '@4'" in verdict.violations[0].message
    )


def test_parts_of_a_ring_that_are_not_said_are_told() -> None:
    plan = ParallelPlan(sp=replace(RING, degree=2))
    spec = model(layers=2)
    case = Case(model=spec, plan=plan, batch=batch_of(STEPS["prefill"], plan, spec), prefills=(), decodes=())
    found = document_of(case)
    for node in found["nodes"]:
        if node["op"] == "attention_prefill":
            for key in ("variant", "flops", "bytes"):
                node.pop(key, None)
            node["amount"].pop("value")
    assert "no variant of 8 operators" in (left_out_line(graph_in(json.dumps(found), "graph.json")) or "")
