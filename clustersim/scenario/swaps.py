"""Whether a deployment can swap sequences to host memory: what it takes, and what it doesn't go with yet."""

from __future__ import annotations

from clustersim.cluster.topology import Topology
from clustersim.errors import InputError
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.document import Document
from clustersim.serving.config import ServingConfig


def check_swaps(serving: ServingConfig, plan: ParallelPlan, topology: Topology, document: Document) -> None:
    """Refuse swaps where they can't be carried out.

    Raises
    ------
    InputError
        When the topology has no link to hosts, or replicas take their steps together.
    """
    if serving.preemption != "swap":
        return
    messages = []
    if topology.hosts is None:
        messages.append(
            f"{topology.name} has no links between devices and hosts, so nothing can be swapped; use recompute, or "
            "give its fabric host_bandwidth and host_latency, as dgx-h100 has them"
        )
    if plan.ep.scope == "global" and plan.dp > 1:
        messages.append("replicas that share experts (plan.ep.scope: global) can't swap yet; use recompute")
    if messages:
        raise InputError([document.problem(("serving", "preemption"), message) for message in messages])


__all__ = ["check_swaps"]
