"""Which change of a deployment comes before which: the order of the documents, and how far a value has to move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import log2
from typing import Any, Final

from clustersim.legality.deployment import Deployment, divisors
from clustersim.legality.repair import changed

_DECLARED: Final = ("plan.sp.scheme", "plan.sp.partition", "plan.sp.decode")
_DEGREES: Final = ("plan.dp", "plan.pp", "plan.tp.degree", "plan.sp.degree", "plan.ep.degree")
_MOST_LOWER: Final = 100
_CHOICES: Final[Mapping[str, Iterable[Any]]] = {
    "plan.sp.scheme": ("ring", "all_gather", "all_to_all"),
    "plan.sp.partition": ("contiguous", "zigzag", "striped"),
    "plan.sp.decode": ("idle", "dp"),
    "plan.stages": ("balanced",),
    "plan.placement": ("packed",),
    "plan.ep.placement": ("contiguous", "strided"),
}
"""Path of a choice → what may be chosen."""


def preference(deployment: Deployment, path: str, value: Any) -> int:
    """Return how late a change comes in the order of the documents.

    0 adds a declaration or a boundary that is missing, 1 lowers a degree, 2 changes the primitive (another scheme,
    placement or a higher degree), 3 shrinks the workload, 4 changes the numbers that the model is made of.
    """
    if path in _DECLARED:
        return 2 if getattr(deployment.plan.sp, path.removeprefix("plan.sp.")) is not None else 0
    if path == "plan.stages":
        return 0
    if path in _DEGREES:
        return 1 if value < numbers(deployment)[path] else 2
    if path.startswith("serving."):
        return 3
    return 4 if path.startswith("precision.") else 2


def distance(deployment: Deployment, path: str, value: Any, place: float) -> float:
    """Return the octaves between two numbers; for other values a little more the later their rule proposes them."""
    now = numbers(deployment).get(path)
    return place / 100 if now is None else abs(log2(value / now))


def numbers(deployment: Deployment) -> dict[str, int]:
    """Return the whole numbers that a repair may change, as they are."""
    plan, limits = deployment.plan, deployment.limits
    found = dict(zip(_DEGREES, (plan.dp, plan.pp, plan.tp, plan.sp.degree, plan.ep.degree), strict=True))
    found["serving.max_batch_tokens"] = limits.max_batch_tokens
    return found if limits.kv_blocks is None else found | {"serving.kv_blocks": limits.kv_blocks}


def neighbours(deployment: Deployment) -> Iterator[tuple[str, Any]]:
    """Yield every change of one degree or choice that leaves the plan no larger than the cluster."""
    values: dict[str, Iterable[Any]] = {
        path: [
            *range(now - 1, max(0, now - _MOST_LOWER), -1),
            *(d for d in divisors(deployment.num_devices) if d > now),
        ]
        for path, now in numbers(deployment).items()
        if path in _DEGREES
    }
    for path, some in (values | dict(_CHOICES)).items():
        for value in some:
            after = changed(deployment, ((path, value),))
            if after != deployment and after.plan.world <= after.num_devices:
                yield path, value
