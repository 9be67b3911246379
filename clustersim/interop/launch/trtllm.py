"""``trtllm-serve`` commands for a server, with the YAML file of its options.

Keys are those of tensorrt_llm/llmapi/llm_args.py (0004396720), which forbids unknown ones; several nodes by
``trtllm-llmapi-launch`` under Slurm, two pools as in docs/source/features/disagg-serving.md (0434b982).
"""

from __future__ import annotations

from typing import Any, Final

from clustersim.interop.launch.account import Account
from clustersim.interop.launch.server import PORT, Server, Started, captured_sizes
from clustersim.interop.launch.trtllm_built import build
from clustersim.interop.launch.utilization import utilization
from clustersim.interop.launch.versions import Version, reaches
from clustersim.interop.launch.vllm import PLAIN, checkpoint_format

DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
KV_DTYPES: Final = ("bf16", "fp16", "fp8")


def trtllm_server(server: Server, account: Account, version: Version | None) -> Started:
    """Return what starts a server with TensorRT-LLM; what it cannot say goes to the account.

    Parameters
    ----------
    server : Server
    account : Account
    version : tuple of int or None
        Of the scenario's engine; None: the newest. Before 1.0 engines are built (``interop.launch.trtllm_built``).
    """
    started = Started(server=server, engine="trtllm", program=("trtllm-serve", server.model_name))
    built = version is not None and not reaches(version, "1.0.0")
    _plan(started, account)
    _precision(started, account, built=built)
    _serving(started, account)
    if built and version is not None:
        build(started, account, version)
        return started
    started.options |= {
        "--backend": "pytorch",
        "--host": "0.0.0.0",
        "--port": str(PORT if server.pool != "decode" else PORT + 100),
        "--extra_llm_api_options": f"{server.name}.yaml",
    }
    if server.pool:
        started.config["cache_transceiver_config"] = {"backend": "DEFAULT"}
        if server.pool == "prefill":
            started.config["disable_overlap_scheduler"] = True
    return started


