"""The duration formulas on a device of round numbers: 1 TFLOP/s, 1 TB/s, floor 1 us, every share 1."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from clustersim.cost import Precision, RooflineCost
from clustersim.cost.kernels import ASSUMED
from clustersim.errors import InputError

IDEAL = {
    family: {name: {"floor_s": 1e-6}.get(name, 1.0 if name in {"compute", "memory", "cached"} else 0.0) for name in of}
    for family, of in ASSUMED.items()
}
IDEAL["gemm"]["latency_k"] = 1.0


@dataclass(frozen=True)
class RoundDevice:
    kernels: dict = field(default_factory=lambda: IDEAL)
    flops: dict = field(default_factory=lambda: {"bf16": 1e12, "fp8": 2e12})
    name: str = "round"
    memory_bytes_per_s: float = 1e12


def cost(precision=None, **constants):
    """A roofline on the round device; constants are given as ``family__name=value``."""
    changed = {family: dict(of) for family, of in IDEAL.items()}
    for name, value in constants.items():
        family, constant = name.split("__")
        changed[family][constant] = value
    return RooflineCost(RoundDevice(kernels=changed), precision or Precision())


HEADS = {"heads": 4.0, "kv_heads": 1.0, "qk_dim": 64.0, "v_dim": 64.0}


def test_gemm_is_the_hypotenuse_of_compute_and_memory():
    # 2·500·1000·1000 = 1e9 FLOP: 1000 us. Bytes 2·(1e6 + 5e5 + 5e5) = 4e6: 4 us. √(1000² + 4²) = 1000.008.
    seconds = cost().seconds("gemm", {"m": 500, "n": 1000, "k": 1000})
    assert seconds == pytest.approx(1e-6 + 1000.008e-6, rel=1e-9)


def test_gemm_of_one_row_is_the_time_to_read_its_weights():
    # Bytes 2·10⁸: 200 us; 2·10⁸ FLOP: 200 us. √2 · 200 = 282.84; results and operands add 40,000 bytes.
    seconds = cost().seconds("gemm", {"m": 1, "n": 10_000, "k": 10_000})
    assert seconds == pytest.approx(1e-6 + np.hypot(200e-6, 200.04e-6), rel=1e-9)


def test_fp8_weights_halve_compute_and_the_bytes_of_weights():
    bf16, fp8 = cost(), cost(Precision(weights="fp8"))
    shape = {"m": 1, "n": 10_000, "k": 10_000}
    assert (fp8.seconds("gemm", shape) - 1e-6) / (bf16.seconds("gemm", shape) - 1e-6) == pytest.approx(0.5, abs=1e-3)


def test_weights_that_the_device_cannot_multiply_save_bytes_only():
    # int4: 0.515625 bytes a weight, multiplied in bf16: compute stays 200 us.
    seconds = cost(Precision(weights="int4")).seconds("gemm", {"m": 1, "n": 10_000, "k": 10_000})
    assert seconds == pytest.approx(1e-6 + np.hypot(200e-6, 51.6025e-6), rel=1e-9)


def test_quantising_costs_bytes_per_activation():
    # 1000 × 1000 activations at 4 bytes: 4 us.
    shape = {"m": 1000, "n": 1000, "k": 1000}
    added = cost(gemm__quantise_bytes=4.0).seconds("gemm", shape) - cost().seconds("gemm", shape)
    assert added == pytest.approx(4e-6)


def test_a_long_k_costs_latency_that_levels_off():
    constants = {"gemm__latency_s": 8e-6, "gemm__latency_k": 1000.0}
    added = [
        float(cost(**constants).seconds("gemm", shape) - cost().seconds("gemm", shape))
        for shape in ({"m": 1, "n": 1, "k": 1000}, {"m": 1, "n": 1, "k": 3000})
    ]
    assert added == pytest.approx([4e-6, 6e-6])


def test_grouped_gemm_reads_only_active_experts():
    # 2 rows, 2 experts of 10⁶ weights: 4e6 bytes: 4 us; 4e6 FLOP: 4 us; 8,000 bytes of rows.
    shape = {"rows": 2, "experts": 8, "active": 2, "n": 1000, "k": 1000}
    assert cost().seconds("grouped_gemm", shape) == pytest.approx(1e-6 + np.hypot(4e-6, 4.008e-6), rel=1e-9)


def test_grouped_gemm_cuts_active_to_the_rows_and_to_the_experts_held():
    shape = {"rows": 3, "experts": 8, "n": 100, "k": 100}
    seconds = cost().seconds("grouped_gemm", {**shape, "active": np.array([3.0, 5.0, 100.0])})
    assert len(set(seconds.tolist())) == 1
    held = cost().seconds("grouped_gemm", {**shape, "rows": 30, "experts": 3, "active": np.array([3.0, 5.0])})
    assert held[0] == held[1]


def test_grouped_gemm_pads_each_active_expert():
    # 10 more rows for each of 4 experts: 40 · 2 · 1000 · 1000 = 8e7 FLOP more, where compute rules: 80 us.
    shape = {"rows": 4000, "experts": 4, "active": 4, "n": 1000, "k": 1000}
    added = cost(grouped_gemm__ramp_rows=10.0).seconds("grouped_gemm", shape)
    assert added - cost().seconds("grouped_gemm", shape) == pytest.approx(80e-6, rel=1e-3)


def test_attention_prefill_counts_pairs_for_compute_and_keys_for_bytes():
    # 2 · 10⁶ pairs · 4 heads · 128 = 1.024e9 FLOP: 1024 us; keys 1000 · 128 · 2 B = 0.256 us,
    # queries 1000 · 4 · 128 · 2 B = 1.024 us.
    shape = {"pairs": 1e6, "queries": 1000, "keys": 1000, **HEADS}
    assert cost().seconds("attention_prefill", shape) == pytest.approx(1e-6 + 1025.28e-6, rel=1e-9)


def test_attention_prefill_of_few_queries_is_serial():
    # √10⁶ pairs · 1 ms = 1 s, far above the rest.
    shape = {"pairs": 1e6, "queries": 1000, "keys": 1000, **HEADS}
    assert cost(attention_prefill__serial_s=1e-3).seconds("attention_prefill", shape) == pytest.approx(1.0, rel=1e-3)
    assert cost(attention_prefill__key_s=1e-3).seconds("attention_prefill", shape) == pytest.approx(1.0, rel=1e-3)


def test_attention_decode_reads_keys_and_values():
    # 10⁶ keys · 128 · 2 B = 256 us; 2 · 10⁶ · 4 · 128 FLOP = 1024 us; queries 2 · 4 · 128 · 2 B.
    shape = {"batch": 2, "keys": 1e6, **HEADS}
    assert cost().seconds("attention_decode", shape) == pytest.approx(1e-6 + np.hypot(1024e-6, 256.002e-6), rel=1e-6)


def test_attention_decode_starts_a_block_per_sequence_and_kv_head():
    shape = {"batch": 100, "keys": 100, **HEADS, "kv_heads": 2}
    added = cost(attention_decode__head_s=1e-6).seconds("attention_decode", shape)
    assert added - cost().seconds("attention_decode", shape) == pytest.approx(200e-6)


def test_a_shared_latent_is_read_once():
    shape = {"batch": 1, "keys": 1e6, "heads": 0, "kv_heads": 1, "qk_dim": 576, "v_dim": 512}
    apart, shared = (cost().seconds("attention_decode", {**shape, "shared_kv": s}) for s in (0, 1))
    assert apart - 1e-6 == pytest.approx(1e6 * (576 + 512) * 2 / 1e12)
    assert shared - 1e-6 == pytest.approx(1e6 * 576 * 2 / 1e12)


def test_latent_attention_has_its_own_constants_element_by_element():
    model = cost(latent_decode__floor_s=5e-6)
    shape = {"batch": 1, "keys": 1000, **HEADS}
    each = [model.seconds("attention_decode", {**shape, "shared_kv": s}) for s in (0.0, 1.0)]
    both = model.seconds("attention_decode", {**shape, "shared_kv": np.array([0.0, 1.0])})
    assert both.tolist() == [float(value) for value in each]
    assert both[1] > both[0]


def test_fp8_keys_halve_the_bytes_read():
    shape = {"batch": 1, "keys": 1e6, "heads": 0, "kv_heads": 1, "qk_dim": 64, "v_dim": 64}
    halved = cost(Precision(kv_cache="fp8")).seconds("attention_decode", shape)
    assert halved == pytest.approx(1e-6 + 128e-6)


def test_memory_finds_the_first_bytes_in_the_cache():
    # 1 MB at 4 TB/s: 0.25 us; 2 MB at 1 TB/s: 2 us.
    model = cost(memory__cached=4.0, memory__cache_bytes=1e6)
    assert model.seconds("memory", {"bytes": 3e6}) == pytest.approx(3.25e-6)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("gemm", {"m": 0, "n": 10_000, "k": 10_000}),
        ("grouped_gemm", {"rows": 0, "experts": 8, "active": 4, "n": 1000, "k": 1000}),
        ("attention_prefill", {"pairs": 0, "queries": 0, "keys": 0, **HEADS}),
        ("attention_decode", {"batch": 0, "keys": 0, **HEADS}),
        ("memory", {"bytes": 0}),
    ],
)
def test_no_work_costs_the_floor(op, shape):
    assert cost().seconds(op, shape) == 1e-6


def test_scalars_give_a_scalar_and_arrays_broadcast():
    model = cost()
    assert model.seconds("memory", {"bytes": 1.0}).shape == ()
    assert model.seconds("gemm", {"m": np.ones((3, 1)), "n": np.ones(4), "k": 8}).shape == (3, 4)


def test_unknown_operators_and_keys_are_refused_by_name():
    with pytest.raises(InputError, match=r"unknown operator 'gem'; did you mean 'gemm'\?"):
        cost().seconds("gem", {})
    with pytest.raises(InputError, match="'gemm' has the shape keys m, n, k; found m, n"):
        cost().seconds("gemm", {"m": 1, "n": 1})
    with pytest.raises(InputError, match="found m, n, k, b"):
        cost().seconds("gemm", {"m": 1, "n": 1, "k": 1, "b": 1})
