"""The keys of a scenario: names, types and ranges of the document, before anything is looked up or built.

Topology, model and engine are mappings whose own keys are checked where they are built. Defaults are here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from clustersim.plan.exchange import ExpertExchange
from clustersim.plan.parallel import Cut, DispatchFormat
from clustersim.scenario.document import KeyPath
from clustersim.scenario.fields import (
    LONGEST_S,
    MOST,
    Bytes,
    Count,
    Duration,
    DurationOrZero,
    Index,
    Part,
    StepTokens,
    refuse,
    short_for,
)
from clustersim.scenario.text.scalars import kind_of
from clustersim.scenario.workload_schema import WorkloadPart
from clustersim.units import parse

POOLS: Final = ("prefill", "decode")
"""The pools of disaggregated serving, as ``plan`` and ``serving`` have them."""

SHORTHANDS: Final[Mapping[KeyPath, str | None]] = {
    ("topology",): "name",
    ("model",): "name",
    **{
        (*plan, key): short
        for plan in (("plan",), *(("plan", pool) for pool in POOLS))
        for key, short in (("tp", "degree"), ("sp", "degree"), ("ep", "degree"), ("stages", None))
    },
    **{(*plan, "ep", "routing"): None for plan in (("plan",), *(("plan", pool) for pool in POOLS))},
    ("serving", "engine"): "name",
    **{(*serving, "order"): "by" for serving in (("serving",), *(("serving", pool) for pool in POOLS))},
    ("precision", "weights"): "default",
    ("workload", "trace"): "path",
    ("workload", "arrivals"): "process",
    ("workload", "prompt_tokens"): "fixed",
    ("workload", "output_tokens"): "fixed",
    ("workload", "cancel_after"): "fixed",
}
"""Where a lone value stands for a mapping with this one key (``plan.tp: 8``), or for an empty one (None)."""

MOST_SLOWDOWN: Final = 1e9
"""Largest factor by which a device may be slower (assumed: what is slower has failed)."""
LEAST_SHARE: Final = 1e-9
"""Smallest share that a link that works may have left (assumed, likewise)."""

_CUT: Final = re.compile(r"([0-9]+)\.(attention|ffn)")
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _cut(value: object) -> Cut:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Cut(layer=value)
    if isinstance(value, str) and (found := _CUT.fullmatch(value)):
        return Cut(layer=int(found[1]), before="ffn" if found[2] == "ffn" else "attention")
    raise refuse("a layer such as 40, or '12.ffn' to cut before the FFN of layer 12", value)


def _stages(value: object) -> object:
    if value == "balanced":
        return {}
    if not isinstance(value, dict):
        raise refuse("'balanced' or {cuts: [40]}", value)
    return value


def _routing(value: object) -> object:
    if value == "balanced":
        return {}
    if not isinstance(value, dict):
        raise refuse("'balanced', {zipf: 1.0} or {file: frequencies.csv}", value)
    return value


def _placement(value: object) -> object:
    if isinstance(value, str):
        return value
    names = value if isinstance(value, list) else [None]
    if not names or not all(isinstance(name, str | int) and not isinstance(name, bool) for name in names):
        message = "'packed', the name of a kind of device, or a list of devices, rank by rank, such as [n0.g0, n0.g1]"
        raise refuse(message, value)
    return value


def _expert_placement(value: object) -> object:
    if value in ("contiguous", "strided"):
        return value
    ranks = value if isinstance(value, list) else [None]
    if not isinstance(value, list) or not ranks:
        raise refuse("contiguous, strided, or a list with the EP rank of each expert", value)
    odd = next((at for at, rank in enumerate(ranks) if type(rank) is not int or not 0 <= rank <= MOST), None)
    if odd is not None:
        found = f"{ranks[odd]:.6g}" if type(ranks[odd]) in (int, float) else kind_of(ranks[odd])
        raise ValueError(f"expected the EP rank of expert {odd}, a whole number from 0, but found {found}")
    return value


def _patience(value: object) -> object:
    if value is None or value == "unlimited":
        return value
    try:
        seconds = parse(value, "time")
    except ValueError:
        seconds = -1
    if not 0 < seconds < LONGEST_S:
        raise refuse("a time such as '10 s', or 'unlimited'", value)
    return seconds


DEFAULT_ENGINE: Final = "vllm-0.19"
"""The engine of a scenario that names none: the newest vLLM that was measured. It is written into the run directory."""


def _nothing(value: object) -> object:
    """Take null as nothing, so that ``--set expect=null`` drops what a scenario expects."""
    return {} if value is None else value


def _named(kind: str, example: str) -> BeforeValidator:
    """Return what reads a device or node: by its name, or its number."""

    def read(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int) or (isinstance(value, int) and value < 0):
            raise refuse(f"a {kind} such as {example}, or its number", value)
        return value

    return BeforeValidator(read)


def _window(value: object) -> object:
    if isinstance(value, bool) or not (value in ("model", "unlimited") or (isinstance(value, int) and value > 0)):
        raise refuse("'model', 'unlimited' or a number of tokens such as 8192", value)
    return value


class TensorPart(Part):
    """Tensor parallelism: the degree, and which dimension of each operator it splits."""

    degree: Count = 1
    embedding: Literal["vocab", "hidden"] = "vocab"
    attention_out: Literal["rows", "columns"] = "rows"
    ffn_up: Literal["columns", "rows"] = "columns"
    ffn_down: Literal["rows", "columns"] = "rows"
    lm_head: Literal["vocab", "hidden"] = "vocab"


class SequencePart(Part):
    """Sequence parallelism in prefill, and what its ranks do in decode (no default above degree 1)."""

    degree: Count = 1
    scheme: Literal["all_gather", "ring", "all_to_all"] | None = None
    partition: Literal["contiguous", "zigzag", "striped"] | None = None
    decode: Literal["idle", "dp"] | None = None


class RoutingPart(Part):
    """How often experts are visited: by Zipf's law, or as a file says; without either, all alike."""

    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    file: str | None = Field(default=None, examples=["expert-frequencies.csv"])


