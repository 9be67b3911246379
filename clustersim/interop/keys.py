"""Keys of a scenario and the options of ``vllm serve`` that say them: one table, read in both directions.

``from-vllm`` reads an option into its key, ``launch`` writes a key as its option; formats and places have a table of
words each, of which ``launch`` writes the first that means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

VLLM: Final[Mapping[str, str]] = {
    "plan.tp": "--tensor-parallel-size",
    "plan.pp": "--pipeline-parallel-size",
    "plan.dp": "--data-parallel-size",
    "plan.ep": "--enable-expert-parallel",
    "plan.ep.placement": "--expert-placement-strategy",
    "plan.ep.overlap": "--enable-dbo",
    "plan.ep.overlap_decode_tokens": "--dbo-decode-token-threshold",
    "plan.ep.overlap_prefill_tokens": "--dbo-prefill-token-threshold",
    "model.config.max_position_embeddings": "--max-model-len",
    "precision.weights": "--quantization",
    "precision.activations": "--dtype",
    "precision.kv_cache": "--kv-cache-dtype",
    "serving.scheduler": "--enable-chunked-prefill",
    "serving.order.by": "--scheduling-policy",
    "serving.max_batch_requests": "--max-num-seqs",
    "serving.max_batch_tokens": "--max-num-batched-tokens",
    "serving.long_prompt_tokens": "--long-prefill-token-threshold",
    "serving.kv_block_tokens": "--block-size",
    "serving.kv_blocks": "--num-gpu-blocks-override",
    "serving.memory_utilization": "--gpu-memory-utilization",
    "serving.prefix_caching": "--enable-prefix-caching",
    "serving.engine.graph_max_tokens": "--max-cudagraph-capture-size",
}
"""Key → option."""

STAGE_LAYERS: Final = "VLLM_PP_LAYER_PARTITION"
"""Variable of vLLM's environment: how many layers each stage has (vllm/envs.py)."""
DTYPES: Final[Mapping[str, str]] = {
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32",
}  # fmt: skip
KV_DTYPES: Final[Mapping[str, str]] = {
    "float16": "fp16", "bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_inc": "fp8",
}  # fmt: skip
PLACES: Final = {"linear": "contiguous", "round_robin": "strided"}
"""vLLM's ``--expert-placement-strategy`` → clustersim's word."""


def word_for(value: object, words: Mapping[Key, Value]) -> Key | None:
    """Return the first word that means a value; None where none does.

    Examples
    --------
    >>> word_for("fp8", KV_DTYPES), word_for("int8", KV_DTYPES)
    ('fp8', None)
    """
    return next((word for word, meant in words.items() if meant == value), None)
