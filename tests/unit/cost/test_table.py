"""Measured tables over a roofline."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from clustersim.cost import MeasuredPoints, Precision, RooflineCost, TableCost
from clustersim.cost.curves import octaves
from clustersim.errors import InputError

HEADS = {"heads": 8.0, "kv_heads": 2.0, "qk_dim": 64.0, "v_dim": 64.0, "shared_kv": 0.0}


@dataclass(frozen=True)
class Device:
    kernels: dict = field(default_factory=dict)
    flops: dict = field(default_factory=lambda: {"bf16": 1e14, "fp8": 2e14})
    name: str = "some-device"
    memory_bytes_per_s: float = 1e12


ROOFLINE = RooflineCost(Device(), Precision())


def points(op, ratios, dtype=None, **shape):
    """Points whose measured time is the roofline's times ``ratios``."""
    arrays = {key: np.broadcast_to(np.asarray(v, dtype=float), len(ratios)) for key, v in shape.items()}
    seconds = ROOFLINE.seconds(op, arrays) * np.asarray(ratios)
    return MeasuredPoints(op=op, dtype=dtype, shape=arrays, seconds=seconds)


def ratio(table, op, **shape):
    return float(table.seconds(op, shape) / ROOFLINE.seconds(op, shape))


def test_octaves_are_exact_at_powers_of_two_and_rise_between():
    assert octaves(2.0 ** np.arange(-3, 5)).tolist() == list(range(-3, 5))
    assert np.all(np.diff(octaves(np.linspace(0.1, 100.0, 999))) > 0)


def test_a_measured_point_is_returned():
    measured = points("gemm", [1.5, 0.7], m=[16, 64], n=512, k=512)
    table = TableCost([measured], ROOFLINE)
    assert table.seconds("gemm", {"m": 16, "n": 512, "k": 512}) == pytest.approx(measured.seconds[0], rel=1e-15)
    assert table.outside == {"gemm": 0}


def test_between_points_the_ratio_is_straight_in_octaves():
    table = TableCost([points("gemm", [1.0, 2.0], m=[16, 64], n=512, k=512)], ROOFLINE)
    assert ratio(table, "gemm", m=32, n=512, k=512) == pytest.approx(1.5)
    assert ratio(table, "gemm", m=48, n=512, k=512) == pytest.approx(1.75)


def test_outside_the_edge_holds_and_is_counted():
    table = TableCost([points("gemm", [1.5, 2.0], m=[16, 64], n=512, k=512)], ROOFLINE)
    assert ratio(table, "gemm", m=8, n=512, k=512) == pytest.approx(1.5)
    assert ratio(table, "gemm", m=1000, n=512, k=512) == pytest.approx(2.0)
    assert table.outside == {"gemm": 2}


def test_an_unmeasured_shape_takes_the_ratio_of_the_nearest_and_is_counted():
    near = points("gemm", [2.0], m=16, n=512, k=512)
    far = points("gemm", [3.0], m=16, n=8192, k=512)
    table = TableCost([near, far], ROOFLINE)
    assert ratio(table, "gemm", m=16, n=1024, k=512) == pytest.approx(2.0)
    assert ratio(table, "gemm", m=16, n=4096, k=512) == pytest.approx(3.0)
    assert table.outside == {"gemm": 2}


def test_decode_interpolates_over_batch_and_keys_per_sequence():
    batch, each = np.array([1, 1, 4, 4]), np.array([128, 512, 128, 512])
    measured = points("attention_decode", [1.0, 2.0, 3.0, 4.0], batch=batch, keys=batch * each, **HEADS)
    table = TableCost([measured], ROOFLINE)
    assert ratio(table, "attention_decode", batch=2, keys=2 * 256, **HEADS) == pytest.approx(2.5)
    assert table.outside == {"attention_decode": 0}


def test_a_prompt_between_two_measured_lengths_is_inside():
    length = np.array([100.0, 400.0])
    shape = {"pairs": length * (length + 1) / 2, "queries": length, "keys": length}
    table = TableCost([points("attention_prefill", [1.0, 3.0], **shape, **HEADS)], ROOFLINE)
    between = {"pairs": 200 * 201 / 2, "queries": 200, "keys": 200}
    assert 1.0 < ratio(table, "attention_prefill", **between, **HEADS) < 3.0
    assert table.outside == {"attention_prefill": 0}


def test_operators_without_points_cost_the_roofline():
    table = TableCost([points("gemm", [2.0], m=16, n=512, k=512)], ROOFLINE)
    assert ratio(table, "memory", bytes=1e6) == 1.0
    assert table.outside == {"gemm": 0}


def test_no_work_costs_the_floor_and_is_not_outside():
    table = TableCost([points("gemm", [2.0], m=16, n=512, k=512)], ROOFLINE)
    assert ratio(table, "gemm", m=0, n=512, k=512) == 1.0
    assert table.outside == {"gemm": 0}


def test_several_shapes_in_one_call_equal_single_calls():
    table = TableCost(
        [points("gemm", [1.0, 2.0], m=[16, 64], n=512, k=512), points("gemm", [3.0], m=16, n=1024, k=512)], ROOFLINE
    )
    m, n = np.array([20.0, 30.0, 16.0]), np.array([512.0, 512.0, 1024.0])
    single = [float(table.seconds("gemm", {"m": a, "n": b, "k": 512.0})) for a, b in zip(m, n, strict=True)]
    assert table.seconds("gemm", {"m": m, "n": n, "k": 512.0}).tolist() == single


def test_repeated_measurements_are_averaged():
    table = TableCost([points("memory", [1.0, 2.0], bytes=[1e6, 1e6])], ROOFLINE)
    assert ratio(table, "memory", bytes=1e6) == pytest.approx(1.5)


def test_points_of_another_format_are_not_used():
    bf16 = points("gemm", [2.0], "bf16", m=16, n=512, k=512)
    fp8 = points("gemm", [5.0], "fp8", m=16, n=512, k=512)
    assert ratio(TableCost([bf16, fp8], ROOFLINE), "gemm", m=16, n=512, k=512) == pytest.approx(2.0)
    with pytest.raises(InputError, match="it has gemm in fp8; expected gemm in bf16"):
        TableCost([fp8], ROOFLINE)
