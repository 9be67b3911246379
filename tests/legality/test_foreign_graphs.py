"""Step graphs from outside: what they leave out raises no alarm, what they say wrong does, and nothing is a defect.

``pytest tests/legality/test_foreign_graphs.py --long`` hunts for longer.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from foreign_cases import Document, Place, case_of, document_of, holder, kind_of, places, priced_of

from clustersim.errors import InputError
from clustersim.graph.export import WRITERS
from clustersim.legality.rule import Verdict
from clustersim.simulation.foreign.graph import check_read, foreign_headline, foreign_lines, left_out_line, not_judged
from clustersim.simulation.foreign.graph_file import graph_in
from tests.effort import times

GRAPHS = times(12)
DAMAGES = 10
"""Per graph; of each kind."""

VALUES = (None, "", [], {}, -1, 1e308, 10**19, float("nan"), True, 0, 10**12)


def check(document: Document) -> Verdict:
    return check_read(graph_in(json.dumps(document), "graph.json"))


def broken(document: Document) -> set[str]:
    return {violation.rule for violation in check(document).violations}


def looked(verdict: Verdict) -> dict[str, int]:
    return {rule.id: rule.looked_at for rule in verdict.rules if rule.level == "G"}


def written(seed: int, wanted: Callable[[Document], bool] = lambda _: True) -> Document:
    """Return the first graph from a seed on of which something holds."""
    return next(found for at in range(seed, seed + 1000) if wanted(found := document_of(case_of(Random(at)))))


def has(*names: str) -> Callable[[Document], bool]:
    return lambda document: set(names) <= {node["name"] for node in document["nodes"]}


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_a_written_graph_is_legal_and_so_it_is_without_what_is_implied(seed: int) -> None:
    document = document_of(case_of(Random(seed)))
    verdict = check(document)
    assert verdict.violations == ()
    for node in document["nodes"]:
        for key in ("axis", "stage", "unit", "flops", "bytes"):
            node.pop(key, None)
        node.get("amount", {}).pop("value", None)
    for edge in document["edges"]:
        del edge["kind"]
    assert check(document) == verdict


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_figures_say_what_terms_say(seed: int) -> None:
    """``value`` and ``bytes`` in place of ``terms``: the same verdict, and as much looked at."""
    document = document_of(case_of(Random(seed)))
    verdict = check(document)
    for at, node in enumerate(document["nodes"]):
        if "amount" in node and node["op"] not in ("schedule", "sample"):
            node["amount"].pop("terms")
            if at % 2 and node["op"] not in ("gemm", "grouped_gemm") and not node["op"].startswith("attention"):
                node.setdefault("bytes", node.pop("amount")["value"])
    assert check(document) == verdict


@pytest.mark.parametrize("seed", range(3000, 3000 + GRAPHS // 2))
def test_every_format_is_read_back_to_the_same_verdict(seed: int) -> None:
    random = Random(seed)
    priced, about = priced_of(case_of(random))
    texts = {suffix: writer(priced, about) for suffix, writer in WRITERS.items()}
    expected = check_read(graph_in(texts[".json"], "graph.json"))
    assert expected.verdict == "legal"
    for suffix, text in texts.items():
        assert check_read(graph_in(text, f"graph{suffix}", suffix)) == expected


def by_kind(document: Document, random: Random) -> list[Place]:
    """Return a place of each kind, in random order."""
    found = defaultdict(list)
    for place in places(document):
        found[kind_of(document, place)].append(place)
    one = [random.choice(alike) for alike in found.values()]
    random.shuffle(one)
    return one


@pytest.mark.parametrize("seed", range(1000, 1000 + GRAPHS))
def test_what_a_graph_leaves_out_is_never_illegal(seed: int) -> None:
    random = Random(seed)
    document = document_of(case_of(random))
    optional = [
        place for place in by_kind(document, random)
        if isinstance(place[-1], str) and (place[0] in ("nodes", "edges") or len(place) == 1)
    ]  # fmt: skip
    text = json.dumps(document)
    for place in optional[:DAMAGES]:
        damaged = json.loads(text)
        del holder(damaged, place)[place[-1]]
        with suppress(InputError):  # what is required
            assert check(damaged).violations == (), place


@pytest.mark.parametrize("seed", range(2000, 2000 + GRAPHS))
def test_any_value_anywhere_is_judged_or_refused(seed: int) -> None:
    random = Random(seed)
    document = document_of(case_of(random))
    text = json.dumps(document)
    for place in by_kind(document, random)[:DAMAGES]:
        damaged = json.loads(text)
        holder(damaged, place)[place[-1]] = random.choice(VALUES)
        with suppress(InputError):
            check(damaged)


Change = Callable[[Document], None]


def halved(*keys: str) -> Change:
    """Return a change that halves numbers of a node, wherever they are said."""

    def change(node: Document) -> None:
        for key in keys:
            node[key] = node[key] // 2

    return change


def carrying(factor: float) -> Change:
    """Return a change of what a node says that it carries, in all of its words."""

    def change(node: Document) -> None:
        node["bytes"] = node["amount"]["value"] = node["amount"]["value"] * factor
        node["amount"]["terms"] = {term: share * factor for term, share in node["amount"]["terms"].items()}

    return change


def only_bytes(node: Document) -> None:
    del node["amount"]
    node["bytes"] = 1


def no_terms(node: Document) -> None:
    node["amount"] = {"value": 0}
    node.pop("bytes", None)
    node.pop("flops", None)


WRONG: tuple[tuple[str, str, Change], ...] = (
    ("PP-2", "send", carrying(0.5)),
    ("PP-2", "recv", only_bytes),
    ("PP-2", "send", no_terms),
    ("SP-4", "kv_all_gather", only_bytes),
    ("SP-4", "kv_ring_1", carrying(2)),
    ("SP-8", "kv_move", only_bytes),
    ("TP-2", "embedding_all_reduce", only_bytes),
    ("TP-2", "o_proj_all_reduce", carrying(0.5)),
    ("TP-2", "lm_head_all_gather", only_bytes),
    ("TP-2", "ffn_down_all_reduce", halved("width")),
    ("TP-9", "lm_head", no_terms),
    ("TP-9", "ffn_up", halved("width")),
    ("TP-9", "embedding", only_bytes),
    ("TP-9", "rope", halved("qk_dim")),
    ("KV-4", "kv_write", halved("v_dim")),
    ("EP-2", "dispatch", only_bytes),
    ("EP-2", "combine", carrying(2)),
)


@pytest.mark.parametrize(("rule", "name", "change"), WRONG, ids=[f"{rule} {name}" for rule, name, _ in WRONG])
def test_a_wrong_payload_or_shape_is_illegal(rule: str, name: str, change: Change) -> None:

    def wanted(document: Document) -> bool:
        if rule in ("TP-9", "KV-4") and document["plan"]["sp"]["degree"] > 1:
            return False
        return any(node["name"] == name and (rule != "KV-4" or "v_dim" in node) for node in document["nodes"])

    document = written(0, wanted)
    change(next(node for node in document["nodes"] if node["name"] == name))
    assert rule in broken(document)


@pytest.mark.parametrize(("key", "rule"), [("n", "TP-9"), ("kv_heads", "KV-4"), ("amount", "PP-2")])
def test_an_operator_that_does_not_say_is_not_counted(key: str, rule: str) -> None:
    document = written(0, has("send", "qkv_proj", "attention_decode"))
    before = looked(check(document))[rule]
    for node in document["nodes"]:
        node.pop(key, None)
        node.pop("bytes", None)  # which says the amount as well
    verdict = check(document)
    assert verdict.violations == ()
    assert looked(verdict)[rule] < before


def test_rules_by_layer_are_not_checkable_where_an_operator_has_none() -> None:
    document = written(0, has("ffn_up"))
    del next(node for node in document["nodes"] if node["name"] == "ffn_up")["layer"]
    verdict = check(document)
    assert verdict.violations == ()
    assert {rule for rule, number in looked(verdict).items() if number} & {"TP-8", "KV-1", "PP-6"} == set()
    assert looked(verdict)["TP-9"] == looked(check(written(0, has("ffn_up"))))["TP-9"] - 1


def test_what_was_not_looked_at_is_said() -> None:
    document: Document = {
        "format": 1,
        "nodes": [{"id": 0, "name": "mine", "op": "gemm", "ranks": [0]}],
        "edges": [],
    }
    graph = graph_in(json.dumps(document), "mine.json")
    headline = foreign_headline("mine.json", check_read(graph))
    assert headline == "not checkable: 1 rule found nothing wrong with mine.json, and 30 that should look at it can't"
    told = [line.split() for line in foreign_lines(graph, check_read(graph)) if " checkable: " in line]
    assert sum(word.rstrip(",") == "PH-2" for line in told for word in line) >= 1  # each with what would do
    assert left_out_line(graph) == (
        "not looked at, since the graph does not say it: no step, no plan, no model, no precision, "
        "no amount of 1 operator, no n of 1 operator"
    )
    assert left_out_line(graph_in(json.dumps(written(0)), "step.json")) is None


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("value", 3, "nodes[0].amount.value: 3, but its terms gives 4 for this step"),
        ("bytes", 1, "nodes[1].bytes: 1, but its terms gives 8 for this step"),
        ("flops", 7, "nodes[0].flops: 7, but its terms gives 48 for this step"),
        ("of", "bytes", "nodes[0].amount.of: expected 'rows', which amounts of gemm count, but found 'bytes'"),
    ],
)
def test_figures_that_contradict_each_other_are_refused(key: str, value: int | str, problem: str) -> None:
    up: Document = {"id": 0, "name": "up", "op": "gemm", "ranks": [0], "n": 2, "k": 3, "layer": 0}
    add: Document = {"id": 1, "name": "add", "op": "memory", "ranks": [0], "layer": 0}
    document: Document = {
        "format": 1,
        "step": {"decode_sequences": [4], "decode_keys": [40]},
        "nodes": [up | {"amount": {"terms": {"tokens": 1}}}, add | {"amount": {"terms": {"tokens": 2}}}],
        "edges": [{"source": 0, "target": 1}],
    }
    assert check(document).violations == ()
    if key in ("value", "of"):
        document["nodes"][0]["amount"][key] = value
    else:
        document["nodes"][key == "bytes"][key] = value
    with pytest.raises(InputError, match=r"graph\.json:1:\d+: ") as caught:
        check(document)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("flops", "is_rounded"),
    [
        (4_755_457_000, True), (4_755_460_000, True), (float(np.float32(4_755_457_000)), True),
        (4_755_457_001, False), (4_755_456_999.5, False),
    ],
)  # fmt: skip
def test_a_figure_may_be_rounded_and_is_no_other_one(flops: float, is_rounded: bool) -> None:
    up: Document = {"id": 0, "name": "up", "op": "gemm", "ranks": [0], "n": 4_755_457, "k": 125, "layer": 0}
    up |= {"amount": {"terms": {"tokens": 1}}, "flops": flops}
    step = {"decode_sequences": [4], "decode_keys": [40]}
    document: Document = {"format": 1, "step": step, "nodes": [up], "edges": []}
    with nullcontext() if is_rounded else pytest.raises(InputError, match="but its terms gives"):
        check(document)


def test_what_takes_no_time_has_no_duration_and_what_counts_in_bytes_no_flops() -> None:
    end: Document = {"id": 0, "name": "boundary", "op": "boundary", "ranks": [0], "duration_ns": 7}
    norm: Document = {"id": 1, "name": "ffn_norm", "op": "memory", "ranks": [0], "layer": 0}
    norm |= {"amount": {"terms": {"tokens": 2}}, "flops": 7}
    step = {"decode_sequences": [4], "decode_keys": [40]}
    for node, problem in ((end, "expected 0, as it takes no time, but found 7"), (norm, "7, but its terms gives 0")):
        with pytest.raises(InputError, match=problem):
            check({"format": 1, "step": step, "nodes": [node], "edges": []})


def test_what_contradicts_many_nodes_alike_is_told_once() -> None:
    up: Document = {"name": "up", "op": "gemm", "ranks": [0], "n": 2, "k": 3, "amount": {"terms": {"tokens": 1}}}
    nodes = [{**up, "id": number, "layer": number, "flops": 7 + number} for number in range(30)]
    document: Document = {"format": 1, "step": {"decode_sequences": [4]}, "nodes": nodes, "edges": []}
    with pytest.raises(InputError) as caught:
        check(document)
    (problem,) = caught.value.problems
    assert problem.path == "nodes[0].flops"
    assert "so are the flops of 29 other nodes" in problem.message


NODE = '{"id": 0, "name": "a", "op": "gemm", "ranks": [0]'
TEXTS: tuple[tuple[str, str], ...] = (
    ('{"format": true, "nodes": [NODE}], "edges": []}', "g:1:12: format: expected 1, but found true"),
    ('{"format": 1.0, "nodes": [NODE}], "edges": []}', "g:1:12: format: expected 1, but found 1.0"),
    ('{"format": 1,\n "nodes": [NODE,\n  "op": "memory"}], "edges": []}', "g:3:3: nodes[0].op: the key is there twice"),
    ('{"format": 1, "nodes": [NODE, "n": NaN}], "edges": []}', "g:1:81: nodes[0].n: expected a number, but found NaN"),
    ('{"format": 1, "nodes": [NODE, "n": 1e999}], "edges": []}', "g:1:81: nodes[0].n: expected a number of usual size"),
    ('{"format": 1, "nodes": [NODE, "n": HUGE}], "edges": []}', "g:1:81: nodes[0].n: expected a number of usual size"),
    (
        '{"format": 1, "nodes": [NODE, "n": 10000000000000000000}], "edges": []}',
        "g:1:81: nodes[0].n: expected a whole number of at least 0 and at most 1,099,511,627,776",
    ),
    ('{"format": 1,\n "nodes": [NODE}],\n "edges": [{"source": 0,\n  "target": 7}]}', "g:4:13: edges[0].target: exp"),
    ("[" * 100_000, "g: nested too deeply"),
    ('{"format": 1,\n "nodes": [}', "g:2:12: no JSON: expected a value, but found '}'"),
)


@pytest.mark.parametrize(("text", "problem"), TEXTS, ids=[problem[:40] for _, problem in TEXTS])
def test_a_text_that_is_no_graph_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        graph_in(text.replace("NODE", NODE).replace("HUGE", "9" * 5000), "g")
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("plan", {"tp": 2**19, "dp": 4}, "plan: 2,097,152 ranks are too many"),
        ("step", {"chunks": [{"request": 0, "start": 0, "count": 0}]}, "step.chunks[0].count: expected at least 1"),
        ("step", {"decode_sequences": [1], "decode_keys": [1], "windowed_keys": {"9" * 30: [1]}}, "step.windowed_keys"),
    ],
)
def test_a_declaration_that_no_deployment_has_is_refused(part: str, value: Any, problem: str) -> None:
    document = {"format": 1, "nodes": [json.loads(NODE + "}")], "edges": [], part: value}
    with pytest.raises(InputError) as caught:
        check(document)
    assert problem in str(caught.value)


@pytest.mark.parametrize("redundant", [1, 10**6])
def test_copies_of_experts_that_have_no_place_are_no_defect(redundant: int) -> None:
    found = written(0, has("expert_up"))
    experts = next(node["num_experts"] for node in found["nodes"] if node["name"] == "expert_up")
    found["plan"]["ep"] = {"degree": 2, "redundant": redundant + experts % 2}
    with suppress(InputError):  # nodes may contradict the degree
        assert "EP-1" in broken(found)


def test_devices_may_be_any_that_differ_of_one_replica_or_of_all() -> None:
    found = written(0)
    ranks = found["plan"]["tp"] * found["plan"]["pp"] * found["plan"]["sp"]["degree"]
    for devices in (None, [f"gpu{rank}" for rank in range(ranks)], list(range(3, 3 + ranks))):
        assert broken(found | {"devices": devices}) == set()
    found["plan"]["dp"] = 2
    assert broken(found | {"devices": list(range(2 * ranks))}) == set()
    assert broken(found | {"devices": list(range(2 * ranks + 1))}) == {"RUN-1"}


def test_a_split_that_a_plan_does_not_state_is_not_judged() -> None:
    def by_hidden(document: Document) -> bool:
        plan = document["plan"]
        return plan["tp"] > 1 and plan["split"]["lm_head"] == "hidden" and has("lm_head")(document)

    found = written(0, by_hidden)
    split = found["plan"]["split"]
    assert broken(found) == set()
    del split["lm_head"]
    assert broken(found) == set()
    split["lm_head"] = "vocab"
    assert broken(found) == {"TP-2"}


def test_a_graph_with_durations_says_that_they_are_not_judged() -> None:
    found = written(0)
    plain = graph_in(json.dumps(found), "g.json")
    assert not_judged(plain, check_read(plain)) == ("fused",)
    found["nodes"][0]["duration_ns"] = 7
    told = graph_in(json.dumps(found), "g.json")
    assert not_judged(told, check_read(told)) == ("duration_ns", "fused")
    assert list(foreign_lines(told, check_read(told)))[-1].startswith("not judged: duration_ns")


@pytest.mark.parametrize("name", ["schedule", "qkv_proj", "lm_head"])
def test_an_operator_is_of_the_unit_of_its_module(name: str) -> None:
    """TP-8: units are numbered by module, stage by stage; without a model nobody can tell, and it is said."""
    found = written(0, has(name))
    node = next(node for node in found["nodes"] if node["name"] == name)
    node["unit"] += 1
    assert broken(found) == {"TP-8"}
    del node["unit"]
    assert broken(found) == set()
    del found["model"]
    told = graph_in(json.dumps(found), "g.json")
    assert not_judged(told, check_read(told)) == ("fused", "unit")


def test_a_schedule_is_on_the_host_and_no_device_has_a_number_below_zero() -> None:
    found = written(0, has("schedule"))
    node = next(node for node in found["nodes"] if node["name"] == "schedule")
    node["stream"] = "compute"
    assert broken(found) == {"RUN-1"}
    node["stream"] = "host"
    found["topology"] = {"devices": [*range(99), -1]}
    with pytest.raises(InputError, match=r"topology.devices\[99\].* found -1"):
        check(found)
