"""What serving engines refuse to start, by their own rules, each with its message and its source.

Read in source, not run. vLLM: 0.33.0 (4ba787ec9), under vllm/; SGLang: 0.5.23, under sglang/srt/arg_groups/;
TensorRT-LLM: llmapi/llm_args.py (0004396720), llmapi/disagg_utils.py (0228a712) and its mapping (1.3); llm-d:
llm-d-modelservice 0.4.12 (3051935e). A rule looks at options as they would be given, by whomever, and at nothing that
clustersim's own rules decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from clustersim.interop.launch.asked import Asked
from clustersim.interop.launch.conditions import (
    balancers_odd,
    budget_low,
    commands_odd,
    connector_odd,
    context,
    data_parallel_odd,
    decode_context_heads,
    decode_context_odd,
    experts_odd,
    experts_world,
    file_odd,
    page_odd,
    runner_odd,
    sglang_world,
    too_large,
)
from clustersim.values import dataclass

_LONGEST: Final = 30
"""Letters of a value that is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A rule of an engine.

    Parameters
    ----------
    number : int
    engine : str
    source : str
        File and line.
    message : str
        As the engine words it, or what happens where it has no words.
    breaks : callable
        Whether what is asked for breaks it.
    fix : str
        Which keys of a scenario would mend it; empty where none is at fault.
    """

    number: int
    engine: str
    source: str
    message: str
    breaks: Callable[[Asked], bool]
    fix: str = ""


def refused(asked: Asked) -> list[Refusal]:
    """Return the rules of its engine that a command breaks."""
    return [rule for rule in REFUSALS if rule.engine == asked.engine and rule.breaks(asked)]


def values_named(asked: Asked, message: str) -> str:
    """Return the values of options that the message of a rule names: ``: tp_size 6, ep_size 4``; empty of none."""
    found = {}
    for word in dict.fromkeys(re.findall(r"[a-z]\w*_\w+", message)):
        value = asked.given(f"--{word.replace('_', '-')}") or asked.given(f"--{word}")
        if value is not None and len(value) <= _LONGEST:
            found[word] = value
    return f": {', '.join(f'{name} {value}' for name, value in found.items())}" if found else ""


def _rule(
    number: int, engine: str, source: str, message: str, breaks: Callable[[Asked], bool], fix: str = ""
) -> Refusal:
    return Refusal(number=number, engine=engine, source=source, message=message, breaks=breaks, fix=fix)


_S: Final = "sglang/srt/arg_groups/"
_V: Final = "vllm/"
REFUSALS: Final[tuple[Refusal, ...]] = (
    _rule(
        1,
        "sglang",
        _S + "validation_hook.py:179",
        "tp_size must be divisible by number of nodes",
        lambda one: sglang_world(one) % one.number("--nnodes") != 0,
    ),
    _rule(
        2,
        "sglang",
        _S + "parallel_hook.py:326",
        "an assertion without words: --tp-size must be divisible by --attn-dp-size",
        lambda one: one.number("--tp-size") % one.number("--attn-dp-size") != 0,
    ),
    _rule(
        3,
        "sglang",
        _S + "parallel_hook.py:288",
        "data-parallel replicas combined with attention data parallelism are not supported",
        lambda one: one.number("--dp-size") > 1 and one.number("--attn-dp-size") > 1,
    ),
    _rule(
        4,
        "sglang",
        _S + "validation_hook.py:199",
        "multi-node data-parallel replicas are not supported",
        lambda one: one.number("--dp-size") > 1 and one.number("--nnodes") != 1,
    ),
    _rule(
        5,
        "sglang",
        _S + "parallel_hook.py:162",
        "tp_size must be divisible by attn_dp_size * attn_cp_size",
        lambda one: (
            one.number("--attn-cp-size") > 1
            and one.number("--tp-size") % (one.number("--attn-dp-size") * one.number("--attn-cp-size")) != 0
        ),
    ),
    _rule(
        6,
        "sglang",
        _S + "parallel_hook.py:152, 250",
        "--cp-strategy must be set; and no --dcp-size beside it",
        lambda one: (
            one.on("--enable-prefill-cp") and (one.given("--cp-strategy") is None or one.number("--dcp-size") > 1)
        ),
    ),
    _rule(7, "sglang", _S + "parallel_hook.py:178", "ep_size * moe_dp_size must be equal to tp_size", experts_odd),
    _rule(
        8,
        "sglang",
        _S + "moe_hook.py:89",
        "expert parallel size must be 1 or the same as the tensor parallel size",
        runner_odd,
    ),
    _rule(
        9,
        "sglang",
        _S + "validation_hook.py:244",
        "chunked_prefill_size must be divisible by page_size",
        page_odd,
        "take a serving.max_batch_tokens that serving.kv_block_tokens divides",
    ),
    _rule(
        10,
        "sglang",
        _S + "validation_hook.py:161",
        "PP + speculative decoding (MTP) is only supported on prefill nodes",
        lambda one: (
            one.number("--pp-size") > 1
            and one.given("--speculative-algorithm") is not None
            and one.given("--disaggregation-mode") != "prefill"
        ),
    ),
    _rule(
        11,
        "sglang",
        _S + "speculative_hook.py:1160",
        "an assertion: --speculative-num-steps must be set with "
        "--speculative-eagle-topk or --speculative-num-draft-tokens",
        lambda one: (
            one.given("--speculative-num-steps") is None
            and (one.given("--speculative-eagle-topk") or one.given("--speculative-num-draft-tokens")) is not None
        ),
    ),
    _rule(
        12,
        "sglang",
        _S + "pd_disaggregation_hook.py",
        "Prefill server does not support 'fake'",
        lambda one: (
            (one.given("--disaggregation-mode"), one.given("--disaggregation-transfer-backend")) == ("prefill", "fake")
        ),
    ),
    _rule(
        13,
        "sglang",
        "sglang/srt (ValueError unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1)",
        "--context-length is longer than the model's",
        context,
    ),
    _rule(
        14,
        "vllm",
        _V + "config/model.py:1560",
        "Total number of attention heads must be divisible by tensor parallel size",
        lambda one: one.heads % one.number("--tensor-parallel-size") != 0,
        "take a plan.tp that divides the heads",
    ),
    _rule(
        15,
        "vllm",
        _V + "config/model.py:1500",
        "Number of experts in the model must be greater than 0 when expert parallelism is enabled",
        lambda one: one.on("--enable-expert-parallel") and not one.experts,
    ),
    _rule(
        16,
        "vllm",
        _V + "config/parallel.py",
        "World size is larger than the number of available GPUs in this node",
        too_large,
    ),
    _rule(17, "vllm", _V + "config/parallel.py", "tp_size must be divisible by dcp_size", decode_context_odd),
    _rule(
        18,
        "vllm",
        _V + "config/model.py:1582",
        "Decode context parallelism for GQA/MQA requires more tensor parallel ranks than K/V heads",
        decode_context_heads,
    ),
    _rule(
        19,
        "vllm",
        _V + "config/parallel.py",
        "data_parallel_size_local must be at most data_parallel_size; Non-MoE "
        "models do not support external data parallel mode",
        data_parallel_odd,
    ),
    _rule(
        20,
        "vllm",
        _V + "engine/arg_utils.py",
        "Cannot use more than one data parallel load balancing mode; the hybrid one needs --data-parallel-size-local",
        balancers_odd,
    ),
    _rule(
        21,
        "vllm",
        _V + "config/scheduler.py:332",
        "max_num_batched_tokens must be greater than or equal to max_num_seqs, "
        "and to max_model_len without chunked prefill",
        budget_low,
        "raise serving.max_batch_tokens, lower serving.max_batch_requests or model.config.max_position_embeddings, or "
        "take serving.scheduler=chunked_prefill",
    ),
    _rule(
        22,
        "vllm",
        _V + "config/kv_transfer.py; nixl/base_worker.py:887",
        "Please specify kv_role; and no kv_consumer with pipeline parallelism",
        connector_odd,
    ),
    _rule(
        23,
        "trtllm",
        "tensorrt_llm/mapping.py",
        "moe_tp_size * moe_ep_size must equal to moe_world_size; no experts beside context parallelism but Helix",
        experts_world,
    ),
    _rule(
        24,
        "trtllm",
        "tensorrt_llm/llmapi/llm_args.py, disagg_utils.py",
        "free_gpu_memory_fraction must be in [0, 1]; urls must be num_instances; MPI ranks must be tp · pp · cp",
        file_odd,
    ),
    _rule(
        25,
        "llm-d",
        "llm-d-modelservice templates/_helpers.tpl:658",
        "modelCommand must be vllmServe, imageDefault or custom",
        commands_odd,
    ),
    _rule(
        26,
        "vllm",
        _V + "config/model.py (ValueError unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)",
        "User-specified max_model_len is greater than the derived max_model_len",
        context,
        "lower serving.context_window",
    ),
)
"""Rules by number."""
