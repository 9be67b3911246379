"""Reads the number format of a checkpoint's weights from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.model.reading import ConfigReader

PLAIN: Final = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8",
}
METHODS: Final = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4"}
"""``quantization_config.quant_method`` → format; AWQ and GPTQ have 4 bits, or GPTQ 8; others are refused."""

ALGORITHMS: Final = {"FP8": "fp8", "FP8_PB_WO": "fp8", "NVFP4": "fp4", "W4A16_AWQ": "int4"}
"""``quantization_config.quant_algo`` of NVIDIA ModelOpt → format."""


def weight_format(read: ConfigReader) -> str:
    """Return the format of most weights; ``bf16`` when the configuration names none, as engines assume."""
    quantised = read.value("quantization_config")
    dtype = read.word(("dtype", "torch_dtype"))
    if quantised is not None:
        return _quantised(read, quantised)
    if dtype is None:
        return "bf16"
    name = dtype.removeprefix("torch.")
    if name in PLAIN:
        return PLAIN[name]
    key = read.present(("dtype", "torch_dtype")) or "dtype"
    read.fail(key, f"unknown format {dtype!r}; expected one of {', '.join(PLAIN)}")
    return "bf16"


def _quantised(read: ConfigReader, found: object) -> str:
    config = found if isinstance(found, Mapping) else {}
    method = config.get("quant_method")
    name = None
    if method == "compressed-tensors":
        name = _compressed(config)
    elif config.get("quant_algo") is not None:
        name = ALGORITHMS.get(str(config["quant_algo"]))
    elif method == "bitsandbytes":
        name = "int4" if config.get("load_in_4bit") else "int8" if config.get("load_in_8bit") else None
    elif method == "gptq" and config.get("bits") == 8:
        name = "int8"
    elif config.get("bits", 4) == 4:
        name = METHODS.get(str(method))
    if name is not None:
        return name
    known = ", ".join([*METHODS, "bitsandbytes", "modelopt", "compressed-tensors"])
    read.fail("quantization_config", f"expected a quant_method of a known format ({known}), but found {found!r}")
    return "bf16"


def _compressed(config: Mapping[str, object]) -> str | None:
    """Return the format of the first group of a compressed-tensors configuration."""
    groups = config.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    kind, bits = weights.get("type"), weights.get("num_bits")
    return {"float 8": "fp8", "int 8": "int8", "float 4": "fp4", "int 4": "int4"}.get(f"{kind} {bits}")
