"""Measured collectives, and what a topology says an algorithm does in them: the input of a fit.

Reads CSV tables, whose paths the user gives: those of ai-dynamo/aiconfigurator for NCCL and custom
all-reduces (``latency`` in ms, ``message_size`` in elements) and for DeepEP (µs, GB/s), and Vidur's network
profiles (``size`` in bytes, times in ms).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from clustersim import inputs
from clustersim.cluster.topology import Topology
from clustersim.collective.algorithms import ALGORITHMS
from clustersim.collective.constants import Family
from clustersim.collective.exchange import exchange_traffic
from clustersim.collective.fit import Samples
from clustersim.collective.group import group_of
from clustersim.collective.price import CommPlan, price
from clustersim.collective.traffic import Traffic
from clustersim.plan.exchange import Exchange
from clustersim.values import dataclass

_ELEMENT_BYTES: Final = {"half": 2, "bfloat16": 2, "float16": 2, "int8": 1, "float": 4}
_KINDS: Final = {"alltoall": "all_to_all", "send_recv": "send"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured collective.

    Parameters
    ----------
    kind : str
        As in :data:`~clustersim.collective.algorithms.ALGORITHMS`.
    library : str
        What ran it, such as ``NCCL`` or ``vLLM_custom_graph``.
    version, dtype : str
        Of the library, and of the elements.
    devices, nodes : int
        Number of devices, and of the nodes that they are spread over evenly.
    payload_bytes, seconds : float
        Payload in the sense of :class:`~clustersim.collective.price.CommPlan`, and duration.
    exchange : Exchange or None
        Of DeepEP, whose way and experts were measured.
    """

    kind: str
    library: str
    version: str
    dtype: str
    devices: int
    nodes: int
    payload_bytes: float
    seconds: float
    exchange: Exchange | None = None


def read_aiconfigurator(path: Path, system: str) -> list[Measurement]:
    """Read the rows of one system, such as ``h100_sxm``; rows without a message size are left out."""
    rows = [row for row in _rows(path) if row["system"] == system and row["message_size"]]
    return [
        Measurement(
            kind=_KINDS.get(row["op_name"], row["op_name"]),
            library=row["kernel_source"],
            version=row["version"],
            dtype=row["nccl_dtype"] or row["allreduce_dtype"],
            devices=int(float(row["num_gpus"])),
            nodes=1,
            payload_bytes=float(row["message_size"]) * _ELEMENT_BYTES[row["nccl_dtype"] or row["allreduce_dtype"]],
            seconds=float(row["latency"]) * 1e-3,
        )
        for row in rows
    ]


def read_vidur(path: Path) -> list[Measurement]:
    """Read one of Vidur's network profiles (``all_reduce.csv`` or ``send_recv.csv``): its medians."""
    rows = _rows(path)
    return [
        Measurement(
            kind=_KINDS.get(row["collective"], row["collective"]),
            library="NCCL",
            version="",
            dtype="half",
            devices=int(row["num_workers"]),
            nodes=int(row["num_workers"]) // int(row["devices_per_node"]),
            payload_bytes=float(row["size"]),
            seconds=float(row[f"time_stats.{row['collective']}.median"]) * 1e-3,
        )
        for row in rows
    ]


def read_deepep(path: Path, system: str) -> list[Measurement]:
    """Read the low-latency table of DeepEP: dispatch (fp8) and combine (bf16) as all-to-alls over 8 per node.

    The payload is its time × its bandwidth: what one rank sends for all its tokens and experts.
    """
    rows = [row for row in _rows(path) if row["system"] == system]
    return [
        Measurement(
            kind="all_to_all",
            library=f"DeepEP_{half}",
            version=row["version"],
            dtype="bfloat16" if half == "combine" else "float8",
            devices=8 * int(row["node_num"]),
            nodes=int(row["node_num"]),
            payload_bytes=float(row[f"{half}_avg_t_us"]) * float(row[f"{half}_bandwidth_gbps"]) * 1e3,
            seconds=float(row[f"{half}_avg_t_us"]) * 1e-6,
        )
        for row in rows
        for half in ("dispatch", "combine")
    ]


def newest(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return, per case, those of the newest version, merged to one by their median, in a fixed order."""
    cases: dict[tuple[str, str, str, int, int, float, str], list[Measurement]] = {}
    for one in measurements:
        case = (one.kind, one.library, one.dtype, one.devices, one.nodes, one.payload_bytes, repr(one.exchange))
        cases.setdefault(case, []).append(one)
    found = []
    for case in sorted(cases):
        last = max(_version(one.version) for one in cases[case])
        same = [one for one in cases[case] if _version(one.version) == last]
        seconds = float(np.median([one.seconds for one in same]))
        found.append(replace(same[0], seconds=seconds))
    return found


def samples(
    topology: Topology, algorithm: str, measurements: Sequence[Measurement], *, per_peer: bool = False
) -> Samples:
    """Work out what an algorithm does in the measured cases on a topology.

    Parameters
    ----------
    topology : Topology
        With at least as many nodes and devices as were measured; a case takes the first devices of the first
        nodes. Latencies of routes are taken off the measured seconds, so that they are not fitted twice.
    algorithm : str
        An algorithm of each measured kind; exchanges have their own.
    per_peer : bool
        Whether to count the peers of a rank in place of serial steps.

    Returns
    -------
    Samples
        One entry per measurement, in order.
    """
    work: dict[tuple[str | Exchange, int, int], tuple[CommPlan, Traffic]] = {}
    entries = []
    for one in measurements:
        case = (one.exchange or one.kind, one.devices, one.nodes)
        if case not in work:
            work[case] = _work(topology, algorithm, *case)
        plan, traffic = work[case]
        count = traffic.peers if per_peer else sum(times for times, _ in traffic.steps)
        ideal_s = one.payload_bytes * plan.seconds_per_byte
        entries.append((count, ideal_s, plan.alpha_s, traffic.own * one.payload_bytes, one.seconds))
    steps, ideal, latency, own, seconds = np.array(entries, np.float64).reshape(-1, 5).T
    return Samples(
        steps=steps,
        ideal_seconds=ideal,
        latency_seconds=latency,
        seconds=seconds,
        own_bytes=own,
    )


def _work(
    topology: Topology, algorithm: str, kind: str | Exchange, devices: int, nodes: int
) -> tuple[CommPlan, Traffic]:
    """Return the plan without any constants (its α is the latency of its routes), and its traffic."""
    size = devices // nodes
    members: list[int] = []
    for node in range(nodes):
        members += [int(index) for index in np.flatnonzero(topology.node_of == node)[:size]]
    group = group_of(topology, tuple(members))
    if isinstance(kind, str):
        traffic, op = ALGORITHMS[kind][algorithm].build(group), kind
    else:
        traffic, op = exchange_traffic(group, kind), "all_to_all"
    return price(group, op, algorithm, traffic, Family()), traffic


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(inputs.read_text(path, most=inputs.TEXT_BYTES), newline="")))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
