"""Names of other programs: what ships, what a file of patterns may say, and how plans are spelled in graphs."""

import json

import pytest

from clustersim.errors import InputError
from clustersim.graph.foreign.names import read_name
from clustersim.graph.vocabulary import KINDS, kind_of, nearest_name
from clustersim.legality.graph_rules.kinds import kinds_of
from clustersim.scenario.graph_names import read_names, shipped_names
from clustersim.scenario.graph_plan import plan_of_graph
from clustersim.simulation.foreign.graph_file import graph_in
from tests.laws.graph_cases import CONFIGS, model_of

NODE = '{"id": 0, "name": "a", "op": "gemm", "ranks": [0]}'


@pytest.mark.parametrize(
    ("name", "names", "places"),
    [
        ("model.layers.3.self_attn.q_proj", ["q_proj"], {"layer": 3}),
        ("model.layers.3.mlp.gate_proj.rank1", ["gate_proj"], {"layer": 3, "rank": 1}),
        ("transformer.h.12.attn.c_attn", ["qkv_proj"], {"layer": 12}),
        ("transformer.h.12.attn.c_proj", ["o_proj"], {"layer": 12}),
        ("transformer.h.12.mlp.c_proj", ["ffn_down"], {"layer": 12}),
        ("model.embed_tokens", ["embedding"], {}),
        ("model.norm", ["norm"], {}),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa", ["kv_a_proj"], {"layer": 0}),
        ("blk.3.ffn_gate_exps", ["expert_gate_proj"], {"layer": 3}),
        ("model.layers.3.mlp.gate.weight", ["mlp_gate"], {"layer": 3}),
        ("model.layers.3.post_attention_layernorm", ["post_attention_norm"], {"layer": 3}),
        ("model.layers.3.pre_feedforward_layernorm", ["ffn_norm"], {"layer": 3}),
        ("model.layers.3.post_feedforward_layernorm", ["ffn_post_norm"], {"layer": 3}),
        ("Layer1_PostFFNNorm_GPU0", ["ffn_post_norm"], {"layer": 1, "rank": 0}),
        ("final_logit_softcapping", ["logits_cap"], {}),
        ("lm_head", ["lm_head"], {}),
        ("model.layers.3.self_attn.attn", ["attention"], {"layer": 3}),
        ("logits.all_reduce", ["lm_head_all_reduce"], {}),
        ("lm_head reduce-scatter", ["lm_head_reduce_scatter"], {}),
        ("embed_tokens_all_gather", ["embedding_all_gather"], {}),
        ("decoder.layers.0.self_attention.linear_qkv.tp1", ["qkv_proj"], {"layer": 0, "tp": 1}),
        ("decoder.layers.0.mlp.linear_fc2", ["ffn_down"], {"layer": 0}),
        ("Layer0_MLP_GPU3", ["ffn_up", "ffn_act", "ffn_down"], {"layer": 0, "rank": 3}),
        ("Layer1_QKV_Proj_GPU0", ["qkv_proj"], {"layer": 1, "rank": 0}),
        ("Layer0_Attention_AllReduce", ["o_proj_all_reduce"], {"layer": 0}),
        ("layer_2/attn/all_reduce.half1", ["o_proj_all_reduce"], {"layer": 2, "part": 1}),
        ("mlp reduce-scatter, layer 4", ["ffn_down_reduce_scatter"], {"layer": 4}),
        ("L7.ffn_norm", ["ffn_norm"], {"layer": 7}),
        ("GPUs 0-3", [], {"first": 0, "last": 3}),
        ("something", [], {}),
    ],
)
def test_names_that_ship_are_read(name, names, places):
    found = read_name(name, shipped_names())
    assert (list(found.names), dict(found.places)) == (names, places)


def test_the_vocabulary_has_the_names_and_kinds_of_every_model():
    for config in CONFIGS:
        for name, kind in kinds_of(model_of(config)).items():
            assert kind_of(name) == kind, name
    assert kind_of("o_proj_all_gather") == "all_gather"
    assert kind_of("softmax") is None


