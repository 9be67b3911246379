"""What vLLM makes of the options of ``vllm serve``, and its defaults where a command is silent.

Defaults are those of vLLM 0.19.0 for its server: ``EngineArgs.get_batch_defaults`` and
``_set_default_max_num_seqs_and_batched_tokens_args`` (``vllm/engine/arg_utils.py``), ``CacheConfig``,
``SchedulerConfig`` and ``ParallelConfig`` (``vllm/config``), ``_set_cudagraph_sizes`` (``vllm/config/vllm.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clustersim.cluster.device import Device
from clustersim.cost.unsaid import MOST, Place
from clustersim.interop.command import Grammar
from clustersim.interop.deployment import Degrees, Lines
from clustersim.interop.entries import Draft
from clustersim.interop.flags import ALIASES, FLAGS, VERSION
from clustersim.interop.gone import GONE
from clustersim.interop.keys import ALL2ALL, KV_DTYPES, PLACES, VLLM
from clustersim.interop.options import Options, choice_of, count, share, whole
from clustersim.interop.serve import Reader, Setting
from clustersim.interop.served_model import ServedModel
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.exchange import DEEPEP
from clustersim.scenario.parts import load_engine

ENGINE: Final = "vllm-0.19"
"""The profile that has the budgets by device."""
GRAMMAR: Final = Grammar(
    engine="vLLM",
    version=VERSION,
    starts=(("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server")),
    example="vllm serve meta-llama/Llama-3.1-8B -tp 2",
    flags=FLAGS,
    aliases=ALIASES,
    image=r"(.*/)?vllm-openai([:@].*)?",
    keys=VLLM,
    gone=GONE["vllm"],
)
QUANTIZATIONS: Final[Mapping[str, str]] = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8", "modelopt": "fp8", "modelopt_mxfp8": "fp8",
    "modelopt_fp4": "fp4", "petit_nvfp4": "fp4", "mxfp4": "mxfp4",
    "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "moe_wna16": "int4",
    "bitsandbytes": "int4", "experts_int8": "int8",
}  # fmt: skip
"""vLLM's ``--quantization`` → format of weights; of AWQ, GPTQ and the like the usual four bits."""
BY_CHECKPOINT: Final = frozenset({"compressed-tensors", "quark", "auto-round", "inc"})
"""Methods whose format only the checkpoint tells."""
ALONE: Final = (
    "flashinfer_all2allv", "flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided", "deepep_v2", "mori",
    "mori_high_throughput", "mori_low_latency", "nixl_ep",
)  # fmt: skip
"""Values of ``--all2all-backend`` whose kernels are not modelled: an all-to-all stands for them."""


def _or_none(text: str) -> int | None:
    """Read a number of which 0 means that there is none."""
    return count(text) if whole(text) else None


SETTINGS: Final = (
    Setting(path="serving.kv_block_tokens", flag=VLLM["serving.kv_block_tokens"], read=count, default=16),
    Setting(path="serving.memory_utilization", flag=VLLM["serving.memory_utilization"], read=share, default=0.9),
    Setting(path="serving.kv_blocks", flag=VLLM["serving.kv_blocks"], read=count, default=None),
    Setting(path="serving.long_prompt_tokens", flag=VLLM["serving.long_prompt_tokens"], read=_or_none, default=None),
)
"""One line for each option that needs nothing but its own value (a switch has the text true or false)."""


