"""From the words of a row to parts of a scenario: topology, model, number formats, serving configuration.

Unsaid in the rows and taken here: what the measured software does when it is not told otherwise. Engines
are the profiles of ``scenarios/engines`` in force at their versions. One node is taken, and the devices of a plan are
its first ones.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar

from clustersim import catalog
from clustersim.accuracy.remarks import EAGER
from clustersim.accuracy.row import Inexpressible, Row, nearest_first
from clustersim.cost.unsaid import Place
from clustersim.model.architecture import Moe
from clustersim.scenario.build.engines import standing_for
from clustersim.scenario.parts import load_engine, load_model, load_topology

Part = dict[str, Any]
DATED: Final = re.compile(r"\d{4}_\d{2}_\d{2}_")
"""How the notes of InferenceX begin: the day of the run."""
POOLS: Final = frozenset({"prefill", "decode"})
Value = TypeVar("Value")

TOPOLOGIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "rtx 4090": {"name": "rtx-4090-node", "peer_access": False},
    # LLMServingSim's node: its all-reduces over two are as slow as vLLM 0.19.0's without peer access
    "rtx pro 6000 blackwell": {"name": "rtx-pro-6000-node", "peer_access": False},
    "rtx ?pro ?6000": {"name": "rtx-pro-6000-node"},
    "gb200": {"name": "gb200-nvl72"},
    "b200": {"name": "dgx-b200"},
    "h200": {"name": "dgx-h200"},
    "h20": {"name": "h20-node"},
    "h100": {"name": "dgx-h100"},
    "h800": {"name": "h800-node"},
    "a100.*40 ?gb": {"name": "dgx-a100", "device": "a100-sxm-40gb"},
    "a100": {"name": "dgx-a100"},
    "l40s": {"name": "l40s-node"},
    "mi300x": {"name": "mi300x-node"},
    "tpu ?v6e-?(\\d+)?": {"name": "tpu-v6e", "dims": [2, 4]},
}
"""Pattern in the hardware of a row → topology, the first that is found."""
SLICES: Final = {4: [2, 2], 8: [2, 4], 16: [4, 4], 32: [4, 8]}
"""Chips of a TPU v6e slice along each axis (Google's documentation of v6e)."""

OTHERS: Final = re.compile(
    r"gh200|(?:a100|h100|h200).*(?:pcie|nvl\b)|\bmig\b|4090 ?d\b|laptop|\bh20\b.*(?:141|3e)", re.I
)
"""Devices that are none of these although their names are nearly: other memory, rates and links."""
_MEMORY: Final = re.compile(r"\b(\d+) ?Gi?B?\b", re.I)
_DEVICES: Final = re.compile(r"\b(?:[abh][1-9]00|h20\b|l40s|mi\d{3}x)", re.I)
"""Of these a row names one: pools on different devices are not read."""
HARDWARE: Final = tuple(
    (
        pattern.partition("-?(")[0].replace(".*", " ").replace(" ?", " "),
        f"`{where['name']}`" + (f" of `{where['device']}`" if "device" in where else ""),
    )
    for pattern, where in TOPOLOGIES.items()
)
"""What stands in the hardware of a row, in any case, and the topology that is taken for it."""

ALIKE: Final[Mapping[str, str | Mapping[str, Any]]] = {
    # TensorRT-LLM attends to the whole context unless max_attention_window says otherwise, in version 0.1 too
    "mistral-7b": {"name": "mistral-7b", "config": {"sliding_window": None}},
    "mistral-large": "mistral-large-123b",
    "deepseek-r1": "deepseek-v3",
}
"""Models that are not taken as the catalog has them, or are called otherwise there."""
_REST: Final = re.compile(r"\(.*\)|-(?:instruct|chat|it|hf|base|fp8|fp4|nvfp4|fp16|bf16|awq|gptq|v\d\.\d|\d{4})\b")
_LLAMA: Final = re.compile(r"^(?:meta-)?llama-?v?(\d)")

WEIGHTS: Final = {
    "bf16": "bf16", "bfloat16": "bf16", "bf16/fp16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8",
    "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "mxfp4", "int8": "int8", "int4": "int4", "w8a8": "int8", "w4a16": "int4",
    "awq": "int4", "gptq": "int4",
}  # fmt: skip


_NVIDIAS: Final = re.compile("tensorrt-?llm|trt-llm", re.I)
"""How NVIDIA calls its engine where it publishes figures; others write `trtllm`."""
_KV_FORMAT: Final = re.compile(r"\(.*?(?:kv[\s_-]?(?:cache)?[\s:=]*(\w*\d\w*)|(\w*\d\w*)[\s_-]+kv)", re.I)
"""The number format of K/V in brackets behind that of the weights: ``FP8 (KV fp16)``."""
_CACHED: Final = re.compile(r"prefix[\s-]cach(?:ing|e)[\s:=]*(?:on|enabled|true)\b", re.I)
_NAMED: Final = re.compile(r"(vllm|trt-?llm|tensorrt-?llm|sglang|distserve)\b", re.I)
_TRTLLM: Final = re.compile("tensorrt-?llm|trt-?llm")
_VERSION: Final = re.compile(
    r"(?:[\s:(,_=@/-]|v(?=\d)|v[01]\b|version|release|nightly|openai|early|mid|late)*(\d{1,3}(?:\.\d{1,4}){1,2}|20\d\d)",
    re.I,
)
"""What follows the name of an engine up to its version: a number behind another name is another program's."""
_UNVERSIONED: Final = {"vllm": "0.19", "trtllm": "1.0", "sglang": "0.5", "distserve": "2024"}
_YEARS: Final[Mapping[str, tuple[tuple[int, str], ...]]] = {
    "vllm": ((2023, "2023"), (2025, "0.12"), (2026, "0.19")),
    "trtllm": ((2023, "0.9"), (2024, "0.14"), (2025, "1.0")),
}
"""Of an engine of which a row says only the year: what was released, or used by those who measured then."""
ROUTING: Final[Mapping[str, float]] = {"zipf": 1.0}
"""How often tokens visit experts, which no row says: by Zipf's law with the exponent 1. Chosen by ``ROUTING_FROM``."""
ROUTING_FROM: Final = "F7-moe-ep"
"""Of its 12 runs of Qwen3-235B-A22B the median errors of TPOT and TTFT are 7 % and 15 %, and 17 % and 15 % where all
experts are visited alike: small batches then read the weights of more experts than they did. With the exponents
0.7 and 1.2 the first is 11 % and 4 %. Other families' batches are large enough to visit all experts in any case."""
_SERVED_BY_DYNAMO: Final = 2048
"""Tokens of a step where aiconfigurator's rows name no limit: what vLLM's own SchedulerConfig has where nothing says
what it is used for. Of Qwen3-32B on 2 H100 (60 points) the median errors are 3 % (TPOT) and 23 % (TTFT), with 8192
4 % and 42 %."""


def served_otherwise(family: str, version: str, row: Row) -> Part:
    """Return what is known to be otherwise than the engine decides of itself."""
    if family != "vllm" or "aiconfigurator" not in row.source or DATED.match(row.note):
        return {}
    return {"max_batch_tokens": _SERVED_BY_DYNAMO} if tuple(map(int, version.split("."))) < (0, 14) else {}


_JOINED: Final = re.compile(r"\b(PCIe|NVLink)\b|\b(one node)\b", re.I)


def check_joined(row: Row, ranks: int) -> None:
    """Raise where a row says that its devices are joined in another way than those of its topology.

    Raises
    ------
    Inexpressible
    """
    found = _JOINED.search(row.parallel)
    if not found or ranks == 1:
        return
    name = topology(row)["name"]
    is_switched, in_node = _joined(name)
    told = f"{row.parallel!r}: the devices of {name} are joined by {'NVLink' if is_switched else 'PCIe'}"
    if found[1] and (found[1].lower() == "nvlink") != is_switched:
        raise Inexpressible(f"{told}; no topology in the catalogs has them by {found[1]}")
    if found[2] and ranks > in_node:
        raise Inexpressible(f"{told}, {in_node} in a node")


@cache
def _joined(name: str) -> tuple[bool, int]:
    """Return whether devices of a topology are joined by links of their own, and how many there are in a node."""
    found = load_topology(name)
    return bool({"scaleup", "ici"} & set(found.link_tier)), int((found.node_of == 0).sum())


def topology(row: Row) -> Part:
    """Return the topology of a row: one node of its hardware."""
    named = {device.lower() for device in _DEVICES.findall(row.hardware)}
    if len(named) > 1:
        raise Inexpressible(f"{row.hardware!r} names several devices ({', '.join(sorted(named))}); expected one")
    hardware = _MEMORY.sub(r"\1 gb", row.hardware)
    for pattern, where in TOPOLOGIES.items():
        if re.search(pattern, hardware, re.I) and not OTHERS.search(row.hardware):
            if "dims" in where:
                return dict(where) | {"dims": SLICES.get(math.ceil(row.num_gpus), where["dims"])}
            return dict(where) | {"nodes": max(1, math.ceil(row.num_gpus / 8))}
    known = nearest_first(row.hardware, (form for form, _ in HARDWARE))
    raise Inexpressible(f"no device in the catalogs for {row.hardware!r}; known are {known}")


def model(row: Row) -> str | Part:
    """Return the model of a row."""
    name = _LLAMA.sub(r"llama-\1", re.sub(r"\s+", "-", row.model.split("/")[-1].lower().strip()))
    name = _REST.sub("", _REST.sub("", name)).strip("- ")
    found = ALIKE.get(name, name)
    if name not in ALIKE and name not in catalog.names("scenarios/models"):
        known = nearest_first(name, (*ALIKE, *catalog.names("scenarios/models")))
        raise Inexpressible(f"no model in the catalogs for {row.model!r}; known are {known}")
    return found if isinstance(found, str) else dict(found)


def framework(text: str) -> tuple[str, str]:
    """Return family and version of a framework; of one without version that of the newest profile."""
    named = _NAMED.search(text)
    if not named:
        raise Inexpressible(f"no engine in the catalogs for {text!r}; known are {nearest_first(text, _UNVERSIONED)}")
    families = {_TRTLLM.sub("trtllm", name.lower()): None for name in _NAMED.findall(text)}
    if len(families) > 1:
        raise Inexpressible(f"{text!r} names several engines ({', '.join(families)}); expected one")
    (family,) = families
    found = _VERSION.match(text, named.end())
    version = found[1] if found and family != "distserve" else _UNVERSIONED[family]
    return family, version if "." in version or family == "distserve" else _of_year(family, int(version))


def _of_year(family: str, year: int) -> str:
    """Return the version of a year: the newest that is not newer, before all the oldest."""
    years = _YEARS.get(family, ((year, _UNVERSIONED[family]),))
    return ([version for since, version in years if since <= year] or [years[0][1]])[-1]


@cache
def profile(text: str) -> str:
    """Return the profile that stands for a framework, such as ``vllm-0.9`` for ``vLLM 0.8.5``; empty where none does.

    Parameters
    ----------
    text : str
        ``framework`` of a row.
    """
    try:
        return standing_for("-".join(framework(text)))[0]
    except Inexpressible:
        return ""


def precision(row: Row) -> Part:
    """Return the number formats of a row.

    K/V is in fp8 where NVIDIA published TensorRT-LLM on its own quantised checkpoints (their recipe quantises
    K/V as well), else in 16 bit, which engines take unless they are told otherwise.
    """
    weights = _known(WEIGHTS, re.sub(r"\s*\([^()]*\)", "", row.precision.lower()), "number format")
    quantised_kv = _NVIDIAS.match(row.framework) and weights in ("fp8", "fp4")
    said = _KV_FORMAT.search(row.precision)
    told = _known(WEIGHTS, (said[1] or said[2]).lower(), "number format of K/V") if said else None
    return {"weights": weights, "kv_cache": told or ("fp8" if quantised_kv else "bf16")}


def serving(row: Row) -> Part:
    """Return the serving part of a row, with what the engine decides of itself where it served."""
    family, version = framework(row.framework)
    engine = profile(row.framework)
    where, of = json.dumps(topology(row)), json.dumps(model(row))
    decided = _decided(engine, where, of) | served_otherwise(family, version, row)
    eager = EAGER.search(f"{row.framework} {row.note}") and load_engine(engine).graph_max_tokens > 0
    runs = {"name": engine, "graph_max_tokens": 0} if eager else engine
    return {"engine": runs, **decided, "prefix_caching": bool(_CACHED.search(f"{row.framework} {row.note}"))}


def decided_alone(row: Row) -> Part:
    """Return the limits that its engine decides of itself where a row's are otherwise, by its family's figures."""
    changed = served_otherwise(*framework(row.framework), row)
    decided = _decided(profile(row.framework), json.dumps(topology(row)), json.dumps(model(row)))
    return {key: decided[key] for key in changed}


@cache
def _decided(engine: str, topology: str, model: str) -> Part:
    """Return what an engine decides; topology and model as JSON."""
    named, of = json.loads(topology), json.loads(model)
    device = load_topology(named.pop("name"), [f"{key}={json.dumps(value)}" for key, value in named.items()]).device
    positions = load_model(of if isinstance(of, str) else of["name"]).max_positions
    return load_engine(engine).decides({}, Place(device=device, positions=positions))


def base(row: Row) -> Part:
    """Return a scenario without plan and workload."""
    return {
        "name": row.id,
        "topology": topology(row),
        "model": model(row),
        "precision": precision(row),
        "serving": serving(row),
    }


def pooled(document: Part) -> Part:
    """Return a scenario whose pools, where its plan has any, each serve as its engine does."""
    if not document["plan"].keys() >= POOLS:
        return document
    serving = {key: value for key, value in document["serving"].items() if key != "preemption"}  # pools can't reserve
    scheduler = serving.pop("scheduler")
    pools = {pool: {"scheduler": scheduler} for pool in sorted(POOLS)}
    return {**document, "serving": {**serving, "scheduler": "disaggregated", **pools}}


def routed(document: Part, routing: Mapping[str, float]) -> Part:
    """Return a scenario whose tokens visit experts in some proportion, where its model has any."""
    model, plan = document["model"], document["plan"]
    pools = [plan[name] for name in plan if name in POOLS] or [plan]
    if not _has_experts(model if isinstance(model, str) else model["name"]):
        return document
    for pool in pools:
        pool["ep"] = {**pool.get("ep", {}), "routing": dict(routing)}
    return document


@cache
def _has_experts(model: str) -> bool:
    return any(isinstance(layer.ffn, Moe) for layer in load_model(model).layers)


def _known(table: Mapping[str, Value], word: str, what: str) -> Value:
    if word not in table:
        raise Inexpressible(f"no {what} in the catalogs for {word!r}; known are {nearest_first(word, table)}")
    return table[word]