@pytest.mark.parametrize(("name", "nearest"), [("self_attn.kproj", "k_proj"), ("FfnDwn", "ffn_down"), ("zzz", None)])
def test_the_nearest_known_name_is_told(name, nearest):
    assert nearest_name(name) == nearest


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("places: ['l(?P<layer>']", ":1:10: places[0]: no regular expression: "),
        ("places:\n  - l(?P<leyer>\\d+)", ":2:5: places[0]: unknown group 'leyer'; did you mean 'layer'?"),
        ("places:\n  - layer\\d+", ":2:5: places[0]: expected a group that names a place"),
        ("operators:\n  - {match: (a+)+, name: rope}", ":2:13: operators[0].match: expected no repeat inside a repeat"),
        ("operators:\n  - {match: a, name: rpoe}", ":2:22: operators[0].name: unknown operator 'rpoe'; did you mean"),
        ("operators:\n  - {match: a}", ":2:5: operators[0]: expected match and name"),
        ("operators: {a: b}", ":1:12: operators: expected a list"),
        ("plan: {}\nopertors: []", ":2:1: opertors: unknown key; did you mean 'operators'?"),
        ("plan: {tp: two}\n", ":1:12: plan.tp: expected a whole number of at least 0, but found 'two'"),
    ],
)  # fmt: skip
def test_a_file_of_names_that_makes_no_sense_is_refused_with_its_place(tmp_path, text, problem):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        graph_in(f'{{"format": 1, "nodes": [{NODE}], "edges": []}}', "graph.json", names=str(path))
    assert f"mine.yaml{problem}" in str(caught.value)


def test_a_file_of_names_goes_before_those_that_ship_and_declares_what_a_graph_lacks(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("operators: [{match: 'lin-(?P<layer>\\d+)-(?P<rank>\\d+)', name: o_proj}]\nplan: {ep: 1, tp: 2}\n")
    found = graph_in('digraph { "lin-3-1" }', "graph.dot", ".dot", names=str(path))
    assert [node.name for node in found.graph.symbols] == ["o_proj"]
    assert (found.graph.layer.tolist(), found.graph.groups, found.plan.tp) == ([3], ((1,),), 2)
    assert read_names("megatron").table.operators


def test_an_unknown_file_of_names_is_refused_with_those_that_ship():
    with pytest.raises(InputError, match="megatron"):
        read_names("megatrn")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"sp": 1, "ep": 2}, {"sp": {"degree": 1}, "ep": {"degree": 2}}),
        ({"tp": {"degree": 2, "lm_head": "hidden"}}, {"tp": 2, "split": {"lm_head": "hidden"}}),
        ({"tp": {"lm_head": "hidden"}}, {"tp": 1, "split": {"lm_head": "hidden"}}),
        ({"stages": "balanced", "placement": "packed"}, {"stages": None, "placement": None}),
        ({"stages": {"cuts": [1, "2.ffn"]}}, {"stages": ["1.attention", "2.ffn"]}),
        ({"ep": {"degree": 2, "routing": "balanced"}}, {"ep": {"degree": 2, "routing": None}}),
    ],
)
def test_plans_of_graphs_take_every_spelling_of_scenarios(written, read):
    assert plan_of_graph(written) == read
    document = {"format": 1, "plan": {"pp": 3, "tp": 2, **written}, "nodes": [json.loads(NODE)], "edges": []}
    other = {**document, "plan": {"pp": 3, "tp": 2, **read}}
    assert graph_in(json.dumps(document), "g.json").declared == graph_in(json.dumps(other), "g.json").declared


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("graph { a -- b }", ":1:1: expected 'digraph', since edges of a step have a direction, but found 'graph'"),
        ("root:x:0:0\n", ":1:1: expected a graph in DOT, which begins with 'digraph'"),
        ("// a plan\n  k", ":2:3: expected a graph in DOT, which begins with 'digraph'"),
        ("digraph {\n a -> }", ":2:7: expected a node, an edge, a subgraph or an attribute, but found '}'"),
        ("digraph { a [label=] }", ":1:20: expected a value, but found ']'"),
        ('digraph { "a }', ":1:11: expected the end of a text in quotes"),
        ("digraph { a /* b }", ":1:13: expected the end of a comment"),
        ("digraph { a -- b }", ":1:13: expected '->', since edges of a step have a direction, but found '--'"),
        ("digraph { a", ":1:12: expected a statement or '}', but found the end of the file"),
        ("digraph { a ? b }", ":1:13: expected a name, a text in quotes or a mark of DOT, but found '?'"),
        ("digraph { a } b", ":1:15: expected the end of the file, since a file has one graph, but found 'b'"),
        ("digraph { a -> b [kind=x] }", ":1:11: edges[0].kind: expected 'data' or 'kv'"),
        ("digraph {" + "{" * 99, ":1:61: expected at most 50 subgraphs inside each other"),
    ],
)
def test_dot_that_is_none_is_refused_with_its_place(text, problem):
    with pytest.raises(InputError) as caught:
        graph_in(text, "g.dot", ".dot")
    assert f"g.dot{problem}" in str(caught.value)
    assert all(one.quotes == ("begins with" not in problem) for one in caught.value.problems)


