"""Names as other programs write them: to the right operators, never to wrong ones, and to the verdict of the graph."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest
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
    "model.layers.0.mlp.experts.3.down_proj": None, "Layer0_MoE_Expert3_GPU1": None, "Layer0_RMSNorm_GPU0": None,
    "decoder.layers.0.mlp.experts.local_experts.3.linear_fc1": None, "transformer.position_embeddings": None,
    "prefill_end": None, "Prefill_Decode_Barrier": None,
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
        for names, before in ((MODULES, ""), (MODULES, moment), (KERNELS, "")):
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