LONGER: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""Variable with which vLLM takes a longer context than that of the model."""


def _engine(options: Options) -> None:
    """Refuse the engine that vLLM had before."""
    engine = options.command.environment.get("VLLM_USE_V1")
    if engine is not None and engine.text.endswith("=0"):
        options.problems.append(engine.problem("engine V0 is gone from vLLM 0.19, and is not simulated"))


def _degrees(options: Options, model: ModelSpec | None, draft: Draft) -> Degrees:
    """Read the degrees: replicas of a model with experts share them."""
    _engine(options)
    for key in ("serving.max_batch_requests", "serving.max_batch_tokens"):
        options.value(VLLM[key], count, 1)  # what is wrong is told beside the rest
    tp, pp, dp = (options.value(VLLM[f"plan.{axis}"], count, 1) for axis in ("tp", "pp", "dp"))
    experts = () if model is None else tuple(_experts(options, model, draft, tp=tp[0], dp=dp[0], pp=pp[0]))
    if options.on(VLLM["plan.ep.overlap"], False)[0] and all(path != "plan.ep.overlap" for path, _, _ in experts):
        draft.note("--enable-dbo has no effect here: no tokens are dispatched that another batch could compute beside.")
    return Degrees(tp=tp, pp=pp, dp=dp, experts=experts, router=_router(options, dp[0]))


def _experts(
    options: Options, model: ModelSpec, draft: Draft, *, tp: int, dp: int, pp: int
) -> list[tuple[str, Any, str]]:
    """Return the entries of expert parallelism: vLLM spreads experts over TP × DP, or splits each over them."""
    on, origin = options.on(VLLM["plan.ep.degree"], False)
    switch = options.given(VLLM["plan.ep.degree"])
    data = options.given(VLLM["plan.dp"])
    moe = any(isinstance(layer.ffn, Moe) for layer in model.layers)
    if on and switch is not None and not moe:
        options.wrong(switch, "vLLM refuses it for a model without experts")
    if not moe:
        return []
    if not on and dp > 1 and data is not None:
        options.wrong(data, "vLLM splits each expert over the ranks of all replicas, which is not simulated; "
                      "add --enable-expert-parallel, or take one replica")  # fmt: skip
    lines: list[tuple[str, Any, str]] = [("plan.ep.degree", tp * dp if on else 1, origin)]
    if on and dp > 1:
        lines.append(("plan.ep.scope", "global", "vLLM spreads experts over the ranks of all replicas"))
    place, origin = options.value(VLLM["plan.ep.placement"], choice_of(*PLACES), "linear")
    exchange = _exchange(options, draft, sends=on and dp > 1)
    if not on:
        return lines
    return [*lines, ("plan.ep.placement", PLACES[place], origin), *exchange, *_two_batches(options, dp=dp, pp=pp)]


def _exchange(options: Options, draft: Draft, *, sends: bool) -> list[tuple[str, Any, str]]:
    """Return how tokens get to experts of other replicas; without the option the profile's way stands."""
    name = VLLM["plan.ep.exchange"]
    backend, origin = options.value(name, choice_of(*ALL2ALL, *ALONE), "allgather_reducescatter")
    if options.given(name) is None:
        return []
    if not sends:
        draft.note(f"{name} has no effect here: no tokens go to experts of other replicas.")
        return []
    if backend == "pplx":
        draft.note(f"{name} pplx is of vLLM 0.9 to 0.12, and later ones have none: an all-to-all stands for it.")
    if backend in ALONE:
        draft.note(f"{name} {backend} is not modelled: an all-to-all of the cheapest algorithm there is stands for it.")
    return [("plan.ep.exchange", ALL2ALL.get(backend, "all_to_all"), origin)]


def _two_batches(options: Options, *, dp: int, pp: int) -> list[tuple[str, Any, str]]:
    """Return the entries of dual-batch overlap, with the thresholds from which on vLLM splits a step.

    vLLM overlaps two batches with DeepEP's kernels only (``vllm/config/vllm.py`` of 0.11 on: "Microbatching currently
    only supports the deepep_low_latency and deepep_high_throughput all2all backend").
    """
    on, origin = options.on(VLLM["plan.ep.overlap"], False)
    switch = options.given(VLLM["plan.ep.overlap"])
    decode, of_decode = options.value(VLLM["plan.ep.overlap_decode_tokens"], whole, 32)
    prefill, of_prefill = options.value(VLLM["plan.ep.overlap_prefill_tokens"], whole, 512)
    if not on or switch is None:
        return []
    backend = options.given(VLLM["plan.ep.exchange"])
    if backend is None or ALL2ALL.get(backend.text) not in DEEPEP:
        options.wrong(switch, f"vLLM overlaps two batches with {VLLM['plan.ep.exchange']} deepep_high_throughput or "
                      "deepep_low_latency only; add it")  # fmt: skip
    if dp == 1:
        return []
    if pp > 1:
        options.wrong(switch, "two batches that overlap are simulated at --pipeline-parallel-size 1 only")
    return [
        ("plan.ep.overlap", "two_batch", origin),
        ("plan.ep.overlap_decode_tokens", decode, of_decode),
        ("plan.ep.overlap_prefill_tokens", prefill, of_prefill),
    ]


def _router(options: Options, dp: int) -> Lines:
    """Return the router of several replicas; with an external balancer, the plainest one."""
    if dp == 1:
        return ()
    for name in ("--data-parallel-external-lb", "--data-parallel-hybrid-lb"):
        if options.on(name, False)[0]:
            return (("serving.router", "round_robin", f"{name}: the balancer is outside of vLLM; assumed"),)
    if options.given("--data-parallel-rank") is not None:
        return (("serving.router", "round_robin", "--data-parallel-rank: an external balancer; assumed"),)
    return (("serving.router", "fewest_waiting", "how vLLM balances its replicas"),)


