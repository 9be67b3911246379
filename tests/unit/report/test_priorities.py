"""Latencies by priority: each class by itself, by the definitions of all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clustersim.report.files.summary import summary_of
from clustersim.report.metrics.latencies import summarise
from clustersim.report.metrics.priorities import MOST_CLASSES, by_priority, priority_lines, priority_table
from clustersim.report.words.headline import headline_html
from clustersim.scenario.expect import expectation
from clustersim.scenario.load import load
from clustersim.simulation.simulate import simulate

REQUESTS = {
    "request": np.array([0, 1, 2, 4]),
    "arrived_ns": np.array([0, 0, 1_000_000, 2_000_000]),
    "first_token_ns": np.array([2e6, 4e6, 5e6, np.nan]),
    "finished_ns": np.array([12e6, 4e6, 7e6, np.nan]),
    "prompt_tokens": np.array([10, 10, 10, 10]),
    "generated_tokens": np.array([11, 1, 3, 0]),
    "outcome": np.array(["finished", "finished", "finished", "rejected"], object),
}
"""The fourth request of the workload has not arrived."""
PRIORITIES = np.array([5, -1, 5, 7, -1])


def test_each_class_has_its_requests_and_latencies():
    found = by_priority(REQUESTS, PRIORITIES)
    assert list(found) == ["-1", "5"]
    first, second = found.values()
    assert first["requests"] == {"arrived": 2, "finished": 1}
    assert first["ttft_ms"]["mean"] == first["ttft_ms"]["max"] == 4.0
    assert first["tpot_ms"] is None  # one token has no time per further token
    assert second["requests"] == {"arrived": 2, "finished": 2}
    assert second["ttft_ms"]["mean"] == 3.0
    assert [second["tpot_ms"][key] for key in ("mean", "p50", "max")] == [1.0, 1.0, 1.0]
    assert second["e2e_ms"]["max"] == 12.0


def test_a_workload_without_priorities_has_no_classes():
    assert by_priority(REQUESTS, None) is None
    assert priority_lines({"priorities": None}) == []
    assert priority_table({}) == ""


def test_one_class_has_what_all_have():
    found, whole = by_priority(REQUESTS, np.zeros(5, np.int64))["0"], summarise(REQUESTS)
    assert {key: found[key] for key in ("ttft_ms", "tpot_ms", "e2e_ms")} == {
        key: whole[key] for key in ("ttft_ms", "tpot_ms", "e2e_ms")
    }


def test_many_classes_are_told_but_for_the_least_urgent():
    count = MOST_CLASSES + 3
    requests = {
        "request": np.arange(count),
        **{name: np.zeros(count) for name in ("arrived_ns", "first_token_ns", "finished_ns")},
        **{name: np.ones(count, np.int64) for name in ("prompt_tokens", "generated_tokens")},
        "outcome": np.full(count, "finished", object),
    }
    found = by_priority(requests, np.arange(count))
    assert list(found) == [*map(str, range(MOST_CLASSES)), "others"]
    assert found["others"]["requests"]["arrived"] == 3
    assert [name for name, _ in priority_lines({"priorities": found})][-2:] == ["priority 15", "others"]


SCENARIO = """
name: urgent
topology: {name: t, device: h100-sxm-80gb, source: mine, fabric: {kind: nvswitch_rail, devices_per_node: 1,
  scaleup_bandwidth: 450 GB/s, scaleup_latency: 0.3 us}}
model: llama-3.1-8b
serving: {order: {by: priority, patience: unlimited}, max_batch_requests: 2}
workload: {arrivals: all_at_once, prompt_tokens: 50, output_tokens: 5, requests: 12, priority: {values: [0, 3]}}
"""


def test_the_summary_and_what_people_see_of_it_have_each_class(tmp_path: Path):
    file = tmp_path / "urgent.yaml"
    file.write_text(SCENARIO)
    result = simulate(load(file))
    summary = summary_of(result)
    urgent, other = summary["priorities"].values()
    assert urgent["requests"]["arrived"] + other["requests"]["arrived"] == 12
    assert urgent["ttft_ms"]["max"] <= other["ttft_ms"]["p50"]  # two at a time, and the urgent ones first
    lines = priority_lines(summary)
    assert [name for name, _ in lines] == ["priority 0", "priority 3"]
    assert lines[0][1].startswith(
        f"{urgent['requests']['finished']} of {urgent['requests']['arrived']} finished, TTFT p50 "
    )
    found = {"ttft": (np.array([1, 2_000_000_001]), np.array([8997, 1003]))}
    page = headline_html(summary | {"targets": {"ttft": "2 s"}}, result.columns, result.step_rows.rows, found)
    assert "<td>89.9%</td>" in page  # within the target, and not rounded up to what may be asked
    assert "Latencies by priority (ms)" in page
    assert '<th scope="row">3</th>' in page
    assert expectation("priorities.0.ttft_ms.p99", "< 100000").check(summary) == []
    assert expectation("priorities.1.ttft_ms.p99", "< 1").check(summary) == [
        "priorities.1.ttft_ms.p99 has no value; expected < 1"
    ]
    with pytest.raises(ValueError, match=r"a summary has no 'priorities\.0\.itl_ms\.p99'"):
        expectation("priorities.0.itl_ms.p99", "< 1")
