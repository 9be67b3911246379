"""Graphs of other programs: legal where they do what the model does in other operators, else caught, never a defect.

``pytest tests/legality/test_foreign_programs.py --long`` edits texts for longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from foreign_writers import MODEL, NORMED, Document, bare, hugging_face, in_dot, modules
from single_changes import WRITTEN as FILES
from single_changes import document

from clustersim.errors import InputError
from clustersim.graph.foreign.names import read_name
from clustersim.legality.rule import Verdict
from clustersim.scenario.graph_names import shipped_names
from clustersim.simulation.foreign.graph import check_read, foreign_lines
from clustersim.simulation.foreign.graph_file import graph_in
from tests.effort import dealt, each_in_one, times

EDITS = times(40)
"""Random edits of each kind of text."""

Change = Callable[[Document], None]
REDUCED = "layers.0.self_attn.o_proj.all_reduce"


def check(text: str, suffix: str = ".json") -> Verdict:
    return check_read(graph_in(text, f"graph{suffix}", suffix))


def changed(*changes: Change, model: Document = MODEL) -> Verdict:
    document = hugging_face(model)
    for change in changes:
        change(document)
    return check(json.dumps(document))


def one(document: Document, name: str, rank: int = 0) -> Document:
    found: Document = next(n for n in document["nodes"] if n["name"].endswith(name) and rank in n["ranks"])
    return found


def says(name: str, rank: int = 0, /, **facts: Any) -> Change:
    return lambda document: one(document, name, rank).update(facts)


def lacks(name: str, rank: int = 0) -> Change:
    def change(document: Document) -> None:
        gone = one(document, name, rank)
        document["nodes"].remove(gone)
        document["edges"] = [edge for edge in document["edges"] if gone["id"] not in edge.values()]

    return change


def cut(source: str, target: str) -> Change:
    def change(document: Document) -> None:
        document["edges"].remove({"source": one(document, source)["id"], "target": one(document, target)["id"]})

    return change


def drawn(source: str, target: str, rank: int = 0) -> Change:
    def change(document: Document) -> None:
        document["edges"].append({"source": one(document, source, rank)["id"], "target": one(document, target)["id"]})

    return change


def around(name: str) -> Change:
    """Take a node out, and draw what it needs to what needs it on the same rank."""

    def change(document: Document) -> None:
        gone = one(document, name)["id"]
        ranks = {node["id"]: {*node["ranks"]} for node in document["nodes"]}
        sources = [edge["source"] for edge in document["edges"] if edge["target"] == gone]
        targets = [edge["target"] for edge in document["edges"] if edge["source"] == gone]
        lacks(name)(document)
        document["edges"] += [
            {"source": source, "target": target} for source in sources for target in targets
            if ranks[source] & ranks[target]
        ]  # fmt: skip

    return change


def parts(*shares: float, names: Sequence[str] = ("_0", "_1", "_2"), skip: int = -1) -> Change:
    """Put an all-reduce in parts; the part ``skip`` is not read by the first reader."""

    def change(document: Document) -> None:
        whole = one(document, REDUCED)
        at, edges = document["nodes"].index(whole), document["edges"]
        sources = [edge["source"] for edge in edges if edge["target"] == whole["id"]]
        targets = [edge["target"] for edge in edges if edge["source"] == whole["id"]]
        lacks(REDUCED)(document)
        for number, (share, name) in enumerate(zip(shares, names, strict=False)):
            part = {**whole, "id": f"part {number}", "name": whole["name"] + name, "bytes": whole["bytes"] * share}
            document["nodes"].insert(at + number, part)
            read = targets[1:] if number == skip else targets
            document["edges"] += [{"source": source, "target": part["id"]} for source in sources]
            document["edges"] += [{"source": part["id"], "target": target} for target in read]

    return change


def scattered(first: float = 1, second: float = 1, *, ops: Sequence[str] = ("reduce_scatter", "all_gather")) -> Change:
    """Put a reduce-scatter and an all-gather in place of an all-reduce."""

    def change(document: Document) -> None:
        whole = one(document, REDUCED)
        at, base = document["nodes"].index(whole), whole["name"].removesuffix("all_reduce")
        gather = {**whole, "name": f"{base}all_gather", "op": ops[1], "bytes": whole["bytes"] * second}
        scatter = {**whole, "name": f"{base}reduce_scatter", "op": ops[0], "bytes": whole["bytes"] * first, "id": "rs"}
        document["nodes"][at : at + 1] = [scatter, gather]
        for edge in document["edges"]:
            edge["target"] = "rs" if edge["target"] == whole["id"] else edge["target"]
        document["edges"].append({"source": "rs", "target": whole["id"]})

    return change


def on_compute(document: Document) -> None:
    for node in document["nodes"]:
        if node["op"].startswith("all_"):
            node["stream"] = "compute"


def from_scatter(reader: str) -> Change:
    """Let a reader of the all-gather read what the reduce-scatter left."""

    def change(document: Document) -> None:
        end = one(document, reader)["id"]
        gathered = one(document, "o_proj.all_gather")["id"]
        next(e for e in document["edges"] if e == {"source": gathered, "target": end})["source"] = "rs"

    return change


A, M = "layers.0.self_attn.", "layers.0.mlp."
WRITTEN, READ = "past_key_values.update", "past_key_values.read"
UNREAD = [cut(f"{A}{WRITTEN}", f"{A}sdpa")]
"""What attention takes of the step's own write then comes by the read alone, or not at all."""


