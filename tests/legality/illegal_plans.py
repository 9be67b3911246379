"""Illegal plans as people and programs write them: over all rules of level P, kinds of models, one pool and two."""

from __future__ import annotations

from typing import Final

DENSE: Final = ("quickstart", ("topology={name: dgx-h100, nodes: 1}", "model=llama-3.1-8b", "expect={}"))
"""32 heads, 8 K/V heads, 32 layers; 8 devices."""
LARGE: Final = ("quickstart", ("topology={name: dgx-h100, nodes: 2}", "model=llama-3.1-70b", "expect={}"))
EXPERTS: Final = ("mixtral-ep", ("topology={name: dgx-h100, nodes: 1}", "model=mixtral-8x7b", "expect={}"))
"""8 experts."""
LATENT: Final = ("quickstart", ("topology={name: dgx-h100, nodes: 1}", "model=deepseek-v2-lite", "expect={}"))
"""16 heads with latents, 64 experts, 27 layers."""
ODD: Final = ("quickstart", ("topology={name: dgx-h100, nodes: 8}", "model=qwen3-14b", "expect={}"))
"""40 heads, 40 layers; 64 devices."""
POOLS: Final = ("distserve-tp2-tp1", ("expect={}",))
"""OPT-13B: 40 heads, 8 devices."""

