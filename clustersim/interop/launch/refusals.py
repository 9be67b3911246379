"""What serving engines refuse to start, by their own rules, each with its message and its source.

Read in source, not run. vLLM: 0.33.0 (4ba787ec9), under vllm/; SGLang: 0.5.23, under sglang/srt/arg_groups/;
TensorRT-LLM: llmapi/llm_args.py (0004396720), llmapi/disagg_utils.py (0228a712) and its mapping (1.3); llm-d:
llm-d-modelservice 0.4.12 (3051935e). A rule looks at options as they would be given, by whomever, and at nothing that
clustersim's own rules decide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from clustersim.interop.options import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one server is asked for.

    Parameters
    ----------
    engine : str
        ``vllm``, ``sglang``, ``trtllm`` or ``llm-d``.
    options : Mapping of str to str
        Long option → value; of a switch ``true`` or ``false``.
    config : Mapping
        A YAML file beside them: options of TensorRT-LLM, its pools, or values of the chart of llm-d.
    heads, kv_heads, experts, positions : int
        Of the model; 0 experts: it is dense, 0 positions: no limit is known.
    latent : bool
        Whether its attention is MLA.
    devices_per_node : int
    """

    engine: str
    options: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    heads: int = 32
    kv_heads: int = 8
    experts: int = 0
    positions: int = 0
    latent: bool = False
    devices_per_node: int = 8

    def number(self, name: str, default: int = 1) -> int:
        """Return an option as a number."""
        return int(self.given(name) or default)

    def given(self, name: str) -> str | None:
        """Return an option, also by its key in the YAML file of TensorRT-LLM."""
        value = self.options.get(name)
        if value is None and name.startswith("--"):
            value = self.config.get(_KEYS.get(name, name[2:].replace("-", "_")))
        return None if value is None else str(value)

    def on(self, name: str) -> bool:
        """Tell whether a switch is on."""
        return self.options.get(name) == "true"

    def whole_number(self, name: str) -> int | None:
        """Return a number as vLLM reads it; None where it is not given, or left to the engine."""
        value = self.options.get(name)
        return None if value is None or value in ("-1", "auto") else whole(value)


_LONGEST: Final = 30
"""Letters of a value that is told."""
_KEYS: Final = {
    "--tp_size": "tensor_parallel_size",
    "--pp_size": "pipeline_parallel_size",
    "--cp_size": "context_parallel_size",
    "--ep_size": "moe_expert_parallel_size",
}


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


def _sglang_world(asked: Asked) -> int:
    return asked.number("--tp-size") * asked.number("--pp-size")


def _page_odd(asked: Asked) -> bool:
    chunk = asked.number("--chunked-prefill-size", -1) // asked.number("--attn-dp-size")
    decodes = asked.given("--disaggregation-mode") == "decode"
    return not decodes and chunk > 0 and chunk % asked.number("--page-size") != 0


def _context(asked: Asked) -> bool:
    longest = asked.given("--context-length")
    return longest is not None and 0 < asked.positions < int(longest)


def _experts_odd(asked: Asked) -> bool:
    moe_dp, ep = asked.number("--moe-dp-size"), asked.number("--ep-size")
    return moe_dp > 1 and (asked.number("--pp-size") > 1 or (ep > 1 and ep * moe_dp != asked.number("--tp-size")))


def _runner_odd(asked: Asked) -> bool:
    runner = asked.given("--moe-runner-backend") in ("flashinfer_cutlass", "flashinfer_cutedsl")
    return runner and asked.number("--ep-size") not in (1, asked.number("--tp-size"))


def _vllm_world(asked: Asked) -> int:
    tp, pp = asked.number("--tensor-parallel-size"), asked.number("--pipeline-parallel-size")
    return tp * pp * asked.number("--prefill-context-parallel-size")


def _too_large(asked: Asked) -> bool:
    one_node = asked.given("--nnodes") is None and asked.given("--distributed-executor-backend") != "ray"
    return one_node and _vllm_world(asked) > asked.devices_per_node


def _decode_context_odd(asked: Asked) -> bool:
    tp, dcp = asked.number("--tensor-parallel-size"), asked.number("--decode-context-parallel-size")
    pcp = asked.number("--prefill-context-parallel-size")
    return bool(tp % dcp) if pcp == 1 else dcp not in (1, pcp, tp * pcp)


def _decode_context_heads(asked: Asked) -> bool:
    dcp = asked.number("--decode-context-parallel-size")
    return not asked.latent and dcp > 1 and asked.number("--tensor-parallel-size") <= asked.kv_heads


def _data_parallel_odd(asked: Asked) -> bool:
    local = asked.number("--data-parallel-size-local", 0)
    outside = asked.on("--data-parallel-external-lb") or asked.given("--data-parallel-rank") is not None
    return local > asked.number("--data-parallel-size") or (outside and not asked.experts)


def _balancers_odd(asked: Asked) -> bool:
    hybrid = asked.on("--data-parallel-hybrid-lb")
    outside = asked.on("--data-parallel-external-lb") or asked.given("--data-parallel-rank") is not None
    return (hybrid and outside) or (hybrid and asked.given("--data-parallel-size-local") is None)


