"""Pages of ``why``, ``compare``, ``sweep``, ``graph`` on a telephone, in a real Chromium: no text lies on another."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustersim.cli import main

CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: figures can't be looked at"),
]
SMALL = ("--set", "workload.trace.requests=4", "--set", "expect={}")
WIDTH = 390
SEEN = """
<script>
const pause = () => new Promise(done => setTimeout(done, 300));
(async () => {
  for (let i = 0; i < 40 && !document.querySelector(".main-svg"); i++) await pause();
  await pause(); await pause();
  const seen = [...document.querySelectorAll(".js-plotly-plot")].map(plot => {
    const room = plot.getBoundingClientRect();
    const texts = plot.querySelectorAll(".xtitle, .x2title, .x3title, .annotation[data-index] text, .legendtext");
    const ticks = plot.querySelectorAll(".xtick text, .x2tick text, .x3tick text");
    return [...[...texts].filter(one => one.textContent.length > 6), ...ticks].map(one => {
      const {left, right, top, bottom} = one.getBoundingClientRect(), across = room.left, down = room.top;
      return [one.textContent, left - across, right - across, top - down, bottom - down, room.width];
    });
  });
  const out = document.createElement("pre");
  out.id = "seen-NAME"; out.textContent = JSON.stringify([seen, document.documentElement.scrollWidth]);
  top.document.body.append(out);
})();
</script>
"""


def told(folder: Path, pages: dict[str, Path]) -> dict[str, tuple[list[list[list[object]]], int]]:
    """Return of each page the texts of its figures with their boxes, and how wide it is, in a frame of ``WIDTH``.

    All frames lie beside each other, as most of the time goes to starting a Chromium.
    """
    frames = []
    for name, page in pages.items():
        script = SEEN.replace("NAME", name)
        page.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")
        source = page.relative_to(folder).as_posix()
        frames.append(f'<iframe width="{WIDTH}" height="3000" style="border:0" src="{source}"></iframe>')
    frame = folder / "frame.html"
    frame.write_text(f'<body style="white-space:nowrap">{"".join(frames)}')
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         "--virtual-time-budget=20000", f"--window-size={(WIDTH + 20) * len(pages)},3200", "--dump-dom",
         frame.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = dict(re.findall(r'<pre id="seen-(\w+)">(.*?)</pre>', done.stdout, re.DOTALL))
    assert found.keys() == pages.keys(), done.stderr
    return {name: json.loads(html.unescape(text)) for name, text in found.items()}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[list[list[object]]], int]]:
    folder = tmp_path_factory.mktemp("narrow")
    long = "-".join(["a-name-that-says-what-was-tried"] * 3)
    runs = [str(folder / name) for name in (f"a-{long}", f"b-{long}")]
    for run, pp in zip(runs, ("1", "2"), strict=True):
        called("run", "quickstart", *SMALL, "--set", f"plan.pp={pp}", "--no-dashboard", "--quiet", "--out", run)
    called("compare", *runs, "-o", str(folder / "compare.html"))
    varied = ("--vary", "plan.tp=4,8", "--vary", "workload.trace.rate_scale=1..2:1")
    called("sweep", "quickstart", *varied, *SMALL, "--workers", "1", "--quiet", "--out", str(folder / "sweep"))
    called("why", "quickstart", *SMALL, "--workers", "1", "--quiet", "--out", str(folder / "why"))
    called("graph", "quickstart", "-o", str(folder / "graph.html"))
    pages = {"compare": "compare.html", "sweep": "sweep/sweep.html", "why": "why/why.html", "graph": "graph.html"}
    return told(folder, {name: folder / page for name, page in pages.items()})


def called(*words: str) -> None:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["compare", "sweep", "why", "graph"])
def test_texts_of_figures_fit_a_narrow_page(seen: dict[str, tuple[list[list[list[object]]], int]], name: str) -> None:
    figures, wide = seen[name]
    assert wide <= WIDTH
    assert any(figures) == (name != "graph")  # which has none of plotly's
    for texts in figures:
        for at, (text, left, right, top, bottom, room) in enumerate(texts):
            assert min(left, top) >= -1, text
            assert right <= room + 1, text
            for other, begins, ends, upper, lower, _ in texts[at + 1 :]:
                apart = ends <= left + 1 or begins >= right - 1 or lower <= top + 1 or upper >= bottom - 1
                assert apart, (text, other)
