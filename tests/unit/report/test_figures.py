"""What figures say: faults where they were, what stages and links were used for, and targets over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checked_figure import checked
from report_data import small_run

from clustersim.report.figures.arrivals import requests_figure
from clustersim.report.figures.devices import fault_rows
from clustersim.report.figures.fault_marks import FaultMark, add_fault_frames, add_fault_marks, fault_marks
from clustersim.report.figures.figure import Figure
from clustersim.report.figures.links import fault_lanes
from clustersim.report.figures.series import kv_figure
from clustersim.report.figures.style import log_ticks
from clustersim.report.figures.use import use_figure

FAULTS = [
    {"link": ["n0.g0", "n0.switch"], "at": "2500 ms", "factor": 0.25},
    {"node": "n1", "at": "1 s", "until": "3 s"},
    {"device": 4, "at": 0, "slowdown": 1.5},
]
ROWS = [
    {"pool": "prefill", "stage": 0, "compute": 0.5, "exposed_communication": 0.2, "host": 0.1, "bubble": 0.0},
    {"pool": "decode", "stage": 0, "compute": 0.75, "exposed_communication": 0.0, "host": 0.0, "bubble": 0.0},
]
LINK = {"link": "a → b", "tier": "scaleup", "bytes": 5e9, "utilisation": 0.125}


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    return small_run(requests=60)


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (12.3, 20.5, ["12", "14", "16", "18", "20", "22"]),
        (8.0, 21.0, ["8", "10", "12", "14", "16", "18", "20", "22"]),
        (99.9, 100.4, ["99.9", "100", "100.1", "100.2", "100.3", "100.4", "100.5"]),
        (7.0, 7.0, ["1", "2", "5", "10", "20", "50"]),
        (30.0, 300.0, ["10", "20", "50", "100", "200", "500", "1,000", "2,000", "5,000"]),
    ],
)
def test_an_axis_has_three_ticks_at_least(low: float, high: float, told: list[str]) -> None:
    assert log_ticks(low, high)["ticktext"] == told


def test_faults_are_marked_when_they_were() -> None:
    assert fault_marks({"scenario": {"faults": FAULTS}}) == [
        FaultMark(label="device 4 1.5 × slower", start_s=0.0, end_s=None),
        FaultMark(label="node n1 down", start_s=1.0, end_s=3.0),
        FaultMark(label="link n0.g0 – n0.switch at 25%", start_s=2.5, end_s=None),
    ]


def test_marks_end_with_the_run_and_those_after_it_are_left_out() -> None:
    figure = Figure()
    add_fault_marks(figure, fault_marks({"scenario": {"faults": FAULTS}}), 2.0)
    layout = checked(figure).layout
    assert [(shape.x0, shape.x1) for shape in layout.shapes] == [(0.0, 2.0), (1.0, 2.0)]
    assert [note.text for note in layout.annotations] == ["device 4 1.5 × slower", "node n1 down"]


def test_words_above_have_a_line_each_and_room_for_it() -> None:
    figure = Figure(layout={"height": 100, "margin": {"t": 18}})
    add_fault_marks(figure, fault_marks({"scenario": {"faults": FAULTS}}), 9.0, above=True)
    layout = checked(figure).layout
    assert [note.yshift for note in layout.annotations] == [0, 12, 24]
    assert (layout.height, layout.margin.t) == (124, 42)


def test_a_fault_frames_its_own_rows_and_tints_nothing_of_them() -> None:
    figure, rows = Figure(layout={"height": 100, "margin": {"t": 18}}), [[0, 1, 2], [], [0, 5, 6]]
    add_fault_frames(figure, fault_marks({"scenario": {"faults": FAULTS}}), 9.0, rows.__getitem__)
    # In order of time: fault 2, of rows that are apart; 1, of none; 0.
    layout = checked(figure).layout
    framed = {(shape.x0, shape.x1, shape.y0, shape.y1) for shape in layout.shapes}
    spans = {number: (mark.start_s, 9.0 if mark.end_s is None else mark.end_s)
             for mark in fault_marks({"scenario": {"faults": FAULTS}}) for number in [mark.number]}  # fmt: skip
    assert framed == {(*spans[2], -0.5, 0.5), (*spans[2], 4.5, 6.5), (*spans[0], -0.5, 2.5)}
    assert all(shape.fillcolor is None for shape in layout.shapes)
    assert [(note.y, note.yshift) for note in layout.annotations] == [(-0.5, 0), (-0.5, 12)]
    assert (layout.height, layout.margin.t) == (112, 30)


def test_rows_of_a_fault_are_those_of_the_devices_and_links_that_it_names() -> None:
    whole = {
        "devices": ["n0.g1", "n0.g0"],
        "rows": [[0, 0], [0, 1], [1, 0]],
        "link_load": {"lanes": [["n0 scaleup", [1, 2], 2.0], ["n0.g0 to n0.switch", [3, 4], 2.0]]},
        "faults": [[["n0.g1"], []], [["n0.g0", "n0.g7"], []], [[], [4, 9]]],
    }
    assert fault_rows(whole) == [[0, 1], [2], []]
    assert fault_lanes(whole) == [[], [], [1]]


def test_a_weak_link_is_red_among_the_busiest_and_says_what_was_left_of_it() -> None:
    links = {"busiest": [LINK, {**LINK, "link": "b → a"}], "weakened": [{"link": "b → a", "capacity": 0.1}]}
    bars = checked(use_figure({"stages": ROWS}, links, 300)).data[-1]
    assert list(bars.text) == ["a → b", "b → a, 10% left"]
    assert bars.marker.color[0] != bars.marker.color[1]


def test_a_run_without_faults_has_no_marks() -> None:
    figure = Figure()
    add_fault_marks(figure, fault_marks({"scenario": {}}), 2.0)
    assert figure.layout == {}


def test_shares_of_a_stage_and_what_is_left_are_the_whole_time() -> None:
    bars = {bar.name: list(bar.x) for bar in checked(use_figure({"stages": ROWS}, {"busiest": [LINK]}, 300)).data}
    assert bars.pop(None) == [0.125]
    assert list(bars) == ["computing", "communicating, nothing else", "engine (scheduling, sampling)", "idle"]
    assert np.sum(list(bars.values()), axis=0) == pytest.approx([1, 1])
    assert bars["idle"] == pytest.approx([0.2, 0.25])


def test_without_links_devices_have_all_of_the_width() -> None:
    figure = checked(use_figure({"stages": ROWS}, None, 300))
    assert figure.layout.xaxis.domain is None
    assert list(figure.data[0].y) == ["prefill stage 0", "decode stage 0"]


@pytest.mark.parametrize("most", [10, 1000])
def test_goodput_over_time_is_what_met_every_target(run: dict[str, Any], most: int) -> None:
    limits = {"ttft": 3e8, "tpot": 2e7}
    figure = checked(requests_figure(run["requests"], limits, 50, most, 600))
    lines = {trace.name: trace for trace in figure.data}
    seconds = np.diff(lines["finished per second"].x.astype(float))
    counted = {
        name: float(lines[f"{name} per second"].y[:-1].astype(float) @ seconds)
        for name in ("arrived", "finished", "met every target (by end)")
    }
    requests = run["requests"]
    first, last, tokens = (requests[name] for name in ("first_token_ns", "finished_ns", "generated_tokens"))
    met = (first - requests["arrived_ns"] <= 3e8) & ~((tokens > 1) & (last - first > 2e7 * (tokens - 1)))
    assert 0 < met.sum() < 60
    assert counted == pytest.approx({"arrived": 60, "finished": 60, "met every target (by end)": met.sum()}, rel=1e-5)
    assert {shape.yref: shape.y0 for shape in figure.layout.shapes} == pytest.approx({"y": 0.3, "y2": 20.0})
    assert ("TPOT p99" in lines) == (most < 60)


def test_pools_have_lines_of_their_own(run: dict[str, Any]) -> None:
    steps, half = run["steps"], len(run["steps"]["step"]) // 2
    steps = {**steps, "replica": np.repeat([0, 1], [half, len(steps["step"]) - half])}
    pools = [{"name": "prefill", "replicas": 1}, {"name": "decode", "replicas": 1}]
    figure = checked(kv_figure(steps, pools, 20, 300))
    lines = {trace.name: np.asarray(trace.y, float) for trace in figure.data if trace.name}
    assert lines["prefill"][-1] == 0 < lines["prefill"][5]
    assert lines["decode"][0] == 0 < lines["decode"][-5]
    assert figure.layout.showlegend
