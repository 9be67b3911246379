"""The folded timeline of a page: packing loses nothing, and runs don't depend on how passes were recorded."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pytest

from clustersim.report.files.run_directory import dashboard_of
from clustersim.report.files.summary import summary_of
from clustersim.report.folded.asked import Asked
from clustersim.report.folded.carried_parts import payload_parts
from clustersim.report.folded.packed import packed
from clustersim.report.folded.passes import FACTOR, alike, folded_passes
from clustersim.report.folded.shapes import shapes_of
from clustersim.report.folded.whole import whole_run
from clustersim.report.layouts import overview
from clustersim.scenario.load import load
from clustersim.simulation.simulate import RunResult
from tests.audit import simulated


def unpacked(section: dict[str, Any]) -> dict[str, np.ndarray]:
    """Read a section as ``page/packed.js`` does."""
    octets = np.frombuffer(zlib.decompress(base64.b64decode(section["data"])), np.uint8)
    found, at = {}, 0
    for name, count, width, _, differs, *same in section["columns"]:
        if same:
            found[name] = np.full(count, same[0])
            continue
        planes = octets[at : at + width * count].reshape(width, count).astype(np.int64)
        codes = (planes << (8 * np.arange(width))[:, None]).sum(axis=0)
        numbers = np.where(codes % 2, -(codes + 1) // 2, codes // 2)
        found[name] = np.cumsum(numbers) if differs else numbers
        at += width * count
    assert at == len(octets)
    return found


def test_packing_keeps_every_number() -> None:
    columns = {"none": np.empty(0, np.int64), "signs": np.array([3, -3, 0, -1]), "long": np.array([1 << 51, 0, 7])}
    found = unpacked(packed(columns))
    assert {name: values.tolist() for name, values in found.items()} == {
        "none": [], "signs": [3, -3, 0, -1], "long": [1 << 51, 0, 7],
    }  # fmt: skip
    assert [size for *_, size, _ in packed(columns)["columns"]] == [4, 4, 8]


def test_a_column_travels_as_what_is_shorter() -> None:
    noise = np.random.default_rng(1).integers(0, 256, 5000)
    columns = {"instants": np.arange(0, 10**9, 10**5), "noise": noise, "steps": np.cumsum(noise)}
    section = packed(columns)
    assert [differs for *_, differs in section["columns"]] == [1, 0, 1]
    assert len(section["data"]) < 2.1 * 5000 * 4 / 3
    assert all(np.array_equal(unpacked(section)[name], values) for name, values in columns.items())


def test_a_column_of_one_number_is_that_number() -> None:
    section = packed({"replica": np.full(1000, 3), "first": np.zeros(2, np.int64), "far": np.full(2, -1 << 40)})
    assert section["columns"] == [
        ["replica", 1000, 0, 4, 0, 3], ["first", 2, 0, 4, 0, 0], ["far", 2, 0, 8, 0, -1 << 40],
    ]  # fmt: skip
    assert not zlib.decompress(base64.b64decode(section["data"]))


def test_the_first_steps_of_runs_follow_from_the_steps_before(replays: list[RunResult]) -> None:
    result = replays[0]
    given = result.timeline, result.step_rows.rows, result.columns, ["a"] * 4
    whole = whole_run(*given)
    assert whole is not None
    held = sum(len(section["data"]) for section in whole["sections"].values())
    assert whole_run(*given, most_bytes=held) == whole
    assert whole_run(*given, most_bytes=held - 1) is None
    told, runs = unpacked(whole["sections"]["runs"]), folded_passes(result.timeline).runs
    assert not told["step"].any()  # no step lies between any two runs
    assert np.array_equal(told["steps"], runs["steps"])


def test_a_page_that_no_browser_opens_has_no_lanes(replays: list[RunResult]) -> None:
    result, passes = replays[0], len(replays[0].timeline.passes["steps"])
    figures = summary_of(result), result.columns, result.step_rows, result.timeline, result.token_gaps, overview()
    one = int(result.columns["request"][0])
    for most_bytes, request, holds in ((10 * passes // 2 + 1, None, True), (10 * passes // 2 - 1, None, False),
                                       (10, one, True)):  # fmt: skip
        page = dashboard_of(*figures, Asked(most_bytes=most_bytes, request=request))
        assert ('id="run-data"' in page) == holds
        assert ("--max-page SIZE makes one that holds them" in page) != holds


def test_a_table_is_packed_column_by_column() -> None:
    assert unpacked(packed({"table": np.array([[1, 10], [2, 20]])}))["table"].tolist() == [1, 2, 10, 20]


@pytest.fixture(scope="module")
def replays() -> list[RunResult]:
    return [simulated(load("mixtral-ep", ("workload.requests=3", f"run.replay={how}"))) for how in ("folded", "full")]


def test_both_replays_have_one_page(replays: list[RunResult]) -> None:
    folded, full = (whole_run(one.timeline, one.step_rows.rows, one.columns, ["a"] * 4) for one in replays)
    assert len(replays[0].timeline.passes["steps"]) < len(replays[1].timeline.passes["steps"])
    assert folded == full


def test_runs_are_as_long_as_they_can_be(replays: list[RunResult]) -> None:
    runs = folded_passes(replays[1].timeline).runs
    assert runs["steps"].sum() == replays[1].timeline.num_steps
    alike = (np.diff(runs["row"]) == 0) & (np.diff(runs["program"]) == 0) & (runs["gap"][1:] == 0)
    assert not alike.any()
    assert runs["steps"].max() > 10


def test_shapes_are_those_of_one_rank() -> None:
    (shapes,) = shapes_of(load("quickstart"))
    named = {name: shape for (name, *_), shape in shapes.items()}
    # 8 of 64 heads and 1 of 8 of K/V on each of TP 8: (8 + 1 + 1) × 128; FFN 28,672 / 8, gate and up together
    assert named["qkv_proj"] == "8,192 × 1,280"
    assert named["ffn_up"] == "8,192 × 7,168"
    assert named["attention_decode"] == "8 heads of 128, 1 of K/V"
    assert named["o_proj_all_reduce"] == ""


def test_each_pool_has_shapes_of_its_own() -> None:
    prefill, decode = shapes_of(load("failing-decode"))
    symbol = ("o_proj", "gemm", "attention")
    assert (prefill[symbol], decode[symbol]) == ("2,560 × 5,120", "5,120 × 5,120")


@pytest.mark.parametrize(
    ("rows", "firsts", "of"),
    [
        ([[5, 1], [5, 2], [5, 1], [4, 2]], [0, 1, 3], [0, 1, 0, 2]),
        ([[FACTOR - (1 << 64), 0], [0, 1]], [0, 1], [0, 1]),  # of one sum
        ([[], []], [0], [0, 0]),
    ],
)
def test_rows_of_one_content_are_found_in_order_of_appearance(rows: list[list[int]], firsts: Any, of: Any) -> None:
    found = alike(np.array(rows, np.int64).reshape(len(rows), -1))
    assert [one.tolist() for one in found] == [firsts, of]


def test_payloads_count_for_their_way_alone_and_not_where_none_is_taken() -> None:
    collectives = (np.array([0, -1, 1]), *(np.array(some, np.float64) for some in ([0, 0, 2], [4, 4, 4], [8, 5, 6])))
    sends = tuple(np.array(some, np.float64) for some in ([1, -1], [0, 0], [2, 2], [3, 9]))
    assert payload_parts([collectives, sends], 3, 2, 4).tolist() == [[4, 4], [3, 6], [0, 0]]
