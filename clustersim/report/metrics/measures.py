"""The metrics of devices, links, energy and cost of a run: adds up what its pools did, and names it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.plan.mesh import Mesh
from clustersim.report.metrics import efficiency
from clustersim.report.metrics.link_traffic import capacity_bytes, link_summary, move_bytes
from clustersim.report.metrics.pool_use import PoolUse, pool_uses
from clustersim.simulation.simulate import RunResult
from clustersim.timeline.spans import STREAMS

POOLS: Final = ("prefill", "decode")
"""Names of the pools of a run that has two."""
_COMPUTE: Final = STREAMS.index("compute")


def elapsed_ns(result: RunResult) -> int:
    """Return the time from the first arrival to the end of the last step or move of K/V entries, ns; 0 without any."""
    arrived = result.requests["arrived_ns"]
    return max(0, result.timeline.end_ns - int(arrived.min())) if len(arrived) else 0


def measures(result: RunResult) -> dict[str, Any]:
    """Return ``utilisation``, ``links``, ``energy`` and ``cost`` of ``summary.json``.

    Of a run with two pools they are those of all devices together, and ``utilisation`` has those of each pool, too.
    Replicas that share experts are one: a stage with the ranks of all. None where no step ran.
    """
    elapsed = elapsed_ns(result)
    if not elapsed or not result.timeline.num_steps:
        return dict.fromkeys(("utilisation", "links", "energy", "cost"))
    uses = pool_uses(result)
    output_tokens = int(np.asarray(result.requests["generated_tokens"]).sum())
    busy_ns = np.concatenate([use.usage.busy_ns[:, _COMPUTE] for use in uses])
    devices = len(busy_ns)
    named = list(zip(POOLS if len(uses) > 1 else ("",), uses, strict=True))
    utilisation: dict[str, Any] = {
        **_utilisation(uses, elapsed),
        **efficiency.efficiency_rates(output_tokens, devices, elapsed),
        "stages": [
            {"pool": name} | row if name else row
            for name, use in named
            for row in efficiency.stage_rows(use.usage, elapsed)
        ],
        "devices": (busy_ns / elapsed).tolist(),
    }
    if len(uses) > 1:
        utilisation["pools"] = {name: {"devices": use.devices, **_utilisation([use], elapsed)} for name, use in named}
    carried = _carried(result, uses)
    return {
        "utilisation": utilisation,
        "links": None if carried is None else _links(result, carried, elapsed),
        **_bill(uses, output_tokens, elapsed),
    }


def _links(result: RunResult, carried: FloatArray, elapsed: int) -> dict[str, Any]:
    topology, faults = result.input.topology, result.input.faults
    weak = any(fault.links for fault in faults)
    end = result.timeline.end_ns
    return link_summary(
        topology, carried, elapsed, capacity_bytes(topology, faults, end - elapsed, end) if weak else None
    )


def _utilisation(uses: Sequence[PoolUse], elapsed: int) -> dict[str, float | None]:
    """Return what pools made of their devices together."""
    peak, read = _sum(use.peak_flops for use in uses), _sum(use.read_bytes for use in uses)
    bandwidth = math.fsum(use.memory_bytes_per_s for use in uses)
    usages = [use.usage for use in uses]
    return {
        "mfu": None if peak is None else efficiency.mfu(sum(use.flops for use in uses), peak, elapsed),
        "mbu": None if read is None else efficiency.mbu(read, bandwidth, elapsed),
        **efficiency.busy_fractions(usages, elapsed),
        "bubble": float(np.concatenate([efficiency.bubbles(usage).ravel() for usage in usages]).mean()),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None when one of them is."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _carried(result: RunResult, uses: Sequence[PoolUse]) -> FloatArray | None:
    """Return the bytes that each link carried; None where that is not known of a pool."""
    total = move_bytes(result.timeline.moves, _device_of(result), result.input.comm)
    for use in uses:
        if use.carried is None:
            return None
        total += use.carried
    return total


def _device_of(result: RunResult) -> Callable[[int], int]:
    """Return which device each global rank is placed on."""
    placed = [Mesh(plan=pool.plan).device(rank) for pool in result.input.pools for rank in range(pool.plan.world)]
    return placed.__getitem__


def _idle_w(uses: Sequence[PoolUse], devices: int) -> float:
    """Return the idle power of a device, the mean where they are of several kinds."""
    watts = [efficiency.idle_power_w(use.device) for use in uses]
    if len(set(watts)) == 1:
        return watts[0]
    return math.fsum(one * use.devices for one, use in zip(watts, uses, strict=True)) / devices


def _bill(uses: Sequence[PoolUse], output_tokens: int, elapsed: int) -> dict[str, Any]:
    """Return what the devices of all pools used and cost; None where that is not known of a kind of device."""
    devices = sum(use.devices for use in uses)
    joules = _sum(efficiency.energy_j(use.device, use.usage.busy_ns[:, _COMPUTE], elapsed) for use in uses)
    usd = _sum(efficiency.cost_usd(use.device, use.devices, elapsed) for use in uses)
    energy = cost = None
    if joules is not None:
        energy = {
            "joules": joules,
            "joules_per_output_token": efficiency.per_output(joules, output_tokens),
            "mean_device_w": joules / (devices * elapsed / 1e9),
            "idle_device_w": _idle_w(uses, devices),
            "idle_assumed": any(use.device.idle_power_w is None for use in uses),
        }
    if usd is not None:
        cost = {"usd": usd, "usd_per_million_output_tokens": efficiency.per_output(usd, output_tokens, 1e6)}
    return {"energy": energy, "cost": cost}
