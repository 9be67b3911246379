"""Measured points in a device's file: their text, which of them are kept, and when they are used."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from clustersim import catalog
from clustersim.cost import MeasuredPoints, Precision, RooflineCost, TableCost
from clustersim.cost.attention import constants, decode_ns, prefill_ns, terms_of
from clustersim.cost.check_prices import check_grids
from clustersim.cost.fit import MOE, predict
from clustersim.cost.grid import grid_problems, measured_by, read_grid
from clustersim.cost.grid_fit import fit_grid
from clustersim.cost.kernels import ASSUMED
from clustersim.cost.table import LeastCost
from clustersim.errors import InputError
from tests.shipped import device

HEADS = "heads 32 kv_heads 8 qk_dim 128 v_dim 128 shared_kv 0\n"
GROUP = "attention_decode_bf16"
SHAPE = {"heads": 32.0, "kv_heads": 8.0, "qk_dim": 128.0, "v_dim": 128.0, "shared_kv": 0.0}
PROMPT = "attention_prefill_bf16"


def measured(op: str, **shape: object) -> MeasuredPoints:
    """Return points in bf16 of 1 s each."""
    columns = {name: np.asarray(values, np.float64) for name, values in shape.items()}
    return MeasuredPoints(op=op, dtype="bf16", shape=columns, seconds=np.ones(len(next(iter(columns.values())))))


def decodes(ratios: np.ndarray, batches: list[int], lengths: list[int], **fixed: float) -> MeasuredPoints:
    """Return points of decode attention at all of these, ``ratios`` of what H100's constants say."""
    batch, each = (axis.ravel() for axis in np.meshgrid(batches, lengths, indexing="ij"))
    shape = {name: np.full(len(batch), value) for name, value in (SHAPE | fixed).items()}
    points = measured("attention_decode", batch=batch, keys=batch * each, **shape)
    device_, constants = device("h100-sxm-80gb"), device("h100-sxm-80gb").kernels[GROUP]
    return replace(points, seconds=predict(device_, points, constants) * ratios.ravel())


def joined(*points: MeasuredPoints) -> MeasuredPoints:
    shape = {name: np.concatenate([one.shape[name] for one in points]) for name in points[0].shape}
    return replace(points[0], shape=shape, seconds=np.concatenate([one.seconds for one in points]))


def test_a_grid_is_read_as_it_is_written() -> None:
    points = read_grid(GROUP, HEADS + "1: 128=10 1024=20\n16: 128=40")
    assert (points.op, points.dtype) == ("attention_decode", "bf16")
    assert points.shape["batch"].tolist() == [1, 1, 16]
    assert points.shape["keys"].tolist() == [128, 1024, 2048]
    assert points.seconds.tolist() == pytest.approx([10e-6, 20e-6, 40e-6])
    assert set(points.shape["heads"].tolist()) == {32}


def test_lines_may_be_broken_anywhere() -> None:
    text = HEADS + "1: 128=10 1024=20 16: 128=40"
    same = read_grid(GROUP, text.replace(" ", "\n"))
    np.testing.assert_array_equal(same.seconds, read_grid(GROUP, text).seconds)


def test_prompts_are_placed_by_queries_and_keys_per_query() -> None:
    points = read_grid(PROMPT, HEADS + "2048: 0.5=100 1=150")
    assert points.shape["queries"].tolist() == [2048, 2048]
    assert points.shape["pairs"].tolist() == [2 * 1024 * 1025 / 2, 2048 * 2049 / 2]  # two of 1,024, and one


