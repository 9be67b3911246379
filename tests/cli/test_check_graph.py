"""``clustersim check`` on step graphs: those of a scenario, those that ``clustersim graph`` wrote, and others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from clustersim.cli import main
from clustersim.errors import InputError
from clustersim.legality.check_graph import GRAPH_CHECKS
from clustersim.scenario.load import load
from clustersim.simulation.foreign.graph import check_read
from clustersim.simulation.foreign.graph_file import graph_at
from clustersim.simulation.graph_legality import check_steps
from tests.effort import examples

Document = dict[str, Any]

FOREIGN: Document = {
    "format": 1,
    "nodes": [
        {"id": "a", "name": "up", "op": "gemm", "ranks": [0]},
        {"id": "b", "name": "sum", "op": "all_reduce", "ranks": [0, 1], "axis": "tp"},
        {"id": "c", "name": "next", "op": "gemm", "ranks": [1]},
    ],
    "edges": [{"source": "a", "target": "b"}, {"source": "b", "target": "c"}],
}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def written(folder: Path, document: Document) -> str:
    path = folder / "graph.json"
    path.write_text(json.dumps(document))
    return str(path)


SMALL = """\
name: small
topology: dgx-h100
model:
  name: tiny
  source: a test
  config: {model_type: mixtral, hidden_size: 64, num_attention_heads: 8, num_key_value_heads: 4, intermediate_size: 96,
           vocab_size: 1000, num_hidden_layers: 3, num_local_experts: 8, num_experts_per_tok: 2}
