"""Which rules of level P a changed deployment breaks, and which fields could mend each: fast, for a search.

A rule is asked once for every combination of the fields that it reads; what is said here is a guide, and what a search
finds is proven by a whole check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from math import log2
from typing import Any, Final

from clustersim.cost.precision import dtype_bytes
from clustersim.legality.check import MOST_JUDGED_RANKS
from clustersim.legality.deployment import Deployment
from clustersim.legality.layout import Layout
from clustersim.legality.memory import rank_bytes
from clustersim.legality.plan_rules import cache, data, expert, memory, pipeline, sequence, tensor
from clustersim.legality.repair.candidates import changed
from clustersim.legality.repair.distance import DEGREE, DEGREES, LIMIT, PER_OCTAVE, REPLICAS
from clustersim.legality.shards import kv_heads_held
from clustersim.legality.stages import stages_of
from clustersim.plan.built import unbuilt
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

State = Mapping[str, Any]
"""Path → new value, of all that is changed."""

DP, PP, TP, SP, EP = DEGREES
_SPLITS: Final = tuple(f"plan.tp.{name}" for name in tensor.DIMENSIONS)
_EXPERTS: Final = (EP, "plan.ep.scope", SP, TP, DP)
LIMITS: Final = (
    "serving.max_batch_tokens", "serving.kv_block_tokens", "serving.max_batch_requests", "serving.memory_utilization",
    "serving.kv_blocks",
)  # fmt: skip
_OVERLAP: Final = ("plan.ep.overlap", "plan.ep.overlap_decode_tokens", "plan.ep.overlap_prefill_tokens")
_EXCHANGE: Final = ("plan.ep.exchange", "plan.ep.dispatch")
READS: Final[Mapping[str, tuple[str, ...]]] = {
    "DP-1": (DP, PP, SP, TP, "plan.placement", "plan.devices"),
    "TP-1": (*_EXPERTS, *_SPLITS),
    "KV-4": (TP, SP, "plan.sp.scheme"),
    "SP-1": (SP, TP, "plan.sp.scheme", "plan.sp.partition"),
    "SP-3": (SP, "plan.sp.decode"),
    "PP-1": (PP, "plan.stages"),
    "EP-1": (*_EXPERTS, "plan.ep.placement", "plan.ep.redundant"),
    "EP-6": _EXPERTS,
    "KV-6": (
        TP, PP, EP, "plan.ep.scope", SP, DP, "plan.stages", "plan.ep.placement", "plan.ep.redundant", "plan.sp.scheme",
        *_SPLITS, "precision.weights", *LIMITS,
    ),
    "built": (*_EXPERTS, PP, "plan.sp.scheme", "plan.ep.routing", *_OVERLAP, *_EXCHANGE),
}  # fmt: skip
"""Rule → the fields that decide whether it holds; ``built``: whether step graphs can be expanded at all."""
_HOPELESS: Final[Mapping[str, tuple[str, ...]]] = {
    "weights": ("precision.weights",),
    "pool": ("serving.kv_block_tokens", "serving.kv_blocks"),
    "batch": ("serving.max_batch_tokens",),
    "logits": ("serving.max_batch_requests",),
}
"""What may take more memory than any plan leaves → the fields that it takes it by."""
_OF_ALL_LAYERS: Final = ("PP-1", "KV-6", *_HOPELESS)
"""Rules that count layers; to the others one of each kind is as good as all."""
PATHS: Final = tuple(dict.fromkeys(path for paths in READS.values() for path in paths))
_MEMORY: Final = (*(path for path in READS["KV-6"] if path not in ("plan.sp.scheme", *_SPLITS)),)
"""Of what takes memory those that mend something: other dimensions split into as many bytes, but for remainders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A broken rule: one of the fields must change, which is at least so far."""

    rule: str
    levers: tuple[str, ...]
    least: float = 0.0


class Judge:
    """The rules of one deployment, and what they said of each combination of values."""

    def __init__(self, deployment: Deployment) -> None:
        model = deployment.model
        kinds = tuple(dict.fromkeys(model.layers))
        self.deployment = deployment
        self.short = replace(deployment, model=replace(model, layers=kinds))
        self.known: dict[Hashable, Conflict | None] = {}

    def conflicts(self, state: State) -> list[Conflict]:
        """Return what is wrong with the deployment once it is changed; too many ranks are all that is looked at.

        Memory is judged exactly where nothing else is wrong, and otherwise as far as no plan could be enough.
        """
        placed = self._asked("DP-1", state)
        if placed is not None and changed(self.short, tuple(state.items())).plan.world > MOST_JUDGED_RANKS:
            return [placed]
        asked = [placed, *(self._asked(rule, state) for rule in READS if rule not in ("DP-1", "KV-6"))]
        found = [one for one in asked if one is not None]
        found += [one for rule in _HOPELESS if (one := self._asked(rule, state)) is not None]
        exact = None if found else self._asked("KV-6", state)
        return found if exact is None else [exact]

    def _asked(self, rule: str, state: State) -> Conflict | None:
        reads = _HOPELESS[rule] if rule in _HOPELESS else READS[rule]
        key = (rule, *(_hashable(state[path]) if path in state else None for path in reads))
        if key not in self.known:
            whole = self.deployment if rule in _OF_ALL_LAYERS else self.short
            self.known[key] = self._judged(rule, changed(whole, tuple((p, state[p]) for p in reads if p in state)))
        return self.known[key]

    def _judged(self, rule: str, deployment: Deployment) -> Conflict | None:
        if rule == "DP-1":
            return _placed(deployment)
        if rule in _HOPELESS:
            return _hopeless(deployment, rule)
        if not _BROKEN[rule](deployment):
            return None
        if rule != "KV-6":
            return Conflict(rule=rule, levers=_only(rule, deployment) or READS[rule])
        fits = memory.fits_memory(_relaxed(deployment))
        return Conflict(rule=rule, levers=tuple(path for path in _MEMORY if fits or path.startswith("plan.")))


def _only(rule: str, deployment: Deployment) -> tuple[str, ...]:
    """Return the one degree that must change whatever else does, if that is so: it can be legal for no such model."""
    plan, layers = deployment.plan, deployment.model.layers
    if rule == "TP-1" and any(layer.attention.num_heads % plan.tp for layer in layers):
        return (TP,)
    if rule == "EP-1" and plan.ep.degree > 1:
        experts = [moe.num_experts for moe in deployment.moes]
        return (EP,) if not experts or any(count % plan.ep.degree for count in experts) else ()
    return (SP,) if rule == "SP-3" and deployment.decodes_only else ()


def _placed(deployment: Deployment) -> Conflict | None:
    plan, devices = deployment.plan, deployment.num_devices
    if plan.world > devices:
        return Conflict(rule="DP-1", levers=(DP, PP, SP, TP), least=_least_smaller(plan.dp, plan.world / devices))
    if plan.devices not in (None, plan.world):
        return Conflict(rule="DP-1", levers=(DP, PP, SP, TP, "plan.devices"))
    return Conflict(rule="DP-1", levers=READS["DP-1"]) if data.placed(deployment).faults else None


def _relaxed(deployment: Deployment) -> Deployment:
    """Return a deployment with everything at its least that takes memory, but its plan."""
    limits = deployment.limits
    least = replace(
        limits,
        kv_block_tokens=1,
        max_batch_tokens=1,
        max_batch_requests=1,
        kv_blocks=limits.kv_blocks and 1,
        memory_utilization=max(limits.memory_utilization, memory.USUAL_UTILIZATION),
    )
    smallest = min(deployment.precision.weights, "fp4", key=dtype_bytes)
    return replace(deployment, limits=least, precision=replace(deployment.precision, weights=smallest))


def _least_smaller(dp: int, times: float) -> float:
    """Return how far it is at least to a plan that is so many times smaller: by fewer replicas as far as they go."""
    cheap, octaves = min(log2(dp), log2(times)), log2(times)
    return REPLICAS * cheap + octaves - cheap + (REPLICAS if octaves <= cheap else 1) * DEGREE


def _hopeless(deployment: Deployment, what: str) -> Conflict | None:
    """Return which limits must be lower, and by how much at least, since no plan is enough.

    Weights and K/V are spread over all devices at best; of buffers, some are never split.
    """
    limits, model = deployment.limits, deployment.model
    budget = memory.budget_bytes(_relaxed(deployment))
    if deployment.pool.share_of == "static" and what in ("batch", "logits"):
        budget = deployment.memory_bytes - deployment.pool.outside_bytes
    alone = replace(deployment, plan=ParallelPlan())
    (whole,) = (rank_bytes(alone, stage) for stage in stages_of(model, alone.plan))
    blocks = (limits.kv_blocks or 1) * limits.kv_block_tokens
    needed = {
        "weights": whole.weights / deployment.num_devices,
        "pool": blocks * whole.kv_per_token / deployment.num_devices,
        "batch": limits.max_batch_tokens * 5 * model.hidden * deployment.precision.activation_bytes,
        "logits": limits.max_batch_requests * model.vocab * 4.0,
    }[what]
    if needed <= budget:
        return None
    if what == "weights":
        least = needed * dtype_bytes("fp4") / deployment.precision.weight_bytes
        return Conflict(rule="KV-6", levers=_HOPELESS[what] if least <= budget else ())
    return Conflict(rule="KV-6", levers=_HOPELESS[what], least=LIMIT + PER_OCTAVE * log2(needed / budget))


def _lean(deployment: Deployment) -> Layout:
    """Return of the layout what the rules of plans look at; the rest follows from the plan, and is as it should be."""
    model, plan = deployment.model, deployment.plan
    kinds = {layer.attention: kv_heads_held(layer.attention, plan.tp) for layer in model.layers}
    return Layout(
        stages=stages_of(model, plan),
        kv_heads=tuple(kinds[layer.attention] for layer in model.layers),
        segments={},
        expert_maps={},
        weight_bytes=(),
        exchanges={},
    )


def _is_unbuilt(deployment: Deployment) -> bool:
    plan = deployment.plan
    split = plan.is_lockstep and (plan.pp > 1 or plan.sp.degree > 1)
    return split or unbuilt(plan, deployment.model) is not None


_BROKEN: Final[Mapping[str, Callable[[Deployment], bool]]] = {
    "TP-1": lambda one: bool(tensor.divides(one, _lean(one)).faults),
    "KV-4": lambda one: bool(cache.shards(one, _lean(one)).faults),
    "SP-1": lambda one: bool(sequence.segments(one, _lean(one)).faults),
    "SP-3": lambda one: bool(sequence.prefill_only(one, _lean(one)).faults),
    "PP-1": lambda one: bool(pipeline.covers(one, _lean(one)).faults),
    "EP-1": lambda one: bool(expert.covers(one, _lean(one)).faults),
    "EP-6": lambda one: bool(expert.groups(one, _lean(one)).faults),
    "KV-6": lambda one: not memory.fits_memory(one),
    "built": _is_unbuilt,
}


def _hashable(value: Any) -> Hashable:
    return json.dumps(value) if isinstance(value, list | dict) else value


def faults_of(deployment: Deployment, state: State) -> Iterator[str]:
    """Yield what is left to say of a state that nothing mends: ``message (advice) [rule]`` of each fault."""
    from clustersim.legality.check import examine

    after = changed(deployment, tuple(state.items()))
    for rule, finding in examine(after).items():
        for fault in finding.faults:
            yield f"{fault.message} ({fault.advice}) [{rule}]"
    problem = unbuilt(after.plan, after.model)
    if problem is not None:
        yield f"{problem.message} [{problem.path}]"
