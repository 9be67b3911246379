"""No family of measured figures gets worse: a stratified part of them is simulated anew and held to what was recorded.

``scenarios/accuracy/points.csv`` has three runs of each family, engine and device that need no recorded requests;
a plain ``pytest`` simulates the first of them, ``--long=1`` all three.
"""

from __future__ import annotations

import pytest

from clustersim import catalog
from clustersim.accuracy.compare import compare
from clustersim.accuracy.result import by_id, read_results, result_of
from clustersim.accuracy.row import Row, read_rows
from clustersim.accuracy.score import score
from tests.effort import is_whole, times

WORSE = 0.01
"""A point: what the median error of a family may grow by before somebody must look."""
FEWER = {"F6-saturated": "A100-SXM4-80GB", "F6-pp-tp-sweep": "Qwen3-30B-A3B"}
"""Of families whose runs take long, the device or model that a plain ``pytest`` simulates."""


def part(rows: list[Row]) -> list[Row]:
    """Return the rows of the first runs of each family, engine and device."""
    runs: dict[tuple[str, ...], dict[tuple[str, ...], list[Row]]] = {}
    for row in rows:
        if not is_whole() and FEWER.get(row.family, row.model) not in (row.hardware, row.model):
            continue
        of = runs.setdefault((row.family, row.framework, row.hardware), {})
        of.setdefault((row.model, row.precision, row.parallel, row.workload), []).append(row)
    return [row for of in runs.values() for run in list(of.values())[: times(3)] for row in run]


def test_the_part_has_every_family_that_needs_no_recorded_requests():
    rows = read_rows(catalog.path_of("scenarios/accuracy", "points", ".csv"))
    results = read_results(catalog.path_of("scenarios/accuracy", "results", ".csv"))
    assert {result.family for result in results} - {row.family for row in part(rows)} == {
        "F1-replay-vllm", "F2-h100-70b-modes", "F3-distserve-a100", "F4-apex-h100"
    }  # fmt: skip


def test_no_family_got_worse_and_what_was_measured_is_the_same():
    path = catalog.path_of("scenarios/accuracy", "points", ".csv")
    recorded = by_id(read_results(catalog.path_of("scenarios/accuracy", "results", ".csv")))
    rows = part(read_rows(path))
    pairs = {}
    for point in compare(rows, path.parent, workers=1):
        now = result_of(point)
        pairs.setdefault((now.family, now.quantity), []).append((now, recorded[now.id]))
    assert {family for family, _ in pairs} == {row.family for row in rows}
    worse = {}
    for family, members in pairs.items():
        now, before = (score([pair[place] for pair in members]).median for place in (0, 1))
        if now > before + WORSE:
            worse[family] = f"median error {before:.1%} as recorded, {now:.1%} now"
    assert worse == {}, "if it was meant: CONTRIBUTING, how to record the accuracy anew"
    for now, before in (pair for members in pairs.values() for pair in members):
        if now.measured is not None and before.measured is not None:
            assert before.measured == pytest.approx(now.measured, rel=2e-3), now.id
