"""Which K/V entries each rank is to hold, as the plan declares them (rule KV-4)."""

from __future__ import annotations

from typing import Any

from clustersim.legality.deployment import Deployment
from clustersim.legality.layout import layout_of
from clustersim.model.kv import kv_elements_per_token


def kv_declared(deployment: Deployment) -> dict[str, Any]:
    """Return ``kv_held`` and ``kv_head_bytes`` of :class:`clustersim.legality.history.Declared`."""
    model, plan = deployment.model, deployment.plan
    layout = layout_of(deployment)
    latent = [layer.attention.kind == "mla" for layer in model.layers]
    held = tuple(
        {at: frozenset((0,) if latent[at] else layout.kv_heads[at][t]) for at, part in modules if part == "attention"}
        for modules in layout.stages
        for t in range(plan.tp)
    )
    sizes = [
        kv_elements_per_token(layer.attention) / (1 if shared else layer.attention.num_kv_heads)
        for layer, shared in zip(model.layers, latent, strict=True)
    ]
    return {"kv_held": held, "kv_head_bytes": tuple(size * deployment.precision.kv_bytes for size in sizes)}
