"""Durations against the closed forms α + β n of the literature, on a crossbar of round numbers.

Thakur, Rabenseifner & Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 19 (2005):
ring all-reduce 2 (p − 1) α + 2 (p − 1)/p n β; all-gather half of both; recursive halving and doubling
2 log₂ p α and the same bytes; pairwise all-to-all (p − 1) α + (p − 1)/p n β.
"""

from __future__ import annotations

import pytest

from clustersim.cluster.device import Device
from clustersim.cluster.topology import Topology, topology_from_edges
from clustersim.collective import plan_collective
from clustersim.collective.constants import ASSUMED

ALPHA_S = 3e-6  # 1 µs of overhead per step, and two links of 1 µs
BYTES_PER_S = 1e9


def crossbar(count: int) -> Topology:
    constants = {"base_s": 0.0, "step_s": 1e-6, "efficiency": 1.0}
    device = Device(
        name="toy",
        vendor="none",
        memory_bytes=1,
        memory_bytes_per_s=1.0,
        flops={"bf16": 1.0},
        collectives=dict.fromkeys(ASSUMED, constants),
    )
    names = [f"g{i}" for i in range(count)]
    edges = [(name, "switch", BYTES_PER_S, 1e-6, "scaleup") for name in names]
    return topology_from_edges("crossbar", device, names, edges, in_switch_reduction=True)


@pytest.mark.parametrize("count", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("kind", "algorithm", "steps", "share"),
    [
        ("all_reduce", "ring", lambda p: 2 * (p - 1), lambda p: 2 * (p - 1) / p),
        ("all_reduce", "halving_doubling", lambda p: 2 * (p.bit_length() - 1), lambda p: 2 * (p - 1) / p),
        ("all_reduce", "one_shot", lambda p: 1, lambda p: p - 1),
        ("all_reduce", "two_shot", lambda p: 2, lambda p: 2 * (p - 1) / p),
        ("all_reduce", "in_switch", lambda p: 2, lambda p: 1 + 1 / p),
        ("all_gather", "ring", lambda p: p - 1, lambda p: (p - 1) / p),
        ("reduce_scatter", "ring", lambda p: p - 1, lambda p: (p - 1) / p),
        ("reduce_scatter", "halving_doubling", lambda p: p.bit_length() - 1, lambda p: (p - 1) / p),
        ("all_to_all", "pairwise", lambda p: p - 1, lambda p: (p - 1) / p),
        ("all_to_all", "direct", lambda p: 1, lambda p: (p - 1) / p),
        ("broadcast", "ring", lambda p: p - 1, lambda p: 1),
        ("gather", "direct", lambda p: 1, lambda p: (p - 1) / p),
        ("ring_shift", "direct", lambda p: 1, lambda p: 1),
    ],
)
def test_duration_is_the_closed_form(kind, algorithm, steps, share, count):
    (plan,) = plan_collective(crossbar(count), kind, tuple(range(count)), algorithm)
    assert plan.alpha_s == pytest.approx(steps(count) * ALPHA_S)
    assert float(plan.seconds(1e6)) == pytest.approx(steps(count) * ALPHA_S + share(count) * 1e6 / BYTES_PER_S)


def test_an_oversubscribed_switch_is_the_bottleneck():
    """Two leaves of four devices; between them one link of 1 GB/s per direction, which all four share."""
    names = [f"g{i}" for i in range(8)]
    edges = [(name, f"leaf{i // 4}", BYTES_PER_S, 0.0, "scaleup") for i, name in enumerate(names)]
    edges.append(("leaf0", "leaf1", BYTES_PER_S, 0.0, "scaleup"))
    topology = topology_from_edges("two leaves", crossbar(2).device, names, edges)
    (exchange,) = plan_collective(topology, "all_to_all", tuple(range(8)), "direct")
    assert exchange.seconds_per_byte == pytest.approx(4 * 4 / 8 / BYTES_PER_S)  # 4 senders × 4 targets × n/8
    (ring,) = plan_collective(topology, "all_gather", tuple(range(8)), "ring")
    assert ring.seconds_per_byte == pytest.approx(7 / 8 / BYTES_PER_S)  # a ring crosses it once each way
