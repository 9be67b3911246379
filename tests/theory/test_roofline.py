"""The roofline of Williams, Waterman and Patterson (2009) as the limit of the fitted formulas."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.catalog import names
from clustersim.cost import Precision, RooflineCost
from tests import shipped

HEADS = {"heads": 32.0, "kv_heads": 8.0, "qk_dim": 128.0, "v_dim": 128.0}


@pytest.fixture(params=names("topologies/devices"))
def device(request):
    return shipped.device(request.param)


def test_no_product_is_faster_than_peak_compute_or_bandwidth(device):
    m, n, k = np.meshgrid(2.0 ** np.arange(0, 16, 3), 2.0 ** np.arange(7, 16, 2), 2.0 ** np.arange(7, 16, 2))
    for weights in ("bf16", "fp8"):
        cost = RooflineCost(device, Precision(weights=weights))
        peak = device.flops[cost.multiply_dtype]
        weight_bytes = cost.precision.weight_bytes
        seconds = cost.seconds("gemm", {"m": m, "n": n, "k": k})
        assert np.all(seconds >= 2 * m * n * k / peak)
        assert np.all(seconds >= n * k * weight_bytes / device.memory_bytes_per_s)


def test_no_attention_is_faster_than_peak_compute_or_bandwidth(device):
    cost = RooflineCost(device, Precision())
    length = 2.0 ** np.arange(4, 16)
    pairs = length * (length + 1) / 2
    prefill = cost.seconds("attention_prefill", {"pairs": pairs, "queries": length, "keys": length, **HEADS})
    assert np.all(prefill >= 2 * pairs * 32 * 256 / device.flops["bf16"])
    decode = cost.seconds("attention_decode", {"batch": 16.0, "keys": 16 * length, **HEADS})
    assert np.all(decode >= 16 * length * 8 * 256 * 2 / device.memory_bytes_per_s)


def test_a_large_product_approaches_the_fitted_share_of_the_peak(device):
    cost = RooflineCost(device, Precision())
    size = 65536.0
    reached = 2 * size**3 / float(cost.seconds("gemm", {"m": size, "n": size, "k": size})) / device.flops["bf16"]
    assert reached == pytest.approx(device.kernels["gemm_bf16"]["compute"], rel=0.02)


def test_a_product_of_one_row_approaches_the_fitted_share_of_the_bandwidth(device):
    cost = RooflineCost(device, Precision())
    size = 65536.0
    moved = 2 * size * size
    reached = moved / float(cost.seconds("gemm", {"m": 1, "n": size, "k": size})) / device.memory_bytes_per_s
    assert reached == pytest.approx(device.kernels["gemm_bf16"]["memory"], rel=0.03)


def test_long_decoding_approaches_the_fitted_share_of_the_bandwidth_where_heads_are_few(device):
    cost = RooflineCost(device, Precision())
    keys = 1e9
    shape = {"batch": 1.0, "keys": keys, "heads": 1.0, "kv_heads": 1.0, "qk_dim": 128.0, "v_dim": 128.0}
    reached = keys * 512 / float(cost.seconds("attention_decode", shape)) / device.memory_bytes_per_s
    assert reached == pytest.approx(device.kernels["attention_decode_bf16"]["memory"], rel=0.05)


def test_the_ridge_lies_where_compute_equals_memory(device):
    # m at which 2·m·n·k / (peak · share) = 2·n·k bytes / (bandwidth · share): the time is √2 of either there.
    c, cost = device.kernels["gemm_bf16"], RooflineCost(device, Precision())
    ridge = device.flops["bf16"] * c["compute"] / (device.memory_bytes_per_s * c["memory"])
    size = 1e6  # so large that floors, activations and the ramp vanish
    one_row, at_ridge = (float(cost.seconds("gemm", {"m": m, "n": size, "k": size})) for m in (1e-3, ridge))
    assert at_ridge / one_row == pytest.approx(np.sqrt(2.0), rel=0.02)
