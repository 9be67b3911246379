"""What messages on step graphs of other programs name: their own ids, lines of their files, keys that nobody reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.graph.foreign.unread_keys import is_misspelt

DOT: Final = """digraph {
  plan="{\\"tp\\": 2}"; model="llama-3.1-8b";
  "my q" [label="Layer0_q_proj_GPU0", color=blue];
  "my o" [label="Layer0_o_proj_GPU0"];
  "my q" -> "my o" [weight=2];
}
"""
GRAPHML: Final = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="l" for="node" attr.name="label"/>
<key id="m" for="graph" attr.name="model"/>
<graph edgedefault="directed">
<data key="m">llama-3.1-8b</data>
<node id="my q"><data key="l">Layer0_q_proj_GPU0</data></node>
<node id="my o"><data key="l">Layer0_o_proj_GPU0</data></node>
<edge source="my q" target="my o"/>
</graph></graphml>
"""
JSON: Final = """{
  "plan": {"tp": 2}, "model": "llama-3.1-8b",
  "nodes": [
    {"id": "my q", "label": "Layer0_q_proj_GPU0"},
    {"id": "my o", "label": "Layer0_o_proj_GPU0"}
  ],
  "links": [{"from": "my q", "to": "my o"}]
}
"""
OBJECT: Final = """{"model": {"name": "llama-3.1-8b", "config": {"num_hidden_layers": 2}}, "nodes": {
    "my q": {"label": "Layer0_q_proj_GPU0"},
    "my o": {"label": "Layer0_o_proj_GPU0"}
  }, "edges": [["my q", "my o"]]
}
"""
WRITTEN: Final = {
    "g.dot": (DOT, 3, 3), "g.graphml": (GRAPHML, 6, 1), "g.json": (JSON, 4, 5), "o.json": (OBJECT, 2, 13),
}  # fmt: skip


def check(tmp_path: Path, text: str, name: str = "g.json", *options: str) -> Result:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, ["check", str(tmp_path / name), *options])


@pytest.mark.parametrize("name", WRITTEN)
def test_a_violation_has_the_strangers_id_and_its_place_in_the_file(tmp_path: Path, name: str) -> None:
    text, line, column = WRITTEN[name]
    shown = check(tmp_path, text, name)
    assert shown.exit_code == 1
    assert f"{tmp_path / name}:{line}:{column}: layer 0, rank 0, q_proj (node 'my q'): there is no k_proj" in (
        shown.stdout
    )
    (found,) = json.loads(check(tmp_path, text, name, "--json").stdout)["violations"]
    told = {key: found[key] for key in ("node", "file", "line", "column")}
    assert told == {"node": "my q", "file": str(tmp_path / name), "line": line, "column": column}


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("g.json", '"plan"', '"plann"', ":2:3: plann: unknown key; did you mean 'plan'?"),
        ("g.json", '"model"', '"modle"', ":2:22: modle: unknown key; did you mean 'model'?"),
        ("g.json", '"nodes"', '"nods"', ":3:3: nods: unknown key; did you mean 'nodes'?"),
        ("g.json", '{"id": "my o"', '{"layr": 0, "id": "my o"', ":5:6: nodes[1].layr: unknown key; did you mean"),
        ("g.json", '"to": "my o"', '"to": "my o", "kind": "dtaa"', ":7:52: links[0].kind: expected 'data'"),
        ("o.json", '"my o": {', '"my o": {"raks": [0], ', ":3:14: nodes.my o.raks: unknown key; did you mean 'ranks'?"),
        ("g.dot", "plan=", "plann=", ":2:3: plann: unknown key; did you mean 'plan'?"),
        ("g.dot", "color=blue", "layr=0", ":3:3: nodes[0].layr: unknown key; did you mean 'layer'?"),
        ("g.graphml", '"model"', '"modell"', ":5:1: modell: unknown key; did you mean 'model'?"),
        ("g.json", '"tp": 2', '"tp_size": 2', ":2:12: plan.tp_size: unknown key; did you mean 'tp'?"),
        ("g.json", '"tp"', '"tensor_parallel_size"', "plan.tensor_parallel_size: unknown key; did you mean 'tp'?"),
        ("g.json", "llama-3.1-8b", "llama-3.1-8", ":2:31: model: no model 'llama-3.1-8'; did you mean 'llama-3.1-8b'?"),
    ],
)
def test_a_misspelt_key_is_refused_at_its_place(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    result = check(tmp_path, WRITTEN[name][0].replace(old, new, 1), name)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_keys_that_nobody_reads_are_listed_and_those_that_only_draw_are_not(tmp_path: Path) -> None:
    text = JSON.replace('"id"', '"colour": "red", "stage_id": 1, "id"')
    result = check(tmp_path, text)
    assert "not read: the key 'colour' of 2 nodes\n" in result.stdout
    assert "not read: the key 'stage_id' of 2 nodes; did you mean 'stage'?" in result.stdout
    unread = json.loads(check(tmp_path, text, "g.json", "--json").stdout)["unread_keys"]
    assert unread[0] == {"of": "node", "key": "colour", "count": 2, "nearest": None}
    assert "not read" not in check(tmp_path, DOT, "g.dot").stdout


def test_what_is_no_graph_is_told_once_and_in_words_of_json(tmp_path: Path) -> None:
    result = check(tmp_path, '{"a": 1}')
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert 'expected an object with nodes and edges, such as {"nodes"' in result.stderr
    for text in ('{"a": 1}', "[1]", '{"nodes": null}', '{"format": null, "nodes": [{"op": null, "ranks": true}]}'):
        assert not {"None", "True", "False"} & set(check(tmp_path, text).stderr.replace(",", " ").split())


@pytest.mark.parametrize(
    ("word", "meant", "slip"),
    [
        ("layr", "layer", True), ("lyaer", "layer", True), ("Layer", "layer", True), ("precison", "precision", True),
        ("device", "devices", False), ("layers", "layer", False), ("stage_id", "stage", False), ("x", "n", False),
        ("color", "layer", False), ("duration", "duration_ns", False),
    ],
)  # fmt: skip
def test_a_slip_of_the_pen_is_told_from_another_word(word: str, meant: str, slip: bool) -> None:
    assert is_misspelt(word, meant) is slip


@pytest.mark.parametrize("written", ["{tp: 2}", "tp=2", "tp: 2"])
def test_a_plan_that_is_no_json_is_told_how_it_is_written(tmp_path: Path, written: str) -> None:
    told = check(tmp_path, DOT.replace('{\\"tp\\": 2}', written), "g.dot")
    example = 'plan="{\\"tp\\": 2}"'
    assert (told.exit_code, f"{tmp_path / 'g.dot'}:2:3: plan: expected an object, but found" in told.stderr) == (
        2,
        True,
    )
    assert f"; write {example}" in told.stderr
    assert example in DOT
    assert (
        check(tmp_path, DOT.replace(example, "tp=2"), "g.dot").stdout.count("""write it in 'plan', as {"tp": …}""") == 1
    )


def test_a_cycle_is_told_by_the_strangers_ids(tmp_path: Path) -> None:
    told = check(tmp_path, DOT.replace("[weight=2];", '-> "my q";'), "g.dot")
    assert told.exit_code == 1
    assert "node 'my o' (o_proj) → node 'my q' (q_proj) closes a cycle of 2" in told.stdout + told.stderr
