"""Fitting: what went in comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from clustersim.cost import MeasuredPoints
from clustersim.cost.fit import MOE, fit_device, fit_points, group_of, minimise, octave_weights, predict
from clustersim.cost.kernels import ASSUMED
from clustersim.errors import InputError


@dataclass(frozen=True)
class Device:
    kernels: dict = field(default_factory=dict)
    flops: dict = field(default_factory=lambda: {"bf16": 1e14})
    name: str = "some-device"
    memory_bytes_per_s: float = 1e12


def decode_shape():
    batch, each = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(10), 2.0 ** np.arange(4, 16)))
    one = np.ones_like(batch)
    shape = {"batch": batch, "keys": batch * each, "heads": 32 * one, "kv_heads": 8 * one, "qk_dim": 128 * one}
    return shape | {"v_dim": 128 * one, "shared_kv": 0 * one}


def measured(op, shape, constants, dtype="bf16"):
    blank = MeasuredPoints(op=op, dtype=dtype, shape=shape, seconds=np.ones(len(next(iter(shape.values())))))
    return MeasuredPoints(op=op, dtype=dtype, shape=shape, seconds=predict(Device(), blank, constants))


def test_a_minimum_of_a_bent_valley_is_found():
    # Rosenbrock's function: 0 at (1, 1).
    found = minimise(lambda x: float((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2), np.array([-1.2, 1.0]))
    assert found == pytest.approx([1.0, 1.0], abs=1e-3)


def test_constants_that_made_the_data_are_found_again():
    made = {"compute": 0.4, "memory": 0.8, "floor_s": 9e-6, "head_s": 3e-8, "hidden_head_s": 0.0}
    fit = fit_points(Device(), measured("attention_decode", decode_shape(), made))
    assert fit.group == "attention_decode_bf16"
    assert fit.points == 120
    assert fit.p90_error < 0.01
    assert fit.constants["memory"] == pytest.approx(0.8, rel=0.02)
    assert fit.constants["floor_s"] == pytest.approx(9e-6, rel=0.02)
    assert fit.constants["head_s"] == pytest.approx(3e-8, rel=0.05)


def test_an_outlier_moves_little():
    made = {**ASSUMED["memory"], "floor_s": 3e-6, "memory": 0.5}
    points = measured("memory", {"bytes": 2.0 ** np.arange(10, 34)}, made)
    points.seconds[7] *= 100.0
    fit = fit_points(Device(), points)
    assert fit.constants["memory"] == pytest.approx(0.5, rel=0.02)


def test_shares_of_a_peak_stay_at_most_one():
    points = measured("attention_decode", decode_shape(), ASSUMED["attention_decode"] | {"memory": 1.7, "compute": 3.0})
    fit = fit_points(Device(), points)
    assert fit.constants["memory"] <= 1.0
    assert fit.constants["compute"] <= 1.0


def test_a_moe_module_is_two_grouped_products():
    shape = {"rows": np.full(2, 64.0), "experts": np.full(2, 8.0), "active": np.full(2, 8.0)}
    module = MeasuredPoints(
        op=MOE, dtype="bf16", shape=shape | {"hidden": np.full(2, 512.0), "intermediate": np.full(2, 256.0)},
        seconds=np.ones(2),
    )  # fmt: skip
    parts = [
        MeasuredPoints(op="grouped_gemm", dtype="bf16", shape=shape | {"n": np.full(2, n), "k": np.full(2, k)},
                       seconds=np.ones(2))
        for n, k in ((512.0, 512.0), (512.0, 256.0))
    ]  # fmt: skip
    whole, up, down = (predict(Device(), own, ASSUMED["grouped_gemm"]) for own in (module, *parts))
    assert whole.tolist() == (up + down).tolist()
    assert group_of(module) == "grouped_gemm_bf16"


def test_a_shared_latent_is_a_group_of_its_own():
    shape = decode_shape()
    points = MeasuredPoints(
        op="attention_decode", dtype="fp8", shape=shape | {"shared_kv": np.ones(120)}, seconds=np.ones(120)
    )
    assert group_of(points) == "latent_decode_fp8"


def test_octaves_weigh_the_same_however_densely_they_were_measured():
    points = MeasuredPoints(
        op="memory", dtype=None, shape={"bytes": np.array([2.0, 8.0, 8.1, 8.2])}, seconds=np.ones(4)
    )
    assert octave_weights(points) == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_every_reason_not_to_fit_is_named_at_once():
    few = measured("memory", {"bytes": np.ones(3)}, ASSUMED["memory"])
    fp8 = MeasuredPoints(op="gemm", dtype="fp8", shape=dict.fromkeys("mnk", np.ones(12)), seconds=np.ones(12))
    with pytest.raises(InputError) as caught:
        fit_device(Device(), [few, few, fp8])
    assert [str(problem) for problem in caught.value.problems] == [
        "memory: 2 sets of points; expected one",
        "memory: 3 points; expected at least 12",
        "memory: 3 points; expected at least 12",
        "gemm_fp8: some-device has no peak for 'fp8'",
    ]
