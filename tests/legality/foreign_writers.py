"""Step graphs as other programs write them: a decode in the names of Hugging Face's modules, and one of modules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

Document = dict[str, Any]

HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, TP, LAYERS = 64, 8, 4, 8, 96, 1000, 2, 2
MODEL: Final[Document] = {
    "name": "mine", "hidden": HIDDEN, "vocab": VOCAB,
    "layers": [
        {
            "count": LAYERS,
            "attention": {
                "kind": "gqa", "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "v_head_dim": DIM,
            },
            "ffn": {"intermediate": INNER, "gated": True},
        }
    ],
}  # fmt: skip
RANKS: Final = tuple(range(TP))


class Writer:
    """Writes an operator for each rank, or one for all, behind those that it needs on its ranks."""

    def __init__(self) -> None:
        self.nodes: list[Document] = []
        self.edges: list[Document] = []

    def add(self, name: str, op: str, needs: str = "", *, joint: bool = False, **facts: Any) -> str:
        for ranks in [list(RANKS)] if joint else [[rank] for rank in RANKS]:
            identity = f"{name}@{'-'.join(map(str, ranks))}"
            sources = [node for node in self.nodes if node["name"] in needs.split() and {*node["ranks"]} & {*ranks}]
            self.nodes.append({"id": identity, "name": name, "op": op, "ranks": ranks, **facts})
            self.edges += [{"source": source["id"], "target": identity} for source in sources]
        return name


NORMED: Final[Document] = {**MODEL, "logit_cap": 30.0, "layers": [{**MODEL["layers"][0], "post_norms": True}]}


def hugging_face(model: Document = MODEL) -> Document:
    """Return a decode of four sequences on two TP ranks: separate projections, gate, up and product.

    Of :data:`NORMED` with the names that Gemma's modules have.
    """
    normed = model is NORMED
    w = Writer()
    heads = {"heads": HEADS // TP, "kv_heads": KV_HEADS // TP, "qk_dim": DIM, "v_dim": DIM}
    rows = {"amount": {"terms": {"decode_sequences": 1}}}

    def product(name: str, needs: str, n: int, k: int, **facts: Any) -> str:
        return w.add(name, "gemm", needs, n=n, k=k, **rows, **facts)

    def joined(name: str, needs: str, op: str = "all_reduce", width: int = HIDDEN, **facts: Any) -> str:
        return w.add(name, op, needs, joint=True, bytes=4 * width * 2, **facts)

    embedded = w.add("model.embed_tokens", "memory", w.add("input_ids", "schedule"))
    before = joined("model.embed_tokens.all_reduce", embedded)
    for layer in range(LAYERS):
        p, here = f"model.layers.{layer}.", {"layer": layer}
        a, m = f"{p}self_attn.", f"{p}mlp."
        norm = w.add(f"{p}input_layernorm", "memory", before, **here)
        q = product(f"{a}q_proj", norm, HEADS * DIM // TP, HIDDEN, **here)
        k = product(f"{a}k_proj", norm, KV_HEADS * DIM // TP, HIDDEN, **here)
        v = product(f"{a}v_proj", norm, KV_HEADS * DIM // TP, HIDDEN, **here)
        rope = w.add(f"{a}rotary_emb", "memory", f"{q} {k}", **heads, **here)
        written = w.add(f"{a}past_key_values.update", "memory", f"{rope} {v}", **heads, **here)
        read = w.add(f"{a}past_key_values.read", "kv_read", **here)
        core = w.add(f"{a}sdpa", "attention_decode", f"{rope} {written} {read}", **heads, **rows, **here)
        out = product(f"{a}o_proj", core, HIDDEN, HEADS * DIM // TP, **here)
        summed = joined(f"{a}o_proj.all_reduce", out, **here)
        summed = w.add(f"{p}post_attention_layernorm", "memory", summed, **here) if normed else summed
        residual = w.add(f"{p}attn_residual", "memory", f"{summed} {before}", **here)
        norm = w.add(f"{p}{'pre_feedforward' if normed else 'post_attention'}_layernorm", "memory", residual, **here)
        gate = product(f"{m}gate_proj", norm, INNER // TP, HIDDEN, **here)
        up = product(f"{m}up_proj", norm, INNER // TP, HIDDEN, **here)
        act = w.add(f"{m}act_fn", "memory", gate, **here)
        down = product(
            f"{m}down_proj", w.add(f"{m}act_mul", "memory", f"{act} {up}", **here), HIDDEN, INNER // TP, **here
        )
        summed = joined(f"{m}down_proj.all_reduce", down, **here)
        summed = w.add(f"{p}post_feedforward_layernorm", "memory", summed, **here) if normed else summed
        before = w.add(f"{p}mlp_residual", "memory", f"{summed} {residual}", **here)
    head = product("lm_head", w.add("model.norm", "memory", before), VOCAB // TP, HIDDEN)
    logits = joined("lm_head.all_gather", head, "all_gather", VOCAB)
    logits = w.add("final_logit_softcapping", "memory", logits) if normed else logits
    w.add("sampler", "sample", logits)
    return {
        "format": 1, "step": {"decode_sequences": [4], "decode_keys": [400]}, "plan": {"tp": TP}, "model": model,
        "precision": {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16"}, "nodes": w.nodes, "edges": w.edges,
    }  # fmt: skip


def bare(document: Document) -> Document:
    """Return the graph as a program without clustersim's words has it: ids, names, devices, shapes, and links."""
    nodes = []
    for node in document["nodes"]:
        facts = {key: value for key, value in node.items() if key not in ("op", "ranks", "layer", "id")}
        place = {"gpu": node["ranks"][0]} if len(node["ranks"]) == 1 else {}
        nodes.append({"id": node["id"], **place, **facts})
    links = [{"from": edge["source"], "to": edge["target"]} for edge in document["edges"]]
    rest = {key: value for key, value in document.items() if key not in ("format", "nodes", "edges")}
    return {**rest, "nodes": nodes, "links": links}