def _budget_low(asked: Asked) -> bool:
    budget = asked.whole_number("--max-num-batched-tokens")
    many, longest = asked.whole_number("--max-num-seqs"), asked.whole_number("--max-model-len") or asked.positions
    unchunked = asked.options.get("--enable-chunked-prefill") == "false"
    return budget is not None and ((many is not None and budget < many) or (unchunked and budget < longest))


def _connector_odd(asked: Asked) -> bool:
    text = asked.given("--kv-transfer-config")
    connector = json.loads(text) if text is not None else {}
    name, role = connector.get("kv_connector"), connector.get("kv_role")
    receives = name == "NixlConnector" and role == "kv_consumer" and asked.number("--pipeline-parallel-size") > 1
    return (name is not None and role is None) or receives


def _experts_world(asked: Asked) -> bool:
    tp, cp, ep = asked.number("--tp_size"), asked.number("--cp_size"), asked.number("--ep_size", 0)
    split = int(asked.config.get("moe_tensor_parallel_size") or 0)
    helix = str(dict(asked.config.get("cp_config") or {}).get("cp_type", "")).upper() == "HELIX"
    return (split > 0 and ep > 0 and split * ep != tp) or (cp > 1 and ep > 1 and not helix)


def _file_odd(asked: Asked) -> bool:
    cache = dict(asked.config.get("kv_cache_config") or {})
    share = asked.given("--kv_cache_free_gpu_memory_fraction") or cache.get("free_gpu_memory_fraction", 0.9)
    pools = [dict(asked.config.get(f"{pool}_servers") or {}) for pool in ("context", "generation")]
    counted = any("urls" in pool and len(pool["urls"]) != pool.get("num_instances") for pool in pools)
    ranks, needed = (
        asked.given("--ntasks"),
        asked.number("--tp_size") * asked.number("--pp_size") * asked.number("--cp_size"),
    )
    return not 0 <= float(share) <= 1 or counted or (ranks is not None and int(ranks) != needed)


def _commands_odd(asked: Asked) -> bool:
    known = ("vllmServe", "imageDefault", "custom")
    pools = [dict(asked.config.get(pool) or {}) for pool in ("prefill", "decode")]
    return any(one.get("modelCommand") not in known for pool in pools for one in pool.get("containers", []))


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
        lambda one: _sglang_world(one) % one.number("--nnodes") != 0,
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
    _rule(7, "sglang", _S + "parallel_hook.py:178", "ep_size * moe_dp_size must be equal to tp_size", _experts_odd),
    _rule(
        8,
        "sglang",
        _S + "moe_hook.py:89",
        "expert parallel size must be 1 or the same as the tensor parallel size",
        _runner_odd,
    ),
    _rule(
        9,
        "sglang",
        _S + "validation_hook.py:244",
        "chunked_prefill_size must be divisible by page_size",
        _page_odd,
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
        _context,
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
        _too_large,
    ),
    _rule(17, "vllm", _V + "config/parallel.py", "tp_size must be divisible by dcp_size", _decode_context_odd),
    _rule(
        18,
        "vllm",
        _V + "config/model.py:1582",
        "Decode context parallelism for GQA/MQA requires more tensor parallel ranks than K/V heads",
        _decode_context_heads,
    ),
    _rule(
        19,
        "vllm",
        _V + "config/parallel.py",
        "data_parallel_size_local must be at most data_parallel_size; Non-MoE "
        "models do not support external data parallel mode",
        _data_parallel_odd,
    ),
    _rule(
        20,
        "vllm",
        _V + "engine/arg_utils.py",
        "Cannot use more than one data parallel load balancing mode; the hybrid one needs --data-parallel-size-local",
        _balancers_odd,
    ),
    _rule(
        21,
        "vllm",
        _V + "config/scheduler.py:332",
        "max_num_batched_tokens must be greater than or equal to max_num_seqs, "
        "and to max_model_len without chunked prefill",
        _budget_low,
        "raise serving.max_batch_tokens, lower serving.max_batch_requests or model.config.max_position_embeddings, or "
        "take serving.scheduler=chunked_prefill",
    ),
    _rule(
        22,
        "vllm",
        _V + "config/kv_transfer.py; nixl/base_worker.py:887",
        "Please specify kv_role; and no kv_consumer with pipeline parallelism",
        _connector_odd,
    ),
    _rule(
        23,
        "trtllm",
        "tensorrt_llm/mapping.py",
        "moe_tp_size * moe_ep_size must equal to moe_world_size; no experts beside context parallelism but Helix",
        _experts_world,
    ),
    _rule(
        24,
        "trtllm",
        "tensorrt_llm/llmapi/llm_args.py, disagg_utils.py",
        "free_gpu_memory_fraction must be in [0, 1]; urls must be num_instances; MPI ranks must be tp · pp · cp",
        _file_odd,
    ),
    _rule(
        25,
        "llm-d",
        "llm-d-modelservice templates/_helpers.tpl:658",
        "modelCommand must be vllmServe, imageDefault or custom",
        _commands_odd,
    ),
)
"""Rules by number."""
