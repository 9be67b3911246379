"""The step graph as networkx, GraphML, DOT and JSON, and graphs of other programs read from JSON."""

from __future__ import annotations

import copy
import io
import json

import networkx as nx
import pytest
from graph_models import DENSE, MIXTURE, priced, prompt

from clustersim.errors import InputError
from clustersim.graph.batch import StepBatch
from clustersim.graph.export import WRITERS, dot_text, graphml_text, json_text, node_facts, to_networkx
from clustersim.graph.foreign.read import read_graph
from clustersim.plan.parallel import Cut

SMALL = priced(DENSE, prompt(4), tp=2, pp=2)
DOCUMENT = json.loads(json_text(SMALL, {"title": "a test"}))
FOREIGN = {
    "format": 1,
    "nodes": [
        {"id": "a", "name": "up", "op": "gemm", "ranks": [0]},
        {
            "id": "b",
            "name": "sum",
            "op": "all_reduce",
            "ranks": [0, 1],
            "axis": "tp",
            "amount": {"terms": {"tokens": 8}},
        },
        {"id": "c", "name": "read", "op": "kv_read", "ranks": [1]},
    ],
    "edges": [{"source": "a", "target": "b"}, {"source": "c", "target": "b", "kind": "kv"}],
}


def found(name):
    return next(node for node in DOCUMENT["nodes"] if node["name"] == name)


def test_json_says_what_a_product_is():
    assert found("qkv_proj") == {
        "id": 7, "name": "qkv_proj", "op": "gemm", "module": "attention", "n": 8, "k": 10, "heads": 2, "kv_heads": 1,
        "qk_dim": 2, "v_dim": 2, "rule": "qkv", "width": 16, "layer": 0, "stage": 0, "unit": 2, "ranks": [0],
        "stream": "compute", "amount": {"of": "rows", "value": 4.0, "terms": {"tokens": 1.0}},
        "flops": 640.0, "bytes": 2.0 * (80 + 4 * 18), "duration_ns": 320,
    }  # fmt: skip


def test_json_says_what_a_collective_is():
    reduce = found("o_proj_all_reduce")
    assert (reduce["ranks"], reduce["stream"], reduce["axis"]) == ([0, 1], "comm", "tp")
    assert reduce["amount"] == {"of": "payload_bytes", "value": 80.0, "terms": {"tokens": 20.0}}
    assert "flops" not in reduce


def test_json_leaves_out_what_there_is_not():
    read = found("kv_read")
    assert (read["layer"], read["stream"]) == (0, None)
    assert not {"amount", "flops", "bytes", "duration_ns"} & set(read)
    assert found("embedding")["layer"] is None


def test_json_says_what_the_step_and_the_plan_are():
    assert DOCUMENT["title"] == "a test"
    assert DOCUMENT["step"]["chunks"] == [{"request": 0, "start": 0, "count": 4, "owner": 0}]
    assert (DOCUMENT["plan"]["tp"], DOCUMENT["plan"]["pp"], DOCUMENT["plan"]["sp"]["degree"]) == (2, 2, 1)
    assert [edge["kind"] for edge in DOCUMENT["edges"]].count("sync") == 2


def test_json_has_a_line_per_node_and_edge():
    lines = json_text(SMALL, {}).splitlines()
    assert sum(line.startswith('{"id": ') for line in lines) == len(SMALL.graph)
    assert sum(line.startswith('{"source": ') for line in lines) == len(SMALL.graph.source)


