"""The law of step prices: they are, to the nanosecond, what the pricer says of the same batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim import catalog
from clustersim.clock import NS_PER_S
from clustersim.cost.attention import UNKNOWN, constants, decode_ns, prefill_ns, terms_of
from clustersim.cost.kernels import ASSUMED
from clustersim.cost.points import MeasuredPoints
from clustersim.cost.precision import DTYPE_BYTES, Precision
from clustersim.cost.protocol import CostModel
from clustersim.cost.roofline import RooflineCost, constants_of
from clustersim.cost.table import TableCost
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import StepKind
from clustersim.graph.prices.pricer import LONGEST_S, Pricer
from clustersim.graph.prices.steps import StepPrices
from clustersim.graph.program import StageProgram
from clustersim.plan.mesh import Mesh
from clustersim.replay.programs import compile_programs
from clustersim.simulation.replay_input import replay_input
from tests.effort import examples
from tests.laws.random_scenarios import documents, scenario_of
from tests.shipped import read, topology_of

ENGINES = ("ideal", "sglang-0.5", "trtllm-1.0", "vllm-0.19", "vllm-0.3-eager", "vllm-0.6")
FEW = st.integers(0, 3000)
MEASURED: dict[str, dict[str, Any]] = {
    "gemm": {"m": [16, 64], "n": 4096, "k": 4096},
    "attention_decode": {
        "batch": [1, 64], "keys": [100, 9000], "heads": 8, "kv_heads": 2, "qk_dim": 512, "v_dim": 512, "shared_kv": 0,
    },
    "attention_prefill": {
        "pairs": [55, 5050], "queries": [10, 100], "keys": [10, 100], "heads": 8, "kv_heads": 2, "qk_dim": 512,
        "v_dim": 512, "shared_kv": 0,
    },
}  # fmt: skip


@st.composite
def batches(draw: st.DrawFn, windows: tuple[int, ...]) -> StepBatch:
    """Draw what one step carries; contexts are as long as their windows see."""
    chunks = tuple(
        Chunk(request=index, start=start, count=count)
        for index, (start, count) in enumerate(draw(st.lists(st.tuples(FEW, st.integers(1, 3000)), max_size=3)))
    )
    some = st.integers(1, 600)
    decodes = draw(st.just(0) | some if chunks else some)
    keys = decodes * draw(st.integers(1, 200_000)) + draw(st.integers(0, 99))
    return StepBatch(
        chunks=chunks,
        decode_sequences=(decodes,),
        decode_keys=(keys if decodes else 0,),
        windowed_keys={window: (min(keys, decodes * window),) for window in windows},
    )


def measured(roofline: RooflineCost) -> TableCost:
    """Points of some operators before a roofline."""
    points = []
    for op, values in MEASURED.items():
        shape = {key: np.broadcast_to(np.asarray(value, np.float64), 2) for key, value in values.items()}
        seconds = roofline.seconds(op, shape) * np.array([1.3, 0.9])
        points.append(MeasuredPoints(op=op, dtype=None, shape=shape, seconds=seconds))
    return TableCost(points, roofline)


def check(prices: StepPrices, pricer: Pricer, programs: dict[StepKind, StageProgram], batch: StepBatch) -> None:
    """Compare both ways to price a batch."""
    program, windows = programs[batch.kind], pricer.windows
    features = pricer.features(batch)
    expected = pricer.durations(program, batch, features)
    sends = tuple(expected[list(program.template.send_classes)].tolist())
    keys = batch.decode_keys[0]
    if batch.kind == "decode":
        price = prices.decode(batch.decode_sequences[0])
        row, columns = prices.rows["decode"][price.number]
        assert row is price.row
        assert columns == price.columns
        attended = [keys if window is None else batch.windowed_keys[window][0] for window in price.windows]
        varying = tuple(ns(count) for ns, count in zip(price.ns, attended, strict=True))
        total = price.base_ns + sum(count * ns for count, ns in zip(price.counts, varying, strict=True))
        sent = price.sends
    else:
        windowed = {
            window: (
                int(features[f"pairs@{window}"][0]),
                int(features[f"prefill_keys@{window}"][0]),
                batch.windowed_keys[window][0],
            )
            for window in windows
        }
        total, number, varying, sent = prices.prompts(
            len(batch.chunks), batch.prefill_tokens, sum(chunk.start for chunk in batch.chunks),
            int(features["pairs"][0]), int(features["prefill_keys"][0]), batch.decode_sequences[0], keys, windowed,
        )  # fmt: skip
        row, columns = prices.rows[batch.kind][number]
    assert not row[list(columns)].any()
    by_class = row.copy()
    by_class[list(columns)] = varying
    assert by_class.tolist() == expected.tolist()
    assert total == program.template.pass_times(expected)[0]
    assert sent == sends
    assert all(type(ns) is int for ns in (total, *varying, *sent))


@examples(40)
@given(documents(), st.sampled_from(ENGINES), st.sampled_from((None, None, 8)), st.booleans(), st.data())
def test_steps_without_sp_cost_what_the_pricer_says(
    document: dict[str, Any], engine: str, tp: int | None, table: bool, data: st.DataObject
) -> None:
    plan = {key: value for key, value in document["plan"].items() if key not in ("sp", "placement", "ep")}
    ep = document["plan"].get("ep", 0)
    if (ep["degree"] if isinstance(ep, dict) else ep) > 1 and plan["tp"] > 1 and tp is None:
        plan["ep"] = plan["tp"]
    if tp is not None:
        plan |= {"tp": tp, "dp": 1, "pp": 1}
    serving = document["serving"] | {"engine": engine}
    scenario = scenario_of(document | {"plan": plan, "serving": serving})
    found = replay_input(scenario, scenario.requests())
    cost: CostModel = found.entry.pricer.cost
    if isinstance(cost, TableCost):  # of a device whose file has grids
        cost = cost.fallback
    assert isinstance(cost, RooflineCost)
    pricer = replace(found.entry.pricer, cost=measured(cost)) if table else found.entry.pricer
    compiled = compile_programs(Mesh(plan=found.entry.plan), found.entry.blueprints, found.comm)
    for stage in range(found.entry.plan.pp):
        programs = compiled[0, stage]
        prices = StepPrices(pricer, programs)
        chains = all(program.template.is_chain and program.even for program in programs.values())
        assert prices.supported == chains
        if chains:
            drawn = data.draw(st.lists(batches(pricer.windows), min_size=1, max_size=6))
            for batch in (*drawn, *drawn):
                check(prices, pricer, programs, batch)


def slowed(name: str, precision: Precision, octaves: int) -> RooflineCost:
    """The roofline of a shipped topology's device on which everything takes 2^octaves times as long."""
    device = topology_of(name).device
    factor = 2.0**octaves
    groups = {f"{op}_{precision.kv_cache}": constants_of(device, op, precision.kv_cache) for op in ASSUMED}
    with patch("clustersim.cost.roofline.check_kernels"):  # such constants are beyond what is sane
        return RooflineCost(
            replace(
                device,
                memory_bytes_per_s=device.memory_bytes_per_s / factor,
                flops={dtype: flops / factor for dtype, flops in device.flops.items()},
                kernels={
                    group: {key: value * factor if key.endswith("_s") else value for key, value in constants.items()}
                    for group, constants in groups.items()
                },
            ),
            precision,
        )


