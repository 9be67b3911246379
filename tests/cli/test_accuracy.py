"""``clustersim accuracy``: scores on the terminal, as JSON, as a page and a document."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustersim.accuracy.row import COLUMNS
from clustersim.cli import main

ROW = {
    "id": "mine-1", "family": "F5-static-batch", "hardware": "A100-80GB", "num_gpus": "1", "model": "Llama-2-7B",
    "precision": "FP16", "framework": "TensorRT-LLM 0.9.0", "parallel": "TP1", "metric": "first_token_latency",
    "workload": "static batch 2, ISL 100, OSL 2", "value": "20", "unit": "ms", "source": "mine", "note": "",
}  # fmt: skip


def table(path: Path, *changes: dict[str, str]) -> Path:
    """Write a table with a row per change of the one above."""
    lines = [[f'"{(ROW | change)[name]}"' for name in COLUMNS] for change in changes]
    path.write_text("\n".join(",".join(line) for line in ([*COLUMNS], *lines)) + "\n", encoding="utf-8")
    return path


def accuracy(*arguments: object):
    return CliRunner().invoke(main, ["accuracy", *map(str, arguments)])


def test_json_has_the_keys_that_programs_rely_on(tmp_path):
    path = table(tmp_path / "t.csv", {}, {"id": "mine-2", "hardware": "abacus"}, {"id": "mine-3", "parallel": "TP2"})
    done = accuracy(path, "--json", "--workers", 1)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["recorded"] is False
    assert found["overall"]["rows"] == 3
    (family,) = found["families"]
    assert family.keys() >= {"family", "engine", "metric", "rows", "expressed", "median", "p90", "bias"}
    assert family["metric"] == "TTFT"
    assert {point["id"]: point["ratio"] is None for point in found["points"]}["mine-2"]
    assert {"family": "F5-static-batch", "reason": "no device in the catalogs for 'abacus'", "rows": 1} in found[
        "inexpressible"
    ]
    assert all(order.keys() >= {"workload", "metric", "spearman"} for order in found["order"])


def test_the_same_bytes_come_from_one_process_and_from_two(tmp_path):
    path = table(tmp_path / "t.csv", {}, {"id": "mine-2", "workload": "static batch 3, ISL 100, OSL 2"})
    for workers in (1, 2):
        assert accuracy(path, "-o", tmp_path / str(workers), "--workers", workers).exit_code == 0
    names = sorted(file.name for file in (tmp_path / "1").iterdir())
    assert names == ["accuracy.html", "accuracy.md", "accuracy.svg", "results.csv"]
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_files_beside_the_page_stay(tmp_path):
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    assert accuracy("-o", tmp_path).exit_code == 0
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"


def test_without_a_table_the_recorded_results_are_shown():
    done = accuracy("--json")
    found = json.loads(done.stdout)
    assert found["recorded"] is True
    assert found["overall"]["rows"] == len(found["points"]) > 100
    assert "name a table to simulate" in accuracy().stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.csv"], "nowhere.csv: no such file"),
        (["--only", "("], "expected a regular expression"),
        (["--only", "no-such-figure"], "no figure has an id that matches 'no-such-figure'"),
    ],
)
def test_what_cannot_be_used_is_said(arguments, said):
    done = accuracy(*arguments)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_bad_cell_is_named_by_line_and_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",".join(COLUMNS) + "\n" + ",".join(["x"] * 14) + "\n", encoding="utf-8")
    done = accuracy(path)
    assert done.exit_code == 2
    assert f"{path}:2:7: num_gpus: found 'x'; expected a number above zero" in done.stderr
    assert f"{path}:2:21: value: found 'x'" in done.stderr


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium on the PATH")
def test_the_page_draws_every_figure_and_asks_no_host(tmp_path):
    accuracy("-o", tmp_path, "--only", "^F(5|7)")
    html = (tmp_path / "accuracy.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
    page = subprocess.run(
        [*command, f"file://{tmp_path / 'accuracy.html'}"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    drawn = len(re.findall(r'class="point"', page))
    results = json.loads(accuracy("--json", "--only", "^F(5|7)").stdout)["points"]
    assert drawn >= sum(point["ratio"] is not None for point in results) > 0


def test_what_cannot_be_expressed_is_told_with_its_reason(tmp_path):
    done = accuracy(table(tmp_path / "t.csv", {"family": "mine"}, {"id": "mine-2", "parallel": "banana"}))
    assert done.exit_code == 0, done.output
    assert (
        "not expressed: 1 of mine: unknown family 'mine'; expected one of F5-static-batch, F6-saturated" in done.output
    )
    assert "not expressed: 1 of F5-static-batch: not understood: 'banana'" in done.output