def _plan(started: Started, account: Account) -> None:
    server, plan, ep, config = started.server, started.server.plan, started.server.plan.ep, started.config
    if plan.sp.degree > 1:
        account.refuse(
            f"TensorRT-LLM has no sequence parallelism of such ranks (plan.sp.degree: {plan.sp.degree}; its "
            "context parallelism lays K/V out otherwise); take sp 1"
        )
    wide = plan.is_lockstep
    if wide and plan.tp > 1:
        account.refuse(
            f"TensorRT-LLM splits no heads where attention is data parallel (enable_attention_dp), found "
            f"plan.tp: {plan.tp}; take tp 1"
        )
    inside = plan.tp * (plan.dp if wide else 1)
    config |= {"tensor_parallel_size": inside, "pipeline_parallel_size": plan.pp}
    account.says(server, "plan.tp.degree", "plan.pp", "plan.ep.degree", "plan.ep.scope", "plan.decode_overlap")
    if wide:
        config["enable_attention_dp"] = True
    if server.is_moe and ep.degree <= inside and inside % ep.degree == 0:
        config |= {"moe_tensor_parallel_size": inside // ep.degree, "moe_expert_parallel_size": ep.degree}
    elif server.is_moe:
        account.refuse(f"TensorRT-LLM keeps experts inside the {inside} ranks of TP, found plan.ep.degree: {ep.degree}")
    account.says_exchange(server, "all_to_all" if ep.degree > server.experts_per_token else "all_gather")
    if ep.degree == 1:
        account.says(server, "plan.ep")  # with one rank nothing is placed
    elif ep.placement != "contiguous":
        account.leaves(server, "plan.ep.placement", "TensorRT-LLM places experts in order")
    if ep.redundant:
        account.leaves(
            server, "plan.ep.redundant", "TensorRT-LLM's balancer (moe_config.load_balancer) has a file of its own"
        )
    if ep.overlap == "two_batch":
        for key in ("overlap", "overlap_decode_tokens", "overlap_prefill_tokens"):
            account.leaves(server, f"plan.ep.{key}", "TensorRT-LLM runs one batch at a time")
    ranks = inside * plan.pp
    started.devices, started.nodes = ranks, server.nodes_of(ranks)
    account.says(server, "plan.stages", "plan.dp", "serving.router", "serving.router_options")
    if account.whole_layers(server) and plan.pp > 1 and (plan.stages or len(server.model.layers) % plan.pp):
        account.leaves(server, "plan.stages", "TensorRT-LLM cuts stages as it likes")
    if plan.dp > 1 and not wide:
        started.copies = plan.dp
        account.leaves(server, "plan.dp", f"start {plan.dp} such servers behind a balancer")
        account.leaves(server, "serving.router", "the balancer in front of the servers must do it")
    elif wide and server.serving.router != "fewest_waiting":
        account.leaves(server, "serving.router", "TensorRT-LLM balances requests over attention ranks itself")
    why = "TensorRT-LLM takes the devices that MPI gives it"
    if started.nodes == 1:
        account.place(started, ranks, why)
    elif server.is_spread_evenly(ranks):
        account.says(server, "plan.placement")
    else:
        account.leaves(server, "plan.placement", why)
    if started.nodes > 1:
        started.wrapped = ("srun", f"-N{started.nodes}", "--ntasks", str(ranks), "--mpi=pmix", "trtllm-llmapi-launch")


def _precision(started: Started, account: Account, *, built: bool) -> None:
    wanted, server, config = started.server.scenario.precision, started.server, started.config
    plain = wanted.activations if wanted.activations in PLAIN else "bf16"
    config["dtype"] = DTYPES[plain]
    account.says(None, "precision.activations", "precision.weights", "precision.kv_cache")
    if plain != wanted.activations:
        account.leaves(None, "precision.activations", "TensorRT-LLM keeps activations in 16 or 32 bits")
    held = checkpoint_format(server)
    if wanted.weights in PLAIN and held in PLAIN:
        if wanted.weights != plain:
            account.leaves(None, "precision.weights", f"TensorRT-LLM keeps weights as activations, in {plain}")
    elif wanted.weights != held and not (built and held in PLAIN):  # converters make weights narrower
        account.refuse(
            f"TensorRT-LLM loads weights in {wanted.weights} from a checkpoint that has them, and "
            f"{server.model_name} has {held}; name one with --model"
        )
    cache: dict[str, Any] = config.setdefault("kv_cache_config", {})
    if wanted.kv_cache == "fp8":
        cache["dtype"] = "fp8"
    elif wanted.kv_cache != plain:
        account.refuse(f"TensorRT-LLM keeps K/V as activations or in fp8, not in {wanted.kv_cache}")
    else:
        cache["dtype"] = "auto"


def _serving(started: Started, account: Account) -> None:
    serving, server, config = started.server.serving, started.server, started.config
    config |= {"max_batch_size": serving.max_batch_requests, "max_num_tokens": serving.max_batch_tokens}
    if server.longest is not None:
        config["max_seq_len"] = server.longest
    if serving.context_window is not None:
        account.says(server, "serving.context_window")
    config["enable_chunked_prefill"] = serving.scheduler != "continuous"
    cache: dict[str, Any] = config["kv_cache_config"]
    cache |= {
        "free_gpu_memory_fraction": utilization(server, "trtllm", account),
        "tokens_per_block": serving.kv_block_tokens,
        "enable_block_reuse": serving.prefix_caching,
    }
    if serving.kv_blocks is not None:
        cache["max_tokens"] = serving.kv_blocks * serving.kv_block_tokens
    account.says(
        server,
        *(
            f"serving.{key}"
            for key in (
                "max_batch_requests",
                "max_batch_tokens",
                "kv_block_tokens",
                "kv_blocks",
                "memory_utilization",
                "prefix_caching",
                "scheduler",
                "scheduler_options",
            )
        ),
    )
    if serving.scheduler not in ("chunked_prefill", "continuous"):
        account.leaves(server, "serving.scheduler", "TensorRT-LLM batches in flight")
    account.says(server, "serving.order.by", "serving.order.patience")
    if serving.order.by != "arrival":
        account.leaves(server, "serving.order.by", "TensorRT-LLM takes requests up as they arrive")
    if serving.long_prompt_tokens is not None:
        account.leaves(server, "serving.long_prompt_tokens", "TensorRT-LLM's chunks have no such limit")
    if serving.preemption == "recompute":  # else its GUARANTEED_NO_EVICT (LlmArgs.scheduler_config, SchedulerConfig)
        config["scheduler_config"] = {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    account.says(server, "serving.preemption", "serving.admission")
    if serving.admits_first_chunks:
        account.leaves(server, "serving.admission", "TensorRT-LLM admits a request when its whole prompt fits")
    if serving.preemption == "swap":
        for key in ("preemption", "host_kv"):
            account.leaves(server, f"serving.{key}", "TensorRT-LLM admits what fits to the end (GUARANTEED_NO_EVICT)")
    for key in ("queue_limit", "queue_timeout"):
        if server.scenario.document["serving"].get(key) is not None:
            account.leaves(server, f"serving.{key}", "requests wait without a limit")
    most = server.scenario.engine.graph_max_tokens
    sizes = {"enable_padding": True, "batch_sizes": captured_sizes(most)}
    config["cuda_graph_config"] = sizes if most else None
