"""A deployment of round numbers, so that what a test expects can be derived in the head.

::

    every GEMM, of experts too     1 µs          an element-wise operator      0.1 µs
    attention                      10 ns per key of a decode, per (query, key) pair of a prefill
    the host                       0.4 µs to schedule a step, 0.4 µs to sample
    a link                         1 GB/s, so that a byte takes 1 ns; a serial step of a communication takes 1 µs
    a token                        1,000 bytes as hidden state, 1,000 bytes of K/V per layer, 2,000 bytes of logits

A step on one device takes 2 µs at its ends (schedule 0.4, embedding 0.1, final norm 0.1, LM head 1, sample 0.4) and
4.6 µs per dense layer (4 GEMMs; norm, K/V write, residual, norm, activation, residual) besides its attention: for a
prompt of n tokens n(n+1)/2 pairs, for a decode the tokens known so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cluster.device import Device
from clustersim.cluster.topology import Topology, topology_from_edges
from clustersim.collective import plan_collective
from clustersim.collective.communications import CommTable
from clustersim.collective.constants import FAMILIES
from clustersim.collective.price import CommPlan
from clustersim.cost.engine import Engine
from clustersim.cost.precision import Precision
from clustersim.cost.protocol import CostModel, Shape
from clustersim.graph.expand import step_blueprints
from clustersim.graph.prices.pricer import Pricer
from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.reshard import kv_shards
from clustersim.replay.input import PoolInput
from clustersim.replay.replay import Mode, ReplayInput
from clustersim.serving.config import ServingConfig
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.steps import Steps
from clustersim.timeline.timeline import Timeline
from clustersim.workload.requests import Requests

ENDS_NS, LAYER_NS = 2_000, 4_600
ENGINE = Engine(name="round", source="a test", schedule_s=0.4e-6, sample_s=0.4e-6)
GB_S = 1e9
ALGORITHMS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "all_to_all": "direct"}
ATTENTION = Attention(kind="gqa", num_heads=4, num_kv_heads=2, head_dim=125, v_head_dim=125, rotary=False)
DENSE = Layer(attention=ATTENTION, ffn=Ffn(intermediate=1000, gated=False))
SPARSE = Layer(attention=ATTENTION, ffn=Moe(num_experts=4, top_k=2, expert_intermediate=1000, gated=False))
ONE = ParallelPlan()

Arrival = tuple[int, int, int]
"""(instant in ns, prompt tokens, output tokens)"""


class RoundCost:
    """The cost model of the figure above."""

    def seconds(self, op: str, shape: Shape) -> FloatArray:
        """Return the device time of ``op`` in seconds."""
        if op == "memory":
            return np.where(np.asarray(shape["bytes"]) > 0, 0.1e-6, 0.0)
        if op == "attention_prefill":
            return np.asarray(shape["pairs"], np.float64) * 10e-9
        if op == "attention_decode":
            return np.asarray(shape["keys"], np.float64) * 10e-9
        return np.full(np.shape(shape["k"]), 1e-6)


def model(layers: int, layer: Layer = DENSE) -> ModelSpec:
    """``layers`` equal layers of 1,000 bytes of hidden state and 1,000 bytes of K/V per token."""
    return ModelSpec(name="round", hidden=500, vocab=1000, layers=(layer,) * layers)


def device() -> Device:
    """A device whose communications cost 1 µs per serial step, besides their bytes."""
    constants = {"base_s": 0.0, "step_s": 1e-6, "efficiency": 1.0}
    return Device(
        name="round",
        vendor="none",
        memory_bytes=1,
        memory_bytes_per_s=1.0,
        flops={"bf16": 1.0},
        collectives=dict.fromkeys(FAMILIES, constants),
    )


def crossbar(count: int) -> Topology:
    """``count`` devices on one switch, a link of 1 GB/s each way."""
    names = [f"g{i}" for i in range(count)]
    return topology_from_edges("crossbar", device(), names, [(n, "switch", GB_S, 0.0, "scaleup") for n in names])


def two_leaves(each: int) -> Topology:
    """``each`` devices on each of two switches, between which there is one link of 1 GB/s each way."""
    names = [f"g{i}" for i in range(2 * each)]
    edges = [(name, f"leaf{i // each}", GB_S, 0.0, "scaleup") for i, name in enumerate(names)]
    return topology_from_edges("two leaves", device(), names, [*edges, ("leaf0", "leaf1", GB_S, 0.0, "scaleup")])


def stages_apart(plan: ParallelPlan) -> Topology:
    """A switch for each stage of each replica, and links of 0.1 GB/s each way between ranks of one stage and the next.

    So sends meet neither each other nor collectives, and those of prompts take longer than a pass.
    """
    names, ranks = [f"g{i}" for i in range(plan.world)], plan.stage_ranks
    edges = [(name, f"s{i // ranks}", GB_S, 0.0, "scaleup") for i, name in enumerate(names)]
    edges += [(name, after, GB_S / 10, 0.0, "scaleup") for name, after in zip(names, names[ranks:], strict=False)]
    edges += [(f"s{i}", "spine", GB_S, 0.0, "scaleup") for i in range(plan.world // ranks)]  # which nothing takes
    return topology_from_edges("stages apart", device(), names, edges)


def pools_apart(*plans: ParallelPlan) -> Topology:
    """A switch for each stage of each replica or group of two pools, and links of 0.1 GB/s between devices of both.

    So K/V that moves meets no collective.
    """
    ends: list[list[str]] = []
    edges: list[tuple[str, str, float, float, str]] = []
    for which, plan in enumerate(plans):
        ends.append([f"g{which}.{i}" for i in range(plan.world)])
        size = plan.lockstep.stage_ranks
        edges += [(name, f"s{which}.{i // size}", GB_S, 0.0, "scaleup") for i, name in enumerate(ends[-1])]
    switches = sorted({switch for _, switch, *_ in edges})
    edges += [(name, other, GB_S / 10, 0.0, "scaleup") for name in ends[0] for other in ends[1]]
    edges += [(switch, "spine", GB_S, 0.0, "scaleup") for switch in switches]  # which nothing takes
    return topology_from_edges("pools apart", device(), [*ends[0], *ends[1]], edges)


def hosted(count: int, *, shared: bool = False, apart: bool = False) -> Topology:
    """``count`` devices on one switch and on one host: each by a link of its own, or all by one; or on a host each.

    On one host their own communications may go over it.
    """
    names = [f"g{i}" for i in range(count)]
    hosts = [f"host{i}" for i in range(count)] if apart else ["host"]
    edges = [(name, "switch", GB_S, 0.0, "scaleup") for name in names]
    edges += [(name, "port" if shared else hosts[i % len(hosts)], GB_S, 0.0, "host") for i, name in enumerate(names)]
    edges += [("port", "host", GB_S, 0.0, "host")] if shared else []
    return topology_from_edges("hosted", device(), names, edges, vertex_kinds=[(host, "host") for host in hosts])


def plan_over(loads: Mapping[int, float], capacity: Sequence[float]) -> CommPlan:
    """Return a communication without start-up that puts so many bytes on links, by a byte of its payload."""
    links = np.array(sorted(loads), np.int64)
    load_per_byte = np.array([loads[link] for link in sorted(loads)], np.float64)
    slowest = float((load_per_byte / np.array(capacity)[links]).max())
    return CommPlan(
        kind="send", algorithm="direct", group=(0, 1), alpha_s=0.0, own_seconds_per_byte=0.0, ramp_s=0.0,
        ramp_half_s=0.0, links=links, load_per_byte=load_per_byte, seconds_per_byte=slowest,
    )  # fmt: skip


def requests(arrivals: Sequence[Arrival], concurrency: int | None = None) -> Requests:
    """Requests as (instant in ns, prompt tokens, output tokens)."""
    columns = np.array(arrivals, np.int64).reshape(-1, 3).T
    return Requests(
        arrived_at_ns=columns[0],
        prompt_tokens=columns[1],
        output_tokens=columns[2],
        concurrency=concurrency,
        source="a test",
    )


def prefixed(given: ReplayInput, hashes: Sequence[Sequence[int]], tokens: int) -> ReplayInput:
    """Return an input whose prompts have a hash per block of ``tokens`` tokens."""
    rows = tuple(np.array(row, np.int64) for row in hashes)
    return replace(given, requests=replace(given.requests, prefix_hashes=rows, hash_block_tokens=tokens))


def with_entry(given: ReplayInput, **changes: Any) -> ReplayInput:
    """Return an input whose first pool differs."""
    return replace(given, pools=(replace(given.entry, **changes), *given.pools[1:]))


def deployment(
    arrivals: Sequence[Arrival],
    *,
    mode: Mode = "folded",
    plan: ParallelPlan | None = None,
    layers: int = 1,
    layer: Layer = DENSE,
    topology: Topology | None = None,
    kv_blocks: int = 1000,
    concurrency: int | None = None,
    horizon_ns: int | None = None,
    engine: Engine = ENGINE,
    cost: CostModel | None = None,
    algorithms: Mapping[str, str] = ALGORITHMS,
    **serving: object,
) -> ReplayInput:
    """What a replay of round numbers is a function of; ``serving`` are fields of :class:`ServingConfig`."""
    plan = plan or ParallelPlan()
    topology = topology or crossbar(plan.world)
    comm = CommTable(topology, algorithms, plan_collective)
    spec, window = model(layers, layer), layer.attention.sliding_window
    pool = PoolInput(
        plan=plan,
        blueprints=step_blueprints(spec, plan.lockstep, Precision()),
        pricer=Pricer(
            cost=cost or RoundCost(),
            engine=engine,
            comm=comm,
            sp=plan.lockstep.sp,
            windows=(window,) if window else (),
        ),
        serving=replace(ServingConfig(kv_block_tokens=4), **serving),  # type: ignore[arg-type]
        kv_blocks=kv_blocks,
    )
    return ReplayInput(
        topology=topology,
        pools=(pool,),
        comm=comm,
        requests=requests(arrivals, concurrency),
        mode=mode,
        horizon_ns=horizon_ns,
    )


def pools(
    arrivals: Sequence[Arrival],
    *,
    prefill: ParallelPlan = ONE,
    decode: ParallelPlan = ONE,
    layers: int = 1,
    layer: Layer = DENSE,
    topology: Topology | None = None,
    decode_blocks: int = 1000,
    decode_serving: Mapping[str, object] = MappingProxyType({}),
    **more: Any,
) -> ReplayInput:
    """Two pools, by default on one crossbar, the decode pool on the devices behind the prefill pool.

    ``more`` is of the prefill pool as in :func:`deployment`, ``decode_serving`` are fields of the other's
    :class:`ServingConfig`.
    """
    world = prefill.world + decode.world
    decode = replace(decode, placement=tuple(range(prefill.world, world)))
    topology = topology or crossbar(world)
    given = deployment(arrivals, plan=prefill, layers=layers, layer=layer, topology=topology, **more)
    spec, one = model(layers, layer), given.entry.pricer
    serving = {"kv_block_tokens": 4, "max_batch_requests": more.get("max_batch_requests", 256), **decode_serving}
    pool = PoolInput(
        plan=decode,
        blueprints=step_blueprints(spec, decode.lockstep, Precision()),
        pricer=Pricer(cost=one.cost, engine=one.engine, comm=one.comm, sp=decode.lockstep.sp, windows=one.windows),
        serving=ServingConfig(**serving),
        kv_blocks=decode_blocks,
    )
    shards = kv_shards(spec, prefill, decode, Precision().kv_bytes)
    return replace(given, pools=(*given.pools, pool), shards=shards)


def lane(timeline: Timeline, rank: int, *streams: str) -> list[tuple[str, int, int]]:
    """Return (name, start, end) of the spans of a rank, on all streams or on those given, in order of start."""
    spans = timeline.unfold(ranks=[rank])
    return [
        (spans.names[name], start, end)
        for name, stream, start, end in zip(
            spans.name.tolist(), spans.stream.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True
        )
        if not streams or STREAMS[stream] in streams
    ]


def step_ends(timeline: Timeline, replica: int = 0) -> list[int]:
    """Return the instants at which the steps of a replica ended, in order."""
    steps = Steps(timeline)
    ends = steps.end_ns[int(steps.base[replica]) :] if replica < len(steps.base) else steps.end_ns[:0]
    last = int(steps.base[replica + 1] - steps.base[replica]) if replica + 1 < len(steps.base) else len(ends)
    found: list[int] = ends[:last].tolist()
    return found