def in_dot(
    document: Document, facts: Sequence[str] = ("label", "n", "k", "heads", "kv_heads", "qk_dim", "v_dim")
) -> str:
    """Return the graph in DOT, a cluster per device, with no more said of a node than these."""
    lines = ["// another program's graph", 'digraph "step of another" {', "  rankdir=TB; node [shape=box];"]
    told = ("step", "plan", "model", "precision")
    lines += [f"  {key}={json.dumps(json.dumps(document[key]))};" for key in told]
    for ranks in ([0], [1], [0, 1]):
        one = len(ranks) == 1
        lines.append(f'  subgraph cluster_{ranks[0]} {{ label="GPU {ranks[0]}";' if one else "  {")
        own = [node for node in document["nodes"] if node["ranks"] == ranks]
        lines += [f"    {json.dumps(node['id'])} [{_words(node, facts)}];" for node in own]
        lines.append("  }")
    lines += [f"  {json.dumps(edge['source'])} -> {json.dumps(edge['target'])};" for edge in document["edges"]]
    return "\n".join([*lines, "}", ""])


def _words(node: Document, facts: Sequence[str]) -> str:
    """Return the attributes of a node in DOT; with its shape also what it carries."""
    said = {"label": node["name"]} | {key: node[key] for key in facts if key in node}
    if "amount" in node and "n" in facts:
        said["terms"] = json.dumps(node["amount"]["terms"])
    if "bytes" in node and "n" in facts:
        said["bytes"] = node["bytes"]
    return ", ".join(f"{key}={json.dumps(str(value))}" for key, value in said.items())


MODULES: Final = """digraph modules {{
  {declared}
  {{ Layer0_Attention_GPU0 Layer0_Attention_GPU1 }} -> Layer0_Attention_AllReduce
    -> {{ Layer0_MLP_GPU0 Layer0_MLP_GPU1 }} -> Layer0_MLP_AllReduce
    -> {{ Layer1_Attention_GPU0 Layer1_Attention_GPU1 }} -> Layer1_Attention_AllReduce
    -> {{ Layer1_MLP_GPU0; Layer1_MLP_GPU1 }} -> Layer1_MLP_AllReduce;  /* {{}} */
}}
"""


def modules() -> str:
    """Return a graph of modules, in DOT, of which nothing but plan, model and step is told."""
    document = hugging_face()
    declared = (f"{key}={json.dumps(json.dumps(document[key]))};" for key in ("plan", "model", "step"))
    return MODULES.format(declared=" ".join(declared))
