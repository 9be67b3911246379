"""Conditions under which serving engines refuse to start, where one takes more than a line to say.

Each is the condition of the rule in ``interop.launch.refusals`` that names it, with its source.
"""

from __future__ import annotations

import json

from clustersim.interop.launch.asked import Asked


def sglang_world(asked: Asked) -> int:
    """Return how many ranks a server of SGLang has."""
    return asked.number("--tp-size") * asked.number("--pp-size")


def page_odd(asked: Asked) -> bool:
    """Return whether a chunk of a rank is no whole number of pages (SGLang)."""
    chunk = asked.number("--chunked-prefill-size", -1) // asked.number("--attn-dp-size")
    decodes = asked.given("--disaggregation-mode") == "decode"
    return not decodes and chunk > 0 and chunk % asked.number("--page-size") != 0


def context(asked: Asked) -> bool:
    """Return whether a longer context is asked for than the model has positions (SGLang, vLLM)."""
    longest = asked.given("--context-length") or asked.whole_number("--max-model-len")
    return longest is not None and 0 < asked.positions < int(longest)


def experts_odd(asked: Asked) -> bool:
    """Return whether experts can't be split so beside data parallelism of their own (SGLang)."""
    moe_dp, ep = asked.number("--moe-dp-size"), asked.number("--ep-size")
    return moe_dp > 1 and (asked.number("--pp-size") > 1 or (ep > 1 and ep * moe_dp != asked.number("--tp-size")))


def runner_odd(asked: Asked) -> bool:
    """Return whether a kernel of experts is asked for that does not run at this degree (SGLang)."""
    runner = asked.given("--moe-runner-backend") in ("flashinfer_cutlass", "flashinfer_cutedsl")
    return runner and asked.number("--ep-size") not in (1, asked.number("--tp-size"))


def vllm_world(asked: Asked) -> int:
    """Return how many ranks a replica of vLLM has."""
    tp, pp = asked.number("--tensor-parallel-size"), asked.number("--pipeline-parallel-size")
    return tp * pp * asked.number("--prefill-context-parallel-size")


def too_large(asked: Asked) -> bool:
    """Return whether one node has too few devices, and nothing says that there are more (vLLM)."""
    one_node = asked.given("--nnodes") is None and asked.given("--distributed-executor-backend") != "ray"
    return one_node and vllm_world(asked) > asked.devices_per_node


def decode_context_odd(asked: Asked) -> bool:
    """Return whether decode context parallelism does not fit the other degrees (vLLM)."""
    tp, dcp = asked.number("--tensor-parallel-size"), asked.number("--decode-context-parallel-size")
    pcp = asked.number("--prefill-context-parallel-size")
    return bool(tp % dcp) if pcp == 1 else dcp not in (1, pcp, tp * pcp)


def decode_context_heads(asked: Asked) -> bool:
    """Return whether decode context parallelism finds K/V heads that are not repeated (vLLM)."""
    dcp = asked.number("--decode-context-parallel-size")
    return not asked.latent and dcp > 1 and asked.number("--tensor-parallel-size") <= asked.kv_heads


def data_parallel_odd(asked: Asked) -> bool:
    """Return whether replicas beside each other are more than all, or balanced outside for nothing (vLLM)."""
    local = asked.number("--data-parallel-size-local", 0)
    outside = asked.on("--data-parallel-external-lb") or asked.given("--data-parallel-rank") is not None
    return local > asked.number("--data-parallel-size") or (outside and not asked.experts)


def balancers_odd(asked: Asked) -> bool:
    """Return whether two balancers are asked for, or the hybrid one without its number (vLLM)."""
    hybrid = asked.on("--data-parallel-hybrid-lb")
    outside = asked.on("--data-parallel-external-lb") or asked.given("--data-parallel-rank") is not None
    return (hybrid and outside) or (hybrid and asked.given("--data-parallel-size-local") is None)


def budget_low(asked: Asked) -> bool:
    """Return whether a step has fewer tokens than sequences, or than a prompt that is not chunked (vLLM)."""
    budget = asked.whole_number("--max-num-batched-tokens")
    many, longest = asked.whole_number("--max-num-seqs"), asked.whole_number("--max-model-len") or asked.positions
    unchunked = asked.options.get("--enable-chunked-prefill") == "false"
    return budget is not None and ((many is not None and budget < many) or (unchunked and budget < longest))


def connector_odd(asked: Asked) -> bool:
    """Return whether a connector has no role, or receives K/V on several stages (vLLM)."""
    text = asked.given("--kv-transfer-config")
    connector = json.loads(text) if text is not None else {}
    name, role = connector.get("kv_connector"), connector.get("kv_role")
    receives = name == "NixlConnector" and role == "kv_consumer" and asked.number("--pipeline-parallel-size") > 1
    return (name is not None and role is None) or receives


def experts_world(asked: Asked) -> bool:
    """Return whether experts don't fill the ranks, or are split beside contexts (TensorRT-LLM)."""
    tp, cp, ep = asked.number("--tp_size"), asked.number("--cp_size"), asked.number("--ep_size", 0)
    split = int(asked.config.get("moe_tensor_parallel_size") or 0)
    helix = str(dict(asked.config.get("cp_config") or {}).get("cp_type", "")).upper() == "HELIX"
    return (split > 0 and ep > 0 and split * ep != tp) or (cp > 1 and ep > 1 and not helix)


def file_odd(asked: Asked) -> bool:
    """Return whether a file asks for an impossible share of memory, number of servers or of ranks (TensorRT-LLM)."""
    share = asked.given("--kv_cache_free_gpu_memory_fraction") or 0.9
    pools = [dict(asked.config.get(f"{pool}_servers") or {}) for pool in ("context", "generation")]
    counted = any("urls" in pool and len(pool["urls"]) != pool.get("num_instances") for pool in pools)
    ranks, needed = (
        asked.given("--ntasks"),
        asked.number("--tp_size") * asked.number("--pp_size") * asked.number("--cp_size"),
    )
    return not 0 <= float(share) <= 1 or counted or (ranks is not None and int(ranks) != needed)


def commands_odd(asked: Asked) -> bool:
    """Return whether a container is started by a command that the chart does not know (llm-d)."""
    known = ("vllmServe", "imageDefault", "custom")
    pools = [dict(asked.config.get(pool) or {}) for pool in ("prefill", "decode")]
    return any(one.get("modelCommand") not in known for pool in pools for one in pool.get("containers", []))
