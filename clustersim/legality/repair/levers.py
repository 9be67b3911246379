"""The fields of a deployment that may be changed to make it legal, and every value that each may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import Any, Final

from clustersim.cost.precision import DTYPE_BYTES
from clustersim.legality.deployment import Deployment, divisors
from clustersim.legality.memory import rank_bytes
from clustersim.legality.plan_rules.memory import USUAL_UTILIZATION, most_blocks
from clustersim.legality.plan_rules.tensor import head_divisors
from clustersim.legality.repair.distance import distance, turn, value_at
from clustersim.legality.stages import cut_at, position, stages_of
from clustersim.plan.built import built_schemes

Option = tuple[float, int, Any]
"""Distance, turn among equals, value."""

MOST_LISTED: Final = 4096
"""Up to so many devices any number of them may be a degree, beyond that the divisors only."""
LATEST: Final = ("plan.devices", "serving.kv_blocks")
"""Fields whose best value follows from all others: they are decided when those are."""
_CHOICES: Final[Mapping[str, Iterable[Any]]] = {
    "plan.sp.partition": ("zigzag", "contiguous", "striped"),
    "plan.sp.decode": ("idle", "dp"),
    "plan.placement": ("packed",),
    "plan.ep.scope": ("global", "replica"),
    "plan.ep.overlap": ("none",),
    "plan.ep.overlap_decode_tokens": (0,),
    "plan.ep.overlap_prefill_tokens": (0,),
    "plan.ep.exchange": ("all_to_all",),
    "plan.ep.dispatch": (None,),
    "plan.ep.routing": ("balanced",),
    "plan.tp.embedding": ("vocab", "hidden"),
    "plan.tp.attention_out": ("rows", "columns"),
    "plan.tp.ffn_up": ("columns", "rows"),
    "plan.tp.ffn_down": ("rows", "columns"),
    "plan.tp.lm_head": ("vocab", "hidden"),
}
"""Path → what may be chosen, the first one rather than the next where they are equally far."""
_DEFAULTS: Final[Mapping[str, Any]] = {"plan.placement": None, "plan.ep.routing": None}
"""Path → what it is where it has nothing to go back to."""


def options(deployment: Deployment, path: str) -> list[Option]:
    """Return every other value of a field, the nearest first.

    Left out are degrees that can be legal nowhere: TP-1 asks that tp divides the heads, EP-1 that ep divides the
    experts.
    """
    now = value_at(deployment, path)
    found = [
        (distance(deployment, path, value), turn(deployment, path, value), place, value)
        for place, value in enumerate(_values(deployment, path, now))
        if value != now
    ]
    return [(far, at, value) for far, at, _, value in sorted(found, key=lambda one: one[:3])]


def _values(deployment: Deployment, path: str, now: Any) -> Iterable[Any]:
    devices = deployment.num_devices
    if path in ("plan.dp", "plan.sp.degree", "plan.pp"):
        most = min(devices, 2 * len(deployment.model.layers)) if path == "plan.pp" else devices
        return range(1, most + 1) if devices <= MOST_LISTED else [one for one in divisors(devices) if one <= most]
    if path == "plan.tp.degree":
        return [degree for degree in head_divisors(deployment) if degree <= devices]
    if path == "plan.ep.degree":
        return _expert_divisors(deployment)
    if path == "plan.ep.redundant":
        return sorted(set(_copies(deployment, now)))
    if path == "plan.sp.scheme":
        return built_schemes(deployment.model) if now is None else ("ring", "all_gather", "all_to_all")
    if path == "plan.stages":
        return [] if now is None else [*_sound_cuts(deployment), "balanced"]
    if path == "plan.ep.placement":
        return ("contiguous", "strided") if isinstance(now, tuple) else ()
    if path == "precision.weights":
        return [name for name in ("fp8", "fp4") if DTYPE_BYTES[name] < now]
    if path == "serving.memory_utilization":
        return [USUAL_UTILIZATION] if now < USUAL_UTILIZATION else []
    if path.startswith("serving."):
        return [] if now is None else [now >> shift for shift in range(1, now.bit_length())]
    if path == "plan.ep.exchange" and deployment.plan.ep.exchange_by_engine:
        return ()  # it follows the rest of the plan
    if path in _DEFAULTS and now is _DEFAULTS[path]:
        return ()
    return _CHOICES[path]


def _expert_divisors(deployment: Deployment) -> list[int]:
    return divisors(gcd(*(moe.num_experts for moe in deployment.moes))) if deployment.moes else [1]


def _copies(deployment: Deployment, now: int) -> Iterator[int]:
    """Yield the numbers of copies that spread evenly over any legal degree of EP, up to the first above ``now``."""
    experts = min((moe.num_experts for moe in deployment.moes), default=0)
    for ep in _expert_divisors(deployment):
        yield from range(0, min(now + ep, experts * (ep - 1)) + 1, ep)


def _sound_cuts(deployment: Deployment) -> Iterator[dict[str, Any]]:
    """Yield the cuts that lie in the model, each once and in order, where that is another list."""
    plan, end = deployment.plan, 2 * len(deployment.model.layers)
    cuts = plan.stages or ()
    sound = [cut_at(place) for place in sorted({position(cut) for cut in cuts}) if 0 < place < end]
    if sound and sound != list(cuts):
        yield {"cuts": [cut.layer if cut.before == "attention" else f"{cut.layer}.ffn" for cut in sound]}


def latest_value(deployment: Deployment, path: str) -> int | None:
    """Return the one value of a field that follows from all others: ranks to state, blocks that fit; None: none."""
    if path == "plan.devices":
        return deployment.plan.world
    stages = [rank_bytes(deployment, stage) for stage in stages_of(deployment.model, deployment.plan)]
    most, stated = most_blocks(deployment, stages), deployment.limits.kv_blocks
    return most if stated is not None and 1 <= most < stated else None
