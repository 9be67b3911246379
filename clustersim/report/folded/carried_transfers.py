"""What sends between stages and moves of K/V entries carried, and which ways it took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clustersim.clock import FloatArray
from clustersim.plan.mesh import Mesh
from clustersim.replay.input import ReplayInput
from clustersim.replay.links.host_copies import host_plan
from clustersim.report.folded.carried import Ways
from clustersim.timeline.tables import HOST
from clustersim.timeline.timeline import Timeline


def send_segments(timeline: Timeline, inputs: ReplayInput, ways: Ways) -> list[tuple[FloatArray, Mapping[str, Any]]]:
    """Return, pool by pool, sends as segments, and their way and bytes in the order in which a page has them."""
    found: list[tuple[FloatArray, Mapping[str, Any]]] = []
    for number, ((rows, times), shape) in enumerate(zip(timeline.sends(), timeline.layout.pools, strict=True)):
        table = {name: timeline.transfers[name][rows].astype(np.int64) for name in ("replica", "stage", "step")}
        order = np.lexsort((table["step"], table["stage"], table["replica"]))
        times, sizes = times[order], timeline.sent_bytes(rows, times.shape[2])[order].astype(np.float64)
        mesh, way = Mesh(plan=inputs.pools[number].plan.lockstep), np.full(sizes.shape, -1, np.int64)
        ends = np.stack([table["replica"][order] - shape.first_replica, table["stage"][order]], axis=1)
        pairs, of = np.unique(ends, axis=0, return_inverse=True)
        for place, (replica, stage) in enumerate(pairs.tolist()):
            mine = of.ravel() == place
            here, there = mesh.stage_devices(replica, stage), mesh.stage_devices(replica, stage + 1)
            for local, pair in enumerate(zip(here, there, strict=True)):
                breaks = ways.breaks(inputs.comm.plans("send", pair), sizes[mine, local])
                if breaks:
                    least, which = zip(*breaks, strict=True)
                    way[mine, local] = np.array(which)[np.searchsorted(least, sizes[mine, local], side="right") - 1]
        flat = np.stack([way, times[:, 0], times[:, 1], sizes], axis=2).reshape(-1, 4).astype(np.float64)
        found.append((flat[flat[:, 0] >= 0], {"way": way.ravel(), "bytes": sizes.astype(np.int64).ravel()}))
    return found


def move_ways(timeline: Timeline, inputs: ReplayInput, ways: Ways) -> list[list[Any]]:
    """Return [from rank, to rank, from how many bytes on which way] of the moves of K/V entries."""
    moves, placed = timeline.moves, _placed(inputs)
    ends = np.stack([moves["from_rank"], moves["to_rank"]], axis=1).astype(np.int64)
    pairs, of = np.unique(ends, axis=0, return_inverse=True)
    found = []
    for number, (source, target) in enumerate(pairs.tolist()):
        sizes = moves["bytes"][of.ravel() == number].astype(np.float64)
        if HOST in (source, target):
            if inputs.topology.hosts is None:
                continue
            rank = target if source == HOST else source
            plan = host_plan(inputs.topology, placed[rank], out=target == HOST)
            found.append([source, target, [[0.0, ways.number(plan)]]])
        else:
            breaks = ways.breaks(inputs.comm.plans("send", (placed[source], placed[target])), sizes)
            found.append([source, target, breaks])
    return found


def _placed(inputs: ReplayInput) -> list[int]:
    """Return the device of each global rank."""
    return [Mesh(plan=pool.plan).device(rank) for pool in inputs.pools for rank in range(pool.plan.world)]