def behind(write: str, read: str, rank: int = 0, **facts: Any) -> Change:
    """Let a read of the cache wait for a write of some rank."""

    def change(document: Document) -> None:
        drawn(write, read, rank)(document)
        document["edges"][-1].update(facts)

    return change


LEGAL: dict[str, Change] = {
    "as it is": lambda _: None,
    "two halves": parts(0.5, 0.5),
    "two halves by another name": parts(0.5, 0.5, names=(".half0", ".half1")),
    "three parts": parts(0.25, 0.25, 0.5),
    "reduce-scatter and all-gather": scattered(),
    "collectives on the compute stream": on_compute,
    "nothing of the host": lambda document: [lacks("input_ids", rank)(document) for rank in (0, 1)],
    "values past the rotation, and through it": drawn(f"{A}v_proj", f"{A}rotary_emb"),
    "written, read and attended": lambda document: [
        change(document) for change in (*UNREAD, behind(f"{A}{WRITTEN}", f"{A}{READ}"))
    ],
    "attended as written, and as read behind it": behind(f"{A}{WRITTEN}", f"{A}{READ}"),
}


@pytest.mark.parametrize("change", LEGAL.values(), ids=LEGAL)
def test_the_same_in_other_operators_is_legal(change: Change) -> None:
    verdict = changed(change)
    assert (verdict.verdict, verdict.violations) == ("legal", ())


