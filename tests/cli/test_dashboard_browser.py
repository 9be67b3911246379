"""The dashboard in a real Chromium: every figure is drawn, lanes unfold what is in view, no host is contacted.

There is no driver: a copy of the page carries a script that acts as a user would and writes what it saw into
the document, which Chromium prints. It also carries the folded timelines of other runs, and unfolds windows of them.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustersim.catalog import names
from clustersim.clock import FloatArray
from clustersim.plan.mesh import Mesh
from clustersim.replay.programs import programs_of
from clustersim.report.figures.layout import FIGURES
from clustersim.report.files.run_directory import dashboard_of
from clustersim.report.files.summary import summary_of
from clustersim.report.folded.requests import WAITS
from clustersim.report.folded.shapes import shapes_of
from clustersim.report.folded.whole import Kept, whole_run
from clustersim.report.metrics.link_traffic import capacity_bytes, move_bytes, step_bytes
from clustersim.report.metrics.pool_use import pool_uses
from clustersim.report.metrics.step_features import StepFeatures, step_features
from clustersim.report.words.diagnosis import WORDS
from clustersim.scenario.load import load
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.spans import SPAN_COLUMNS
from clustersim.timeline.timeline import Timeline
from tests.audit import simulated
from tests.effort import is_whole, times

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: figures can't be looked at"),
]
LAYOUT: dict[str, Any] = {"figures": [{"figure": name} for name in FIGURES]}

UNFOLDED = {
    "quickstart": ("workload.trace.requests=8",),
    "failing-decode": ("workload.requests=20", "faults=[{device: 2, at: 5 s, until: 6 s, lose: recompute}]"),
    "oversubscribed-fabric": ("faults=[{link: [n0.g1, n0.nvswitch], at: 20 ms, until: 100 ms, factor: 0.1}]",),
    "long-context-ring": (),
}
"""Scenario → overrides: sends; two pools, moves, a fault; contention, a weak link; operators that overlap."""
FURTHER = sorted({*names("scenarios")} - {*UNFOLDED, "illegal-five-ways"})
"""With ``--long=1``, in a page each: all other scenarios that ship and are legal."""
SPANS = 1500
"""About so many are unfolded in a window."""

PROBE = """
<script>
const seen = {errors: [], connections: []};
window.addEventListener("error", event => seen.errors.push(event.message));
window.addEventListener("unhandledrejection", event => seen.errors.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", event => seen.connections.push(event.blockedURI));
</script>
"""
ACT = """
<script>
const pause = () => new Promise(done => setTimeout(done, 400));
const until = async ready => { for (let i = 0; i < 40 && !ready(); i++) await pause(); };
async function act() {
  await until(() => [linkedFigures.lanes, linkedFigures.requests].every(one => one && one.drawn));
  const lanes = linkedFigures.lanes, plots = [...document.querySelectorAll(".js-plotly-plot")];
  const press = key => lanes.plot.dispatchEvent(new KeyboardEvent("keydown", {key}));
  const look = async () => { await pause(); return [lanes.drawn.level, lanes.view.from, lanes.view.to]; };
  const view = async name => { document.querySelector(`[data-view=${name}]`).click(); return look(); };
  seen.plots = plots.length;
  const charts = plots.filter(plot => !plot.querySelector("canvas.beneath"));
  seen.drawn = charts.map(plot => plot.querySelectorAll(".main-svg path").length);
  seen.texts = plots.map(plot => plot.querySelectorAll(".xtitle").length);
  seen.buttons = [...document.querySelectorAll(".modebar-btn")].map(button => button.dataset.title);
  seen.colours = new Set(lanes.canvas.getContext("2d").getImageData(0, 0, lanes.canvas.width, 9).data).size;
  seen.levels = {run: await look()};
  for (const name of ["second", "step", "layer"]) seen.levels[name] = await view(name);
  const overTime = linkedFigures.members.filter(one => one !== lanes && one !== linkedFigures.topology);
  seen.linked = overTime.map(one => one.plot.layout.xaxis.range);
  const {l, t, w} = lanes.area, box = lanes.plot.getBoundingClientRect();
  lanes.plot.dispatchEvent(new MouseEvent("mousemove", {clientX: box.left + l + w / 2, clientY: box.top + t + 4}));
  seen.tip = [...lanes.tip.children].map(line => line.textContent);
  const first = lanes.run.programs[0], {nodeSymbol, memberAt} = first;
  seen.shape = first.shapes[first.names.indexOf(lanes.run.words.names.indexOf("qkv_proj"))];
  seen.over = shapeText(first, nodeSymbol.findIndex((_, node) => memberAt[node + 1] - memberAt[node] > 1));
  const links = linkedFigures.links, [lane, [bar]] = [...links.bars].find(([, bars]) => bars.length);
  seen.inflight = [links.drawn.level, bar.start, bar.end, bar.bytes, bar.share, links.toldAt(lane, bar.start)];
  seen.linkLegend = [...links.legend.children].map(one => one.textContent);
  const picture = linkedFigures.topology;
  seen.picture = [picture.window, picture.plot.data.slice(2, 11).some(trace => trace.x.length)];
  press("-"); seen.out = await look();
  press("ArrowRight"); seen.right = await look();
  lanes.plot.dispatchEvent(new WheelEvent("wheel", {deltaY: -400, clientX: box.left + l, clientY: box.top + t + 4}));
  seen.wheel = await look();
  await Plotly.relayout(lanes.plot, {"xaxis.autorange": true}); seen.reset = await look();
  const rows = linkedFigures.requests;
  rows.open(3); await pause();
  seen.opened = [rows.plot.layout.yaxis.ticktext[0], rows.view.from, rows.view.to, lanes.view.from, lanes.view.to];
  const listed = () => rows.shown.map(row => rows.requests.request[row]);
  seen.listed = [[rows.view.from, rows.view.to, listed()]];
  rows.show(...rows.whole); await pause(); seen.listed.push([rows.view.from, rows.view.to, listed()]);
  const last = Math.max(...rows.requests.finished_ns); rows.follows(last / NS - 0.5, last / NS - 0.1); await pause();
  seen.listed.push([rows.view.from, rows.view.to, listed()]);
  const few = async change => { change(); await pause(); seen.few.push([rows.view.from, rows.view.to, listed()]); };
  const choose = value => { rows.by.value = value; rows.by.dispatchEvent(new Event("change")); };
  seen.few = []; rows.many = 3; rows.asked = []; rows.show(...rows.whole);
  await few(() => rows.list(null));
  await few(() => rows.open(6));
  await few(() => { rows.find.value = 1; rows.find.dispatchEvent(new Event("change")); });
  await few(() => rows.show(...rows.whole));
  await few(() => { rows.asked = []; choose("ttft"); });
  choose("e2e"); rows.many = 24;
  rows.open(3); await pause();
  seen.waits = Array.from(rows.requests.request.keys(), row => (rows.requests.waitOf(row) || [null])[0]);
  rows.open(1000); seen.missing = rows.note.textContent;
  seen.row = rows.toldAt(0, rows.requests.first_token_ns[3] + 1);
  rows.show(...rows.whole); await pause(); rows.click({clientX: 0, clientY: 0});
  const point = {customdata: [5, 1, 1]};
  linkedFigures.members.forEach(one => one.click && one !== rows && one.click(point)); await pause();
  seen.pointed = rows.plot.layout.yaxis.ticktext[0];
  const corner = () => String(lanes.canvas.getContext("2d").getImageData(5, 1, 1, 1).data);
  const colours = () => [
    document.documentElement.dataset.theme, charts[0]._fullLayout.paper_bgcolor, charts[0]._fullLayout.font.color,
    getComputedStyle(document.body).backgroundColor, corner(),
  ];
  const range = () => String(charts[1]._fullLayout.xaxis.range), before = range();
  const exchange = document.getElementById("theme");
  seen.theme = [colours()]; exchange.click(); await look(); seen.theme.push(colours());
  exchange.click(); await look(); seen.theme.push(colours(), range() === before);
  seen.times = [90, 1500, 2.5e6, 5.999e11, 6.1e11, 3.336e13].map(timeText);
  seen.unfolded = {}; seen.phases = {}; seen.bounds = {}; seen.links = {};
  for (const part of document.querySelectorAll("[data-windows]")) {
    const data = JSON.parse(part.textContent);
    const run = await FoldedRun.read(data), requests = await Requests.read(data, run);
    const phasesOf = row => requests.phasesOf(row).map(({phase, start, end}) => [phase, start, end]);
    seen.bounds[part.id] = [Array.from(run.runs.start), Array.from(run.runs.end)];
    seen.phases[part.id] = Array.from(requests.request.keys(), phasesOf);
    const load = await LinkLoad.read(data, run);
    const partNs = load => run.end / load.parts, countOf = load => [...Array(load.parts).keys()];
    const parts = load => countOf(load).map(part => [part * partNs(load), (part + 1) * partNs(load)]);
    const lanesOf = load => load.lanes.map(({name, links}, lane) =>
      [name, links, parts(load).map(part => load.laneCould(lane, ...part)), Array.from(load.sharesOf(lane))]);
    const carried = (...window) => Array.from(load.bytesOf(load.payloadsIn(...window)));
    seen.links[part.id] = load && {
      numbers: load.links.map(link => link[0]), lanes: lanesOf(load), could: Array.from(load.couldIn(0, run.end)),
      whole: carried(0, run.end, true), step: carried(run.runs.start[0], run.endOf(0, 0), false),
      ...(run.words.windows ? {} : {exact: carried(0, run.end, false)}),
    };
    seen.unfolded[part.id] = JSON.parse(part.dataset.windows).map(([from, to]) => run.unfold(from, to));
  }
  seen.requests = performance.getEntriesByType("resource").map(entry => entry.name);
}
act().catch(error => seen.errors.push(String(error.stack))).finally(() => {
  const out = document.createElement("pre");
  out.id = "seen"; out.textContent = JSON.stringify(seen); document.body.append(out);
});
</script>
"""


UNFOLD = """
<script>
const seen = {};
(async () => {
  const part = document.querySelector("[data-windows]"), run = await FoldedRun.read(JSON.parse(part.textContent));
  seen.unfolded = JSON.parse(part.dataset.windows).map(([from, to]) => run.unfold(from, to));
})().catch(error => { seen.error = String(error.stack); }).finally(() => {
  const out = document.createElement("pre");
  out.id = "seen"; out.textContent = JSON.stringify(seen); document.body.append(out);
});
</script>
"""


def windows_of(timeline: Timeline, draw: random.Random) -> list[tuple[int, int]]:
    """Draw windows in which something happens, of about as many spans as can be compared quickly."""
    width = max(1, SPANS * timeline.end_ns // timeline.num_spans)
    starts = timeline.passes["start_ns"]
    begins = [int(starts[draw.randrange(len(starts))]) - draw.randrange(width) for _ in range(times(8))]
    if len(timeline.moves["start_ns"]):
        begins.append(int(timeline.moves["start_ns"][0]) - width // 2)
    return [(max(0, begin), max(0, begin) + width) for begin in begins]


@pytest.fixture(scope="module")
def results() -> dict[str, RunResult]:
    return {name: simulated(load(name, overrides)) for name, overrides in UNFOLDED.items()}


@pytest.fixture(scope="module")
def windows(results: dict[str, RunResult]) -> dict[str, list[tuple[int, int]]]:
    draw = random.Random(16)
    return {name: windows_of(result.timeline, draw) for name, result in results.items()}


def data_part(name: str, run: RunResult, windows: list[tuple[int, int]], kept: Kept | None = None) -> str:
    """Return a part of a page that holds the folded timeline of a run, and windows of it."""
    whole = whole_run(run.timeline, run.step_rows.rows, run.columns, summary_of(run)["devices"], kept, inputs=run.input)
    return (
        f'<script type="application/json" id="{name}" data-windows="{json.dumps(windows)}">{json.dumps(whole)}</script>'
    )


def told_by(page: str, first: str, last: str, folder: Path) -> dict[str, Any]:
    """Return what scripts at the beginning and at the end of a page write into it."""
    head, tail = page.index("<body>") + len("<body>"), page.rindex("</body>")
    file = folder / "dashboard.html"
    file.write_text(page[:head] + first + page[head:tail] + last + page[tail:], encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1500,9000", "--virtual-time-budget=40000",
        "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    return dict(json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")))


@pytest.fixture(scope="module")
def page(results: dict[str, RunResult]) -> str:
    """The dashboard of the quickstart."""
    run = results["quickstart"]
    shown = (summary_of(run), run.table_columns, run.step_rows, run.timeline, run.token_gaps, LAYOUT)
    return dashboard_of(*shown, shapes=shapes_of(run.scenario), inputs=run.input)


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory,
    page: str,
    results: dict[str, RunResult],
    windows: dict[str, list[tuple[int, int]]],
) -> dict[str, Any]:
    """What a visitor of the dashboard of the quickstart sees, and what is unfolded of all runs."""
    parts = [data_part(name, one, windows[name]) for name, one in results.items()]
    kept = Kept(windows=np.array(windows["quickstart"][:1]), requests=np.array([2, 3]))
    parts.append(data_part("coarse", results["quickstart"], windows["quickstart"][:1], kept))
    return told_by(page, PROBE, "".join(parts) + ACT, tmp_path_factory.mktemp("browser"))


def test_every_figure_is_drawn_without_an_error(seen: dict[str, Any]) -> None:
    assert seen["errors"] == []
    assert seen["plots"] == len(FIGURES) - 1  # the headline is a table
    assert all(marks > 10 for marks in seen["drawn"])
    assert sum(titles >= 1 for titles in seen["texts"]) == seen["plots"] - 1  # the picture of the cluster has no axes
    assert seen["colours"] > 20


def test_durations_have_the_unit_that_suits_them(seen: dict[str, Any]) -> None:
    assert seen["times"] == ["90 ns", "1.500 us", "2.500 ms", "599.9 s", "10.17 min", "9.267 h"]


def test_no_host_is_contacted(seen: dict[str, Any]) -> None:
    assert seen["connections"] == []
    assert [url for url in seen["requests"] if not url.startswith(("data:", "blob:"))] == []
    assert not any("hare" in title or "loud" in title for title in seen["buttons"] if title)


@pytest.mark.parametrize("name", UNFOLDED)
def test_the_browser_unfolds_the_spans_of_the_timeline(
    seen: dict[str, Any], results: dict[str, RunResult], windows: dict[str, list[tuple[int, int]]], name: str
) -> None:
    assert_unfolded(seen["unfolded"][name], results[name].timeline, windows[name])


def assert_unfolded(found: list[list[list[int]]], timeline: Timeline, windows: list[tuple[int, int]]) -> None:
    """Hold what a browser unfolded in windows to the spans there."""
    for window, rows in zip(windows, found, strict=True):
        spans = timeline.unfold(*window)
        expected = np.stack([getattr(spans, column).astype(np.int64) for column in SPAN_COLUMNS], axis=1)
        assert sorted(rows) == sorted(expected.tolist())
        assert rows


@pytest.mark.skipif(not is_whole(), reason="with --long=1 only: these runs take long")
@pytest.mark.parametrize("name", FURTHER)
def test_the_browser_unfolds_further_runs(page: str, tmp_path: Path, name: str) -> None:
    run = simulate(load(name, allow_code=True))
    windows = windows_of(run.timeline, random.Random(name))
    told = told_by(page, "", data_part(name, run, windows) + UNFOLD, tmp_path)
    assert "error" not in told, told
    assert_unfolded(told["unfolded"], run.timeline, windows)


def test_a_page_that_cannot_hold_all_keeps_windows_and_where_steps_are(
    seen: dict[str, Any], windows: dict[str, list[tuple[int, int]]]
) -> None:
    assert sorted(seen["unfolded"]["coarse"][0]) == sorted(seen["unfolded"]["quickstart"][0])
    away = np.array(seen["bounds"]["quickstart"]) - np.array(seen["bounds"]["coarse"])
    assert away.min() >= 0
    assert away.max() < 16384
    assert [phase for phase, *_ in seen["phases"]["coarse"][0]] == [
        phase for phase, *_ in seen["phases"]["quickstart"][2]
    ]


def test_the_level_follows_from_what_is_in_view(seen: dict[str, Any], results: dict[str, RunResult]) -> None:
    assert [seen["levels"][name][0] for name in ("run", "second", "layer")] == ["heat", "steps", "operators"]
    assert seen["levels"]["run"][1:] == [0, results["quickstart"].timeline.end_ns]
    assert seen["levels"]["second"][2] - seen["levels"]["second"][1] == 1e9


def test_an_operator_names_its_layer_step_duration_and_what_it_waited_for(seen: dict[str, Any]) -> None:
    name, layer, where, took, waited, carried = seen["tip"]
    assert re.fullmatch(r"\w+ \(\w+\)(: [\d,]+ × [\d,]+)?", name)
    assert (seen["shape"], seen["over"]) == ("8,192 × 1,280", " over 8 ranks")
    assert re.fullmatch(r"layer \d+ · step \d+ of replica 0: \w+", layer)
    assert re.fullmatch(r"n\d\.g\d compute", where)
    assert re.fullmatch(r"\S+ us, from \d\.\d+ s", took)
    assert re.fullmatch(r"waited for \w+ of layer \d+", waited)
    assert re.fullmatch(r"\d+ requests?; [\d,]+ prompt tokens, \d+ decoding", carried)


def test_figures_over_time_show_the_same_window(seen: dict[str, Any]) -> None:
    _, start, end = seen["levels"]["layer"]
    assert len(seen["linked"]) == 5
    for window in seen["linked"]:
        assert window == pytest.approx([start / 1e9, end / 1e9])


def test_links_have_what_is_in_flight_on_them_and_the_picture_follows(seen: dict[str, Any]) -> None:
    level, start, end, bytes_, share, told = seen["inflight"]
    assert level == "operators"
    assert end > start
    assert bytes_ > 0
    assert 0 < share <= 1
    assert re.fullmatch(r"n\d \w+: \d+ links? of [\d,.]+ .B/s together", told[0])
    assert re.fullmatch(r"\w+ of step \d+ of replica 0: \w+", told[1])
    assert re.fullmatch(r"[\d,.]+ .?B, [\d.]+ % of the capacity, \S+ us, from \d\.\d+ s", told[2])
    assert seen["linkLegend"][0] == "a little to all of the capacity"
    assert len(seen["linkLegend"]) > 1
    assert seen["picture"][0] == pytest.approx(seen["levels"]["layer"][1:])
    assert seen["picture"][1]


@pytest.mark.parametrize("name", UNFOLDED)
def test_the_browser_adds_up_what_links_carried_as_the_summary_does(
    seen: dict[str, Any], results: dict[str, RunResult], name: str
) -> None:
    run, links = results[name], seen["links"][name]
    uses = pool_uses(run)
    if any(use.carried is None for use in uses):
        assert links is None
        return
    expected = (moved(run) + sum(use.carried for use in uses if use.carried is not None))[links["numbers"]]
    assert expected.max() > 0
    np.testing.assert_allclose(links["exact"], expected, rtol=1e-6, atol=1)
    np.testing.assert_allclose(links["whole"], expected, rtol=2e-3, atol=1e-4 * expected.max())
    could = capacity_bytes(run.input.topology, run.input.faults, 0, run.timeline.end_ns)[links["numbers"]]
    np.testing.assert_allclose(links["could"], could, rtol=1e-9)


def test_a_weak_link_has_a_lane_whose_shares_are_of_what_is_left(seen: dict[str, Any]) -> None:
    links = seen["links"]["oversubscribed-fabric"]
    carried = dict(zip(links["numbers"], links["whole"], strict=True))
    could = dict(zip(links["numbers"], links["could"], strict=True))
    assert "n0.g1 to n0.nvswitch" in [name for name, *_ in links["lanes"]]
    for name, some, parts, shares in links["lanes"]:
        assert sum(parts) == pytest.approx(sum(could[link] for link in some)), name
        assert np.dot(parts, shares) == pytest.approx(sum(carried[link] for link in some), rel=1e-3, abs=1e3), name
    (weak,) = (np.array(shares) for name, _, _, shares in links["lanes"] if name.startswith("n0.g1"))
    (others,) = (np.array(shares) for name, _, _, shares in links["lanes"] if name == "n0 scaleup")
    both = others > 0.01
    assert np.max(weak[both] / others[both]) == pytest.approx(10, rel=0.01)  # a tenth of it is left
    assert np.min(weak[both] / others[both]) == pytest.approx(1, rel=0.01)  # before and after


def moved(run: RunResult) -> FloatArray:
    """Return the bytes of capacity that each link gave to moves of K/V entries."""
    placed = [Mesh(plan=pool.plan).device(rank) for pool in run.input.pools for rank in range(pool.plan.world)]
    return move_bytes(run.timeline.moves, placed.__getitem__, run.input.comm)


def test_a_window_of_one_step_has_what_that_step_put_on_links(
    seen: dict[str, Any], results: dict[str, RunResult]
) -> None:
    run, links = results["long-context-ring"], seen["links"]["long-context-ring"]
    (pool,), mesh = run.input.pools, Mesh(plan=run.input.pools[0].plan)
    first = {key: only_first(steps) for key, steps in step_features(run.timeline, pool.plan.sp).items()}
    expected = step_bytes(programs_of(pool, run.input.comm), first, mesh, run.input.comm)[links["numbers"]]
    assert expected.max() > 0
    np.testing.assert_allclose(links["step"], expected, rtol=1e-6)


def only_first(steps: StepFeatures) -> StepFeatures:
    """Return step 0 alone, where it is among these."""
    rows = np.flatnonzero(steps.first == 0)
    features = {name: values[rows] for name, values in steps.features.items()}
    return StepFeatures(first=steps.first[rows], counts=np.ones(len(rows), np.int64), features=features)


def test_a_page_that_cannot_hold_all_has_the_load_of_links_over_all_of_the_run(seen: dict[str, Any]) -> None:
    whole, coarse = (seen["links"][name] for name in ("quickstart", "coarse"))
    assert coarse["whole"] == whole["whole"]


def test_keys_and_the_wheel_zoom_and_go_on(seen: dict[str, Any], results: dict[str, RunResult]) -> None:
    _, start, end = seen["levels"]["layer"]
    assert seen["out"][2] - seen["out"][1] == pytest.approx(2 * (end - start))
    assert seen["right"][1] - seen["out"][1] == pytest.approx(0.4 * (end - start))
    assert seen["wheel"][1] == pytest.approx(seen["right"][1])  # the pointer is on the left edge: it stays
    assert seen["wheel"][2] < seen["right"][2]
    assert seen["reset"][1:] == [0, results["quickstart"].timeline.end_ns]


def test_a_button_exchanges_the_colours_of_page_figures_and_lanes(seen: dict[str, Any]) -> None:
    light, dark, again, kept = seen["theme"]
    assert light[:3] == ["light", "white", "#1b2733"]
    assert dark[:3] == ["dark", "#182028", "#e4e9ee"]
    assert light[3:] != dark[3:]
    assert light[4] != dark[4]
    assert again == light
    assert kept


def test_a_request_is_found_by_its_number_and_by_its_point(seen: dict[str, Any], results: dict[str, RunResult]) -> None:
    arrived, finished = (results["quickstart"].columns[name][3] for name in ("arrived_ns", "finished_ns"))
    name, start, end, *lanes = seen["opened"]
    assert name == "request 3"
    assert start < arrived < finished < end
    assert lanes == pytest.approx([start, end])
    assert seen["missing"] == "There is no request 1000; there are 8."
    assert seen["row"][0] == "request 3"
    assert seen["row"][1].startswith("decodes: ")
    assert seen["pointed"] == "request 5"


def test_rows_of_a_window_are_of_requests_that_are_there(seen: dict[str, Any], results: dict[str, RunResult]) -> None:
    """Around request 3; in the whole run; and where another figure leads to what no row is of."""
    arrived, finished = (results["quickstart"].columns[name] for name in ("arrived_ns", "finished_ns"))
    around, whole, elsewhere = seen["listed"]
    assert around[2][0] == 3
    for begin, end, listed in (around, elsewhere):
        assert set(listed) == set(np.flatnonzero((arrived < end) & (finished >= begin)).tolist())
    assert int(np.argmax(finished)) in elsewhere[2]
    assert len(elsewhere[2]) < 4
    assert sorted(whole[2]) == list(range(8))


def test_of_more_requests_than_rows_the_slowest_are_listed_behind_those_asked_for(
    seen: dict[str, Any], results: dict[str, RunResult]
) -> None:
    """Three rows: of the run; around 6; around 1, which was looked for by its number; of the run again; by TTFT."""
    columns = results["quickstart"].columns
    arrived, finished = columns["arrived_ns"], columns["finished_ns"]

    def slowest(ends: str) -> list[int]:
        return np.argsort(arrived - columns[ends], kind="stable").tolist()

    asked = ([], [6], [1, 6], [1, 6], [])
    by = ("finished_ns",) * 4 + ("first_token_ns",)
    for (begin, end, listed), first, column in zip(seen["few"], asked, by, strict=True):
        there = set(np.flatnonzero((arrived < end) & (finished >= begin)).tolist())
        wanted = [row for row in [*first, *(row for row in slowest(column) if row not in first)] if row in there]
        assert listed == wanted[:3]
    whole, around, looked_for, _, by_ttft = seen["few"]
    assert whole[:2] == [0, results["quickstart"].timeline.end_ns]
    assert (around[2][0], looked_for[2][0]) == (6, 1)
    assert not set(looked_for[2]) & {6, *whole[2][:2]}  # neither 6 nor the slowest two are there around request 1
    assert whole[2] != by_ttft[2]


def test_waiting_has_the_colour_of_what_was_waited_for_longest(
    seen: dict[str, Any], results: dict[str, RunResult]
) -> None:
    columns = results["quickstart"].table_columns
    waits = [{cause: columns[f"{cause}_ns"][row] for cause in WAITS} for row in range(8)]
    longest = [max(some, key=lambda cause: some[cause]) for some in waits]
    expected = [WORDS[cause] if some[cause] else None for cause, some in zip(longest, waits, strict=True)]
    assert seen["waits"] == expected
    assert any(expected)


@pytest.mark.parametrize("name", UNFOLDED)
def test_phases_of_requests_follow_each_other_from_arrival_to_the_last_token(
    seen: dict[str, Any], results: dict[str, RunResult], name: str
) -> None:
    columns = results[name].columns
    for row, phases in enumerate(seen["phases"][name]):
        whole = [phase for phase in phases if phase[0] != "chunk"]
        assert whole[0][1] == columns["arrived_ns"][row]
        assert whole[-1][2] == columns["finished_ns"][row]
        assert [start for _, start, _ in whole[1:]] == [end for *_, end in whole[:-1]]
        chunks = [phase for phase in phases if phase[0] == "chunk"]
        handed_over = [end for phase, _, end in whole if phase == "hand_over"]
        first = columns["first_token_ns"][row]  # with two pools, of vLLM here, the one that the second pool samples
        assert first > handed_over[0] if handed_over else first in {end for *_, end in chunks}
        prompts = [(start, end) for phase, start, end in whole if phase == "prompt"]
        assert all(any(since <= start < end <= until for since, until in prompts) for _, start, end in chunks)


def test_a_request_that_a_fault_moves_has_its_prompt_and_its_hand_over_twice(
    seen: dict[str, Any], results: dict[str, RunResult]
) -> None:
    phases = [[phase for phase, *_ in request] for request in seen["phases"]["failing-decode"]]
    moved = results["failing-decode"].columns["preemptions"]
    assert moved.sum() == 3
    assert [some.count("prompt") - 1 for some in phases] == moved.tolist()
    assert [some.count("hand_over") - 1 for some in phases] == moved.tolist()