plan: {tp: 2, PLAN}
workload: {arrivals: all_at_once, prompt_tokens: 9, output_tokens: 2, requests: 1}
"""
PLANS = {
    "plain": "pp: 2",
    "ring": "sp: {degree: 2, scheme: ring, partition: zigzag, decode: idle}",
    "heads": "sp: {degree: 2, scheme: all_to_all, partition: contiguous, decode: dp}",
    "gather": "pp: 2, sp: {degree: 3, scheme: all_gather, partition: contiguous, decode: dp}",
    "spread": "ep: 2",
    "shared": "ep: 2, sp: {degree: 2, scheme: ring, partition: zigzag, decode: dp}",
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Document]:
    """Return the JSON of a step under one of ``PLANS``, each written once."""
    folder = tmp_path_factory.mktemp("graphs")
    known: dict[tuple[str, str], str] = {}

    def document(plan: str, kind: str) -> Document:
        if (plan, kind) not in known:
            path, scenario = folder / f"{plan}-{kind}.json", folder / f"{plan}.yaml"
            scenario.write_text(SMALL.replace("PLAN", PLANS[plan]))
            size = ("--batch", "5") if kind == "decode" else ("--tokens", "33")
            result = invoke("graph", str(scenario), "--step", kind, *size, "-o", str(path))
            assert result.exit_code == 0, result.output
            known[plan, kind] = path.read_text()
        return json.loads(known[plan, kind])  # type: ignore[no-any-return]

    return document


def verdict_on(folder: Path, document: Document) -> Any:
    return json.loads(invoke("check", written(folder, document), "--json").stdout)


def node(document: Document, name: str, rank: int, layer: int | None = 0) -> Document:
    found = document["nodes"]
    return next(n for n in found if n["name"] == name and rank in n["ranks"] and n["layer"] == layer)  # type: ignore[no-any-return]


def test_check_of_a_scenario_looks_at_its_step_graphs_too() -> None:
    verdict = json.loads(invoke("check", "quickstart", "--json").stdout)
    assert verdict["verdict"] == "legal"
    levels = [rule["level"] for rule in verdict["rules"]]
    assert levels == ["P"] * 13 + ["G"] * len(GRAPH_CHECKS)
    looked = {rule["id"]: rule["looked_at"] for rule in verdict["rules"] if rule["level"] == "G"}
    assert looked["PP-5"] > 0
    assert looked["SP-2"] == 0


@pytest.mark.parametrize(("plan", "kind"), [("plain", "mixed"), ("ring", "mixed"), ("spread", "decode")])
def test_durations_of_a_graph_are_what_its_operators_cost_in_the_scenario_that_it_is_of(
    tmp_path: Path, documents: Callable[[str, str], Document], plan: str, kind: str
) -> None:
    document, scenario = documents(plan, kind), tmp_path / "s.yaml"
    scenario.write_text(SMALL.replace("PLAN", PLANS[plan]))

    def ran(*more: str) -> tuple[int, Document]:
        found = invoke("check", written(tmp_path, document), "--of", str(scenario), "--json", *more)
        return found.exit_code, json.loads(found.stdout) if found.stdout else {}

    def looked(verdict: Document) -> dict[str, int]:
        return {rule["id"]: rule["looked_at"] for rule in verdict["rules"] if rule["level"] == "T"}

    status, verdict = ran()
    told = [one for one in document["nodes"] if "duration_ns" in one]
    assert (status, looked(verdict)) == (0, {"RUN-2": sum(one["op"] != "send" for one in told)})
    assert "duration_ns" not in verdict["not_judged"]
    status, verdict = ran("--set", "topology=dgx-a100")
    assert (status, {one["rule"] for one in verdict["violations"]}) == (1, {"RUN-2"})
    assert ran("--set", "plan.tp=1")[0] == 2  # another plan
    for one in (told[len(told) // 3], next(one for one in told if one["op"] in ("all_reduce", "all_to_all"))):
        one["duration_ns"] += 1
        _, verdict = ran()
        assert [(found["rule"], found["node"]) for found in verdict["violations"]] == [("RUN-2", one["id"])]
        one["duration_ns"] -= 1


def test_durations_of_graphs_of_replicas_that_share_experts_are_not_judged(tmp_path: Path) -> None:
    scenario, graph = tmp_path / "s.yaml", tmp_path / "g.json"
    scenario.write_text(SMALL.replace("PLAN", "dp: 2, ep: {degree: 4, scope: global}"))
    assert invoke("graph", str(scenario), "--step", "decode", "-o", str(graph)).exit_code == 0
    verdict = json.loads(invoke("check", str(graph), "--of", str(scenario), "--json").stdout)
    assert (verdict["verdict"], verdict["not_judged"][0]) == ("legal", "duration_ns")


def test_check_of_an_illegal_plan_expands_nothing() -> None:
    verdict = json.loads(invoke("check", "illegal-five-ways", "--json").stdout)
    assert {rule["level"] for rule in verdict["rules"]} == {"P"}


def test_check_of_a_legal_plan_says_so_level_by_level() -> None:
    result = invoke("check", "mixtral-ep")
    assert result.exit_code == 0
    first, second, memory = result.stdout.splitlines()
    assert first.startswith(
        "legal: 9 rules found nothing wrong with the plan of mixtral-ep; 4 have no say in such a plan: "
    )
    assert second.startswith(
        "legal: 24 rules found nothing wrong with the step graphs of mixtral-ep; 10 have no say in such a plan: "
    )
    assert memory.startswith("memory: a rank has ")


@pytest.mark.parametrize("kind", ["prefill", "mixed", "decode"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_graph_that_clustersim_wrote_is_legal(
    documents: Callable[[str, str], Document], tmp_path: Path, plan: str, kind: str
) -> None:
    verdict = verdict_on(tmp_path, documents(plan, kind))
    assert verdict["violations"] == []
    looked = {rule["id"]: rule["looked_at"] for rule in verdict["rules"] if rule["level"] == "G"}
    assert min(looked[rule] for rule in ("PH-5", "KV-1", "KV-2", "KV-4", "TP-2", "TP-8", "TP-9", "RUN-1")) > 0
    assert (looked["PH-3"], looked["PP-4"]) == (0, 0)  # of one step: not checkable
    assert (looked["PH-1"] > 0) == (kind != "decode")


def test_a_graph_of_one_stage_is_legal(tmp_path: Path) -> None:
    path = str(tmp_path / "stage.json")
    assert invoke("graph", "quickstart", "--stage", "1", "-o", path).exit_code == 0
    result = invoke("check", path)
    assert (result.exit_code, result.stdout.split(":")[0]) == (0, "legal")


def test_a_broken_graph_names_place_witness_and_fix(documents: Callable[[str, str], Document], tmp_path: Path) -> None:
    document = documents("plain", "decode")
    node(document, "o_proj_all_reduce", 0)["op"] = "all_gather"
    result = invoke("check", written(tmp_path, document))
    assert result.exit_code == 1
    first, *rest = [line for line in result.stdout.splitlines()[1:] if not line.startswith("   |")]
    assert re.match(r".*/graph\.json:1:\d+: ", first)
    assert [first.partition(": ")[2], *rest] == [
        "decode step 0, stage 0, layer 0, ranks 0, 1, o_proj_all_reduce (node 19): o_proj_all_reduce reads a partial "
        "sum of o_proj as if it were a slice (and so at 1 more place); put an all-reduce behind partial sums, an "
        "all-gather behind slices, and nothing behind what is whole [TP-2]",
        "What a rule says, and why: clustersim rules ID",
    ]


def test_a_graph_whose_own_plan_is_illegal_is_told_that_first(
    documents: Callable[[str, str], Document], tmp_path: Path
) -> None:
    document = documents("plain", "decode")
    document["plan"]["tp"] = 3
    verdict = verdict_on(tmp_path, document)
    assert [(found["rule"], found["level"]) for found in verdict["violations"]] == [("TP-1", "P")]


def test_a_graph_that_says_little_is_checked_for_what_it_says(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, FOREIGN)
    assert verdict["verdict"] == "not_checkable"
    assert {rule["id"] for rule in verdict["rules"] if rule["looked_at"]} == {"RUN-1"}
    document = FOREIGN | {"edges": [*FOREIGN["edges"], {"source": "c", "target": "a", "kind": "order"}]}
    assert [found["rule"] for found in verdict_on(tmp_path, document)["violations"]] == ["RUN-1"]


def test_without_model_the_rest_is_checked(documents: Callable[[str, str], Document], tmp_path: Path) -> None:
    document = documents("plain", "mixed")
    del document["model"]
    verdict = verdict_on(tmp_path, document)
    assert (verdict["verdict"], verdict["needs"]) == ("not_checkable", ["declare model"])
    looked = {rule["id"] for rule in verdict["rules"] if rule["looked_at"]}
    assert {"PP-2", "PP-5", "PP-6", "TP-4", "TP-5", "TP-7", "RUN-1", "PH-2", "KV-1"} <= looked
    assert not looked & {"TP-2", "TP-8", "TP-9", "PH-5", "KV-4"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"plan": {"tp": 0}}, "plan.tp: a degree must be at least 1"),
        ({"plan": {"tp": 2, "ep": {"degree": 3}}}, "plan.ep.degree: 3 does not divide the 2 ranks of experts"),
        (
            {"plan": {"tp": 2}, "nodes": [FOREIGN["nodes"][0] | {"stage": 4}], "edges": []},
            "nodes[0].stage: stage 4, but",
        ),
        ({"plan": {"tp": 2}, "step": {"decode_sequences": [1, 1], "decode_keys": [2, 2]}}, "step: more SP ranks"),
        ({"model": {"name": "m", "hidden": 8, "vocab": 9, "layers": [{"attention": {}}]}}, "model.layers[0]: exp"),
        ({"precision": {"weights": "fp7"}}, "precision: unknown number format 'fp7'"),
        ({"nodes": [FOREIGN["nodes"][0] | {"ranks": [10**20]}], "edges": []}, "nodes[0].ranks: expected a list"),
        (
            {"nodes": [FOREIGN["nodes"][0] | {"layer": 10**9}], "edges": []},
            "nodes[0].layer: layer 1000000000 is too large",
        ),
        ({"plan": {"sp": {"degree": 5000}}}, "plan.sp.degree: 5000 is too large"),
    ],
)  # fmt: skip
def test_a_graph_that_contradicts_itself_is_refused(tmp_path: Path, change: Document, problem: str) -> None:
    result = invoke("check", written(tmp_path, FOREIGN | change))
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(rf"graph\.json:1:\d+: {re.escape(problem)}", result.stderr)


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, problem in (
        ("{", "no JSON"),
        ("[]", "expected an object with nodes and edges"),
        ("{}", "there are no nodes"),
    ):
        path.write_text(text)
        result = invoke("check", str(path))
        assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr
    assert "no such file" in invoke("check", str(tmp_path / "none.json")).stderr
    refused = invoke("check", written(tmp_path, FOREIGN), "--set", "plan.tp=2")
    assert (refused.exit_code, "no values to change" in refused.stderr) == (2, True)


@examples(50, sieved=True)
@given(st.randoms(use_true_random=True))
def test_a_damaged_graph_is_judged_or_refused(
    documents: Callable[[str, str], Document], tmp_path_factory: pytest.TempPathFactory, random: Any
) -> None:
    """Whatever of a graph is changed at random, the answer is a verdict or a problem."""
    document = documents(random.choice(list(PLANS)), random.choice(("prefill", "mixed", "decode")))
    keep = max(2, int(len(document["nodes"]) * random.choice((0.01, 0.1, 1))))
    if random.random() < 0.5:
        ids = {n["id"] for n in random.sample(document["nodes"], keep)}
        document["nodes"] = [n for n in document["nodes"] if n["id"] in ids]
        document["edges"] = [e for e in document["edges"] if e["source"] in ids and e["target"] in ids]
    for _ in range(random.randint(1, 6)):
        target = random.choice(document["nodes"])
        key = random.choice([*target, "ranks", "layer", "stage"])
        number = random.choice((0, 1, 2, 3, 7, 10**6))
        target[key] = [number] if key == "ranks" else {"terms": {"tokens": number}} if key == "amount" else number
    for key in random.sample(["plan", "step", "model", "precision"], random.randint(0, 2)):
        document.pop(key, None)
    for part in ("plan", "step"):
        if part in document and random.random() < 0.3:
            inner = random.choice([*document[part]])
            document[part][inner] = random.choice((0, 1, 2, 5, None, []))
    path = tmp_path_factory.mktemp("damaged") / "g.json"
    path.write_text(json.dumps(document))
    with suppress(InputError):
        assert check_read(graph_at(path)).verdict in ("legal", "illegal", "not_checkable")


def test_the_template_of_a_shipped_scenario_is_what_check_looks_at() -> None:
    scenario = load("long-context-ring")
    verdict = check_steps(scenario.model, scenario.plan, scenario.precision)
    assert verdict.verdict == "legal"
    assert {rule.id for rule in verdict.rules if not rule.looked_at} == {
        "PP-2", "PP-5", "EP-2", "EP-4", "EP-5", "EP-6", "EP-7", "EP-8", "DP-3",
    }  # fmt: skip


WINDOWED = """\
name: windowed
topology: dgx-h100
model:
  name: tiny
  source: a test
  config: {model_type: mistral, hidden_size: 64, num_attention_heads: 8, num_key_value_heads: 4, intermediate_size: 96,
           vocab_size: 1000, num_hidden_layers: 2, sliding_window: 4}
