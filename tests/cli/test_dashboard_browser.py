"""The dashboard in a real Chromium: every figure is drawn, lanes change with the zoom, no host is contacted.

There is no driver: a copy of the page carries a script that acts as a user would and writes what it saw into
the document, which Chromium prints.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clustersim.report.dashboard import dashboard_html, write_dashboard
from clustersim.report.figures.layout import FIGURES

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: figures can't be looked at"),
]
LAYOUT: dict[str, Any] = {"figures": [{"figure": name} for name in FIGURES]}

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
  const plots = [...document.querySelectorAll(".js-plotly-plot")];
  const lanes = document.getElementById("figure-1");
  await until(() => lanes.data.length > 0);
  const filled = () => lanes.data.filter(trace => trace.x.length);
  const kinds = () => [...new Set(filled().map(trace => trace.type))];
  const bars = () => filled().reduce((sum, trace) => sum + (trace.type === "bar" ? trace.x.length : 0), 0);
  seen.plots = plots.length;
  seen.drawn = plots.map(plot => plot.querySelectorAll(".main-svg path, .main-svg image").length);
  seen.texts = plots.map(plot => plot.querySelectorAll(".xtitle").length);
  seen.buttons = [...document.querySelectorAll(".modebar-btn")].map(button => button.dataset.title);
  const views = document.querySelectorAll("[data-lanes]");
  views[0].click(); await pause();
  seen.whole = [kinds(), bars()];
  const note = document.getElementById("figure-1-note").textContent;
  await Plotly.relayout(lanes, {"xaxis.range": [0, 0.1]}); await pause();
  seen.zoomed = [kinds(), bars()];
  const bar = lanes.data.find(trace => trace.x.length && trace.hovertext);
  seen.hover = bar.hovertext[0];
  seen.note = note;
  await Plotly.relayout(lanes, {"xaxis.autorange": true}); await pause();
  seen.reset = [kinds(), bars(), lanes.layout.xaxis.range];
  seen.requests = performance.getEntriesByType("resource").map(entry => entry.name);
}
act().catch(error => seen.errors.push(String(error))).finally(() => {
  const out = document.createElement("pre");
  out.id = "seen"; out.textContent = JSON.stringify(seen); document.body.append(out);
});
</script>
"""


def report_data() -> ModuleType:
    """Load the synthetic runs that the unit tests of the report use."""
    path = Path(__file__).parents[1] / "unit" / "report_data.py"
    spec = importlib.util.spec_from_file_location("report_data_for_browser", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SHARES = {"compute": 0.5, "communication": 0.2, "exposed_communication": 0.1, "host": 0.05, "bubble": 0.1}
USED: dict[str, Any] = {
    "utilisation": {"mfu": 0.2, "mbu": 0.4, **SHARES, "stages": [{"stage": 0, **SHARES}, {"stage": 1, **SHARES}]},
    "links": {"busiest": [{"link": f"a → {n}", "tier": "scaleup", "bytes": 1e9, "utilisation": 0.1} for n in range(4)]},
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a visitor of a dashboard with 5,000 spans sees."""
    data = report_data()
    run = data.small_run(requests=60)
    spans = data.pipeline_spans(steps=4, stages=2, tp=4, layers=20)
    summary = {**data.summary_of(run), **USED}
    page = dashboard_html(summary, run["requests"], run["steps"], spans, LAYOUT, token_gaps=run["token_gaps"])
    head, tail = page.index("<body>") + len("<body>"), page.rindex("</body>")
    folder = tmp_path_factory.mktemp("browser")
    write_dashboard(folder / "dashboard.html", page[:head] + PROBE + page[head:tail] + ACT + page[tail:])
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1500,3200", "--virtual-time-budget=30000",
        "--dump-dom", (folder / "dashboard.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    return dict(json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")))


def test_every_figure_is_drawn_without_an_error(seen: dict[str, Any]) -> None:
    assert seen["errors"] == []
    assert seen["plots"] == len(FIGURES) - 1  # the headline is a table
    assert all(marks > 10 for marks in seen["drawn"])
    assert all(titles >= 1 for titles in seen["texts"])


def test_no_host_is_contacted(seen: dict[str, Any]) -> None:
    assert seen["connections"] == []
    assert [url for url in seen["requests"] if not url.startswith(("data:", "blob:"))] == []
    assert not any("hare" in title or "loud" in title for title in seen["buttons"] if title)


def test_many_spans_are_a_heatmap_and_few_are_bars(seen: dict[str, Any]) -> None:
    assert seen["whole"] == [["heatmap"], 0]
    kinds, bars = seen["zoomed"]
    assert kinds == ["bar"]
    assert 0 < bars < 4000


def test_zooming_out_shows_the_whole_window_again(seen: dict[str, Any]) -> None:
    kinds, bars, (start, end) = seen["reset"]
    assert (kinds, bars, start) == (["heatmap"], 0, 0)
    assert end > 1


def test_a_bar_names_its_operator_layer_step_and_duration(seen: dict[str, Any]) -> None:
    assert re.fullmatch(
        r"<b>\w+</b> \(\w+\)<br>layer \d+ · step \d+ · stage \d+<br>n0\.g\d compute<br>\S+ us, from .*",
        seen["hover"],
    )
    assert "too many to tell apart" in seen["note"]
