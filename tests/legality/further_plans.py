"""Illegal plans over more models and clusters than ``illegal_plans``: PCIe, nodes, two kinds of devices, experts."""

from __future__ import annotations

from typing import Final

Base = tuple[str, tuple[str, ...]]


def _base(topology: str, model: str, *more: str, name: str = "quickstart") -> Base:
    return name, (f"topology={topology}", f"model={model}", "expect={}", *more)


H100: Final = _base("{name: dgx-h100, nodes: 1}", "llama-3.1-8b")
TWO_NODES: Final = _base("{name: dgx-h100, nodes: 2}", "llama-3.1-70b")
FOUR_NODES: Final = _base("{name: dgx-h100, nodes: 4}", "llama-3.1-405b")
PCIE: Final = _base("{name: l40s-node, nodes: 1}", "llama-3.1-8b")
GAMING: Final = _base("{name: rtx-4090-node, nodes: 1}", "mistral-7b")
MIXED: Final = _base("h100-and-a100", "llama-3.1-70b")
GROUPS: Final = ", ".join(
    f"{{device: {kind}, kind: nvswitch, nodes: 1, devices_per_node: 8, scaleup_bandwidth: 450 GB/s, scaleup_latency: "
    "0.3 us, in_switch_reduction: true, pcie_bandwidth: 64 GB/s, pcie_latency: 0.5 us, nics_per_node: 8, "
    "nic_bandwidth: 50 GB/s, nic_latency: 0.85 us}"
    for kind in ("h100-sxm-80gb", "h200-sxm-141gb")
)
UNEQUAL: Final = _base(f"{{name: h100-and-a100, groups: [{GROUPS}]}}", "llama-3.1-70b")
"""Devices 8 … 15 have more memory than the others."""
MI300X: Final = _base("{name: mi300x-node, nodes: 1}", "llama-3.1-405b")
MIXTRAL: Final = _base("{name: dgx-h100, nodes: 1}", "mixtral-8x7b", name="mixtral-ep")
MIXTRAL_16: Final = _base("{name: dgx-a100, nodes: 2}", "mixtral-8x22b", name="mixtral-ep")
V3: Final = _base("{name: dgx-h200, nodes: 2}", "deepseek-v3")
V3_WIDE: Final = _base("{name: dgx-h100, nodes: 4}", "deepseek-v3")
OSS: Final = _base("{name: dgx-h100, nodes: 1}", "gpt-oss-20b")
QWEN_MOE: Final = _base("{name: dgx-h100, nodes: 1}", "qwen3-30b-a3b")
QWEN: Final = _base("{name: dgx-h100, nodes: 2}", "qwen3-32b")
OPT_POOLS: Final = ("distserve-tp2-tp1", ("expect={}",))
KIND_POOLS: Final = ("splitwise-h100-a100", ("expect={}",))