def has_one_kind(name: str) -> bool:
    """Whether all devices of a shipped topology are alike; those of groups of nodes ship as other topologies, too."""
    return "device" in read("topologies", name)


@pytest.mark.parametrize("name", [name for name in catalog.names("topologies") if has_one_kind(name)])
@examples(25)
@given(
    slow=st.sampled_from((0, 30, 40)),
    precision=st.builds(
        Precision,
        kv_cache=st.sampled_from(sorted(DTYPE_BYTES)),
        activations=st.sampled_from(("bf16", "fp8")),
        multiply=st.just("bf16"),
    ),
    heads=st.tuples(st.integers(1, 128), st.integers(1, 16)),
    dims=st.tuples(st.integers(1, 640), st.integers(1, 640)),
    latent=st.booleans(),
    batch=st.integers(0, 5000),
    keys=st.just(0) | st.integers(0, 2**24) | st.integers(2**45, 2**60),
    queries=st.integers(1, 2**20),
    more_pairs=st.integers(0, 2**30) | st.integers(0, 2**55),
    gap_us=st.floats(0.0, 20.0),
)
def test_attention_in_plain_numbers_is_attention_by_arrays(
    name: str, slow: int, precision: Precision, heads: tuple[int, int], dims: tuple[int, int], latent: bool,
    batch: int, keys: int, queries: int, more_pairs: int, gap_us: float,
) -> None:  # fmt: skip
    """On a device slowed by 2^40 a duration has more nanoseconds than bits, so that the last bit is compared too."""
    cost, gap = slowed(name, precision, slow), gap_us * 1e-6 * 2.0**slow
    longest_s = LONGEST_S if slow < 40 else 1e300
    shape = {
        "heads": float(heads[0]), "kv_heads": float(heads[1]), "qk_dim": float(dims[0]), "v_dim": float(dims[1]),
        "shared_kv": float(latent),
    }  # fmt: skip

    def by_arrays(op: str, **counts: int) -> int:
        arrays = {key: np.array([float(value)]) for key, value in counts.items()}
        seconds = cost.seconds(op, {**shape, **arrays}) + gap
        return int(np.rint(seconds * NS_PER_S)[0]) if seconds[0] < longest_s else -1

    def decode_by_arrays(attended: int) -> int:
        return by_arrays("attention_decode", batch=batch, keys=attended)

    def prefill_by_arrays(pairs: int, new: int, attended: int) -> int:
        return by_arrays("attention_prefill", pairs=pairs, queries=new, keys=attended)

    pairs = queries * (queries + 1) // 2 + more_pairs
    found = constants(cost, "attention_decode", shape, gap, [], batch)
    ns = decode_ns(terms_of(found), [], batch, keys, gap, longest_s) if found else UNKNOWN
    expected = decode_by_arrays(keys)
    assert ns == expected or (ns == UNKNOWN and (not found or keys > found["most"]))
    found = constants(cost, "attention_prefill", shape, gap, [])
    ns = prefill_ns(terms_of(found), [], pairs, queries, keys, gap, longest_s) if found else UNKNOWN
    expected = prefill_by_arrays(pairs, queries, keys)
    assert ns == expected or (ns == UNKNOWN and (not found or max(keys, queries) > found["most"]))
