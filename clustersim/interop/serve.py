"""From a ``vllm serve`` command to a scenario: what it asks for, and vLLM's defaults where it is silent.

Defaults are those of vLLM 0.19.0 for its server: ``EngineArgs.get_batch_defaults`` and
``_set_default_max_num_seqs_and_batched_tokens_args`` (``vllm/engine/arg_utils.py``), ``CacheConfig``,
``SchedulerConfig`` and ``ParallelConfig`` (``vllm/config``), ``_set_cudagraph_sizes`` (``vllm/config/vllm.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from clustersim.cluster.device import Device
from clustersim.cost.unsaid import MOST, Place
from clustersim.errors import InputError, did_you_mean
from clustersim.interop.command import Command
from clustersim.interop.deployment import deploy
from clustersim.interop.entries import Draft
from clustersim.interop.keys import DTYPES, KV_DTYPES, VLLM
from clustersim.interop.options import Options, choice_of, count, share, whole
from clustersim.interop.served_model import ServedModel
from clustersim.scenario.parts import load_engine

ENGINE: Final = "vllm-0.19"
"""The profile that has the budgets by device."""
QUANTIZATIONS: Final[Mapping[str, str]] = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8", "modelopt": "fp8", "modelopt_mxfp8": "fp8",
    "modelopt_fp4": "fp4", "petit_nvfp4": "fp4", "mxfp4": "mxfp4",
    "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "moe_wna16": "int4",
    "bitsandbytes": "int4", "experts_int8": "int8",
}  # fmt: skip
"""vLLM's ``--quantization`` → format of weights; of AWQ, GPTQ and the like the usual four bits."""
BY_CHECKPOINT: Final = frozenset({"compressed-tensors", "quark", "auto-round", "inc"})
"""Methods whose format only the checkpoint tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An option whose value is a value of the scenario.

    Parameters
    ----------
    path : str
        Of the scenario.
    flag : str
    read : callable
        From text; raises ValueError.
    default : object
        vLLM's; None when the scenario's key stays away without the option.
    """

    path: str
    flag: str
    read: Callable[[str], Any]
    default: Any


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


def write_server(command: Command, topology: str | None, model: str | None, draft: Draft) -> None:
    """Write what a server is into a draft.

    Parameters
    ----------
    command : Command
        ``vllm serve``.
    topology : str or None
        A name or a path; ``dgx-h100`` without it.
    model : str or None
        What stands for the model that the command names: a name, or a ``config.json``.
    draft : Draft

    Raises
    ------
    InputError
        With every option that is wrong, or refused.
    """
    options = Options(command)
    options.fates(draft)
    _engine(options)
    served = ServedModel.of(options, model)
    deployed = deploy(options, served, topology)
    for key in ("serving.max_batch_requests", "serving.max_batch_tokens"):
        options.value(VLLM[key], count, 1)
    settings = [(setting.path, *options.value(setting.flag, setting.read, setting.default)) for setting in SETTINGS]
    if options.problems or served is None or deployed is None:
        raise InputError(options.problems)
    limit_origin = _limit(options, served)
    draft.set("name", served.short_name)
    for path, value, origin in deployed.topology:
        draft.set(path, value, origin)
    served.write(draft, limit_origin)
    _precision(options, served, draft)
    for path, value, origin in deployed.plan:
        draft.set(path, value, origin)
    if options.on(VLLM["plan.ep.overlap"], False)[0] and not any(
        path == "plan.ep.overlap" for path, _, _ in deployed.plan
    ):
        draft.note("--enable-dbo has no effect here: no tokens are dispatched that another batch could compute beside.")
    _batches(options, deployed.device, served.positions, draft)
    for path, value, origin in settings:
        if value is not None:
            draft.set(path, value, origin)
    if options.problems:
        raise InputError(options.problems)
    for path, value, origin in deployed.router:
        draft.set(path, value, origin)
    caching = options.given(VLLM["serving.prefix_caching"])
    if caching is not None:
        name = VLLM["serving.prefix_caching"]
        draft.set("serving.prefix_caching", caching.on, name if caching.on else f"--no-{name[2:]}")