def _positions(options: Options, served: ServedModel) -> None:
    """Refuse a longer context than the model's, as vLLM does (config/model.py: "greater than the derived")."""
    given, most = options.given(VLLM["model.config.max_position_embeddings"]), served.spec.max_positions
    allowed = options.command.environment.get(LONGER)
    if given is None or most is None or (served.positions or 0) <= most or allowed is not None:
        return
    options.wrong(given, f"vLLM refuses more than the {most:,} positions of the model; {LONGER}=1 allows it")


def _length(text: str) -> int | None:
    return None if text in ("-1", "auto") else count(text)


def _batches(options: Options, degrees: Degrees, device: Device, served: ServedModel, draft: Draft) -> None:
    """Write scheduler, budgets and CUDA graphs, with the defaults that vLLM takes for the device."""
    longest = served.positions
    _positions(options, served)
    chunked, origin = options.on(VLLM["serving.scheduler"], True)
    draft.set("serving.scheduler", "chunked_prefill" if chunked else "continuous", origin)
    if not chunked:
        draft.note(
            "without chunked prefill vLLM mixes whole prompts with decodes in a step; `continuous` here takes the "
            "prompts first, in steps of their own."
        )
    policy, origin = options.value(VLLM["serving.order.by"], choice_of("fcfs", "priority"), "fcfs")
    if policy == "priority":
        draft.set("serving.order.by", "priority", origin)
        draft.set("serving.order.patience", "unlimited", "in vLLM the priority decides before the arrival")
    engine, place = load_engine(ENGINE), Place(device=device)
    tokens = engine.decides({}, place)["max_batch_tokens"]
    requests = engine.decides({"max_batch_tokens": MOST}, place)["max_batch_requests"]
    mode, _ = options.value("--performance-mode", choice_of("balanced", "interactivity", "throughput"), "balanced")
    if mode == "throughput":
        requests, tokens = 2 * requests, 2 * tokens
    elif mode == "interactivity":
        draft.leave_out("--performance-mode interactivity", "kernels and graphs are those of `balanced`")
    many, many_origin = options.value(VLLM["serving.max_batch_requests"], count, requests)
    if longest is not None:
        tokens = min(tokens if chunked else max(tokens, longest), many * longest)
    budget, budget_origin = options.value(VLLM["serving.max_batch_tokens"], count, tokens)
    if options.given(VLLM["serving.max_batch_requests"]) is None:
        many = min(many, budget)
    given = options.given(VLLM["serving.max_batch_tokens"]) or options.given(VLLM["serving.max_batch_requests"])
    if budget < many and given is not None:
        options.wrong(given, f"vLLM refuses a budget of {budget} tokens that is below {many} sequences")
    if not chunked and longest is not None and budget < longest and given is not None:
        options.wrong(given, f"without chunked prefill vLLM refuses a budget below the {longest} of --max-model-len")
    on = f" on {device.name}"
    draft.set("serving.max_batch_requests", many, many_origin + (on if "default" in many_origin else ""))
    draft.set("serving.max_batch_tokens", budget, budget_origin + (on if "default" in budget_origin else ""))
    largest, origin = _largest_graph(options, many, budget, draft)
    options.engine(ENGINE, "host overheads of vLLM 0.19", draft)
    draft.set("serving.engine.graph_max_tokens", largest, origin)


def _largest_graph(options: Options, requests: int, tokens: int, draft: Draft) -> tuple[int, str]:
    """Return the largest batch of decodes that runs as a CUDA graph, and the origin."""
    level, of_level = options.value("--optimization-level", choice_of("0", "1", "2", "3"), "2")
    if options.on("--enforce-eager", False)[0]:
        return 0, "--enforce-eager"
    if level == "0":
        return 0, of_level
    if level == "1":
        draft.leave_out("--optimization-level 1", "kernels and graphs are those of level 2, the default")
    sizes = options.given("--cudagraph-capture-sizes")
    if sizes is not None:
        return options.value("--cudagraph-capture-sizes", _largest, 512)
    return options.value(VLLM["serving.engine.graph_max_tokens"], whole, min(2 * requests, 512, tokens))


def _largest(text: str) -> int:
    return max(count(size) for size in text.split())


READER: Final = Reader(
    grammar=GRAMMAR,
    quantizations=QUANTIZATIONS,
    by_checkpoint=BY_CHECKPOINT,
    kv_dtypes=KV_DTYPES,
    length=_length,
    settings=SETTINGS,
    degrees=_degrees,
    batches=_batches,
)
"""How ``vllm serve`` is read."""