def test_dot_takes_chains_groups_defaults_ports_comments_and_joined_texts():
    text = """// one\n# two\nstrict digraph { node [op=gemm, ranks="0"] /* three */
      subgraph cluster_1 { label="Layer 4"; a [name="o_" + "proj"]; b [name=qkv_proj, layer=2]; }
      {a b} -> c:in:n -> {d; e} [kind=data]; c [name=ffn_up, layer=4]; node [op=memory]
      d [name=ffn_act layer=4]; e [name=\"ffn_act\", layer=5] edge [style=dotted]; e -> d; ;\n}"""
    found = graph_in(text, "g.dot", ".dot")
    names = [found.graph.symbols[symbol].name for symbol in found.graph.symbol.tolist()]
    assert names == ["o_proj", "qkv_proj", "ffn_up", "ffn_act", "ffn_act"]
    assert found.graph.layer.tolist() == [-1, 2, 4, 4, 5]
    assert list(zip(found.graph.source.tolist(), found.graph.target.tolist(), strict=True)) == [
        (0, 2), (1, 2), (2, 3), (2, 4), (4, 3),
    ]  # fmt: skip


HEAD = '<graphml><key id="d" for="node" attr.name="name"/>'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<graphml", ":1:1: no XML: unclosed token"),
        ("<svg/>", ":1:1: expected a graph in GraphML, which begins with <graphml>"),
        ("<graphml/>", ":1:1: expected a graphml with a directed graph"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><graphml/>', ":1:13: expected no document type"),
        (f'{HEAD}<graph edgedefault="undirected"/></graphml>', ":1:51: expected edgedefault 'directed'"),
        (f'{HEAD}<graph><node/></graph></graphml>', ":1:58: expected 'id' of 'node'"),
        (f'{HEAD}<graph><node id="a"/><node id="a"/></graph></graphml>', ":1:72: expected an id of its own"),
        (f'{HEAD}<graph><node id="a"/>\n<edge source="a" target="b"/></graph></graphml>', ":2:1: expected the id of"),
        (f'{HEAD}<graph><node id="a"><data key="e">x</data></node></graph></graphml>', ":1:71: expected a key that"),
    ],
)  # fmt: skip
def test_graphml_that_is_none_is_refused_with_its_place(text, problem):
    with pytest.raises(InputError) as caught:
        graph_in(text, "g.graphml", ".graphml")
    assert f"g.graphml{problem}" in str(caught.value)
    assert all(one.quotes == ("begins with" not in problem) for one in caught.value.problems)


def test_every_kind_in_the_vocabulary_is_one():
    assert len(KINDS) == len(set(KINDS))