class ExpertPart(Part):
    """Expert parallelism of the MoE modules."""

    degree: Count = 1
    scope: Literal["replica", "global"] = "replica"
    placement: Annotated[Any, BeforeValidator(_expert_placement, json_schema_input_type=str | list[int])] = "contiguous"
    routing: Annotated[RoutingPart, BeforeValidator(_routing, json_schema_input_type=str | RoutingPart)] = RoutingPart()
    redundant: Index = 0
    overlap: Literal["none", "two_batch"] = "none"
    overlap_decode_tokens: Index = 0
    overlap_prefill_tokens: Index = 0
    exchange: ExpertExchange | None = None
    dispatch: DispatchFormat | None = None


class StagesPart(Part):
    """Where the stages after the first begin; without cuts the layers are balanced."""

    cuts: list[Annotated[Any, BeforeValidator(_cut, json_schema_input_type=int | str)]] | None = Field(
        default=None, examples=["[40]"]
    )


class PoolPlanPart(Part):
    """The parallel plan of one pool of replicas."""

    dp: Count = 1
    pp: Count = 1
    tp: Annotated[TensorPart, short_for("degree", int | TensorPart)] = TensorPart()
    sp: Annotated[SequencePart, short_for("degree", int | SequencePart)] = SequencePart()
    ep: Annotated[ExpertPart, short_for("degree", int | ExpertPart)] = ExpertPart()
    stages: Annotated[StagesPart, BeforeValidator(_stages, json_schema_input_type=str | StagesPart)] = StagesPart()
    placement: Annotated[Any, BeforeValidator(_placement, json_schema_input_type=str | list[str | int])] = "packed"
    decode_overlap: Literal["per_sequence", "none"] = "per_sequence"
    devices: Count | None = None


class PlanPart(PoolPlanPart):
    """The parallel plan; or, where requests are prefilled and decoded apart, one for each of the two pools."""

    prefill: PoolPlanPart | None = Field(default=None, examples=["{dp: 1, tp: 2}"])
    decode: PoolPlanPart | None = Field(default=None, examples=["{dp: 1, tp: 2}"])

    @property
    def pools(self) -> dict[str, PoolPlanPart]:
        """The plan of each pool by the name of that; by an empty one where all replicas are one pool."""
        if self.prefill is None or self.decode is None:
            return {"": self}
        return dict(zip(POOLS, (self.prefill, self.decode), strict=True))


class PrecisionPart(Part):
    """Number formats; without ``weights`` that of the model's published checkpoint."""

    weights: Annotated[dict[str, str] | None, short_for("default", str | dict[str, str])] = Field(
        default=None, examples=["{default: fp8}"]
    )
    activations: str = Field(default="bf16", examples=["bf16"])
    kv_cache: str = Field(default="bf16", examples=["fp8"])
    multiply: str | None = Field(default=None, examples=["fp8"])


class OrderPart(Part):
    """In which order waiting requests are taken up; see ``clustersim/serving/order.py``."""

    by: Literal["arrival", "priority", "shortest_prompt"] = "arrival"
    patience: Annotated[Any, BeforeValidator(_patience, json_schema_input_type=str)] = Field(
        default=None, examples=["10 s"]
    )


class PoolServingPart(Part):
    """What of ``serving`` is so in one pool only; what is not said here is as ``serving`` has it."""

    scheduler: str | None = Field(default=None, examples=["chunked_prefill"])
    order: Annotated[OrderPart | None, short_for("by", str | OrderPart)] = Field(default=None, examples=["priority"])
    long_prompt_tokens: Count | None = None
    max_batch_requests: Count | None = None
    max_batch_tokens: StepTokens | None = None
    kv_blocks: Count | None = None
    memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    router: str | None = Field(default=None, examples=["least_outstanding"])


