"""Errors by group, the order of plans, and what is kept of results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustersim.accuracy.compare import Point
from clustersim.accuracy.order import orders, spearman
from clustersim.accuracy.result import Result, read_results, result_of, written
from clustersim.accuracy.row import Row
from clustersim.accuracy.score import reasons, score, scoreboard
from clustersim.accuracy.tables import headline, tables
from clustersim.errors import InputError

ONE = Result(
    id="F7-1", family="F7-closed-loop", engine="vllm 0.12.0", device="h100_sxm", devices=1, model="Qwen3-8B",
    precision="bf16", parallel="TP1", workload="closed loop", metric="TPOT mean", unit="ms", source="",
    predicted=20.0, ratio=2.0, held_out=4.0, reason="",
)  # fmt: skip
NONE = replace(ONE, id="F7-2", predicted=None, ratio=None, held_out=None, reason="no such device")


def plans(*pairs: tuple[float | None, float]) -> list[Result]:
    """Return one result per (predicted, measured), each of a plan of its own."""
    return [
        replace(
            ONE, id=str(place), parallel=f"TP{2**place}", predicted=told, ratio=None if told is None else told / was
        )
        for place, (told, was) in enumerate(pairs)
    ]


def test_what_has_no_prediction_is_an_error_of_all_of_it():
    found = score([ONE, NONE, replace(ONE, ratio=1.1), replace(ONE, ratio=0.9)])
    assert (found.rows, found.expressed) == (4, 3)
    assert found.median == pytest.approx((0.1 + 1.0) / 2)  # of 0.1, 0.1, 1, 1
    assert score([NONE, NONE]).median == 1.0
    assert score([NONE]).bias is None


def test_bias_is_the_geometric_mean_of_what_is_predicted():
    found = score([replace(ONE, ratio=ratio) for ratio in (0.5, 1.0, 2.0, 4.0)])
    assert found.bias == pytest.approx(2**0.5 - 1, abs=1e-6)


def test_left_out_has_errors_of_its_own():
    assert score([ONE]).held_out == 3.0
    assert score([NONE]).held_out == 1.0


def test_groups_are_by_quantity_and_families_count_as_people_do():
    board = scoreboard([replace(ONE, family="F10-x"), ONE, replace(ONE, metric="TPOT p90", engine="SGLang")])
    assert [(found.family, found.metric, found.rows) for found in board.totals] == [
        ("F7-closed-loop", "TPOT", 2), ("F10-x", "TPOT", 1),
    ]  # fmt: skip
    assert [found.engine for found in board.families] == ["SGLang", "vllm 0.12.0", "vllm 0.12.0"]


@pytest.mark.parametrize(
    ("metric", "quantity"),
    [("TTFT p90", "TTFT"), ("first_token_latency", "TTFT"), ("output_token_throughput_per_gpu", "throughput"),
     ("latency mean", "latency"), ("makespan", "makespan"), ("total output throughput", "throughput")],
)  # fmt: skip
def test_a_quantity_is_a_metric_without_its_statistic(metric, quantity):
    assert replace(ONE, metric=metric).quantity == quantity


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)], 1.0),
        ([(3.0, 10.0), (2.0, 20.0), (1.0, 30.0)], -1.0),
        ([(2.0, 10.0), (1.0, 20.0), (3.0, 30.0)], 0.5),  # 1 − 6 · (1 + 1) / (3 · 8)
        ([(1.0, 10.0), (1.0, 20.0)], 0.0),  # a tie says nothing
        ([(1.0, 10.0), (2.0, 10.0)], None),  # there is no order
        ([(1.0, 10.0), (2.0, 20.0), (None, 1.0)], 0.0),  # who has no prediction has no rank
    ],
)
def test_order_of_plans(pairs, expected):
    (order,) = orders(plans(*pairs))
    assert order.spearman == pytest.approx(expected)
    assert len(order.plans) == len(pairs)


def test_orders_of_what_was_measured_alike_are_left_out_of_the_mean():
    alike, right = plans((1.0, 10.0), (2.0, 10.0)), plans((1.0, 10.0), (2.0, 20.0))
    other = [replace(one, id=f"o{one.id}", workload="another") for one in right]
    assert "order of plans 1.00 over 1 workloads" in headline(scoreboard([*alike, *other]))
    assert "order of plans" not in headline(scoreboard(alike))
    assert any(row[-2:] == ("–", "–") for table in tables(scoreboard(alike)) for row in table.rows)


def test_plans_are_compared_under_one_workload_only():
    assert orders([ONE, replace(ONE, id="2", parallel="TP2", workload="another")]) == ()
    assert orders([ONE, replace(ONE, id="2", metric="TTFT mean", parallel="TP2")]) == ()
    assert orders([ONE, replace(ONE, id="2")]) == ()


def test_ranks_share_ties():
    assert spearman([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]) == 1.0


def test_results_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "results.csv"
    results = (ONE, replace(NONE, workload='a, "b"'))
    path.write_text(written(results), encoding="utf-8")
    assert read_results(path) == results
    path.write_text("id,family\n", encoding="utf-8")
    with pytest.raises(InputError, match="is no table of results"):
        read_results(path)


def test_a_result_keeps_ratios_and_no_measured_figure():
    texts = dict.fromkeys(("model", "precision", "parallel", "workload", "source", "note"), "")
    row = Row(
        id="F1-1", family="F1-x", hardware="", num_gpus=1, framework="", metric="TTFT", value=30.0, unit="ms", **texts
    )
    found = result_of(Point(row=row, predicted=33.333333, in_sample=True, held_out=15.0))
    assert (found.predicted, found.ratio, found.held_out) == (33.33, 1.111, 0.5)
    assert found.measured == pytest.approx(30.0, rel=1e-3)
    assert result_of(Point(row=row, reason="why")).held_out is None
    assert result_of(Point(row=row, predicted=33.0)).held_out == 1.1


def test_reasons_are_counted_by_family():
    assert reasons([ONE, NONE, NONE]) == {("F7-closed-loop", "no such device"): ["F7-2", "F7-2"]}
