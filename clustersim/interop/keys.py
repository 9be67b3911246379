"""Keys of a scenario and the options of engines that say them: one table for each, read in both directions.

``from-command`` reads an option into its key, ``launch`` writes a key as its option; formats, places and balancers have
a table of words each, of which ``launch`` writes the first that means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

VLLM: Final[Mapping[str, str]] = {
    "model": "--model",
    "plan.tp": "--tensor-parallel-size",
    "plan.pp": "--pipeline-parallel-size",
    "plan.dp": "--data-parallel-size",
    "plan.stages": "VLLM_PP_LAYER_PARTITION",
    "plan.ep.degree": "--enable-expert-parallel",
    "plan.ep.placement": "--expert-placement-strategy",
    "plan.ep.exchange": "--all2all-backend",
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
    "serving.admission": "--scheduler-reserve-full-isl",
    "serving.engine.graph_max_tokens": "--max-cudagraph-capture-size",
}
"""Key → option of ``vllm serve``; of stages a variable of the environment, how many layers each has (vllm/envs.py)."""
SGLANG: Final[Mapping[str, str]] = {
    "model": "--model-path",
    "plan.tp": "--tp-size",
    "plan.pp": "--pp-size",
    "plan.dp": "--dp-size",
    "plan.stages": "SGLANG_PP_LAYER_PARTITION",
    "plan.ep.degree": "--ep-size",
    "plan.ep.exchange": "--deepep-mode",
    "plan.ep.overlap": "--enable-two-batch-overlap",
    "plan.ep.redundant": "--ep-num-redundant-experts",
    "model.config.max_position_embeddings": "--context-length",
    "precision.activations": "--dtype",
    "precision.weights": "--quantization",
    "precision.kv_cache": "--kv-cache-dtype",
    "serving.router": "--load-balance-method",
    "serving.scheduler": "--enable-mixed-chunk",
    "serving.order.by": "--enable-priority-scheduling",
    "serving.max_batch_requests": "--max-running-requests",
    "serving.max_batch_tokens": "--max-prefill-tokens",
    "serving.kv_block_tokens": "--page-size",
    "serving.kv_blocks": "--max-total-tokens",
    "serving.memory_utilization": "--mem-fraction-static",
    "serving.prefix_caching": "--disable-radix-cache",
    "serving.queue_limit": "--max-queued-requests",
    "serving.engine.graph_max_tokens": "--cuda-graph-max-bs-decode",
}
"""The same for ``python -m sglang.launch_server``."""
TRTLLM: Final[Mapping[str, str]] = {
    "plan.tp": "--tp_size",
    "plan.pp": "--pp_size",
    "plan.sp": "--cp_size",
    "plan.ep.degree": "--ep_size",
    "plan.ep.scope": "--enable_attention_dp",
    "model.config.max_position_embeddings": "--max_seq_len",
    "precision.kv_cache": "--kv_cache_dtype",
    "serving.scheduler": "--enable_chunked_prefill",
    "serving.max_batch_requests": "--max_batch_size",
    "serving.max_batch_tokens": "--max_num_tokens",
    "serving.memory_utilization": "--kv_cache_free_gpu_memory_fraction",
}
"""Key → option of ``trtllm-serve``; ``launch`` writes them into the YAML file beside it."""

DTYPES: Final[Mapping[str, str]] = {
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32",
}  # fmt: skip
KV_DTYPES: Final[Mapping[str, str]] = {
    "float16": "fp16", "bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_inc": "fp8",
}  # fmt: skip
SGLANG_KV_DTYPES: Final = {"bf16": "bf16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
BALANCERS: Final = {"round_robin": "round_robin", "auto": "round_robin", "total_requests": "least_outstanding"}
"""SGLang's ``--load-balance-method`` → router; ``auto`` takes turns (serving_hook.py:217)."""
ALL2ALL: Final[Mapping[str, str]] = {
    "allgather_reducescatter": "all_gather", "naive": "all_gather", "pplx": "all_to_all",
    "deepep_high_throughput": "deepep_normal", "deepep_low_latency": "deepep_low_latency",
}  # fmt: skip
"""vLLM's ``--all2all-backend`` → exchange of a plan; ``naive`` broadcasts what an all-gather brings."""
DEEPEP_MODES: Final = {"auto": "all_to_all", "normal": "deepep_normal", "low_latency": "deepep_low_latency"}
"""SGLang's ``--deepep-mode`` → exchange of a plan; ``auto`` is both in turn, and what costs neither stands for it."""
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
