"""How far a change leads away from what a plan was meant to be: the distance that the nearest legal one is least in.

What was left out costs nearly nothing, a degree much, and the numbers that the model is made of most. Distances of
changed fields add up, and so do devices that the plan as it is would use and the changed one leaves idle. In octaves:
twice or half as much is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum, log2
from typing import Any, Final

from clustersim.legality.deployment import Deployment
from clustersim.legality.rule import Change

DEGREES: Final = ("plan.dp", "plan.pp", "plan.tp.degree", "plan.sp.degree", "plan.ep.degree")
MISSING: Final = 0.01
"""Something is declared that was not said."""
DEGREE: Final = 1.0
"""A degree changes: this, an octave's worth more per octave …"""
RAISED: Final = 0.5
"""… more if it is raised: that asks for devices nobody spoke of …"""
OTHER_PRIMITIVE: Final = 1.0
"""… and more if it was 1, or is: a primitive is taken up, or given up."""
REPLICAS: Final = 0.5
"""Of a degree's distance, that of dp, where nothing comes or goes: more or fewer replicas are each what they were."""
LIMIT: Final = 2.0
STATED: Final = 3.0
"""The number of devices is what a plan was made for: degrees follow it, not the other way round."""
PER_OCTAVE: Final = 0.25
"""Of a limit, of copies of experts, and of devices left idle."""
CHOICES: Final[Mapping[str, float]] = {
    "plan.stages": 0.1,
    "plan.placement": 0.5,
    "plan.ep.placement": 0.5,
    "plan.ep.scope": 0.5,
    "plan.ep.routing": 0.5,
    "plan.ep.overlap": 0.5,
    "plan.ep.overlap_decode_tokens": 0.1,
    "plan.ep.overlap_prefill_tokens": 0.1,
    "plan.ep.exchange": 0.5,
    "plan.ep.dispatch": 0.1,
    "plan.ep.redundant": 0.25,
    "plan.sp.scheme": 2.0,
    "plan.sp.partition": 2.0,
    "plan.sp.decode": 2.0,
    "plan.tp.embedding": 2.0,
    "plan.tp.attention_out": 2.0,
    "plan.tp.ffn_up": 2.0,
    "plan.tp.ffn_down": 2.0,
    "plan.tp.lm_head": 2.0,
    "precision.weights": 4.0,
}
"""Path → distance of another choice where one was made."""
FP4: Final = 1.0
"""Weights of half a byte are further than those of one."""
_ORDER: Final = ("plan.dp", "plan.pp", "plan.sp.degree", "plan.ep.degree", "plan.tp.degree")
"""Of changes that are equally far the first degree of these is lowered, or the last one raised."""


def value_at(deployment: Deployment, path: str) -> Any:
    """Return what a deployment has at the path of a change."""
    plan, (head, *rest) = deployment.plan, path.split(".")
    if head == "serving":
        return getattr(deployment.limits, rest[0])
    if head == "precision":
        return deployment.precision.weight_bytes
    if rest[0] == "tp":
        return plan.tp if rest[1] == "degree" else getattr(plan.split, rest[1])
    holder = getattr(plan, rest[0])
    return getattr(holder, rest[1]) if len(rest) > 1 else holder


def distance(deployment: Deployment, path: str, value: Any) -> float:
    """Return how far one changed field is from what the deployment has there.

    Parameters
    ----------
    deployment : Deployment
        As it is.
    path, value : str, object
        As ``--set`` would have it.
    """
    now: Any = value_at(deployment, path)
    if path in DEGREES:
        return _degree_distance(path, max(1, now), max(1, value))
    if path == "plan.devices":
        return STATED + _octaves(value, now)
    if path.startswith("serving."):
        return LIMIT + PER_OCTAVE * _octaves(value, now)
    if now is None and path.startswith("plan.sp."):
        return MISSING
    if path == "plan.ep.redundant":
        return CHOICES[path] + PER_OCTAVE * _octaves(value + 1, now + 1)
    if path == "precision.weights":
        return CHOICES[path] + FP4 * bool(value == "fp4")
    return CHOICES[path] * (2 if path == "plan.stages" and value == "balanced" else 1)


def _degree_distance(path: str, now: int, value: int) -> float:
    dearer = RAISED * (value > now)
    if path == "plan.dp":
        return dearer + REPLICAS * (DEGREE + _octaves(value, now))
    return dearer + DEGREE + _octaves(value, now) + OTHER_PRIMITIVE * (1 in (now, value))


def _octaves(value: float, now: float) -> float:
    return abs(log2(value / now))


def idle_distance(used: int, after: int) -> float:
    """Return how far it is to leave devices idle that are ``used`` now; to use more is free of it."""
    return PER_OCTAVE * max(0.0, log2(max(1, used) / max(1, after)))


def change_distance(deployment: Deployment, change: Change) -> float:
    """Return how far the fields of a change are together, devices that it leaves idle aside."""
    return fsum(distance(deployment, path, value) for path, value in change)


def turn(deployment: Deployment, path: str, value: Any) -> int:
    """Return what decides between changes that are equally far; the smaller comes first."""
    if path not in DEGREES:
        return 0
    place = _ORDER.index(path)
    return place if value < value_at(deployment, path) else 2 * len(_ORDER) - place


def kind_order(deployment: Deployment, path: str, value: Any) -> int:
    """Return where a change is told: declarations and boundaries, lower degrees, other choices, limits, formats."""
    if path == "plan.stages" or (path.startswith("plan.sp.") and value_at(deployment, path) is None):
        return 0
    if path in DEGREES and value < value_at(deployment, path):
        return 1
    return {"serving": 3, "precision": 4}.get(path.partition(".")[0], 2)
