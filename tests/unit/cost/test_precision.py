"""Number formats."""

from __future__ import annotations

import pytest

from clustersim.cost import Precision, dtype_bytes
from clustersim.errors import InputError


def test_block_scales_count_as_bytes():
    assert dtype_bytes("fp4") == (16 * 0.5 + 1) / 16
    assert dtype_bytes("mxfp4") == (32 * 0.5 + 1) / 32
    assert dtype_bytes("int4") == (128 * 0.5 + 2) / 128


def test_each_role_has_its_bytes():
    precision = Precision(weights="fp8", activations="bf16", kv_cache="fp8")
    assert (precision.weight_bytes, precision.activation_bytes, precision.kv_bytes) == (1.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("weights", "flops", "expected"),
    [
        ("fp8", {"bf16": 1.0, "fp8": 2.0}, "fp8"),
        ("fp8", {"bf16": 1.0}, "bf16"),
        ("mxfp4", {"bf16": 1.0, "fp4": 4.0}, "fp4"),
        ("int4", {"bf16": 1.0, "fp4": 4.0}, "bf16"),
    ],
)
def test_weights_are_multiplied_natively_where_the_device_can(weights, flops, expected):
    assert Precision(weights=weights).multiply_dtype(flops) == expected


def test_the_format_of_products_can_be_chosen():
    assert Precision(weights="fp8", multiply="bf16").multiply_dtype({"bf16": 1.0, "fp8": 2.0}) == "bf16"


def test_every_unknown_format_is_named_with_the_nearest():
    with pytest.raises(InputError) as caught:
        Precision(weights="bf61", kv_cache="fp9")
    assert [str(problem) for problem in caught.value.problems] == [
        "precision.weights: unknown number format 'bf61'; did you mean 'bf16'?",
        "precision.kv_cache: unknown number format 'fp9'; did you mean 'fp8'?",
    ]
    with pytest.raises(InputError, match="unknown number format 'float'"):
        dtype_bytes("float")