ILLEGAL: dict[str, tuple[str, Sequence[Change]]] = {
    "one half alone": ("TP-2", [parts(0.5)]),
    "halves too small": ("TP-2", [parts(0.5, 0.25)]),
    "halves too large": ("TP-2", [parts(0.5, 0.75)]),
    "twice the whole": ("TP-2", [parts(1, 1)]),
    "a reader of one half": ("TP-2", [parts(0.5, 0.5, skip=1)]),
    "reduce-scatter, and read": ("TP-2", [scattered(), around("o_proj.all_gather")]),
    "a reader between the two": ("TP-2", [scattered(), from_scatter("layers.0.attn_residual")]),
    "half scattered": ("TP-2", [scattered(0.5, 1)]),
    "half gathered": ("TP-2", [scattered(1, 0.5)]),
    "the two exchanged": ("TP-2", [scattered(ops=("all_gather", "reduce_scatter"))]),
    "no all-reduce": ("TP-2", [around(REDUCED)]),
    "an all-gather in its place": ("TP-2", [says(REDUCED, op="all_gather")]),
    "one rank of it": ("TP-5", [says(REDUCED, ranks=[0])]),
    **{f"no {name}": ("TP-8", [lacks(A + name)]) for name in ("q_proj", "k_proj", "v_proj")},
    **{f"no {name}": ("TP-8", [lacks(M + name)]) for name in ("gate_proj", "up_proj")},
    "q too narrow": ("TP-9", [says(f"{A}q_proj", n=16)]),
    "q wider, k narrower": ("TP-9", [says(f"{A}q_proj", n=40), says(f"{A}k_proj", n=8)]),
    "k wider, v narrower": ("TP-9", [says(f"{A}k_proj", n=24), says(f"{A}v_proj", n=8)]),
    "gate wider, up narrower": ("TP-9", [says(f"{M}gate_proj", n=64), says(f"{M}up_proj", n=32)]),
    "q of half the input": ("TP-9", [says(f"{A}q_proj", k=32)]),
    "k of twice the rows": ("TP-9", [says(f"{A}k_proj", amount={"terms": {"decode_sequences": 2}})]),
    "k of another input": (
        "TP-8", [cut("layers.0.input_layernorm", f"{A}k_proj"), drawn("embed_tokens.all_reduce", f"{A}k_proj")],
    ),
    "q of another rank's input": (
        "TP-8", [cut("layers.0.input_layernorm", f"{A}q_proj"), drawn("layers.0.input_layernorm", f"{A}q_proj", 1)],
    ),
    "values not written": ("TP-8", [cut(f"{A}v_proj", "past_key_values.update")]),
    "queries not rotated": ("TP-8", [cut(f"{A}q_proj", f"{A}rotary_emb"), drawn(f"{A}q_proj", f"{A}sdpa")]),
    "keys cached as they are": ("TP-8", [drawn(f"{A}k_proj", "past_key_values.update")]),
    "up not multiplied": ("TP-8", [cut(f"{M}up_proj", f"{M}act_mul")]),
    "gate not activated": ("TP-8", [cut(f"{M}gate_proj", f"{M}act_fn")]),
    "activation not multiplied": ("TP-8", [cut(f"{M}act_fn", f"{M}act_mul")]),
    "no cache read": ("PH-5", [cut("past_key_values.read", f"{A}sdpa")]),
    "read, and nothing written before it": ("PH-5", UNREAD),
    "read before it is written": ("TP-8", [*UNREAD, drawn(f"{A}{READ}", f"{A}{WRITTEN}")]),
    "read behind the write of another rank": ("TP-8", [*UNREAD, behind(f"{A}{WRITTEN}", f"{A}{READ}", 1)]),
    "read behind the write of another layer": ("KV-5", [behind(f"{A}{WRITTEN}", f"layers.1.self_attn.{READ}")]),
    "read behind the write, and not attended": (
        "PH-5", [*UNREAD, behind(f"{A}{WRITTEN}", f"{A}{READ}"), cut(f"{A}{READ}", f"{A}sdpa")],
    ),
    "read later than it is written, and no more": (
        "PH-5", [*UNREAD, behind(f"{A}{WRITTEN}", f"{A}{READ}", kind="order")],
    ),
    "no residual": ("TP-8", [cut("embed_tokens.all_reduce", "layers.0.attn_residual")]),
    "layers the other way": ("PP-6", [drawn("layers.1.mlp_residual", "layers.0.input_layernorm")]),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "changes"), ILLEGAL.values(), ids=ILLEGAL)
def test_a_single_change_of_it_is_caught(rule: str, changes: Sequence[Change]) -> None:
    assert rule in {violation.rule for violation in changed(*changes).violations}


BEHIND, DOWN = "layers.0.post_attention_layernorm", "layers.0.mlp.down_proj.all_reduce"
OF_NORMED: dict[str, tuple[str, Sequence[Change]]] = {
    "no norm behind attention": ("TP-8", [around(BEHIND)]),
    "no norm behind the FFN": ("TP-8", [around("layers.0.post_feedforward_layernorm")]),
    "no norm before the FFN": ("TP-8", [around("layers.0.pre_feedforward_layernorm")]),
    "terms are normed": ("TP-2", [around(DOWN)]),
    "no cap": ("TP-8", [around("final_logit_softcapping")]),
    "the residual is normed": ("TP-8", [drawn("embed_tokens.all_reduce", BEHIND)]),
    "the norm of another rank": ("TP-8", [cut(BEHIND, "layers.0.attn_residual"), drawn(BEHIND, "attn_residual", 1)]),
}  # fmt: skip


def test_a_graph_with_the_names_of_gemma_is_legal() -> None:
    for text, suffix in ((json.dumps(hugging_face(NORMED)), ".json"), (in_dot(hugging_face(NORMED)), ".dot")):
        verdict = check(text, suffix)
        assert (verdict.verdict, verdict.violations) == ("legal", ())


