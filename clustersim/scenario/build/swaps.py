"""Whether a deployment can swap sequences to host memory."""

from __future__ import annotations

from clustersim.cluster.topology import Topology
from clustersim.errors import InputError
from clustersim.scenario.document import Document
from clustersim.serving.config import ServingConfig


def check_swaps(serving: ServingConfig, topology: Topology, document: Document) -> None:
    """Refuse swaps where they can't be carried out.

    Raises
    ------
    InputError
        When the topology has no link to hosts.
    """
    if serving.preemption == "swap" and topology.hosts is None:
        message = (
            f"{topology.name} has no links between devices and hosts, so nothing can be swapped; use recompute, or "
            "give its fabric host_bandwidth and host_latency, as dgx-h100 has them"
        )
        raise InputError(document.problem(("serving", "preemption"), message))


__all__ = ["check_swaps"]