@pytest.mark.parametrize(
    "degrees",
    [
        {"pp": 2, "stages": (Cut(layer=0, before="ffn"),)},
        {"tp": 2, "ep": 2, "placement": (1, 0)},
        {"sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}},
    ],
)
def test_plans_are_read_back(degrees):
    graph = priced(MIXTURE, StepBatch(decode_sequences=(2,), decode_keys=(9,), windowed_keys={4: (7,)}), **degrees)
    back = read_graph(json.loads(json_text(graph, {})))
    assert (back.plan, back.batch) == (graph.plan, graph.batch)


def test_facts_of_a_node_are_those_that_differ_from_the_default():
    names = [node_facts(node) for node in SMALL.graph.symbols if node.name == "attention_add"]
    assert names == [
        {"name": "attention_add", "op": "memory", "module": "attention", "width": 10, "copies": 2, "fused": True}
    ]


def test_networkx_has_every_node_and_edge():
    graph = to_networkx(SMALL)
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (len(SMALL.graph), len(SMALL.graph.source))
    assert nx.is_directed_acyclic_graph(graph)
    assert nx.is_weakly_connected(graph)
    assert graph.nodes[7]["ranks"] == "0"
    assert (graph.nodes[7]["amount"], graph.nodes[7]["amount_of"], graph.nodes[7]["duration_ns"]) == (4.0, "rows", 320)


def test_networkx_keeps_parallel_edges_of_different_kinds():
    document = copy.deepcopy(FOREIGN)
    document["edges"].append({"source": "a", "target": "b", "kind": "kv"})
    graph = read_graph(document).graph
    assert graph.source.tolist() == [0, 2, 0]
    assert graph.kind.tolist() == [0, 1, 1]


def test_graphml_is_read_by_networkx():
    text = graphml_text(SMALL, {"title": "a & b"})
    graph = nx.read_graphml(io.BytesIO(text.encode()), node_type=int, force_multigraph=True)
    plain = to_networkx(SMALL)
    assert dict(graph.nodes(data=True)) == dict(plain.nodes(data=True))
    assert sorted((s, t, d["kind"]) for s, t, d in graph.edges(data=True)) == sorted(
        (s, t, d["kind"]) for s, t, d in plain.edges(data=True)
    )
    assert graph.graph["title"] == "a & b"


def test_dot_has_a_cluster_per_stage():
    text = dot_text(SMALL, {"title": 'say "hi"'})
    assert 'label="say \\"hi\\""' in text
    assert text.count("subgraph cluster_stage_") == 2
    assert text.count(" -> ") == len(SMALL.graph.source)
    assert '    7 [label="qkv_proj\\nlayer 0, rank 0\\n0.3 us"' in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_every_format_is_the_same_each_time(suffix):
    assert WRITERS[suffix](SMALL, {"title": "x"}) == WRITERS[suffix](SMALL, {"title": "x"})


# --- graphs of other programs -----------------------------------------------------------------------------------


def test_a_foreign_graph_needs_little():
    graph = read_graph(FOREIGN).graph
    assert [graph.symbols[s].name for s in graph.symbol] == ["up", "sum", "read"]
    assert graph.stream.tolist() == [0, 1, -1]  # compute, comm, none
    assert graph.layer.tolist() == [-1, -1, -1]
    assert [graph.ranks_of(n) for n in range(3)] == [(0,), (0, 1), (1,)]
    assert graph.symbols[1].amount == (("tokens", 8.0),)
    assert list(zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True)) == [
        (0, 1, 0),
        (2, 1, 1),
    ]


