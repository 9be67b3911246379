"""Names as other programs write them: to the right operators, never to wrong ones, and to the verdict of the graph."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest
from foreign_writers import bare, hugging_face
from single_changes import GRAPHS, document

from clustersim.graph.foreign.names import read_name
from clustersim.legality.rule import Verdict
from clustersim.scenario.graph_names import shipped_names
from clustersim.simulation.foreign.graph import check_read
from clustersim.simulation.foreign.graph_file import graph_in
from tests.effort import some

Document = dict[str, Any]

READ: Final = {
    "Layer0_Rotary_Embedding_GPU0": "rope", "Layer0_Update_KV_Cache_GPU0": "kv_write",
    "layers.0.reshape_and_cache_flash_kernel": "kv_write", "reshape_and_cache": "kv_write",
    "layers.0.paged_attention_v1_kernel": "attention", "flash_fwd_splitkv_kernel": "attention",
    "act_and_mul_kernel": "ffn_act", "cross_device_reduce_1stage": "all_reduce", "blk.0.attn_q": "q_proj",
    "blk.0.ffn_gate": "gate_proj", "blk.0.attn_output": "o_proj", "token_embd": "embedding",
    "layers.0.feed_forward.w1": "gate_proj", "layers.0.feed_forward.w3": "up_proj",
    "transformer.h.0.mlp.act": "ffn_act",
    "Layer0_Attention_QKVProjection_GPU0": "qkv_proj", "Layer1_Query_Projection_GPU2": "q_proj",
    "Layer0_FFN_First_Linear_Projection_GPU0": "ffn_up", "Layer0_FFN_Second_Linear_GPU0": "ffn_down",
    "Layer0_MoE_Gating_Function_GPU0": "gate", "Layer0_MoE_Aggregation_GPU0": "aggregate",
    "Layer0_expert_down_all_reduce": "expert_down_all_reduce", "Send_Stage0_Stage1": "send",
    "model.layers.0.mlp.experts.down_proj.all_reduce": "expert_down_all_reduce",
    "model.layers.0.mlp.shared_experts.down_proj.all_reduce": "shared_down_all_reduce",
    "Prefill_Layer0_Attention_GPU0": "attention", "Decode_Step3_Layer0_FFN_Norm_GPU0": "ffn_norm",
    # an expert on its own is none of the operators, which have all experts of a rank; nor is what two may mean
    "model.layers.0.mlp.experts.3.down_proj": None, "Layer0_MoE_Expert3_GPU1": None, "fused_add_rms_norm": None,
    "decoder.layers.0.mlp.experts.local_experts.3.linear_fc1": None, "transformer.position_embeddings": None,
    "prefill_end": None, "Prefill_Decode_Barrier": None, "attention_post_norm": "attention_post_norm",
    # these tell what they are beside others only
    "Layer0_RMSNorm_GPU0": "norm", "output.weight": "output", "Residual": "add", "mlp.gate": "mlp_gate",
}  # fmt: skip


def test_names_are_read_as_they_are_meant() -> None:
    found = {name: read_name(name, shipped_names()).names for name in READ}
    assert found == {name: () if operator is None else (operator,) for name, operator in READ.items()}


def test_a_name_tells_the_other_end_of_a_transfer_from_its_own_place() -> None:
    assert read_name("Recv_From_Stage0_GPU4", shipped_names()).places == {"peer": 0, "rank": 4}


MODULES: Final = {
    "embedding": "Embedding", "attention_norm": "Attention_Norm", "qkv_proj": "Attention_QKV_Projection",
    "rope": "Rotary_Embedding", "kv_write": "Update_KV_Cache", "kv_read": "KVCache_Read",
    "attention_decode": "Attention", "attention_prefill": "Attention",
    "o_proj": "Attention_Output_Projection", "attention_add": "Residual_Add_1",
    "ffn_norm": "FFN_Norm", "moe_norm": "FFN_Norm", "ffn_up": "FFN_First_Linear", "ffn_act": "FFN_Activation",
    "ffn_down": "FFN_Second_Linear", "ffn_add": "Residual_Add_2", "moe_add": "Residual_Add_2", "lm_head": "LM_Head",
    "gate": "MoE_Gating_Function", "aggregate": "MoE_Aggregation", "dispatch": "MoE_Dispatch", "sample": "Sampling",
    "combine": "MoE_Combine", "o_proj_all_reduce": "Attention_AllReduce", "ffn_down_all_reduce": "FFN_AllReduce",
    "lm_head_all_gather": "Logits_AllGather", "embedding_all_reduce": "Embedding_AllReduce", "schedule": "Input",
}  # fmt: skip
KERNELS: Final = {
    "embedding": "vocab_parallel_embedding", "qkv_proj": "attn.qkv_proj", "rope": "rotary_embedding_kernel",
    "kv_write": "reshape_and_cache_flash_kernel", "attention_decode": "paged_attention_v1_kernel",
    "attention_prefill": "flash_fwd_kernel", "o_proj": "attn.o_proj", "ffn_up": "mlp.gate_up_proj", "sample": "sampler",
    "ffn_act": "silu_and_mul_kernel", "ffn_down": "mlp.down_proj", "o_proj_all_reduce": "cross_device_reduce_1stage",
    "ffn_down_all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "gate": "mlp.gate", "final_norm": "norm",
    "expert_up": "experts.gate_up_proj", "expert_down": "experts.down_proj",
}  # fmt: skip


LLAMA: Final = {
    "embedding": "tok_embeddings", "attention_norm": "RMSNorm", "ffn_norm": "RMSNorm", "moe_norm": "RMSNorm",
    "qkv_proj": "attention.wqkv", "o_proj": "attention.wo", "attention_add": "Residual", "ffn_add": "Residual",
    "moe_add": "Residual", "final_norm": "RMSNorm", "lm_head": "output.weight", "gate": "mlp.gate",
    "attention_post_norm": "LayerNorm", "ffn_post_norm": "LayerNorm", "moe_post_norm": "LayerNorm",
    "q_norm": "rms_norm", "k_norm": "rms_norm", "attention_decode": "Attention", "attention_prefill": "Attention",
}  # fmt: skip
LATENT: Final = {
    "q_a_proj": "self_attn.q_a_proj", "q_a_norm": "self_attn.q_a_layernorm", "q_b_proj": "self_attn.q_b_proj",
    "kv_a_proj": "self_attn.kv_a_proj_with_mqa", "kv_a_norm_rope": "self_attn.kv_a_layernorm",
    "kv_b_proj": "self_attn.kv_b_proj.weight", "q_absorb": "self_attn.W_UK_T", "v_absorb": "self_attn.W_UV",
    "attention_decode": "self_attn.mla_attn", "attention_prefill": "self_attn.mla_attn", "gate": "mlp.gate",
    "final_norm": "model.norm", "shared_up": "mlp.shared_experts.gate_up_proj", "attention_norm": "RMSNorm",
}  # fmt: skip
TENSORRT: Final = {
    "embedding": "transformer.vocab_embedding", "attention_norm": "input_layernorm", "qkv_proj": "attention.qkv",
    "attention_decode": "attention", "attention_prefill": "attention", "o_proj": "attention.dense",
    "o_proj_all_reduce": "attention.dense.all_reduce", "ffn_norm": "post_layernorm", "moe_norm": "post_layernorm",
    "ffn_up": "mlp.fused_fc", "ffn_down": "mlp.proj", "ffn_down_all_reduce": "mlp.proj.all_reduce",
    "final_norm": "transformer.ln_f", "gate": "mlp.router",
}  # fmt: skip


def renamed(found: Document, names: Mapping[str, str], before: str = "") -> Document:
    """Return a graph as a program of other words has it: ids and shapes, and a device where there is one."""
    ids, told = {}, Counter[str]()
    nodes = []
    for node in found["nodes"]:
        layer = "" if node["layer"] is None else f"layer{node['layer']}_"
        rank = f"_gpu{node['ranks'][0]}" if len(node["ranks"]) == 1 else ""
        label = f"{before}{layer}{names.get(node['name'], node['name'])}{rank}"
        told[label] += 1
        ids[node["id"]] = f"{label} #{told[label]}"
        left_out = ("id", "name", "op", "ranks", "layer", "stage", "stream", "axis")
        facts = {key: value for key, value in node.items() if key not in left_out}
        nodes.append({"id": ids[node["id"]], "label": label, **facts})
    edges = [{"source": ids[edge["source"]], "target": ids[edge["target"]]} for edge in found["edges"]]
    return {key: found[key] for key in ("plan", "step", "model", "precision")} | {"nodes": nodes, "edges": edges}


def verdict_of(found: Document) -> Verdict:
    return check_read(graph_in(json.dumps(found), "g.json"))


TOLD: Final = [name for name in GRAPHS if name not in ("halves", "shared")]
"""Plans whose graphs are legal in one piece, of one replica."""


@pytest.mark.parametrize("name", some(TOLD))
def test_a_graph_in_other_names_has_the_same_verdict(name: str) -> None:
    for kind, moment in (("prefill", "Prefill_"), ("decode", "Decode_Step3_"), ("mixed", "")):
        found = document(name, kind)
        for names, before in (
            (MODULES, ""),
            (MODULES, moment),
            (KERNELS, ""),
            (LLAMA, ""),
            (LATENT, ""),
            (TENSORRT, ""),
        ):
            verdict = verdict_of(renamed(found, names, before))
            assert (verdict.verdict, verdict.violations) == ("legal", ()), (kind, before)


def test_names_of_several_steps_in_one_file_are_not_checkable() -> None:
    found = renamed(document("dense", "decode"), MODULES, "Decode_Step3_")
    ids = {node["id"]: node["id"].replace("Step3", "Step4") for node in found["nodes"]}
    later = [
        node | {"id": ids[node["id"]], "label": node["label"].replace("Step3", "Step4")} for node in found["nodes"]
    ]
    edges = [{key: ids[end] for key, end in edge.items()} for edge in found["edges"]]
    sampled = [node["id"] for node in found["nodes"] if "Sampling" in node["label"]]
    edges += [
        {"source": one, "target": ids[two["id"]]}
        for one in sampled
        for two in found["nodes"]
        if "Input" in two["label"]
    ]
    both = found | {"nodes": found["nodes"] + later, "edges": found["edges"] + edges}
    assert verdict_of(both).verdict == "not_checkable"


@pytest.mark.parametrize(
    ("name", "gone", "rule"), [("dense", "cross_device_reduce", "TP-2"), ("experts", "expert_down_all_reduce", "EP-4")]
)
def test_what_lacks_in_a_graph_of_other_names_is_found(name: str, gone: str, rule: str) -> None:
    found = renamed(document(name, "decode"), KERNELS)
    lost = next(node["id"] for node in found["nodes"] if gone in node["label"])
    found["nodes"] = [node for node in found["nodes"] if node["id"] != lost]
    sources = [edge["source"] for edge in found["edges"] if edge["target"] == lost]
    targets = [edge["target"] for edge in found["edges"] if edge["source"] == lost]
    found["edges"] = [edge for edge in found["edges"] if lost not in edge.values()]
    found["edges"] += [{"source": a, "target": b} for a in sources for b in targets if gpu(a) == gpu(b)]
    assert rule in {one.rule for one in verdict_of(found).violations}


def gpu(text: str) -> str:
    return text.partition("_gpu")[2].partition(" ")[0]


GATED: Final = {
    "mlp.gate_proj": "mlp.fc", "mlp.up_proj": "mlp.gate", "mlp.down_proj": "mlp.proj",
    "self_attn.o_proj": "attention.dense", "post_attention_layernorm": "post_layernorm",
    "model.norm": "transformer.ln_f", "attn_residual": "Residual", "mlp_residual": "Residual",
}  # fmt: skip


def in_words(found: Document, names: Mapping[str, str], without: str = "") -> Document:
    """Return a graph with words of its names changed; without one, its edges lead from what it read to its readers."""
    found = json.loads(json.dumps(found))
    gone = {node["id"] for node in found["nodes"] if without and node["name"].endswith(without)}
    into = {one: [edge["source"] for edge in found["edges"] if edge["target"] == one] for one in gone}
    edges = [
        {"source": source, "target": edge["target"]}
        for edge in found["edges"]
        if edge["target"] not in gone
        for source in into.get(edge["source"], [edge["source"]])
    ]
    nodes = [node for node in found["nodes"] if node["id"] not in gone]
    for node in nodes:
        for word, other in names.items():
            if node["name"].endswith((word, f"{word}.all_reduce")):
                node["name"] = node["name"].replace(word, other)
    return {**found, "nodes": nodes, "edges": edges}


def test_a_gated_ffn_of_fc_gate_and_proj_is_legal_and_what_lacks_in_it_is_found() -> None:
    whole = hugging_face()
    assert verdict_of(bare(in_words(whole, GATED))).verdict == "legal"
    for without in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "self_attn.o_proj.all_reduce", "mlp_residual"):
        assert verdict_of(bare(in_words(whole, GATED, f"layers.0.{without}"))).verdict == "illegal", without


@pytest.mark.parametrize("without", ["input_layernorm", "post_attention_layernorm", "attn_residual", "mlp_residual"])
def test_a_norm_or_an_addition_that_lacks_among_others_of_its_name_is_found(without: str) -> None:
    names = dict.fromkeys(("input_layernorm", "post_attention_layernorm", "model.norm"), "RMSNorm")
    names |= {"attn_residual": "Add", "mlp_residual": "Add", "lm_head": "output"}
    whole = hugging_face()
    assert verdict_of(bare(in_words(whole, names))).verdict == "legal"
    assert verdict_of(bare(in_words(whole, names, f"layers.0.{without}"))).verdict == "illegal"


def test_a_norm_that_nothing_tells_is_unknown_and_a_sink_is_no_projection() -> None:
    found = hugging_face()
    found["nodes"].append({"id": "x", "name": "layers.0.RMSNorm", "op": "memory", "ranks": [0]})
    naming = graph_in(json.dumps(bare(found)), "g.json").naming
    assert naming is not None
    assert list(naming.unknown) == ["layers.0.RMSNorm"]
    assert verdict_of(bare(in_words(hugging_face(), {"sampler": "Output"}))).verdict == "legal"