PLANS: Final[dict[str, tuple[tuple[str, tuple[str, ...]], tuple[str, ...]]]] = {
    "tp 3 of 32 heads": (DENSE, ("plan={tp: 3}",)),
    "tp 6 of 64 heads": (LARGE, ("plan={tp: 6}",)),
    "tp 7 with dp": (DENSE, ("plan={tp: 7, dp: 2}",)),
    "tp 16 of 40 heads": (ODD, ("plan={tp: 16}",)),
    "tp 16 of 8 devices": (DENSE, ("plan={tp: 16}",)),
    "tp 10 that K/V heads don't share": (ODD, ("plan={tp: 10}",)),
    "tp 5 by rows and columns": (ODD, ("plan={tp: {degree: 16, attention_out: columns}, dp: 3}",)),
    "too many replicas": (DENSE, ("plan={tp: 4, dp: 3}",)),
    "far too many replicas": (DENSE, ("plan={tp: 4, dp: 100}",)),
    "too many of everything": (DENSE, ("plan={tp: 8, dp: 4, pp: 2}",)),
    "stages and replicas": (LARGE, ("plan={tp: 8, dp: 2, pp: 3}",)),
    "more stages than modules": (LARGE, ("plan={pp: 161}",)),
    "more stages than devices": (DENSE, ("plan={pp: 12}",)),
    "sp that says nothing": (DENSE, ("plan={tp: 4, sp: 2}",)),
    "sp silent about decode": (DENSE, ("plan={tp: 4, sp: {degree: 2, scheme: ring, partition: zigzag}}",)),
    "sp silent about its scheme": (LATENT, ("plan={tp: 4, sp: {degree: 2, partition: zigzag, decode: dp}}",)),
    "sp silent, and tp 6": (LARGE, ("plan={tp: 6, sp: 2}",)),
    "sp by heads that don't divide": (
        DENSE, ("plan={tp: 1, sp: {degree: 3, scheme: all_to_all, partition: zigzag, decode: idle}}",),
    ),
    "sp by heads of K/V that don't divide": (
        LARGE, ("plan={tp: 2, sp: {degree: 8, scheme: all_to_all, partition: zigzag, decode: dp}, dp: 2}",),
    ),
    "sp beyond the devices": (
        DENSE, ("plan={tp: 2, sp: {degree: 8, scheme: ring, partition: contiguous, decode: dp}}",),
    ),
    "a cut behind the last layer": (DENSE, ("plan={pp: 2, stages: {cuts: [32]}}",)),
    "cuts in no order": (DENSE, ("plan={pp: 4, stages: {cuts: [16, 8, 24]}}",)),
    "a cut twice": (DENSE, ("plan={pp: 3, stages: {cuts: [16, 16]}}",)),
    "fewer cuts than stages": (DENSE, ("plan={pp: 4, stages: {cuts: [16]}}",)),
    "cuts without stages": (DENSE, ("plan={tp: 2, stages: {cuts: [10, 20]}}",)),
    "ep of a dense model": (DENSE, ("plan={tp: 4, ep: 4}",)),
    "ep of a dense model, and tp 3": (DENSE, ("plan={tp: 3, ep: 2}",)),
    "ep 3 of 8 experts": (EXPERTS, ("plan={tp: 4, ep: 3}",)),
    "ep over dp": (EXPERTS, ("plan={dp: 2, tp: 4, ep: 8}",)),
    "ep over dp alone": (LATENT, ("plan={dp: 8, ep: 8}",)),
    "ep over dp with stages": (LATENT, ("plan={dp: 2, pp: 2, tp: 2, ep: 4}",)),
    "ep beyond all ranks": (EXPERTS, ("plan={tp: 2, ep: 16}",)),
    "ep over dp, and a degree too large": (EXPERTS, ("plan={dp: 4, tp: 4, ep: 8}",)),
    "ep that cuts TP groups": (
        EXPERTS, ("plan={tp: 2, sp: {degree: 3, scheme: ring, partition: zigzag, decode: dp}, ep: 2}",),
    ),
    "ep with latents and tp 3": (LATENT, ("plan={tp: 3, ep: 3}",)),
    "an expert nowhere": (EXPERTS, ("plan={tp: 4, ep: {degree: 2, placement: [0, 1, 0, 1, 0, 1, 0]}}",)),
    "experts unevenly": (EXPERTS, ("plan={tp: 4, ep: {degree: 2, placement: [0, 0, 0, 1, 0, 1, 0, 1]}}",)),
    "copies that don't spread": (EXPERTS, ("plan={tp: 4, ep: {degree: 4, redundant: 6}}",)),
    "copies beyond the places": (EXPERTS, ("plan={tp: 4, ep: {degree: 4, redundant: 40}}",)),
    "a device twice": (DENSE, ("plan={tp: 2, placement: [0, 0]}",)),
    "too few places": (DENSE, ("plan={tp: 4, placement: [0, 1]}",)),
    "placed, and tp 3": (DENSE, ("plan={tp: 3, placement: [0, 1, 2]}",)),
    "32 devices stated, 8 used": (ODD, ("plan={tp: 8, devices: 32}",)),
    "15 devices stated": (LARGE, ("plan={tp: 8, dp: 2, devices: 15}",)),
    "more stated than there are": (DENSE, ("plan={tp: 8, dp: 2, devices: 16}",)),
    "stated, and tp 3": (DENSE, ("plan={tp: 3, devices: 3}",)),
    "weights beyond a device": (LARGE, ("plan={}",)),
    "weights beyond two": (LARGE, ("plan={dp: 8, tp: 2}", "serving.max_batch_tokens=100000")),
    "a pool beyond memory": (DENSE, ("plan={tp: 2}", "serving.kv_blocks=10000000")),
    "a pool a little beyond memory": (DENSE, ("plan={tp: 1}", "serving.kv_blocks=30000")),
    "a batch beyond memory": (DENSE, ("plan={tp: 4}", "serving.max_batch_tokens=10000000")),
    "a batch and a pool": (DENSE, ("plan={tp: 4}", "serving.max_batch_tokens=4000000", "serving.kv_blocks=9000000")),
    "blocks beyond memory": (DENSE, ("plan={}", "serving.kv_block_tokens=100000000")),
    "prefill tp 3": (POOLS, ("plan.prefill.tp=3",)),
    "decode dp 20": (POOLS, ("plan.decode={dp: 20}",)),
    "both too large": (POOLS, ("plan={prefill: {tp: 8}, decode: {tp: 8}}",)),
    "decode sp silent": (POOLS, ("plan.decode={tp: 2, sp: 2}",)),
    "prefill states 4": (POOLS, ("plan.prefill={tp: 2, devices: 4}",)),
    "tp 3 and ep, in two pools": (POOLS, ("plan={prefill: {tp: 3}, decode: {tp: 2, ep: 2}}",)),
}  # fmt: skip
"""Name → the scenario that it changes, and how."""

FAST: Final = (
    "tp 3 of 32 heads", "tp 10 that K/V heads don't share", "too many replicas", "sp that says nothing",
    "sp silent, and tp 6", "cuts in no order", "ep over dp", "an expert nowhere", "copies that don't spread",
    "32 devices stated, 8 used", "a pool a little beyond memory", "prefill tp 3",
)  # fmt: skip
"""Those that are compared with every plan in the neighbourhood each time."""
