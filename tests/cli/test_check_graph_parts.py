"""``clustersim check`` on files that show a part of a graph, or whose plan says more than their nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main

Document = dict[str, Any]

SCENARIO = """\
name: small
topology: dgx-h100
model:
  name: tiny
  source: a test
  config: {model_type: llama, hidden_size: 64, num_attention_heads: 8, num_key_value_heads: 4, intermediate_size: 96,
           vocab_size: 1000, num_hidden_layers: 2}
plan: {tp: 2, pp: 2}
workload: {arrivals: all_at_once, prompt_tokens: 9, output_tokens: 2, requests: 1}
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the JSON of a step: of all stages, and of the last one."""
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "s.yaml").write_text(SCENARIO)
    found = {}
    for name, options in {"whole": (), "stage": ("--stage", "1")}.items():
        path = folder / f"{name}.json"
        step = ("--step", "mixed", "--tokens", "9", "-o", str(path))
        result = invoke("graph", str(folder / "s.yaml"), *step, *options)
        assert result.exit_code == 0, result.output
        found[name] = path.read_text()
    return found


def checked(folder: Path, document: Document) -> Result:
    path = folder / "graph.json"
    path.write_text(json.dumps(document))
    return invoke("check", str(path), "--json")


def broken(folder: Path, document: Document) -> set[str]:
    verdict = json.loads(checked(folder, document).stdout)
    return {found["rule"] for found in verdict["violations"]}


def without(document: Document, lost: set[Any]) -> Document:
    nodes = [node for node in document["nodes"] if node["id"] not in lost]
    edges = [edge for edge in document["edges"] if not {edge["source"], edge["target"]} & lost]
    return document | {"nodes": nodes, "edges": edges}


def test_a_graph_of_one_stage_says_so_and_is_legal(documents: dict[str, str], tmp_path: Path) -> None:
    document = json.loads(documents["stage"])
    assert document["stages"] == [1]
    assert broken(tmp_path, document) == set()


def test_a_stage_that_is_not_said_to_be_left_out_is_missed(documents: dict[str, str], tmp_path: Path) -> None:
    document = json.loads(documents["stage"])
    del document["stages"]
    assert broken(tmp_path, document) == {"TP-8"}
    whole = json.loads(documents["whole"])
    first = {node["id"] for node in whole["nodes"] if node["stage"] == 0}
    assert "TP-8" in broken(tmp_path, without(whole, first))


def test_an_operator_that_a_graph_of_one_stage_lacks_is_missed(documents: dict[str, str], tmp_path: Path) -> None:
    document = json.loads(documents["stage"])
    lost = next(node["id"] for node in document["nodes"] if node["name"] == "lm_head")
    assert "TP-8" in broken(tmp_path, without(document, {lost}))


@pytest.mark.parametrize("key", ["plan", "model"])
def test_what_is_missing_is_not_known_without_plan_or_model(
    documents: dict[str, str], tmp_path: Path, key: str
) -> None:
    document = json.loads(documents["whole"])
    del document[key]
    lost = {node["id"] for node in document["nodes"] if node["name"] in ("sample", "boundary")}
    assert broken(tmp_path, without(document, lost)) == set()


def test_a_plan_of_more_ranks_than_have_operators_is_told(documents: dict[str, str], tmp_path: Path) -> None:
    document = json.loads(documents["whole"])
    document["plan"]["tp"] = 4
    del document["model"]
    assert {"TP-8", "TP-5"} <= broken(tmp_path, document)


def test_operators_are_listed_in_an_order_in_which_they_can_run(documents: dict[str, str], tmp_path: Path) -> None:
    document = json.loads(documents["whole"])
    document["nodes"].reverse()
    assert "RUN-1" in broken(tmp_path, document) or "TP-5" in broken(tmp_path, document)


@pytest.mark.parametrize(("change", "problem"), [
    ({"stages": [5]}, "stages: 5, but the plan has 2 stages"),
    ({"stages": 1}, "stages: expected"),
])  # fmt: skip
def test_stages_that_the_plan_does_not_have_are_refused(
    documents: dict[str, str], tmp_path: Path, change: Document, problem: str
) -> None:
    result = checked(tmp_path, json.loads(documents["stage"]) | change)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_a_chunk_without_tokens_is_refused(documents: dict[str, str], tmp_path: Path) -> None:
    document = json.loads(documents["whole"])
    document["step"]["chunks"][0]["count"] = 0
    result = checked(tmp_path, document)
    assert result.exit_code == 2
    assert "step.chunks[0].count: " in result.stderr
