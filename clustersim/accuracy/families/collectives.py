"""Collectives on their own: F11. Computed from the plans of :mod:`clustersim.collective`; nothing is simulated.

How each source counts bytes:

- NCCL and nccl-tests: bus bandwidth, payload / seconds times 2 (n − 1) / n for all-reduce and (n − 1) / n for
  all-gather and reduce-scatter (nccl-tests, PERFORMANCE.md). Only what NCCL has is a candidate: not the custom
  all-reduces of vLLM.
- XLA: bytes that a chip receives, (n − 1) / n of the gathered tensor, over seconds.
- DeepEP: as the simulator has it (:mod:`clustersim.plan.exchange`), 256 experts, in as many groups as nodes where a
  token visits some of these only (tests/test_internode.py). Bandwidth of low latency is that of every token to each of
  its experts; of normal what a rank sends to nodes (between nodes) or to ranks (inside one), itself included, over
  seconds. V2 counts as normal, and runs on NCCL: as its all-to-alls between nodes, on rails, and to ranks.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any, Final

from clustersim.accuracy.row import Inexpressible, Row, nearest_first
from clustersim.cluster.topology import Topology
from clustersim.collective import choose, plan_collective
from clustersim.plan.exchange import MESSAGE_BYTES, Exchange
from clustersim.scenario.build.topologies import build_cluster
from clustersim.scenario.document import Document

TOPOLOGIES: Final[dict[str, str]] = {
    "8xH200 (NVLink4)": "dgx-h200",
    "H200 (NVLink4)": "dgx-h200",
    "8xB200 P6-B200 (NVLink5)": "dgx-b200",
    "B200 (NVLink5)": "dgx-b200",
    "SM100 (B200 class)": "dgx-b200",
    "SM100 (B200 class) + CX7": "dgx-b200",
    "8xA100 (NVLink3)": "dgx-a100",
    "H800 + CX7 400Gb/s": "h800-node",
    "SM90 (H100/H800 class) + CX7": "dgx-h100",
    "TPU7x (Ironwood) 2x2x1": "tpu-v7x",
}
CALLED_FROM_TORCH_S: Final = 20e-6
"""What a call from Python adds where a benchmark waits for each one. Of all-reduces on 8 H200 and 8 B200 up to 512 KiB
(10 latencies) 16 to 26 us are left above those of the tables, which were measured in captured graphs."""
_CUSTOM: Final = ("one_shot", "two_shot")
_NAMED: Final = {"Ring": "ring", "NVLS": "in_switch"}
_BUS_FACTOR: Final = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
_NCCL: Final = re.compile(r"payload (\d+) algo ?(Ring|NVLS|auto)?")
_EXPERTS: Final = re.compile(r"payload (\d+) tok/rank x (\d+)(?: hidden)?, top(\d+)(?: \(top(\d+) groups\))?")
FORM: Final = "payload BYTES algo Ring|NVLS|auto"
EXPERTS_FORM: Final = "payload N tok/rank x HIDDEN, topK (topN groups)"
KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "DeepEP dispatch fp8", "DeepEP combine bf16")
_NUM_EXPERTS: Final = 256
_MOST_DEVICES: Final = 4096
"""Of one collective (assumed)."""
_MOST_BYTES: Final = 10**13
"""Of one payload (assumed: no device has so much memory)."""
UNITS: Final = {"bandwidth": "GB/s", "latency": "us"}
_NODE: Final = 8
_BYTES: Final = {"dispatch fp8": 1.0 + 4.0 / 128.0, "combine bf16": 2.0}


def value(row: Row) -> float:
    """Return the figure of a row, in its unit.

    Raises
    ------
    Inexpressible
        When there is no such topology, or the collective is given in other words.
    """
    if "DCN" in row.parallel:
        raise Inexpressible("TPU slices joined over the data centre's network are not modelled")
    if row.hardware not in TOPOLOGIES:
        known = nearest_first(row.hardware, TOPOLOGIES)
        raise Inexpressible(f"no topology in the catalogs for {row.hardware!r}; known are {known}")
    if row.num_gpus != int(row.num_gpus) or not 2 <= row.num_gpus <= _MOST_DEVICES:
        raise Inexpressible(f"a collective of {row.num_gpus:g} devices; expected 2 to {_MOST_DEVICES:,}")
    if UNITS.get(row.metric) != row.unit:
        known = ", ".join(f"{metric} in {unit}" for metric, unit in UNITS.items())
        raise Inexpressible(f"no such metric of a collective: {row.metric!r} in {row.unit!r}; known are {known}")
    where = _topology(TOPOLOGIES[row.hardware], int(row.num_gpus))
    counted, seconds = _experts(row, where) if "DeepEP" in row.parallel else _library(row, where)
    seconds += CALLED_FROM_TORCH_S if "torch" in row.framework else 0.0
    return seconds * 1e6 if row.unit == "us" else counted / seconds / 1e9


@cache
def _topology(name: str, devices: int) -> Topology:
    part: dict[str, Any] = {"name": name}
    part |= {"dims": [2, 2, 1]} if name.startswith("tpu") else {"nodes": -(-devices // _NODE)}
    return build_cluster(Document(file=name, data={"topology": part}, marks={}, key_marks={}))[0]


def _library(row: Row, where: Topology) -> tuple[float, float]:
    """Return the bytes that a library counts, and seconds."""
    found, kind, count = _NCCL.match(row.workload), row.parallel, int(row.num_gpus)
    if not found or kind not in _BUS_FACTOR:
        known = nearest_first(kind, KINDS)
        raise Inexpressible(f"not understood: {row.workload!r} with {row.parallel!r}; expected {FORM!r} with {known}")
    payload = int(found[1])
    if not 0 < payload <= _MOST_BYTES:
        raise Inexpressible(f"a payload of {payload:,} bytes; expected 1 to {_MOST_BYTES:,}")
    share = _BUS_FACTOR[kind] * (count - 1) / count
    if row.framework == "XLA":
        tensor, counted = payload / share, float(payload)
    else:
        tensor, counted = float(payload), payload * share
    plans = plan_collective(where, kind, tuple(range(count)), _NAMED.get(found[2] or "auto", "auto"))
    return counted, float(choose([plan for plan in plans if plan.algorithm not in _CUSTOM], tensor)[1])


def _experts(row: Row, where: Topology) -> tuple[float, float]:
    """Return the bytes that DeepEP counts, and seconds."""
    found = _EXPERTS.match(row.workload)
    direction = next((name for name in _BYTES if name in row.parallel), None)
    if not found or direction is None:
        known = nearest_first(row.parallel, KINDS)
        raise Inexpressible(
            f"not understood: {row.workload!r} with {row.parallel!r}; expected {EXPERTS_FORM!r} with {known}"
        )
    tokens, hidden, top_k, visited = (int(number or 0) for number in found.groups())
    if not (0 < tokens <= _MOST_BYTES and 0 < hidden <= _MOST_BYTES and 0 < top_k <= _NUM_EXPERTS):
        raise Inexpressible(
            f"{row.workload!r} has no token, or more experts for each than the {_NUM_EXPERTS} there are"
        )
    once = tokens * hidden * _BYTES[direction]
    count = int(row.num_gpus)
    if "V2" not in row.framework:
        return _deepep(row, where, direction, (tokens, top_k, visited), once)
    inside, rail = tuple(range(min(count, _NODE))), tuple(range(0, count, _NODE))
    to_ranks, to_nodes = once * _reached(count, top_k), once * _reached(len(rail), top_k)
    forwarded = _all_to_all(where, inside, to_ranks)
    if len(rail) == 1:
        return to_ranks, forwarded
    return to_nodes, max(forwarded, _all_to_all(where, rail, to_nodes))


def _deepep(
    row: Row, where: Topology, direction: str, counts: tuple[int, int, int], once: float
) -> tuple[float, float]:
    tokens, top_k, visited = counts
    count = int(row.num_gpus)
    nodes = -(-count // _NODE)
    low, dispatches = "low-latency" in row.parallel, "dispatch" in direction
    exchange = Exchange(
        way="deepep_low_latency" if low else "deepep_normal", towards="experts" if dispatches else "tokens",
        num_experts=_NUM_EXPERTS, top_k=top_k, groups=nodes if visited else 1,
        groups_per_token=min(visited, nodes) or 1, ranks=count, placement="contiguous",
    )  # fmt: skip
    to_ranks, to_nodes = (once * parts * exchange.reached(range(count // parts)) for parts in (count, nodes))
    header = tokens * top_k * MESSAGE_BYTES if dispatches else 0
    payload = once * top_k + header if low else to_ranks
    seconds = float(choose(plan_collective(where, exchange, tuple(range(count))), payload)[1])
    return once * top_k if low else to_ranks if nodes == 1 else to_nodes, seconds


def _all_to_all(where: Topology, group: tuple[int, ...], payload: float) -> float:
    return float(choose(plan_collective(where, "all_to_all", group), payload)[1])


def _reached(parts: int, top_k: int) -> float:
    """Return how many of equal parts hold one of ``top_k`` different experts, on average."""
    held = _NUM_EXPERTS // parts
    return parts * (1.0 - math.comb(_NUM_EXPERTS - held, top_k) / math.comb(_NUM_EXPERTS, top_k))
