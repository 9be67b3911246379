"""How a page feels in Chromium: its size, its first paint, and how long a zoom takes at each level of the timeline.

``pytest tests/benchmarks -m benchmark -s`` prints them, the longest p95 of the levels as the ratio to 100 ms; nothing
passes or fails by time. The page is the one that ``clustersim run`` wrote, with a script that zooms as the wheel does
and goes with what it saw to a server on 127.0.0.1, since a page contacts nobody by itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pytest

from tests.benchmarks.test_million import report

CHROMIUM: Final = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = [pytest.mark.benchmark, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")]

SECONDS: Final = 120
"""That a page may take to be measured."""
PAGES: Final[dict[str, tuple[str, ...]]] = {
    "quickstart": (),
    "azure-hour-fleet": (),
    "deepseek-v3-wide-ep": (),
    "deepseek-v3-pools": (),
    "failing-node": ("serving.kv_blocks=2000",),
}
"""100 million operators; 22 thousand million; wide EP; two pools; preemptions and a failure."""
LEVELS: Final = ("run", "second", "step", "layer")
ZOOM: Final = """
<script>
const pause = ms => new Promise(done => setTimeout(done, ms));
const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)));
(async () => {
  while (![linkedFigures.lanes, linkedFigures.requests].every(one => one && one.drawn)) await pause(50);
  const paint = performance.getEntriesByType("paint").find(one => one.name === "first-contentful-paint");
  const seen = {drawn: performance.now(), paint: paint ? paint.startTime : null, levels: {}};
  const lanes = linkedFigures.lanes;
  for (const level of %s) {
    lanes.show(...lanes.windowOf(level)); await pause(500);
    const took = [];
    for (let turn = 0; turn < 60; turn++) {
      const {from, to} = lanes.view, apart = (to - from) * (turn %% 2 ? 0.25 : -0.125), begun = performance.now();
      lanes.show(from - apart, to + apart);
      do await frame(); while (linkedFigures.members.some(one => one.moving || one.waiting));
      took.push(performance.now() - begun);
    }
    seen.levels[level] = took.sort((one, other) => one - other);
  }
  return seen;
})().catch(error => ({error: String(error.stack)})).then(seen => {
  location = "http://127.0.0.1:%d/" + encodeURIComponent(JSON.stringify(seen));
});
</script>
"""


class Told(BaseHTTPRequestHandler):
    """Keeps what the page goes to the server with."""

    seen: dict[str, Any] | None = None

    def do_GET(self) -> None:
        if not self.path.startswith("/favicon"):
            Told.seen = json.loads(unquote(self.path[1:]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


def seen_of(page: Path) -> dict[str, Any]:
    """Return what a page tells of itself."""
    Told.seen = None
    with HTTPServer(("127.0.0.1", 0), Told) as server:
        server.timeout = SECONDS
        text = page.read_text(encoding="utf-8")
        at = text.rindex("</body>")
        script = ZOOM % (json.dumps(LEVELS), server.server_port)
        page.with_name("measured.html").write_text(text[:at] + script + text[at:], encoding="utf-8")
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1500,1400",
            "--remote-debugging-port=0",
        )
        profile = f"--user-data-dir={page.parent / 'profile'}"
        with subprocess.Popen(
            [str(CHROMIUM), *options, profile, page.with_name("measured.html").as_uri()], stderr=subprocess.DEVNULL
        ) as browser:
            try:
                server.handle_request()
            finally:
                browser.terminate()
    assert Told.seen is not None
    assert "error" not in Told.seen, Told.seen
    return Told.seen


@pytest.mark.parametrize("name", PAGES)
def test_a_zoom_over_100_ms(name: str, tmp_path: Path, benchmark: Any) -> None:
    """The longest p95 of a zoom at any level over 100 ms; size in MB and first paint in seconds beside it."""
    changes = [word for change in PAGES[name] for word in ("--set", change)]
    words = ["run", name, *changes, "--out", str(tmp_path / "run"), "--no-audit", "--quiet"]
    assert subprocess.run([sys.executable, "-m", "clustersim", *words], check=False).returncode in (0, 1)
    page = tmp_path / "run" / "dashboard.html"
    seen = benchmark.pedantic(lambda: seen_of(page), rounds=1, iterations=1)
    levels = {
        level: (times[len(times) // 2], times[int((len(times) - 1) * 0.95)]) for level, times in seen["levels"].items()
    }
    size, paint, drawn = page.stat().st_size / 1e6, seen["paint"] / 1e3, seen["drawn"] / 1e3
    report(
        benchmark, max(slow for _, slow in levels.values()) / 100.0,
        f"{size:.2f} MB; first paint {paint:.2f} s, all of it {drawn:.2f} s",
        *(f"{level}: p50 {half:.0f} ms, p95 {slow:.0f} ms" for level, (half, slow) in levels.items()),
    )  # fmt: skip