@pytest.mark.parametrize(
    ("group", "text", "wrong"),
    [
        (GROUP, "1: 128=10", "line 1: expected heads N kv_heads N qk_dim N v_dim N shared_kv N OUTER: "),
        (GROUP, HEADS + "128=10", "line 2: .* but found '128=10'"),
        (GROUP, HEADS + "1: 128=zehn", "line 2: .* but found '128=zehn'"),
        (GROUP, HEADS + "1: 128=-4", "line 2: .* but found '128=-4'"),
        (GROUP, HEADS + "1: 128=1e30", "line 2: .* but found '128=1e30'"),
        (GROUP, HEADS + "0: 128=4", "line 2: .* but found '0:'"),
        (GROUP, "heads 32 kv_heads many", "line 1: .* but found 'many'"),
        (GROUP, HEADS, "has no points"),
        ("gemm_bf16", "n 4 k nan\n1: 4=1", "line 1: .* but found 'nan'"),
    ],
)
def test_what_is_no_grid_is_refused_with_its_line(group: str, text: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        read_grid(group, text)
    (problem,) = grid_problems({group: text}, "kernels.trtllm")
    assert problem.path == f"kernels.trtllm.{group}.grid"


@pytest.mark.parametrize(
    ("microseconds", "told"),
    [("0.001", "lasts [0-9.e-]+ times"), ("14e4", "lasts [0-9.e+]+ times"), ("10", "")],
)
def test_points_that_no_device_takes_are_refused(microseconds: str, told: str) -> None:
    found = check_grids(device("h100-sxm-80gb"), {GROUP: HEADS + f"1: 1024={microseconds}"}, "kernels.sglang")
    assert [problem.path for problem in found] == [f"kernels.sglang.{GROUP}.grid"] * bool(told)
    assert all(re.search(f"{told} what h100-sxm-80gb .*; expected microseconds", one.message) for one in found)


def test_points_that_lie_between_others_are_not_kept() -> None:
    batches, lengths = [1, 2, 4, 8, 16, 32, 64], [128, 256, 512, 1024, 2048, 4096, 8192]
    ratios = np.where(np.arange(7)[:, None] < 4, 1.0, 1.5) * np.where(np.arange(7) < 5, 1.0, 2.0)
    fit = fit_grid(device("h100-sxm-80gb"), decodes(ratios, batches, lengths), device("h100-sxm-80gb").kernels[GROUP])
    kept = read_grid(GROUP, fit.text)
    assert len(kept.seconds) <= 16  # of 49: two corners along each axis, and the ends
    assert fit.p90_error < 0.01
    assert fit.held_out is None


def test_shapes_that_the_nearest_one_tells_are_not_kept() -> None:
    """Of six numbers of heads two differ; what is held out is told by its neighbours."""
    each = [
        decodes(np.full((3, 3), 1.0 if heads < 64 else 1.4), [1, 8, 64], [128, 1024, 8192], heads=heads)
        for heads in (16.0, 24.0, 32.0, 40.0, 64.0, 96.0)
    ]
    fit = fit_grid(device("h100-sxm-80gb"), joined(*each), device("h100-sxm-80gb").kernels[GROUP])
    assert len(set(read_grid(GROUP, fit.text).shape["heads"].tolist())) == 2
    assert fit.median_error < 0.01
    assert fit.held_out is not None
    assert fit.held_out < 0.01


def test_a_measured_module_is_both_of_its_products() -> None:
    """Together they last as long as was measured."""
    one = np.ones(3)
    points = measured(
        MOE, rows=[8.0, 1024.0, 8192.0], experts=128 * one, active=[8.0, 128.0, 128.0], hidden=2048 * one,
        intermediate=768 * one,
    )  # fmt: skip
    a100 = device("a100-sxm-80gb")
    points = replace(points, seconds=predict(a100, points, ASSUMED["grouped_gemm"]) * np.array([1.3, 2.0, 0.7]))
    fit = fit_grid(a100, points, ASSUMED["grouped_gemm"])
    plain = replace(a100, kernels={}, grids={})
    table = TableCost([read_grid("grouped_gemm_bf16", fit.text)], RooflineCost(plain, Precision()))
    shape = {name: points.shape[name] for name in ("rows", "experts", "active")}
    both = [table.seconds("grouped_gemm", shape | {"n": n, "k": k}) for n, k in ((1536.0, 2048.0), (2048.0, 768.0))]
    np.testing.assert_allclose(sum(both), points.seconds, rtol=0.01)


def test_the_grid_of_the_group_that_is_used_counts() -> None:
    """An engine's own group hides that of all engines, with its grid; another number format has none."""
    grid = HEADS + "1: 128=10"
    plain = replace(device("h100-sxm-80gb"), grids={GROUP: grid}, engine_grids={"sglang": {PROMPT: HEADS + "64: 1=9"}})

    def ops(engine: str, **formats: str) -> list[str]:
        cost = RooflineCost(plain.running(engine), Precision(**formats))
        return [one.op for one in measured_by(cost)]

    assert ops("vllm-0.19") == ["attention_decode"]
    assert ops("vllm-0.19", kv_cache="fp8") == []
    assert ops("trtllm-1.0") == []  # has constants of its own, and no grid
    assert ops("sglang-0.5") == ["attention_prefill"]


def test_a_table_of_the_user_comes_before_the_grid() -> None:
    cost = RooflineCost(device("h100-sxm-80gb"), Precision())
    own, grid = (decodes(np.full((1, 1), ratio), [8], [1024]) for ratio in (3.0, 5.0))
    table = TableCost([own], cost, [grid, read_grid(PROMPT, HEADS + "64: 1=9")])
    shape = SHAPE | {"batch": 8.0, "keys": 8 * 1024.0}
    assert float(table.seconds("attention_decode", shape)) == pytest.approx(own.seconds[0])
    assert table.curves("attention_prefill", SHAPE)[0] is not None
    assert table.outside == {"attention_decode": 0}  # what lies outside a grid is not counted


def test_one_kind_of_decoding_says_nothing_of_another() -> None:
    cost = RooflineCost(device("h100-sxm-80gb"), Precision())
    table = TableCost([decodes(np.full((1, 1), 5.0), [8], [1024])], cost)
    for other in ({"kv_heads": 32.0}, {"kv_heads": 1.0, "shared_kv": 1.0}):
        shape = SHAPE | {"batch": 8.0, "keys": 8 * 1024.0} | other
        assert table.seconds("attention_decode", shape) == cost.seconds("attention_decode", shape)
    assert table.outside == {"attention_decode": 2}


GRIDDED = [
    (name, engine)
    for name in catalog.names("topologies/devices")
    for engine in ("vllm-0.19", "trtllm-1.0", "sglang-0.5")
    if (of := device(name)).running(engine).grids
]


@pytest.mark.parametrize(("name", "engine"), GRIDDED)
@pytest.mark.parametrize("kv_cache", ["bf16", "fp8"])
def test_plain_numbers_are_what_arrays_give(name: str, engine: str, kv_cache: str) -> None:
    """Of the grids that ship, at batches and lengths inside, between and beyond their points, to the last bit."""
    roofline = RooflineCost(device(name).running(engine), Precision(kv_cache=kv_cache))
    cost = TableCost((), roofline, measured_by(roofline))
    draw = np.random.default_rng(7)
    for heads, kv_heads in ((32.0, 8.0), (8.0, 8.0), (40.0, 1.0)):
        shape = SHAPE | {"heads": heads, "kv_heads": kv_heads}
        for _ in range(40):
            batch, each = (int(2.0 ** draw.uniform(0, most)) for most in (10, 17))
            arrays = cost.seconds(
                "attention_decode", shape | {"batch": np.array([batch]), "keys": np.array([batch * each])}
            )
            numbers: list[float] = []
            terms = terms_of(constants(cost, "attention_decode", shape, 1e-6, numbers, batch))
            ns = decode_ns(terms, numbers, batch, batch * each, 1e-6, 60.0)
            assert ns == round((float(arrays[0]) + 1e-6) * 1e9)
            pairs, queries = each * (each + 1) // 2 * batch, batch * each
            arrays = cost.seconds(
                "attention_prefill",
                shape | {"pairs": np.array([pairs]), "queries": np.array([queries]), "keys": np.array([queries])},
            )
            numbers = []
            terms = terms_of(constants(cost, "attention_prefill", shape, 1e-6, numbers))
            ns = prefill_ns(terms, numbers, pairs, queries, queries, 1e-6, 6e4)
            assert ns in {-1, round((float(arrays[0]) + 1e-6) * 1e9)}


def test_the_least_cost_lies_nowhere_above() -> None:
    """Of a ratio that falls below 1 and rises above it."""
    points = decodes(np.array([[0.6, 1.8, 0.9]]), [8], [128, 1024, 8192])
    table = TableCost([points], RooflineCost(device("h100-sxm-80gb"), Precision()))
    lengths = np.arange(16.0, 20_000.0, 37.0)
    shape = SHAPE | {"batch": 8.0, "keys": 8.0 * lengths}
    took, least = table.seconds("attention_decode", shape), LeastCost(table).seconds("attention_decode", shape)
    assert np.all(least <= took)
    assert float(np.min(took / least)) == pytest.approx(1.0)
    assert np.all(np.diff(least) > 0)
    nothing = SHAPE | {"batch": 8.0, "keys": 0.0}
    assert LeastCost(table).seconds("attention_decode", nothing) < table.seconds("attention_decode", nothing)


def test_grids_that_ship_err_by_less_than_their_constants() -> None:
    """As their sources say: each is there because its fit errs by more than 8 %."""
    found = 0
    for name in catalog.names("topologies/devices"):
        text = " ".join(catalog.path_of("topologies/devices", name).read_text(encoding="utf-8").split())
        for fit, grid in re.findall(r"error median ([\d.]+) %[^;]*; of the grid[^;]*? median ([\d.]+) %", text):
            found += 1
            assert float(fit) > 8.0 > float(grid), (name, fit, grid)
        grids = (device(name).grids, *device(name).engine_grids.values())
        assert text.count("of the grid") == sum(map(len, grids))
    assert found
