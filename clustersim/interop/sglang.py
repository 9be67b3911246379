"""What SGLang makes of the options of ``python -m sglang.launch_server``, and its defaults where a command is silent.

Degrees, chunks and refusals are those of SGLang 0.5.23 (``sglang/srt/arg_groups``: ``parallel_hook.py``,
``overrides.py:1611``, ``serving_hook.py:217``), defaults those of the profile. Attention data parallelism lies inside
``--tp-size``, and its replicas share the chunk (``parallel_hook.py:326``) and ``--max-running-requests``
(``model_runner.py``; general knowledge, not re-fetched). Left out: how a chunk shrinks beside what waits, and memory
that is reserved beyond the profile's rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from clustersim.cluster.device import Device
from clustersim.cost.engine import Engine
from clustersim.cost.unsaid import Place
from clustersim.interop.command import Grammar
from clustersim.interop.deployment import Degrees
from clustersim.interop.entries import Draft
from clustersim.interop.gone import GONE
from clustersim.interop.keys import BALANCERS, DEEPEP_MODES, SGLANG, SGLANG_KV_DTYPES
from clustersim.interop.options import Options, choice_of, count, share, whole
from clustersim.interop.refused import refuse
from clustersim.interop.serve import Reader, Setting
from clustersim.interop.served_model import ServedModel
from clustersim.interop.sglang_flags import ALIASES, FLAGS, VERSION
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.scenario.parts import load_engine

ENGINE: Final = "sglang-0.5"
GRAMMAR: Final = Grammar(
    engine="SGLang",
    version=VERSION,
    starts=(("-m", "sglang.launch_server"), ("sglang", "serve")),
    example="python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp-size 2",
    flags=FLAGS,
    aliases=ALIASES,
    is_exact=True,
    keys=SGLANG,
    gone=GONE["sglang"],
)
QUANTIZATIONS: Final[Mapping[str, str]] = {
    "fp8": "fp8", "mxfp8": "fp8", "modelopt": "fp8", "modelopt_fp8": "fp8", "w8a8_fp8": "fp8",
    "modelopt_fp4": "fp4", "nvfp4_online": "fp4", "petit_nvfp4": "fp4", "mxfp4": "mxfp4", "quark_mxfp4": "mxfp4",
    "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "moe_wna16": "int4",
    "bitsandbytes": "int4", "w4afp8": "int4", "w8a8_int8": "int8",
}  # fmt: skip
"""``--quantization`` → format of weights; of AWQ, GPTQ and the like the usual four bits (choices.py)."""
BY_CHECKPOINT: Final = frozenset({"auto-round", "compressed-tensors", "gguf", "modelopt_mixed", "quark"})
SPANNING: Final = (
    "deepep", "deepep_v2", "flashinfer", "flashinfer_megamoe", "megamoe", "mooncake", "mori", "nixl", "pplx",
)  # fmt: skip
"""Values of ``--moe-a2a-backend`` that spread experts over all of ``--tp-size`` (overrides.py:1578)."""
NOTHING: Final = 0.001
"""The share of memory that a profile gives at the least."""
POLICIES: Final = ("fcfs", "lpm", "random", "dfs-weight", "lof", "routing-key", "hrrn", "shortest-prefill-first")


def human(text: str) -> int:
    """Read a number as SGLang does where it may be long: ``8192``, ``8k`` (8,000), ``8Ki`` (8,192), ``25.6k``."""
    found = re.fullmatch(r"([0-9]{1,10})([KMGT])i|([0-9]{1,10}(?:\.[0-9]{1,9})?)([kMGT])", text.strip())
    if found is None:
        return plain(text)
    if found[2]:
        return plain(str(int(found[1]) << 10 * " KMGT".index(found[2])))
    return plain(str(int(float(found[3]) * 1000 ** " kMGT".index(found[4]))))


def plain(text: str) -> int:
    """Read a whole number from 1, without anything behind it."""
    if not re.fullmatch(r"[0-9]+", text.strip()):
        raise ValueError("expected a whole number such as 8")
    return count(text)


def _degrees(options: Options, model: ModelSpec | None, draft: Draft) -> Degrees:
    """Read the degrees: replicas of attention lie inside ``--tp-size``, others beside each other."""
    ranks, of_ranks = options.value(SGLANG["plan.tp"], plain, 1)
    replicas, of_replicas = attention = _attention(options)
    dp = attention if replicas > 1 else options.value(SGLANG["plan.dp"], plain, 1)
    tp = max(1, ranks // replicas), f"{of_ranks}, shared by {of_replicas}" if replicas > 1 else of_ranks
    pp = options.value(SGLANG["plan.pp"], plain, 1)
    balancer, origin = options.value(SGLANG["serving.router"], choice_of(*BALANCERS), "auto")
    return Degrees(
        tp=tp,
        pp=pp,
        dp=dp,
        experts=() if model is None else tuple(_experts(options, model, draft, ranks, replicas, pp[0])),
        router=(("serving.router", BALANCERS[balancer], origin),) if dp[0] > 1 else (),
    )


def _attention(options: Options) -> tuple[int, str]:
    """Return the degree of attention data parallelism; ``--dp-size N --enable-dp-attention`` says it, too."""
    found = options.value("--attn-dp-size", plain, 1)
    if found[0] == 1 and options.on("--enable-dp-attention", False)[0]:
        degree, origin = options.value(SGLANG["plan.dp"], plain, 1)
        return degree, f"{origin} --enable-dp-attention"
    return found


def _experts(
    options: Options, model: ModelSpec, draft: Draft, ranks: int, replicas: int, pp: int
) -> list[tuple[str, Any, str]]:
    """Return the entries of expert parallelism: over the ranks of ``--tp-size``, or each split over them."""
    name = SGLANG["plan.ep.degree"]
    degree, origin = options.value(name, plain, 1)
    backend, of_backend = options.value("--moe-a2a-backend", choice_of("none", *SPANNING), "none")
    if backend != "none":
        degree, origin = ranks, f"{of_backend} {backend}: all of {SGLANG['plan.tp']}"
    place = options.given("--attn-dp-size") or options.given("--enable-dp-attention")
    moe = any(isinstance(layer.ffn, Moe) for layer in model.layers)
    if replicas > 1 and place is not None and (not moe or degree == 1):
        split, instead = ("each expert", f"add {name} {ranks}, or ") if moe else ("the FFN", "")
        options.wrong(place, f"SGLang splits {split} over the ranks of all replicas, which is not simulated; {instead}"
                      "take replicas with --dp-size alone")  # fmt: skip
    if not moe and degree > 1:
        draft.note(f"{origin.partition(' ')[0]} has no effect here: the model has no experts.")
    degree = degree if moe else 1
    lines: list[tuple[str, Any, str]] = [("plan.ep.degree", degree, origin)] if moe else []
    if degree > 1 and replicas > 1:
        lines.append(("plan.ep.scope", "global", "SGLang spreads experts over the ranks of all its attention replicas"))
    redundant, origin = options.value(SGLANG["plan.ep.redundant"], whole, 0)
    lines += [("plan.ep.redundant", redundant, origin)] if redundant else []
    lines += _exchange(options, backend, draft) if degree > 1 else []
    return [*lines, *_two_batches(options, backend, degree, pp, draft)]


def _exchange(options: Options, backend: str, draft: Draft) -> list[tuple[str, Any, str]]:
    """Return how tokens get to experts; without a backend the profile's way stands."""
    mode, origin = options.value(SGLANG["plan.ep.exchange"], choice_of(*DEEPEP_MODES), "auto")
    if backend != "deepep" and options.given(SGLANG["plan.ep.exchange"]) is not None:
        draft.note(f"{origin} has no effect without --moe-a2a-backend deepep.")
    if backend == "none":
        return []
    if backend != "deepep" or mode == "auto":
        draft.leave_out(
            f"--moe-a2a-backend {backend}",
            "tokens go to experts and back by an all-to-all, of the cheapest algorithm there is"
            + ("; --deepep-mode normal or low_latency takes that kernel of DeepEP" if backend == "deepep" else ""),
        )
        return [("plan.ep.exchange", DEEPEP_MODES["auto"], "--moe-a2a-backend")]
    return [("plan.ep.exchange", DEEPEP_MODES[mode], origin)]


