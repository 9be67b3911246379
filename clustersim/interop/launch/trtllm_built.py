"""What starts TensorRT-LLM before 1.0: a checkpoint that is converted, an engine that is built of it, and Triton.

Limits are those of ``trtllm-build`` (tensorrt_llm/commands/build.py:79-83 at 71d8d4d3, 0.9; builder.py:477-479 and
plugin.py:186 at 0ca26909, 0.14), policies those of executor.h:574 there. Parameters of Triton's backend stand in the
config.pbtxt that truss 0.9.20 ships for TensorRT-LLM 0.9.0 (truss/templates/trtllm/packages). How options of converters
and of scripts are spelt, and the folders of converters, is general knowledge, not re-fetched. Not written: several
nodes, two pools, attention data parallelism, and models that no converter in the table takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clustersim.interop.launch.account import Account
from clustersim.interop.launch.server import Started
from clustersim.interop.launch.versions import Version, has, reaches

FOLDERS: Final = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "opt": "opt"}
"""``model_type`` of a config.json → folder of TensorRT-LLM's examples with its converter."""
LATER: Final = "take --set serving.engine=trtllm-1.0"
_MANY: Final = 1_000_000
"""Drawn requests of which the longest lengths are those of all."""
Words = tuple[tuple[str, ...], ...]


def build(started: Started, account: Account, version: Version) -> None:
    """Turn the options of release 1.0 into the commands of a release before it; what those cannot say is refused.

    Parameters
    ----------
    started : Started
        With the options of 1.0 in its file.
    account : Account
    version : tuple of int
    """
    server, name = started.server, f"TensorRT-LLM {'.'.join(map(str, version))}"
    config: Mapping[str, Any] = server.scenario.document["model"].get("config", {})
    folder, shipped = (
        FOLDERS.get(str(config.get("model_type"))),
        server.model.name.startswith(("llama-3.1-", "llama-3.3-")),
    )
    if folder is None:
        account.refuse(f"no converter of {name} is known for {server.model.name}; {LATER}")
    scaled = dict(config.get("rope_scaling") or {}).get("rope_type") == "llama3"
    if (shipped or scaled) and not reaches(version, "0.12.0"):
        account.refuse(f"{name} does not know the rotary scaling of {server.model.name}, which is there from 0.12 on")
    if server.pool:
        account.refuse(f"{name} hands no K/V from one server to another; {LATER}")
    if started.config.get("enable_attention_dp"):
        account.refuse(f"{name} has no attention data parallelism; {LATER}")
    if started.nodes > 1:
        account.refuse(f"how {name} starts on several nodes is not known here; take fewer devices, or {LATER[5:]}")
    if started.config.get("moe_expert_parallel_size", 1) > 1 and not has("trtllm", "--moe_ep_size", version):
        account.refuse(f"how {name} spreads experts over ranks is not known here; take plan.ep=1")
    checkpoint, engine, models = (f"{server.name}-{part}" for part in ("checkpoint", "engine", "models"))
    started.version = version
    started.before = (
        ("checkpoint", _converted(started, account, f"examples/{folder}", checkpoint)),
        ("engine", _built(started, account, checkpoint, engine)),
        ("models", (("cp", "-r", "all_models/inflight_batcher_llm", models),)),
        ("parameters", _parameters(started, engine, models)),
    )
    started.program = ("python", "scripts/launch_triton_server.py")
    started.options = {"--world_size": str(started.devices), "--model_repo": models}
    account.note(
        f"converters are those of TensorRT-LLM's examples, all_models, tools and scripts those of Triton's "
        f"tensorrtllm_backend, both of {name}; preprocessing, postprocessing and ensemble need a tokenizer_dir, too."
    )