@pytest.mark.parametrize(("rule", "changes"), OF_NORMED.values(), ids=OF_NORMED)
def test_a_single_change_of_norms_and_caps_is_caught(rule: str, changes: Sequence[Change]) -> None:
    assert rule in {violation.rule for violation in changed(*changes, model=NORMED).violations}


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in FILES))
def test_a_cache_that_is_read_behind_the_write_is_legal_under_every_plan(name: str) -> None:
    found = document(name, "mixed")
    names = {node["id"]: node["name"] for node in found["nodes"]}
    reads = {(node["ranks"][0], node.get("layer")): node for node in found["nodes"] if node["name"] == "kv_read"}
    found["edges"] = [edge for edge in found["edges"] if names[edge["source"]] != "kv_write"]
    for node in found["nodes"]:
        if node["name"] == "kv_write":
            read = reads[node["ranks"][0], node["layer"]]
            found["edges"].append({"source": node["id"], "target": read["id"], "kind": "kv"})
    verdict = check(json.dumps(found))
    assert (verdict.verdict, verdict.violations) == ("legal", ())


def unknown(name: str, rank: int = 0) -> Change:
    """Give an operator a name and an id that nobody knows, in its layer."""

    def change(document: Document) -> None:
        node = one(document, name, rank)
        layer = re.match(r"model\.layers\.\d+\.", node["name"])
        was, node["name"] = node["id"], f"{layer[0] if layer else ''}zorb"
        node["id"] = f"{node['name']}@{rank}"
        for edge in document["edges"]:
            edge.update({end: node["id"] for end in ("source", "target") if edge[end] == was})

    return change


UNKNOWN: dict[str, Change] = {
    "in another layer": unknown("layers.1.self_attn.k_proj"),
    "on another rank": unknown(f"{M}act_fn", 1),
    "outside the layers": unknown("model.norm", 1),
}
"""Names that nobody knows, none of which may be what lacks in the first layer on the first rank."""


@pytest.mark.parametrize(("illegal", "other"), dealt(ILLEGAL, list(UNKNOWN)))
def test_an_unknown_name_hides_nothing_that_it_can_not_excuse(illegal: str, other: str) -> None:
    rule, changes = ILLEGAL[illegal]
    verdict = changed(*changes, UNKNOWN[other])
    assert rule in {violation.rule for violation in verdict.violations}
    assert not any(entry.looked_at for entry in verdict.rules if entry.id == "TP-8")  # of the rest it can't say


OPERATORS = sorted({(node["name"], min(node["ranks"])) for node in hugging_face()["nodes"] if len(node["ranks"]) == 1})
EXCUSED = each_in_one({(name, rank): [re.sub(r"\.\d+\.", ".", name)] for name, rank in OPERATORS})
"""Operators of a kind have the same name in each layer, and on each rank: one of them is tried, or all."""


@pytest.mark.parametrize(("name", "rank"), [one for one, kinds in EXCUSED.items() if kinds])
def test_what_an_unknown_name_may_excuse_is_no_fault(name: str, rank: int) -> None:
    verdict = changed(unknown(name, rank))
    assert (verdict.verdict, verdict.violations) == ("not_checkable", ())


@pytest.mark.parametrize(
    ("name", "operator", "answer"),
    [("stages", "send", "legal"), ("stages", "recv", "legal"), ("experts", "dispatch", "not_checkable"),
     ("experts", "combine", "not_checkable"), ("stages", "o_proj_all_reduce", "legal")],
)  # fmt: skip
def test_transfers_are_known_by_their_kind_and_exchanges_among_experts_are_not(
    name: str, operator: str, answer: str
) -> None:
    found = document(name, "decode")
    next(node for node in found["nodes"] if node["name"] == operator)["name"] = "zorb"
    verdict = check(json.dumps(found))
    assert (verdict.verdict, verdict.violations) == (answer, ())


NAMELESS = [
    ("other splits", "decode", "ffn_up", {}), ("experts", "decode", "expert_down", {}),
    *((name, "prefill", "kv_move", {}) for name in ("ring", "ring of stages", "gather", "by heads")),
    *((name, "decode", operator, {"op": "memory"}) for name, operator in (
        ("dense", "o_proj_all_reduce"), ("stages", "send"), ("stages", "recv"), ("experts", "combine"),
    )),
]  # fmt: skip
"""Graph, kind of step, operator, and what a program that does not know it says of it."""