def _two_batches(options: Options, backend: str, degree: int, pp: int, draft: Draft) -> list[tuple[str, Any, str]]:
    """Return the entries of two batches that overlap, which SGLang refuses without a backend (``server_args.py``)."""
    switch = options.given(SGLANG["plan.ep.overlap"])
    if switch is None:
        return []
    if backend == "none":
        options.wrong(
            switch, "SGLang refuses it with --moe-a2a-backend none, its default; add --moe-a2a-backend deepep"
        )
    if degree == 1 or backend == "none":
        draft.note(
            f"{switch.name} has no effect here: no tokens are dispatched that another batch could compute beside."
        )
        return []
    if pp > 1:
        options.wrong(switch, "two batches that overlap are simulated at --pp-size 1 only")
    draft.note(f"{switch.name}: SGLang splits steps by thresholds of its own; here each that can be split is.")
    return [("plan.ep.overlap", "two_batch", switch.name)]


def _chunk(text: str) -> int:
    return 0 if text.strip() == "-1" else plain(text)


def _batches(options: Options, degrees: Degrees, device: Device, served: ServedModel, draft: Draft) -> None:
    """Write scheduler, limits, graphs and the K/V pool, and refuse what SGLang refuses."""
    shared, profile = _attention(options)[0], load_engine(ENGINE)
    ranks = degrees.world // (1 if shared > 1 else degrees.dp[0])
    place = Place(device=device, positions=served.positions, ranks=ranks)
    usual = profile.decides({}, place)
    chunk, of_chunk = options.value("--chunked-prefill-size", _chunk, usual["max_batch_tokens"])
    most, of_most = options.value(SGLANG["serving.max_batch_tokens"], human, 16384)
    page = options.value(SGLANG["serving.kv_block_tokens"], plain, 1)[0]
    if not options.problems:
        refuse(options, served.spec, "sglang", _settled(options, chunk, page))
    _scheduler(options, chunk, of_chunk, draft)
    among, on = f", shared by {shared} replicas" if shared > 1 else "", f" on {device.name}"
    many, origin = options.value(SGLANG["serving.max_batch_requests"], plain, usual["max_batch_requests"] * shared)
    draft.set("serving.max_batch_requests", max(1, many // shared), origin + (on if "default" in origin else among))
    if chunk and chunk // shared <= most:
        origin = of_chunk + (on if "default" in of_chunk else "") + among
        draft.set("serving.max_batch_tokens", max(1, chunk // shared), origin)
    else:
        draft.set("serving.max_batch_tokens", most, of_most)
    graphs, origin = _largest_graph(options, profile)
    options.engine(ENGINE, "host overheads of SGLang 0.5", draft)
    draft.set("serving.engine.graph_max_tokens", graphs, origin)
    _memory(options, replace(profile, graph_max_tokens=graphs), place, chunk or most, draft)
    _pool(options, page, draft)


def _scheduler(options: Options, chunk: int, of_chunk: str, draft: Draft) -> None:
    """Write scheduler and order."""
    mixed, origin = options.on(SGLANG["serving.scheduler"], False)
    together = mixed and chunk > 0
    draft.set("serving.scheduler", "chunked_prefill" if together else "continuous", origin if chunk else of_chunk)
    if chunk and not mixed:
        draft.note(
            f"without {SGLANG['serving.scheduler']} SGLang cuts long prompts into chunks, in steps of their own before "
            "those that decode; `continuous` here takes such prompts whole."
        )
    policy, _ = options.value("--schedule-policy", choice_of(*POLICIES), "fcfs")
    if policy != "fcfs":
        draft.leave_out(f"--schedule-policy {policy}", "requests are taken up as they arrive, or by priority")
    first, origin = options.on(SGLANG["serving.order.by"], False)
    if first:
        draft.set("serving.order.by", "priority", origin)
        draft.set("serving.order.patience", "unlimited", "in SGLang the priority decides before the arrival")


def _memory(options: Options, engine: Engine, place: Place, tokens: int, draft: Draft) -> None:
    """Write the share of memory that weights and K/V have: by default what is left beside a step of so many tokens."""
    name = SGLANG["serving.memory_utilization"]
    left = engine.decides({"max_batch_tokens": tokens}, place)["memory_utilization"]
    fraction, origin = options.value(name, share, left)
    largest = options.given("--chunked-prefill-size") or options.given(SGLANG["serving.max_batch_tokens"])
    if options.given(name) is None and largest is not None and left <= NOTHING:
        options.wrong(largest, f"by SGLang's rule it leaves no memory for weights on {place.device.name}; give {name}")
    draft.set(
        "serving.memory_utilization", fraction, origin + (f" on {place.device.name}" if "default" in origin else "")
    )


def _pool(options: Options, page: int, draft: Draft) -> None:
    """Write the K/V pool, if its tokens are given."""
    total = options.given(SGLANG["serving.kv_blocks"])
    cached, origin = options.value(SGLANG["serving.kv_blocks"], human, page)
    if total is not None and cached < page:
        options.wrong(total, f"{cached} tokens are less than a page of {page}")
    elif total is not None:
        draft.set("serving.kv_blocks", cached // page, f"{origin} in pages of {page}")


def _largest_graph(options: Options, engine: Engine) -> tuple[int, str]:
    """Return the largest batch of decodes that runs as a CUDA graph, and the origin."""
    backend, origin = options.value("--cuda-graph-backend-decode", choice_of("full", "breakable", "disabled"), "full")
    if backend == "disabled":
        return 0, f"{origin} disabled"
    for name in ("--disable-cuda-graph", "--disable-decode-cuda-graph"):
        if options.on(name, False)[0]:
            return 0, name
    name = SGLANG["serving.engine.graph_max_tokens"]
    for given in ("--cuda-graph-bs-decode", name):
        if options.given(given) is not None:
            return options.value(given, lambda text: max(map(plain, text.split())), 1)
    requests, origin = options.value(SGLANG["serving.max_batch_requests"], plain, engine.graph_max_tokens)
    few = requests < engine.graph_max_tokens
    return (requests, origin) if few else (engine.graph_max_tokens, options.default(name))


def _settled(options: Options, chunk: int, page: int) -> dict[str, str]:
    """Return what is asked for as SGLang settles it before its rules look."""
    texts = {name: choice.text for name, choice in options.command.choices.items()}
    replicas = _attention(options)[0]
    if options.value("--attn-dp-size", plain, 1)[0] != replicas:  # deprecated: --dp-size N --enable-dp-attention
        texts |= {"--attn-dp-size": str(replicas), "--dp-size": "1"}
    if texts.get("--moe-a2a-backend") in SPANNING:
        texts["--ep-size"] = texts.get("--tp-size", "1")
    for name, read in (("--context-length", human), ("--nnodes", count)):
        if name in texts:
            texts[name] = str(read(texts[name]))
    return texts | {"--chunked-prefill-size": str(chunk or -1), "--page-size": str(page)}


READER: Final = Reader(
    grammar=GRAMMAR,
    quantizations=QUANTIZATIONS,
    by_checkpoint=BY_CHECKPOINT,
    kv_dtypes=SGLANG_KV_DTYPES,
    length=human,
    settings=(
        Setting(path="serving.kv_block_tokens", flag=SGLANG["serving.kv_block_tokens"], read=plain, default=1),
        Setting(path="serving.queue_limit", flag=SGLANG["serving.queue_limit"], read=plain, default=None),
    ),
    degrees=_degrees,
    batches=_batches,
)
"""How ``python -m sglang.launch_server`` is read."""