plan: {tp: 2}
workload: {arrivals: all_at_once, prompt_tokens: 9, output_tokens: 2, requests: 1}
"""


def test_a_window_of_the_model_without_a_word_of_the_keys_within_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(WINDOWED)
    graph = tmp_path / "graph.json"
    made = invoke("graph", str(tmp_path / "s.yaml"), "--step", "decode", "-o", str(graph))
    assert made.exit_code == 0, made.output
    assert invoke("check", str(graph)).exit_code == 0
    document = json.loads(graph.read_text())
    document["step"]["windowed_keys"] = {}
    told = invoke("check", written(tmp_path, document))
    assert told.exit_code == 2, told.output
    assert "step.windowed_keys: the model attends within 4 tokens" in told.stderr


def test_counts_of_too_few_replicas_that_step_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        SMALL.replace("{tp: 2, PLAN}", "{dp: 4, ep: {degree: 4, scope: global}}").replace("requests: 1", "requests: 4")
    )
    graph = tmp_path / "graph.json"
    made = invoke("graph", str(tmp_path / "s.yaml"), "--step", "decode", "-o", str(graph))
    assert made.exit_code == 0, made.output
    document = json.loads(graph.read_text())
    document["plan"]["dp"] = 8
    told = invoke("check", written(tmp_path, document))
    assert told.exit_code == 2, told.output
    assert "step: expected counts of each of 8 replicas that step together" in told.stderr
