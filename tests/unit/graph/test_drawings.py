"""Graphs as Graphviz and networkx write them: what they say of a drawing is not taken for what a step is."""

from __future__ import annotations

import json
from typing import Any

import networkx as nx
import pytest

from clustersim.errors import InputError
from clustersim.graph.drawing import document_of
from clustersim.graph.foreign.dot import read_dot
from clustersim.simulation.foreign.graph_file import graph_in


def nodes(text: str) -> dict[str, dict[str, Any]]:
    """Return the nodes of a DOT text by id."""
    return {node["id"]: node for node in document_of(read_dot(f"digraph {{ {text} }}")).document["nodes"]}


def label(text: str) -> str:
    return dict(nodes(f"a [{text}]")["a"]["said"])["label"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("label=<q_proj>", "q_proj"),
        ("label=<<B>q_</B>proj>", "q_proj"),
        ("label=<q_proj<BR/>12 &micro;s>", "q_proj\n12 µs"),
        ('label=<<TABLE BORDER="0"><TR><TD PORT="p">q_proj</TD><TD>GPU 3</TD></TR></TABLE>>', "q_proj\nGPU 3"),
        ("label=<a &lt; b<!-- no -->>", "a < b"),
        ('shape=record, label="{<in> q_proj|{12 us|GPU 3}}"', "q_proj\n12 us\nGPU 3"),
        (r'shape=Mrecord, label="\{q\}\|x|y"', "{q}|x\ny"),
        ('label="{q_proj|x}"', "{q_proj|x}"),
        (r'label="\N (fast)"', "a (fast)"),
        (r'label="q_proj\l12 us\l"', "q_proj\n12 us\n"),
    ],
)
def test_a_label_is_what_stands_on_a_node(text: str, shown: str) -> None:
    assert label(text) == shown


def test_the_default_label_of_dot_is_the_id() -> None:
    found = nodes(r'node [label="\N"]; "layers.0.q_proj" -> b')
    assert dict(found["layers.0.q_proj"]["said"])["label"] == "layers.0.q_proj"


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("width=0.75", None),
        ('width=0.75, height=0.5, pos="27,18"', None),
        ('width=1, height=0.5, pos="27,18"', None),
        ("width=1", 1),
        ("width=4096", 4096),
        ('width=4096, height=0.5, pos="27,18"', 4096),
    ],
)
def test_inches_are_no_width_of_an_operator(text: str, width: int | None) -> None:
    assert nodes(f"a [{text}]")["a"].get("width") == width


@pytest.mark.parametrize(("text", "layer"), [("all", None), ('"a:b"', None), ("3", 3), ('"3x"', "3x"), ("null", None)])
def test_layers_of_a_drawing_are_no_layer_of_a_model(text: str, layer: object) -> None:
    assert nodes(f"a [layer={text}]")["a"].get("layer") == layer


def test_what_a_networkx_graph_declares_is_declared() -> None:
    graph = nx.DiGraph(plan={"tp": 2}, precision={"weights": "fp8", "activations": "bf16", "kv_cache": "fp8"})
    graph.add_edge("a_rank0", "b_rank1")
    for edges in ("links", "edges"):
        found = graph_in(json.dumps(nx.node_link_data(graph, edges=edges)), "g.json")
        assert found.plan is not None
        assert found.plan.tp == 2
        assert len(found.graph.source) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "expected edges, such as"),
        ({"edgs": []}, "edgs: unknown key; expected edges"),
        ({"adjacency": []}, "called"),
    ],
)
def test_nodes_without_edges_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        graph_in(json.dumps({"nodes": [{"id": "a"}, {"id": "b"}], **more}), "g.json")
    assert not len(graph_in(json.dumps({"nodes": [{"id": "a"}, {"id": "b"}], "edges": []}), "g.json").graph.source)
