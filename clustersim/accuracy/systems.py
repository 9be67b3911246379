"""From the words of a row to parts of a scenario: topology, model, number formats, serving configuration.

Unsaid in the rows and taken here: what the measured software does when it is not told otherwise. Engines
are the nearest that ``scenarios/engines`` has. One node is taken, and the devices of a plan are its first ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from clustersim.accuracy.row import Inexpressible, Row

Part = dict[str, Any]
Value = TypeVar("Value")

TOPOLOGIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "RTX 4090": {"name": "rtx-4090-node"},
    "RTX PRO 6000 Blackwell Server": {"name": "rtx-pro-6000-node"},
    "RTXPRO6000": {"name": "rtx-pro-6000-node"},
    "H100 (SXM class, node link 900 GB/s duplex)": {"name": "dgx-h100"},
    "H100-SXM-80GB": {"name": "dgx-h100"},
    "h100_sxm": {"name": "dgx-h100"},
    "H200-SXM-141GB": {"name": "dgx-h200"},
    "h200_sxm": {"name": "dgx-h200"},
    "A100-SXM-80GB": {"name": "dgx-a100"},
    "A100-SXM4-80GB": {"name": "dgx-a100"},
    "A100-80GB": {"name": "dgx-a100"},
    "L40S-48GB": {"name": "l40s-node"},
    "TPU v6e-8": {"name": "tpu-v6e", "dims": [2, 4]},
}
"""Hardware of the rows → topology; the TPU slice of eight chips is 2 × 4 (Google's documentation of v6e)."""

MODELS: Final[Mapping[str, str | Mapping[str, Any]]] = {
    "Llama-2-7B": "llama-2-7b",
    "LLaMA-v3.1-8B": "llama-3.1-8b",
    "Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "LLaMA-v3.1-70B": "llama-3.1-70b",
    "Llama-3.1-70B": "llama-3.1-70b",
    "Llama-3.1-70B(-Instruct)": "llama-3.1-70b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Llama-3.3-70B": "llama-3.3-70b",
    # TensorRT-LLM attends to the whole context unless max_attention_window says otherwise, in version 0.1 too
    "Mistral-7B": {"name": "mistral-7b", "config": {"sliding_window": None}},
    "Mixtral-8x7B": "mixtral-8x7b",
    "OPT-13B": "opt-13b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen3-8B": "qwen3-8b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
}

WEIGHTS: Final = {
    "bf16": "bf16", "bf16/fp16": "bf16", "fp16": "fp16", "FP16": "fp16", "fp8": "fp8", "FP8": "fp8", "FP4": "fp4",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What a serving framework does unless it is told otherwise, and the engine that stands for it.

    Parameters
    ----------
    engine : str
        A file of ``scenarios/engines``.
    scheduler : str
        Scheduler of the scenario.
    max_batch_tokens, max_batch_requests, kv_block_tokens : int
        Defaults of the framework.
    """

    engine: str
    scheduler: str = "chunked_prefill"
    max_batch_tokens: int = 8192
    max_batch_requests: int = 1024
    kv_block_tokens: int = 16


_TRTLLM: Final = Framework(engine="trtllm-1.0", max_batch_requests=2048, kv_block_tokens=32)

FRAMEWORKS: Final[Mapping[str, Framework]] = {
    # vLLM v1, server on devices of 70 GiB and more: 8192 tokens and 1024 sequences (EngineArgs._set_default_args)
    "vLLM 0.19.0 (prefix caching on)": Framework(engine="vllm-0.19"),
    "vLLM (2025)": Framework(engine="vllm-0.12"),
    "vllm 0.12.0": Framework(engine="vllm-0.12", max_batch_tokens=2048),
    "vllm nan": Framework(engine="vllm-0.19"),
    "vLLM TPU": Framework(engine="vllm-0.19"),
    # v0.6 chunks prefills by itself where the model's context exceeds 32K, then 512 tokens and 256 sequences
    "vLLM 0.6.0": Framework(engine="vllm-0.6", max_batch_tokens=512, max_batch_requests=256),
    # v0.2 and 0.3: whole prompts before decodes; max(2048, max_model_len) tokens, and OPT's context is 2048
    "vllm (early 2024)": Framework(
        engine="vllm-0.3-eager", scheduler="continuous", max_batch_tokens=2048, max_batch_requests=256
    ),
    # trtllm-bench: 2048 requests, 8192 tokens, context chunks beside generation
    "TensorRT-LLM 0.9.0": _TRTLLM,
    "TensorRT-LLM 0.14.0": _TRTLLM,
    "TensorRT-LLM 1.0": _TRTLLM,
    "trtllm 1.0.0rc3": _TRTLLM,
    "SGLang": Framework(engine="sglang-0.5", max_batch_requests=256),
}


def topology(row: Row) -> Part:
    """Return the topology of a row: one node of its hardware."""
    found = dict(_known(TOPOLOGIES, row.hardware, "device"))
    return found if "dims" in found else found | {"nodes": 1}


def model(row: Row) -> str | Part:
    """Return the model of a row."""
    found = _known(MODELS, row.model, "model")
    return found if isinstance(found, str) else dict(found)


def framework(row: Row) -> Framework:
    """Return what stands for the framework of a row."""
    return _known(FRAMEWORKS, row.framework, "engine")


def precision(row: Row) -> Part:
    """Return the number formats of a row.

    K/V is in fp8 where NVIDIA published TensorRT-LLM on its own quantised checkpoints (their recipe quantises
    K/V as well), else in 16 bit, which engines take unless they are told otherwise.
    """
    weights = _known(WEIGHTS, row.precision, "number format")
    quantised_kv = row.framework.startswith("TensorRT-LLM") and weights in ("fp8", "fp4")
    return {"weights": weights, "kv_cache": "fp8" if quantised_kv else "bf16"}


def serving(row: Row) -> Part:
    """Return the serving part of a row, with the framework's defaults."""
    chosen = framework(row)
    return {
        "engine": chosen.engine,
        "scheduler": chosen.scheduler,
        "max_batch_tokens": chosen.max_batch_tokens,
        "max_batch_requests": chosen.max_batch_requests,
        "kv_block_tokens": chosen.kv_block_tokens,
    }


def base(row: Row) -> Part:
    """Return a scenario without plan and workload."""
    return {
        "name": row.id,
        "topology": topology(row),
        "model": model(row),
        "precision": precision(row),
        "serving": serving(row),
    }


def _known(table: Mapping[str, Value], word: str, what: str) -> Value:
    if word not in table:
        raise Inexpressible(f"no {what} in the catalogs for {word!r}")
    return table[word]