FURTHER: Final[dict[str, tuple[Base, tuple[str, ...]]]] = {
    "tp 5, one node": (H100, ("plan={tp: 5}",)),
    "tp 12 over two nodes": (TWO_NODES, ("plan={tp: 12}",)),
    "tp 32 and pp 2 on 32": (FOUR_NODES, ("plan={tp: 32, pp: 2}",)),
    "tp 6 with stages and replicas": (FOUR_NODES, ("plan={tp: 6, pp: 5}",)),
    "tp 3 over PCIe": (PCIE, ("plan={tp: 3, dp: 2}",)),
    "tp 16 over PCIe": (PCIE, ("plan={tp: 16}",)),
    "tp 7, small memory": (GAMING, ("plan={tp: 7}",)),
    "dp 9 of 8": (GAMING, ("plan={tp: 2, dp: 9}",)),
    "tp and dp and pp, 24 of 16": (TWO_NODES, ("plan={tp: 4, pp: 2, dp: 3}",)),
    "pp 17 of 16 devices": (TWO_NODES, ("plan={pp: 17}",)),
    "pp 40 of 32 layers": (_base("{name: dgx-h100, nodes: 8}", "llama-3.1-8b"), ("plan={pp: 40}",)),
    "hidden split of 5120 by 12": (QWEN, ("plan={tp: {degree: 12, embedding: hidden, lm_head: hidden}}",)),
    "rows of 64 heads by 10": (QWEN, ("plan={tp: {degree: 10, ffn_up: rows, ffn_down: columns}}",)),
    "gpt-oss vocabulary by 24": (_base("{name: dgx-h100, nodes: 8}", "gpt-oss-20b"), ("plan={tp: 24}",)),
    "gpt-oss experts by 6": (OSS, ("plan={tp: 2, dp: 3, ep: {degree: 6, scope: global}}",)),
    "ring of 3 beyond": (H100, ("plan={tp: 4, sp: {degree: 3, scheme: ring, partition: zigzag, decode: dp}}",)),
    "sp 5 without partition": (H100, ("plan={sp: {degree: 5, scheme: all_gather, decode: idle}}",)),
    "all-to-all of 6": (H100, ("plan={sp: {degree: 6, scheme: all_to_all, partition: striped, decode: dp}}",)),
    "all-to-all over K/V heads": (
        TWO_NODES, ("plan={tp: 1, pp: 1, sp: {degree: 16, scheme: all_to_all, partition: zigzag}}",),
    ),
    "all-to-all 5 of tp 2": (
        QWEN, ("plan={tp: 2, sp: {degree: 5, scheme: all_to_all, partition: contiguous, decode: idle}}",),
    ),
    "sp 4 silent over two nodes": (TWO_NODES, ("plan={tp: 4, sp: 4}",)),
    "sp 2 silent, tp 5": (MIXTRAL, ("plan={tp: 5, sp: 2}",)),
    "sp of latents silent": (V3, ("plan={tp: 8, sp: 2, ep: 16}",)),
    "ep 6 of 8": (MIXTRAL, ("plan={tp: 8, ep: 6}",)),
    "ep 16 of 8 experts": (MIXTRAL_16, ("plan={tp: 16, ep: 16}",)),
    "ep over half of dp": (MIXTRAL, ("plan={dp: 4, tp: 2, ep: 4}",)),
    "ep over replicas with pp": (MIXTRAL_16, ("plan={dp: 2, pp: 2, tp: 4, ep: 8}",)),
    "ep over replicas with odd dp": (MIXTRAL, ("plan={dp: 3, tp: 2, ep: {degree: 8, scope: global}}",)),
    "ep across TP groups": (
        MIXTRAL_16,
        ("plan={tp: 4, sp: {degree: 3, scheme: ring, partition: zigzag, decode: dp}, ep: 2}",),
    ),
    "ep 24 of 256": (V3_WIDE, ("plan={tp: 8, dp: 3, ep: {degree: 24, scope: global}}",)),
    "ep 16 of 8 ranks": (V3, ("plan={tp: 8, dp: 2, ep: 16}",)),
    "v3 tp 6": (V3, ("plan={tp: 6, pp: 2, ep: 6}",)),
    "ep of 8B": (H100, ("plan={tp: 2, dp: 4, ep: {degree: 8, scope: global}}",)),
    "placed experts, 7 of 8": (MIXTRAL, ("plan={tp: 2, ep: {degree: 2, placement: [0, 1, 0, 1, 0, 1, 1]}}",)),
    "placed experts on rank 9": (MIXTRAL, ("plan={tp: 4, ep: {degree: 4, placement: [0, 1, 2, 3, 9, 1, 2, 3]}}",)),
    "placed experts and ep 3": (MIXTRAL, ("plan={tp: 3, ep: {degree: 3, placement: [0, 1, 2, 0, 1, 2, 0, 1]}}",)),
    "copies 3 of 2 ranks": (MIXTRAL, ("plan={tp: 4, ep: {degree: 2, redundant: 3}}",)),
    "copies 10 of 8 ranks": (QWEN_MOE, ("plan={tp: 4, dp: 2, ep: {degree: 8, scope: global, redundant: 10}}",)),
    "copies and ep 5": (QWEN_MOE, ("plan={tp: 4, ep: {degree: 5, redundant: 5}}",)),
    "visits with tp 3": (MIXTRAL, ("plan={tp: 3, ep: {degree: 3, routing: {zipf: 1.1}}}",)),
    "overlap with odd ep": (QWEN_MOE, ("plan={tp: 2, dp: 3, ep: {degree: 6, overlap: two_batch}}",)),
    "overlap with a dense model": (
        H100,
        ("plan={tp: 4, ep: {degree: 4, overlap: two_batch, overlap_decode_tokens: 32, overlap_prefill_tokens: 512}}",),
    ),
    "a device thrice": (H100, ("plan={tp: 4, placement: [0, 1, 1, 1]}",)),
    "a device for two replicas": (H100, ("plan={tp: 2, dp: 3, placement: [0, 1, 2, 3, 2, 3]}",)),
    "places of another plan": (TWO_NODES, ("plan={tp: 8, pp: 2, placement: [0, 1, 2, 3, 4, 5, 6, 7]}",)),
    "places and dp 3": (TWO_NODES, ("plan={tp: 4, dp: 3, placement: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]}",)),
    "cuts backwards": (TWO_NODES, ("plan={tp: 4, pp: 3, stages: {cuts: [50, 20]}}",)),
    "a cut at 0": (TWO_NODES, ("plan={tp: 8, pp: 2, stages: {cuts: [0]}}",)),
    "cuts inside layers, twice": (H100, ("plan={tp: 2, pp: 4, stages: {cuts: [8, 8.ffn, 8.ffn]}}",)),
    "a cut too many, and tp 3": (H100, ("plan={tp: 3, pp: 2, stages: {cuts: [8, 16]}}",)),
    "cuts of a longer model": (H100, ("plan={tp: 2, pp: 4, stages: {cuts: [20, 40, 60]}}",)),
    "8 stated, 4 used": (H100, ("plan={tp: 4, devices: 8}",)),
    "12 stated of 16": (TWO_NODES, ("plan={tp: 8, devices: 12}",)),
    "7 stated": (MIXTRAL, ("plan={tp: 2, dp: 4, devices: 7}",)),
    "stated beyond": (PCIE, ("plan={tp: 4, dp: 2, devices: 64}",)),
    "weights of 405B on 8": (MI300X, ("plan={tp: 2}",)),
    "weights of 70B on PCIe": (_base("{name: l40s-node, nodes: 1}", "llama-3.1-70b"), ("plan={dp: 4, tp: 2}",)),
    "weights of V3 on one node": (_base("{name: dgx-h100, nodes: 1}", "deepseek-v3"), ("plan={tp: 8, ep: 8}",)),
    "weights of a replica too many": (_base("{name: rtx-4090-node, nodes: 1}", "qwen3-14b"), ("plan={dp: 8}",)),
    "a share of memory": (H100, ("plan={tp: 1}", "serving.memory_utilization=0.15")),
    "a pool of two": (GAMING, ("plan={tp: 2, dp: 4}", "serving.kv_blocks=200000")),
    "a batch for less memory": (GAMING, ("plan={tp: 4}", "serving.max_batch_tokens=2000000")),
    "requests beyond memory": (H100, ("plan={tp: 4}", "serving.max_batch_requests=200000")),
    "block sizes": (PCIE, ("plan={tp: 2}", "serving.kv_block_tokens=5000000")),
    "wider numbers": (H100, ("plan={tp: 1}", "precision.weights=fp32", "serving.kv_blocks=30000")),
    "wider K/V": (GAMING, ("plan={tp: 1}", "precision.kv_cache=fp32", "serving.kv_blocks=6000")),
    "decode with sp": (
        OPT_POOLS, ("plan.decode={tp: 2, sp: {degree: 2, scheme: ring, partition: zigzag, decode: dp}}",),
    ),
    "prefill sp silent, decode tp 3": (OPT_POOLS, ("plan={prefill: {tp: 2, sp: 2}, decode: {tp: 3}}",)),
    "decode with sp 3 and ep": (OPT_POOLS, ("plan.decode={sp: 3, ep: 3}",)),
    "pools of 9": (OPT_POOLS, ("plan={prefill: {tp: 4, dp: 1}, decode: {tp: 5}}",)),
    "prefill dp 7 beside 2": (OPT_POOLS, ("plan={prefill: {dp: 7}, decode: {dp: 2}}",)),
    "a shared device": (
        OPT_POOLS, ("plan={prefill: {tp: 2, placement: [0, 1]}, decode: {tp: 2, placement: [1, 2]}}",),
    ),
    "blocks of both pools": (OPT_POOLS, ("serving.kv_blocks=900000",)),
    "a batch of both pools": (OPT_POOLS, ("serving.prefill.max_batch_tokens=null", "serving.max_batch_tokens=4000000")),
    "a share of memory of both pools": (OPT_POOLS, ("serving.memory_utilization=0.1",)),
    "a pool's blocks": (OPT_POOLS, ("serving.decode={scheduler: continuous, kv_blocks: 900000}",)),
    "prefill tp 7 on a kind": (KIND_POOLS, ("plan.prefill={tp: 7, placement: h100-sxm-80gb}",)),
    "decode tp 1 on a kind": (KIND_POOLS, ("plan.decode={tp: 1, placement: a100-sxm-80gb}",)),
    "a kind and stated": (KIND_POOLS, ("plan.decode={tp: 4, pp: 1, devices: 8, placement: a100-sxm-80gb}",)),
    "tp 6 on two kinds": (MIXED, ("plan={tp: 6}",)),
    "a kind twice": (MIXED, ("plan={tp: 4, dp: 1, pp: 2, placement: [8, 9, 10, 11, 12, 13, 14, 14]}",)),
    "weights on a kind": (MIXED, ("plan={tp: 1, placement: a100-sxm-80gb}",)),
    "a device of the larger kind twice": (UNEQUAL, ("plan={tp: 2, placement: [8, 8]}",)),
    "the larger kind twice, and only that fits": (
        UNEQUAL, ("plan={tp: 2, placement: [8, 8]}", "serving.kv_blocks=20000"),
    ),
    "the larger kind with tp 3": (UNEQUAL, ("plan={tp: 3, placement: [8, 9, 10]}",)),
    "the larger kind, tp 3, by name": (UNEQUAL, ("plan={tp: 3, placement: h200-sxm-141gb}",)),
    "the smaller kind": (UNEQUAL, ("plan={tp: 1, dp: 2, placement: h100-sxm-80gb}",)),
    "three at once": (MIXTRAL, ("plan={tp: 3, sp: 2, ep: 5}",)),
    "four at once": (
        TWO_NODES, ("plan={tp: 6, pp: 3, sp: 2, stages: {cuts: [40]}}", "serving.kv_blocks=9000000"),
    ),
}  # fmt: skip
"""Name → the scenario that it changes, and how."""