def without_name(found: Document, operator: str, facts: Document, most: int = 10**6) -> None:
    for node in [node for node in found["nodes"] if node["name"] == operator][:most]:
        for key in ("amount", "bytes", "flops", "stream", "axis") if facts else ():
            node.pop(key, None)
        node.update({"name": "zorb", **facts})


@pytest.mark.parametrize("most", [1, 10**6], ids=["one", "all"])
@pytest.mark.parametrize(("name", "kind", "operator", "facts"), NAMELESS)
def test_operators_without_a_name_are_not_checkable_and_no_fault(
    name: str, kind: str, operator: str, facts: Document, most: int
) -> None:
    found = document(name, kind)
    without_name(found, operator, facts, most)
    verdict = check(json.dumps(found))
    assert (verdict.verdict, verdict.violations) == ("not_checkable", ())
    assert "say what 'zorb' is (--names FILE)" in verdict.needs


@pytest.mark.parametrize(
    ("name", "kind", "operator", "facts", "lost", "rule"),
    [
        ("ring", "prefill", "kv_move", {}, ("kv_write", "attention_prefill_0"), "PH-5"),
        ("ring", "prefill", "kv_move", {}, ("rope", "kv_ring_1"), "SP-2"),
        ("gather", "prefill", "kv_move", {}, ("kv_all_gather", "kv_b_proj"), "SP-5"),
        ("experts", "decode", "expert_down", {}, ("kv_read", "attention_decode"), "PH-5"),
        ("stages", "decode", "recv", {"op": "memory"}, ("o_proj_all_reduce", "attention_add"), "TP-8"),
        ("dense", "decode", "o_proj_all_reduce", {"op": "memory"}, ("ffn_norm", "ffn_up"), "TP-8"),
    ],
)
def test_operators_without_a_name_hide_no_fault_elsewhere(
    name: str, kind: str, operator: str, facts: Document, lost: tuple[str, str], rule: str
) -> None:
    found = document(name, kind)
    names = {node["id"]: node["name"] for node in found["nodes"]}
    ends = [edge for edge in found["edges"] if (names[edge["source"]], names[edge["target"]]) == lost]
    by_layer = {node["id"]: node.get("layer") for node in found["nodes"]}
    last = next(edge for edge in ends if by_layer[edge["source"]] == by_layer[ends[-1]["source"]])
    found["edges"].remove(last)
    without_name(found, operator, facts, 10**6 if operator == "kv_move" else 1)
    assert rule in {violation.rule for violation in check(json.dumps(found)).violations}


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("number", ["", "@0", "@1", "@2"])
@pytest.mark.parametrize(("module", "operator"), [("attn", "attention_add"), ("mlp", "ffn_add")])
def test_a_residual_is_that_of_its_module_whatever_number_follows(
    module: str, operator: str, number: str, layer: int
) -> None:
    assert read_name(f"model.layers.{layer}.{module}_residual{number}", shipped_names()).names == (operator,)


def test_a_graph_of_names_and_devices_alone_is_read_to_the_same_verdict() -> None:
    document = hugging_face()
    expected = check(json.dumps(document))
    assert check(json.dumps(bare(document))) == expected
    assert check(in_dot(document), ".dot").verdict == "legal"
    around(REDUCED)(document)
    assert {found.rule for found in check(json.dumps(bare(document))).violations} == {"TP-2"}
    assert {found.rule for found in check(in_dot(document, ["label"]), ".gv").violations} == {"TP-2"}


def test_what_names_alone_can_not_tell_is_not_checkable() -> None:
    verdict = check(in_dot(hugging_face(), ["label"]), ".dot")
    assert (verdict.verdict, verdict.violations) == ("not_checkable", ())
    assert "say n and k of products" in verdict.needs


def test_a_graph_of_modules_is_looked_at_from_outside() -> None:
    verdict = check(modules(), ".dot")
    assert verdict.verdict == "not_checkable"
    assert any(words.startswith("write the operators inside 'Layer0_Attention_GPU0'") for words in verdict.needs)
    broken = check(
        modules().replace("-> Layer0_MLP_AllReduce\n", "\n").replace("/* {} */", "Layer0_MLP_AllReduce"), ".dot"
    )
    assert "TP-2" in {violation.rule for violation in broken.violations}