class ServingPart(Part):
    """The scheduler, its budgets, the K/V pool, the router and the engine, which decides what is not said of these."""

    scheduler: str | None = Field(default=None, examples=["chunked_prefill"])
    scheduler_options: dict[str, Any] = Field(default_factory=dict, examples=["{limit: 4}"])
    order: Annotated[OrderPart, short_for("by", str | OrderPart)] = Field(default=OrderPart(), examples=["priority"])
    long_prompt_tokens: Count | None = None
    max_batch_requests: Count | None = None
    max_batch_tokens: StepTokens | None = None
    kv_block_tokens: Count | None = None
    kv_blocks: Count | None = None
    preemption: Literal["recompute", "swap", "never"] | None = None
    admission: Literal["whole_prompt", "first_chunk"] | None = None
    host_kv: Bytes | None = None
    prefix_caching: bool | None = None
    memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    context_window: Annotated[Count | Literal["model", "unlimited"], BeforeValidator(_window)] = "model"
    queue_limit: Count | None = None
    queue_timeout: Duration | None = Field(default=None, examples=["10 s"])
    router: str = Field(default="round_robin", examples=["least_outstanding"])
    router_options: dict[str, Any] = Field(default_factory=dict, examples=["{threshold: 0.5}"])
    engine: Annotated[dict[str, Any], short_for("name", str | dict[str, Any])] = Field(
        default={"name": DEFAULT_ENGINE}, examples=[DEFAULT_ENGINE]
    )
    prefill: PoolServingPart | None = Field(default=None, examples=["{max_batch_tokens: 16384}"])
    decode: PoolServingPart | None = Field(default=None, examples=["{max_batch_requests: 256}"])
    transfer: Literal["whole", "layerwise"] | None = Field(default=None, examples=["whole"])


class RunPart(Part):
    """How to replay, and when to stop; without horizon until the last request has ended."""

    replay: Literal["folded", "full"] = "folded"
    horizon: Duration | None = Field(default=None, examples=["60 s"])


def _share(value: float) -> float:
    if 0 < value < LEAST_SHARE:
        raise ValueError(f"must be 0 (the link fails) or at least {LEAST_SHARE:g}")
    return value


class FaultPart(Part):
    """A device, a node or a link that fails, or gets slower, at an instant, and is as before at another one."""

    device: Annotated[str | Index, _named("device", "n0.g3")] | None = None
    node: Annotated[str | Index, _named("node", "n1")] | None = None
    link: Annotated[list[str], Field(min_length=2, max_length=2)] | None = Field(
        default=None, examples=["[n0.g3, n0.nvswitch]"]
    )
    at: DurationOrZero = Field(examples=["30 s"])
    until: Duration | None = Field(default=None, examples=["60 s"])
    lose: Literal["recompute", "lose"] = "recompute"
    slowdown: Annotated[float, Field(gt=1, le=MOST_SLOWDOWN)] | None = Field(default=None, examples=[1.5])
    factor: Annotated[float, Field(ge=0, lt=1), AfterValidator(_share)] | None = Field(default=None, examples=[0.5])


class TargetsPart(Part):
    """What a request must meet to count as goodput."""

    ttft: Duration | None = Field(default=None, examples=["500 ms"])
    tpot: Duration | None = Field(default=None, examples=["50 ms"])
    itl: Duration | None = Field(default=None, examples=["100 ms"])
    e2e: Duration | None = Field(default=None, examples=["10 s"])


class CostPart(Part):
    """Measured operator durations that come before the roofline."""

    table: str = Field(examples=["kernels/h100.parquet"])


class ScenarioPart(Part):
    """A whole scenario."""

    name: Annotated[str, Field(pattern=_NAME, max_length=100, examples=["my-scenario"])]
    seed: Index = 0
    topology: Annotated[dict[str, Any], short_for("name", str | dict[str, Any])] = Field(examples=["dgx-h100"])
    model: Annotated[dict[str, Any], short_for("name", str | dict[str, Any])] = Field(examples=["llama-3.1-8b"])
    precision: PrecisionPart = Field(default=PrecisionPart(), examples=["{weights: fp8}"])
    plan: PlanPart = Field(default=PlanPart(), examples=["{dp: 1, tp: 2}"])
    serving: ServingPart = Field(default=ServingPart(), examples=["{max_batch_requests: 256}"])
    workload: WorkloadPart = Field(examples=["{trace: {path: traces/my-requests.csv}}"])
    run: RunPart = Field(default=RunPart(), examples=["{horizon: 60 s}"])
    targets: Annotated[TargetsPart, BeforeValidator(_nothing)] = Field(
        default=TargetsPart(), examples=["{ttft: 500 ms, tpot: 50 ms}"]
    )
    expect: Annotated[dict[str, Any], BeforeValidator(_nothing)] = Field(
        default_factory=dict, examples=["{legal: true, finished: 200}"]
    )
    cost: CostPart | None = Field(default=None, examples=["{table: kernels/h100.parquet}"])
    faults: list[FaultPart] = Field(default_factory=list, examples=["[{device: n0.g3, at: 30 s, until: 60 s}]"])
    collectives: dict[str, str] = Field(default_factory=dict, examples=["{all_reduce: ring}"])
    left_out: list[str] = Field(default_factory=list, examples=["[K/V in host memory]"])