def test_a_foreign_graph_may_say_nothing_of_its_plan():
    back = read_graph(FOREIGN)
    assert (back.batch, back.plan) == (None, None)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("format",), 2, "format: expected 1, but found 2"),
        (("colour",), 1, "colour: unknown key; known: "),
        (("nodes",), [], "nodes: expected at least one node"),
        (("nodes",), {}, "nodes: expected a list, but found {}"),
        (("nodes", 0), 7, "nodes[0]: expected an object, but found 7"),
        (("nodes", 0, "opp"), "gemm", "nodes[0].opp: unknown key; did you mean 'op'?"),
        (("nodes", 0, "op"), "gem", "nodes[0].op: unknown operator 'gem'; did you mean 'gemm'?"),
        (("nodes", 0, "op"), [], "nodes[0].op: unknown operator []"),
        (("nodes", 0, "id"), None, "nodes[0].id: expected a number or a text, but found null"),
        (("nodes", 0, "id"), True, "nodes[0].id: expected a number or a text, but found true"),
        (("nodes", 1, "id"), "a", "nodes[1].id: 'a' is the id of nodes[0] already"),
        (("nodes", 0, "name"), 3, "nodes[0].name: expected a text, but found 3"),
        (("nodes", 0, "n"), -1, "nodes[0].n: expected a whole number of at least 0, but found -1"),
        (("nodes", 0, "n"), 1.5, "nodes[0].n: expected a whole number of at least 0, but found 1.5"),
        (("nodes", 0, "fused"), 1, "nodes[0].fused: expected true or false, but found 1"),
        (
            ("nodes", 0, "axis"),
            "dp",
            "nodes[0].axis: expected 'tp' or 'sp' or 'stage' or 'expert_tp' or null, but found 'dp'",
        ),
        (("nodes", 0, "ranks"), [], "nodes[0].ranks: expected one or more ranks, each once, but found []"),
        (("nodes", 0, "ranks"), [1, 1], "nodes[0].ranks: expected one or more ranks, each once, but found [1, 1]"),
        (
            ("nodes", 0, "ranks"),
            ["0"],
            'nodes[0].ranks: expected a list, each item a whole number of at least 0, but found ["0"]',
        ),
        (("nodes", 0, "layer"), "x", "nodes[0].layer: expected a whole number of at least 0 or null, but found 'x'"),
        (("nodes", 0, "stage"), None, "nodes[0].stage: expected a whole number of at least 0, but found null"),
        (("nodes", 0, "stream"), None, "nodes[0].stream: expected 'compute' or 'comm'"),
        (
            ("nodes", 2, "stream"),
            "compute",
            "nodes[2].stream: expected null, since kv_read takes no time, but found 'compute'",
        ),
        (("nodes", 1, "amount"), 8, "nodes[1].amount: expected an object, but found 8"),
        (
            ("nodes", 1, "amount", "terms", "tokens"),
            "8",
            "nodes[1].amount.terms.tokens: expected a number, but found '8'",
        ),
        (
            ("nodes", 1, "amount", "terms", "token"),
            1,
            "nodes[1].amount.terms.token: unknown key; did you mean 'tokens'?",
        ),
        (("edges",), None, "edges: expected a list, but found null"),
        (("edges", 0, "source"), "z", "edges[0].source: expected the id of a node, but found 'z'"),
        (("edges", 0, "target"), [], "edges[0].target: expected the id of a node, but found []"),
        (("edges", 0, "kind"), "flow", "edges[0].kind: expected 'data' or 'kv'"),
        (("step",), 3, "step: expected an object, but found 3"),
        (("step",), {"chunks": [{"start": 0}]}, "step.chunks[0]: 'request' is missing"),
        (
            ("step",),
            {"kind": "decode", "chunks": [{"request": 0, "start": 0, "count": 1}]},
            "step.kind: expected 'prefill'",
        ),
        (("step",), {"windowed_keys": {"x": [1]}}, "step.windowed_keys.x: expected a window in tokens"),
        (("step",), {"windowed_keys": 3}, "step.windowed_keys: expected an object, but found 3"),
        (("plan",), [], "plan: expected an object, but found []"),
        (("plan",), {"tp": "2"}, "plan.tp: expected a whole number of at least 0, but found '2'"),
        (("plan",), {"stages": ["3"]}, "plan.stages: expected a cut such as '12.attention' or '12.ffn', but found '3'"),
        (
            ("plan",),
            {"sp": {"scheme": "rings"}},
            "plan.sp.scheme: expected 'all_gather' or 'ring' or 'all_to_all' or null",
        ),
    ],
)
def test_mistakes_are_named_at_their_place(path, value, problem):
    document = copy.deepcopy(FOREIGN)
    holder = document
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    with pytest.raises(InputError) as caught:
        read_graph(document, "g.json")
    messages = [str(found) for found in caught.value.problems]
    assert any(message.startswith(f"g.json: {problem}") for message in messages), messages


def test_all_mistakes_are_named_at_once():
    document = copy.deepcopy(FOREIGN)
    document["nodes"][0]["op"] = "gem"
    document["edges"][1]["kind"] = "flow"
    document["format"] = 7
    with pytest.raises(InputError) as caught:
        read_graph(document)
    assert len(caught.value.problems) == 3


def test_a_document_that_is_no_object_is_refused():
    with pytest.raises(InputError, match="expected an object"):
        read_graph([])