def _engine(options: Options) -> None:
    """Refuse the engine that vLLM had before."""
    engine = options.command.environment.get("VLLM_USE_V1")
    if engine is not None and engine.text.endswith("=0"):
        options.problems.append(engine.problem("engine V0 is gone from vLLM 0.19, and is not simulated"))


def _limit(options: Options, served: ServedModel) -> str:
    """Let the model know the longest sequence, and return the origin of that."""
    longest, origin = options.value(VLLM["model.config.max_position_embeddings"], _length, None)
    if longest is not None:
        served.limit(longest)
    return origin


def _length(text: str) -> int | None:
    return None if text in ("-1", "auto") else count(text)


def _precision(options: Options, served: ServedModel, draft: Draft) -> None:
    plain, activations = served.dtype if served.dtype in ("bf16", "fp16") else "bf16", "--dtype: vLLM's default, auto"
    choice = options.given(VLLM["precision.activations"])
    if choice is not None and choice.text != "auto":
        name, activations = options.value(VLLM["precision.activations"], choice_of("auto", *DTYPES), "bfloat16")
        plain = DTYPES[name]
    weights, origin = served.dtype, f"as {served.origin} is published"
    if weights in ("bf16", "fp16", "fp32"):
        weights, origin = plain, activations
    if served.quantized is not None:
        weights, origin = served.quantized, "by the name of the model"
    method = options.given(VLLM["precision.weights"])
    if method is not None and method.text.lower() in QUANTIZATIONS:
        named = QUANTIZATIONS[method.text.lower()]
        weights = "int8" if named == "int4" and served.quantized == "int8" else named
        origin = f"--quantization {method.text}"
    elif method is not None and method.text.lower() not in BY_CHECKPOINT:
        known = (*QUANTIZATIONS, *sorted(BY_CHECKPOINT))
        options.wrong(method, f"no method {method.text!r} that is simulated{did_you_mean(method.text, known)}")
    elif method is not None and weights == plain:
        options.wrong(method, "only the checkpoint tells its format; give a config.json that says it as --model")
    draft.set("precision.weights", weights, origin)
    draft.set("precision.activations", plain, activations)
    cache = options.given(VLLM["precision.kv_cache"])
    if cache is None or cache.text == "auto":
        draft.set("precision.kv_cache", plain, "--kv-cache-dtype: vLLM's default, that of the activations")
    else:
        name, origin = options.value(VLLM["precision.kv_cache"], choice_of("auto", *KV_DTYPES), "bfloat16")
        draft.set("precision.kv_cache", KV_DTYPES[name], origin)


def _batches(options: Options, device: Device, longest: int | None, draft: Draft) -> None:
    """Write scheduler, budgets and CUDA graphs, with the defaults that vLLM takes for the device."""
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
        draft.note("--performance-mode interactivity has no effect here: kernels and graphs are those of `balanced`.")
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
    draft.set("serving.engine.name", ENGINE, "host overheads of vLLM 0.19")
    draft.set("serving.engine.graph_max_tokens", largest, origin)


def _largest_graph(options: Options, requests: int, tokens: int, draft: Draft) -> tuple[int, str]:
    """Return the largest batch of decodes that runs as a CUDA graph, and the origin."""
    level, of_level = options.value("--optimization-level", choice_of("0", "1", "2", "3"), "2")
    if options.on("--enforce-eager", False)[0]:
        return 0, "--enforce-eager"
    if level == "0":
        return 0, of_level
    if level == "1":
        draft.note("--optimization-level 1 has no effect here: kernels and graphs are those of level 2, the default.")
    sizes = options.given("--cudagraph-capture-sizes")
    if sizes is not None:
        return options.value("--cudagraph-capture-sizes", _largest, 512)
    return options.value(VLLM["serving.engine.graph_max_tokens"], whole, min(2 * requests, 512, tokens))


def _largest(text: str) -> int:
    return max(count(size) for size in text.split())
