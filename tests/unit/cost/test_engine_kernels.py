"""Kernels of a device by engine family: which constants hold where, and that the second opinion takes the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.cluster.device import device_from
from clustersim.cost.grid import with_grids
from clustersim.cost.kernels import ASSUMED
from clustersim.cost.precision import Precision
from clustersim.cost.roofline import RooflineCost
from clustersim.errors import InputError
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.legality.prices.kernels import Kernels
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.parts import load_engine, load_model, load_topology
from tests.effort import crossed

GROUP = {"compute": 0.5, "memory": 0.5, "floor_s": 1e-6, "source": "an example"}
DOCUMENT = {
    "name": "d", "vendor": "v", "source": "an example",
    "memory": {"capacity": "80 GB", "bandwidth": "3 TB/s"}, "compute": {"bf16": "1000 TFLOP/s"},
    "kernels": {"gemm_bf16": GROUP, "memory": GROUP, "fast": {"gemm_bf16": GROUP | {"compute": 1.0}, "source": "mine"}},
}  # fmt: skip
PRODUCT = {"m": 8192.0, "n": 8192.0, "k": 8192.0}
SHAPES = {
    "gemm": PRODUCT,
    "grouped_gemm": {"rows": 4096.0, "experts": 64.0, "active": 64.0, "n": 2048.0, "k": 4096.0},
    "attention_prefill": {"pairs": 5e5, "queries": 1000.0, "keys": 1000.0},
    "attention_decode": {"batch": 32.0, "keys": 64000.0},
    "memory": {"bytes": 1e7},
}
HEADS = {
    "grouped": {"heads": 32.0, "kv_heads": 8.0, "qk_dim": 128.0, "v_dim": 128.0, "shared_kv": 0.0},
    "alone": {"heads": 32.0, "kv_heads": 32.0, "qk_dim": 128.0, "v_dim": 128.0, "shared_kv": 0.0},
    "latent": {"heads": 16.0, "kv_heads": 1.0, "qk_dim": 576.0, "v_dim": 512.0, "shared_kv": 1.0},
}


def test_groups_of_a_family_stand_before_those_of_all():
    device = device_from(DOCUMENT)
    assert device.kernels.keys() == {"gemm_bf16", "memory"}
    fast = device.running("fast")
    assert (fast.kernels["gemm_bf16"]["compute"], fast.kernels["memory"]["compute"]) == (1.0, 0.5)
    assert device.running("slow") is device


def test_groups_of_an_engine_stand_before_those_of_its_family():
    device = device_from(DOCUMENT)
    device = replace(device, engine_kernels={**device.engine_kernels, "fast-0.9": {"memory": {"compute": 0.25}}})
    old, new = device.running("fast-0.9"), device.running("fast-1.0")
    assert (old.kernels["gemm_bf16"]["compute"], old.kernels["memory"]["compute"]) == (1.0, 0.25)
    assert new == device.running("fast")


def test_old_kernels_decode_heads_that_share_keys_as_long_as_those_that_do_not():
    """As measured: Mistral-7B against Llama-2-7B in static batches of TensorRT-LLM 0.9 (F5, H200)."""
    device, precision = load_topology("dgx-h200").device, Precision(weights="fp8", kv_cache="fp8")
    shape = SHAPES["attention_decode"] | {"batch": 120.0, "keys": 120.0 * 1152.0}
    grouped, alone = (
        {
            engine: float(RooflineCost(device.running(engine), precision).seconds("attention_decode", shape | heads))
            for engine in ("trtllm-0.9", "trtllm-0.14")
        }
        for heads in (HEADS["grouped"], HEADS["alone"])
    )
    assert grouped["trtllm-0.9"] == pytest.approx(alone["trtllm-0.9"], rel=0.2)
    assert alone["trtllm-0.14"] > 4 * grouped["trtllm-0.14"]


@pytest.mark.parametrize(
    ("kernel_time", "topology", "engine", "heads", "dtype"),
    crossed(
        (1.0, 1.3),
        ("dgx-a100", "dgx-h100", "dgx-h200", "l40s-node", "dgx-b200"),
        ("trtllm-1.0", "trtllm-0.14", "trtllm-0.9", "sglang-0.5", "vllm-0.19"),
        tuple(HEADS),
        ("bf16", "fp8"),
    ),
)
def test_the_second_opinion_is_the_same(kernel_time, topology, engine, heads, dtype):
    deployment = PricedDeployment(
        model=load_model("llama-3.1-8b"),
        plan=ParallelPlan(),
        precision=Precision(weights=dtype, kv_cache=dtype),
        engine=replace(load_engine(engine), kernel_time=kernel_time),
        topology=load_topology(topology),
    )
    if kernel_time != 1.0:  # an engine of one's own, with these kernels
        deployment = replace(deployment, engine=replace(deployment.engine, name="mine", kernels=engine))
    device_of, engine = engine, deployment.engine
    device = deployment.topology.device.running(device_of, quantises=engine.quantisation == "own_kernel")
    first = with_grids(RooflineCost(device, deployment.precision, kernel_time))
    second = Kernels(deployment)
    for op, shape in SHAPES.items():
        whole = shape | (HEADS[heads] if op.startswith("attention") else {})
        assert float(first.seconds(op, whole)) == pytest.approx(float(second.seconds(op, whole)), rel=1e-12), op


def test_graphs_built_ahead_of_time_quantise_where_they_compute():
    """7.56 bytes for each of 8192 × 4096 activations on H100: 76 us of 3.35 TB/s."""
    assert [load_engine(f"trtllm-{of}").quantisation for of in ("0.9", "0.14", "1.0")] == ["fused"] * 2 + ["own_kernel"]
    device, shape = load_topology("dgx-h100").device, {"m": 8192.0, "n": 4096.0, "k": 4096.0}
    own, fused = (
        float(
            RooflineCost(device.running("trtllm-0.14", quantises=quantises), Precision(weights="fp8")).seconds(
                "gemm", shape
            )
        )
        for quantises in (True, False)
    )
    assert own - fused == pytest.approx(8192 * 4096 * 7.56 / 3.35e12)


def test_the_engine_decides_what_a_kernel_takes():
    device = load_topology("dgx-h100").device
    precision = Precision(weights="fp8", kv_cache="fp8")
    shape = SHAPES["attention_decode"] | HEADS["grouped"]
    times = {
        family: float(RooflineCost(device.running(family), precision).seconds("attention_decode", shape))
        for family in ("vllm", "trtllm", "nobody")
    }
    assert times["nobody"] == times["vllm"]
    assert times["trtllm"] < 0.8 * times["vllm"]


def test_attention_with_a_head_of_keys_for_each_has_a_group_of_its_own():
    kernels = {"attention_decode_bf16": dict(ASSUMED["attention_decode"])}
    device = replace(device_from(DOCUMENT), kernels=kernels)
    own = replace(device, kernels=kernels | {"multihead_decode_bf16": {"floor_s": 1.0}})
    alone, grouped, latent = (SHAPES["attention_decode"] | HEADS[name] for name in ("alone", "grouped", "latent"))

    def seconds(of, shape):
        return float(RooflineCost(of, Precision()).seconds("attention_decode", shape))

    assert seconds(own, alone) > 1.0 > seconds(device, alone)
    assert seconds(own, grouped) == seconds(device, grouped)
    assert seconds(own, latent) == seconds(device, latent)
    both = {key: np.array([alone[key], grouped[key]]) for key in alone}
    mixed = RooflineCost(own, Precision()).seconds("attention_decode", both)
    assert mixed.tolist() == [seconds(own, alone), seconds(own, grouped)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compute": 1.5}, r":8:\d+: kernels.fast.gemm_bf16.compute: expected a number from 1e-06 to 1"),
        ({"floor_s": -1.0}, r":8:\d+: kernels.fast.gemm_bf16.floor_s: expected a number from 0 to 1"),
        ({"sped": 1.0}, r":8:\d+: kernels.fast.gemm_bf16.sped: unknown constant"),
    ],
)
def test_an_impossible_constant_of_a_family_is_refused_with_its_line(tmp_path, change, said):
    entries = ", ".join(f"{key}: {value}" for key, value in change.items())
    text = (
        "name: d\nvendor: v\nsource: an example\nmemory: {capacity: 80 GB, bandwidth: 3 TB/s}\n"
        f"compute: {{bf16: 1000 TFLOP/s}}\nkernels:\n  fast:\n    gemm_bf16: {{{entries}}}\n"
    )
    (tmp_path / "d.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_topology("dgx-h100", [f"device={tmp_path / 'd.yaml'}"])
