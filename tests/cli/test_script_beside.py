"""Plotly's script once for all pages of a folder: where it is, and what a page shows without it (in Chromium)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.report.page_files import script_name

CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
SMALL = ("quickstart", "--set", "workload.trace.requests=2", "--set", "expect={}", "--quiet")
PAGE = 2_000_000
"""No page of two requests is as large without plotly's script, and none is as small with it."""


def called(*words: str) -> None:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output


def shown(page: Path, folder: Path) -> str:
    """What Chromium makes of a page."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1500,9000", "--virtual-time-budget=20000",
        "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    called("sweep", *SMALL, "--vary", "plan.tp=4,8", "--runs", "--workers", "1", "--out", str(folder))
    return folder


def test_pages_of_a_sweep_share_one_script(swept: Path) -> None:
    assert [file.parent for file in swept.rglob("plotly-*.js")] == [swept]
    pages = list(swept.rglob("*.html"))
    assert len(pages) == 3
    assert all(page.stat().st_size < PAGE for page in pages)


def test_runs_beside_each_other_share_one_and_a_page_elsewhere_has_its_own(tmp_path: Path) -> None:
    for number in range(2):
        called("run", *SMALL, "--no-audit", "--script", "beside", "--out", str(tmp_path / "runs" / str(number)))
    assert [file.name for file in tmp_path.rglob("plotly-*.js")] == [script_name()]
    assert f'<script src="../{script_name()}">' in (tmp_path / "runs/0/dashboard.html").read_text("utf-8")
    called("dashboard", str(tmp_path / "runs/0"), "--script", "beside", "-o", str(tmp_path / "one.html"))
    assert f'<script src="{script_name()}">' in (tmp_path / "one.html").read_text("utf-8")
    assert (tmp_path / script_name()).stat().st_size > PAGE
    called("dashboard", str(tmp_path / "runs/1"))
    assert (tmp_path / "runs/1/dashboard.html").stat().st_size > PAGE


def test_a_page_that_holds_its_script_asks_for_none(tmp_path: Path) -> None:
    called("run", *SMALL, "--no-audit", "--out", str(tmp_path / "run"))
    text = (tmp_path / "run/dashboard.html").read_text("utf-8")
    assert "<script src" not in text
    assert "script-src 'unsafe-inline'; style-src" in text
    assert not list(tmp_path.rglob("plotly-*.js"))


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_a_page_draws_beside_the_script_and_says_what_lacks_without_it(swept: Path, tmp_path: Path) -> None:
    page = next(swept.glob("runs/*/dashboard.html"))
    there = shown(page, tmp_path)
    assert there.count('class="main-svg"') > 5
    assert 'id="lacking"' not in there
    alone = shown(Path(shutil.copy(page, tmp_path / "alone.html")), tmp_path)
    assert 'class="main-svg"' not in alone
    assert f"Figures lack {script_name()}, for which this page looks at ../../{script_name()}" in alone
    assert alone.count("TTFT, median") == 1  # texts and tables are there all the same