def test_an_unknown_name_is_told_with_the_nearest_and_nothing_is_legal() -> None:
    document = hugging_face()
    one(document, f"{A}k_proj")["name"] = "model.layers.0.self_attn.k_projektion"
    found = graph_in(json.dumps(document), "graph.json")
    verdict = check_read(found)
    assert (verdict.verdict, verdict.violations) == ("not_checkable", ())
    told = (
        "unknown name 'model.layers.0.self_attn.k_projektion' (patterns match it, or 'model_self_attn_k_projektion'): "
        "the nearest known one is k_proj; --names FILE"
    )
    assert any(line.startswith(told) for line in foreign_lines(found, verdict))
    around(REDUCED)(document)
    assert {violation.rule for violation in check(json.dumps(document)).violations} == {"TP-2"}


@pytest.mark.parametrize(
    ("edges", "answer"),
    [
        ("a->b;b->a", "illegal"), ("a->b;b->c;c->b;d->a", "illegal"), ("a->a", "illegal"),
        ("Layer0_MLP->Layer1_MLP;Layer1_MLP->Layer0_MLP", "illegal"), ("a->b;b->c;a->c", "not_checkable"),
    ],
)  # fmt: skip
def test_a_cycle_is_illegal_whoever_runs_it(edges: str, answer: str) -> None:
    verdict = check(f"digraph {{{edges}}}", ".dot")
    assert verdict.verdict == answer
    assert {violation.rule for violation in verdict.violations} == ({"RUN-1"} if answer == "illegal" else set())


@pytest.mark.parametrize("missing", ["plan", "model", "step"])
def test_what_is_not_declared_leaves_a_graph_not_checkable(missing: str) -> None:
    document = hugging_face()
    del document[missing]
    verdict = check(json.dumps(document))
    assert (verdict.verdict, next(iter(verdict.needs))) == ("not_checkable", f"declare {missing}")


JUNK = (
    '"',
    "{",
    "}",
    "[",
    "]",
    "->",
    "--",
    ";",
    "<",
    ">",
    "\\",
    "0",
    "-1",
    "1e99",
    "null",
    "é",
    "/*",
    "&x;",
    "=",
    "label",
)


@pytest.mark.parametrize("suffix", [".json", ".dot", ".graphml"])
def test_any_edit_of_a_text_is_judged_or_refused(suffix: str) -> None:
    random = Random(7)
    document = hugging_face()
    text = {".json": json.dumps(bare(document), indent=0), ".dot": in_dot(document), ".graphml": as_graphml(document)}[
        suffix
    ]
    assert check(text, suffix).verdict == "legal"
    lines = text.split("\n")
    for _ in range(EDITS):
        edited = list(lines)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(edited))
            line = edited[at]
            place = random.randrange(len(line) + 1)
            edited[at] = random.choice((
                line[:place] + random.choice(JUNK) + line[place:], line[:place], random.choice(lines), "",
            ))  # fmt: skip
        with suppress(InputError):
            check("\n".join(edited), suffix)


def as_graphml(document: Document) -> str:
    """Return the graph in GraphML as networkx would: every value a text, keys declared first."""
    from xml.sax.saxutils import escape, quoteattr

    keys = dict.fromkeys(key for node in document["nodes"] for key in node if key not in ("id", "amount"))
    keys |= dict.fromkeys(("terms", "step", "plan", "model", "precision"))
    lines = ['<?xml version="1.0" encoding="utf-8"?>', '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    lines += [f'<key id="{key}" for="all" attr.name="{key}" attr.type="string"/>' for key in keys]
    lines.append('<graph edgedefault="directed">')
    for key in ("step", "plan", "model", "precision"):
        lines.append(f'<data key="{key}">{escape(json.dumps(document[key]))}</data>')
    for node in document["nodes"]:
        facts = {key: value for key, value in node.items() if key not in ("id", "amount")}
        facts["ranks"] = ",".join(map(str, node["ranks"]))
        facts |= {"terms": json.dumps(node["amount"]["terms"])} if "amount" in node else {}
        data = "".join(f'<data key="{key}">{escape(str(value))}</data>' for key, value in facts.items())
        lines.append(f"<node id={quoteattr(node['id'])}>{data}</node>")
    lines += [f"<edge source={quoteattr(e['source'])} target={quoteattr(e['target'])}/>" for e in document["edges"]]
    return "\n".join([*lines, "</graph>", "</graphml>"])
