"""Which constants and which peak a roofline takes, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from clustersim.cost import Precision, RooflineCost
from clustersim.cost.kernels import ASSUMED
from clustersim.cost.roofline import constants_of
from clustersim.errors import InputError


@dataclass(frozen=True)
class Device:
    kernels: dict = field(default_factory=dict)
    flops: dict = field(default_factory=lambda: {"bf16": 1e12})
    name: str = "some-device"
    memory_bytes_per_s: float = 1e12


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["gemm_fp8", "gemm_bf16", "gemm"], 8.0),
        (["gemm_bf16", "gemm"], 16.0),
        (["gemm"], 1.0),
        ([], ASSUMED["gemm"]["floor_s"]),
    ],
)
def test_a_format_takes_its_own_group_then_that_of_bf16_then_what_is_assumed(groups, expected):
    floors = {"gemm_fp8": 8.0, "gemm_bf16": 16.0, "gemm": 1.0}
    device = Device(kernels={group: {"floor_s": floors[group]} for group in groups})
    assert constants_of(device, "gemm", "fp8")["floor_s"] == expected


def test_constants_that_a_group_leaves_out_are_assumed():
    device = Device(kernels={"gemm_bf16": {"floor_s": 1.0}})
    assert constants_of(device, "gemm", "bf16") == {**ASSUMED["gemm"], "floor_s": 1.0}


def test_every_mistake_in_kernels_is_named_at_once():
    device = Device(
        kernels={"gem_bf16": {}, "gemm_bf16": {"flor_s": 1.0, "compute": 0.0, "floor_s": -1.0, "memory": 1e400}}
    )
    with pytest.raises(InputError) as caught:
        RooflineCost(device, Precision())
    assert [str(problem) for problem in caught.value.problems] == [
        "some-device: kernels.gem_bf16: unknown group; did you mean 'gemm'?",
        "some-device: kernels.gemm_bf16.flor_s: unknown constant; did you mean 'floor_s'?",
        "some-device: kernels.gemm_bf16.compute: expected a number from 1e-06 to 1, but found 0.0",
        "some-device: kernels.gemm_bf16.floor_s: expected a number from 0 to 1, but found -1.0",
        "some-device: kernels.gemm_bf16.memory: expected a number from 1e-06 to 1, but found inf",
    ]


def test_fp16_takes_the_peak_of_bf16_where_it_has_none_of_its_own():
    sixteen = Precision(weights="fp16", activations="fp16", kv_cache="fp16")
    shape = {"m": 64, "n": 4096, "k": 4096}
    assert RooflineCost(Device(), sixteen).seconds("gemm", shape) == RooflineCost(Device(), Precision()).seconds(
        "gemm", shape
    )


def test_a_format_that_must_be_multiplied_and_cannot_is_refused():
    with pytest.raises(InputError, match="some-device has no peak for 'fp8'; it has bf16"):
        RooflineCost(Device(), Precision(multiply="fp8"))