def _converted(started: Started, account: Account, folder: str, checkpoint: str) -> Words:
    """Return the command that converts weights, or quantises them where they become narrower."""
    server, config = started.server, started.config
    precision, held = server.scenario.precision, server.model.default_weight_dtype
    weights, eight_bits = precision.weights or held, config["kv_cache_config"]["dtype"] == "fp8"
    ranks = [("--tp_size", str(config["tensor_parallel_size"])), ("--pp_size", str(config["pipeline_parallel_size"]))]
    given = [("--model_dir", server.model_name), ("--output_dir", checkpoint), ("--dtype", config["dtype"])]
    if config.get("moe_expert_parallel_size", 1) > 1:
        ranks += [("--moe_tp_size", str(config["moe_tensor_parallel_size"]))]
        ranks += [("--moe_ep_size", str(config["moe_expert_parallel_size"]))]
    if weights == "fp8":
        more = [("--qformat", "fp8"), *([("--kv_cache_dtype", "fp8")] if eight_bits else [])]
        return (("python", "examples/quantization/quantize.py"), *given, *more, *ranks)
    if eight_bits:
        account.refuse(
            "K/V in fp8 beside weights in 16 bits is not known of converters; take precision.weights=fp8 too"
        )
    narrow = [("--use_weight_only",), ("--weight_only_precision", weights)] if weights in ("int8", "int4") else []
    if not narrow and weights not in ("bf16", "fp16", "fp32"):
        account.refuse(f"no converter is known that makes weights {weights}; take bf16, fp8, int8 or int4")
    return (("python", f"{folder}/convert_checkpoint.py"), *given, *narrow, *ranks)


def _built(started: Started, account: Account, checkpoint: str, engine: str) -> Words:
    """Return the ``trtllm-build`` of an engine."""
    config, version = started.config, started.version
    cache = config["kv_cache_config"]
    words = [("trtllm-build",), ("--checkpoint_dir", checkpoint), ("--output_dir", engine)]
    words += [("--gemm_plugin", config["dtype"]), ("--max_batch_size", str(config["max_batch_size"]))]
    words += [("--max_num_tokens", str(config["max_num_tokens"])), *_lengths(started, account)]
    words += [("--remove_input_padding", "enable"), ("--tokens_per_block", str(cache["tokens_per_block"]))]
    paged = has("trtllm", "--kv_cache_type", version)
    words.append(("--kv_cache_type", "paged") if paged else ("--paged_kv_cache", "enable"))
    if config["enable_chunked_prefill"] or cache["enable_block_reuse"]:  # both read the cache in attention over prompts
        words.append(("--use_paged_context_fmha", "enable"))
    return tuple(words)


def _lengths(started: Started, account: Account) -> Words:
    """Return the limits of lengths: of whole sequences, or, before there was one, of prompts and of outputs."""
    if has("trtllm", "--max_seq_len", started.version):
        longest = started.config.get("max_seq_len")
        return () if longest is None else (("--max_input_len", str(longest)), ("--max_seq_len", str(longest)))
    requests = started.server.scenario.with_few_requests(_MANY).requests()
    account.note("limits of prompts and of outputs are the longest ones of the workload.")
    limits = zip(("--max_input_len", "--max_output_len"), (requests.prompt_tokens, requests.output_tokens), strict=True)
    return tuple((name, str(max(1, int(lengths.max())))) for name, lengths in limits)


def _parameters(started: Started, engine: str, models: str) -> Words:
    """Return the command that fills in the parameters of Triton's backend."""
    config = started.config
    cache, policy = config["kv_cache_config"], dict(config.get("scheduler_config") or {})
    found = {
        "triton_max_batch_size": config["max_batch_size"],
        "decoupled_mode": "true",
        "max_beam_width": 1,
        "engine_dir": engine,
        "batching_strategy": "inflight_fused_batching",
        "batch_scheduler_policy": str(policy.get("capacity_scheduler_policy", "GUARANTEED_NO_EVICT")).lower(),
        "kv_cache_free_gpu_mem_fraction": cache["free_gpu_memory_fraction"],
        "enable_kv_cache_reuse": str(cache["enable_block_reuse"]).lower(),
        "enable_chunked_context": str(config["enable_chunked_prefill"]).lower(),
        "max_queue_delay_microseconds": 0,
    }
    if reaches(started.version, "0.10.0"):
        found = {"triton_backend": "tensorrtllm", **found}
    if "max_tokens" in cache:
        found["max_tokens_in_paged_kv_cache"] = cache["max_tokens"]
    text = ",".join(f"{key}:{value}" for key, value in found.items())
    return (("python", "tools/fill_template.py", "-i", f"{models}/tensorrt_llm/config.pbtxt"), (text,))
