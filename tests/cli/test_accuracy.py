"""``clustersim accuracy``: scores on the terminal, as JSON, as a page and a document."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustersim.accuracy.result import read_results
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
    path = table(
        tmp_path / "t.csv",
        {},
        {"id": "mine-2", "hardware": "abacus"},
        {"id": "mine-3", "parallel": "TP2", "num_gpus": "2"},
    )
    done = accuracy(path, "--json", "--workers", 1)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["recorded"] is False
    assert found["overall"]["rows"] == 3
    (family,) = found["families"]
    assert family.keys() >= {"family", "engine", "metric", "rows", "expressed", "median", "p90", "bias"}
    assert family["metric"] == "TTFT"
    assert {point["id"]: point["ratio"] is None for point in found["points"]}["mine-2"]
    (left,) = found["inexpressible"]
    assert (left["family"], left["rows"]) == ("F5-static-batch", 1)
    assert left["reason"].startswith("no device in the catalogs for 'abacus'; known are '")
    assert found["profiles"] == [{"engine": "TensorRT-LLM 0.9.0", "profile": "trtllm-0.9", "rows": 3}]
    assert all(order.keys() >= {"workload", "metric", "spearman"} for order in found["order"])


def test_the_same_bytes_come_from_one_process_and_from_two(tmp_path):
    path = table(tmp_path / "t.csv", {}, {"id": "mine-2", "workload": "static batch 3, ISL 100, OSL 2"})
    for workers in (1, 2):
        assert accuracy(path, "-o", tmp_path / str(workers), "--workers", workers).exit_code == 0
    names = sorted(file.name for file in (tmp_path / "1").iterdir())
    assert names == ["accuracy.html", "accuracy.md", "accuracy.svg", "results.csv"]
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


@pytest.mark.usefixtures("checked_figures")
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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"family": "F12-x", "workload": "batch 2"},
            "'batch 2'; of a family that is not known expected one of 'static b",
        ),
        ({"workload": "static batch 2, ISL 100, OSL 2, prefix 50%"}, "prefix 50%'; expected 'static batch N"),
        (
            {"workload": "static batch 2, ISL 100, OSL 2 (EAGLE)"},
            "workload 'static batch 2, ISL 100, OSL 2 (EAGLE)' says 'EAGLE': speculative decoding is not",
        ),
        ({"workload": "closed loop concurrency 100000000, ISL 1, OSL 1"}, "at most 1,000,000 are simulated"),
        ({"hardware": "GH200"}, "no device in the catalogs for 'GH200'; known are 'h200', "),
        ({"hardware": "H100 PCIe"}, "no device in the catalogs for 'H100 PCIe'; known are 'h100', "),
        ({"parallel": "EP8"}, "spreads experts over 8 ranks, and has 1 of a stage; write such as 'TP8 EP8'"),
        ({"parallel": "banana"}, "not understood: 'banana'; plans are written as '"),
        ({"parallel": "2 y TP4"}, "not understood: '2 y TP4'; plans are written as '2 x TP4', "),
        ({"workload": "batch 2"}, "not understood: 'batch 2'; expected 'static batch N, ISL n, OSL m'"),
        ({"parallel": "TP0"}, "not understood: 'TP0' has tp 0; a degree is 1 or more"),
        ({"parallel": "ctx TP1, dec TP0"}, "not understood: 'ctx TP1, dec TP0' has tp 0; a degree is 1 or more"),
        ({"workload": "static batch 0, ISL 100, OSL 2"}, "workload.requests: "),
        ({"framework": "vllm 0.12.0; sglang"}, "'vllm 0.12.0; sglang' names several engines (vllm, sglang)"),
        ({"metric": "TTFT p99.9"}, "no such metric: 'TTFT p99.9' in 'ms'; known are 'TTFT p9"),
        ({"metric": "thruput"}, "no such metric: 'thruput' in 'ms'; known are 'output throughput', "),
        ({"unit": "minutes"}, "no such metric: 'first_token_latency' in 'minutes'; it is known in 'ms', 'us', 's'"),
        ({"metric": "output throughput"}, "no such metric: 'output throughput' in 'ms'; it is known in 'tok/s', "),
        ({"model": "Llama-2-8B"}, "no model in the catalogs for 'Llama-2-8B'; known are 'llama-2-"),
        ({"precision": "fp7"}, "no number format in the catalogs for 'fp7'; known are 'fp"),
        ({"framework": "lmdeploy"}, "no engine in the catalogs for 'lmdeploy'; known are '"),
        ({"parallel": "TP2"}, "the plan 'TP2' has 2 ranks, and num_gpus says 1"),
        ({"parallel": "ctx TP2, dec TP1", "num_gpus": "2"}, "has 3 ranks, and num_gpus says 2"),
        (
            {"family": "F11-collectives", "hardware": "H200"},
            "no topology in the catalogs for 'H200'; known are 'H200 (",
        ),
    ],
)
def test_what_cannot_be_expressed_is_told_with_what_is_known_the_nearest_first(tmp_path, change, said):
    done = accuracy(table(tmp_path / "t.csv", change))
    assert done.exit_code == 0, done.output
    assert f"not expressed: 1 of {change.get('family', 'F5-static-batch')} (mine-1): " in done.output
    assert said in done.output


def test_a_number_of_devices_that_is_not_whole_is_a_mean_and_not_held_against_the_plan(tmp_path):
    change = {"num_gpus": "1.5", "metric": "output throughput", "unit": "tok/s/GPU"}
    path = table(tmp_path / "t.csv", change, change | {"id": "mine-2", "num_gpus": "1", "unit": "tok/s"})
    each, whole = json.loads(accuracy(path, "--json").stdout)["points"]
    assert each["predicted"] == pytest.approx(whole["predicted"] / 1.5, rel=1e-3)


def test_an_id_that_stands_twice_is_refused(tmp_path):
    done = accuracy(table(tmp_path / "t.csv", {}, {"id": "mine-2"}, {"value": "21"}))
    assert done.exit_code == 2
    assert "t.csv:4: id: found 'mine-1', which is in line 2, too" in done.stderr


def test_a_figure_that_stands_twice_under_two_ids_is_refused(tmp_path):
    done = accuracy(table(tmp_path / "t.csv", {}, {"id": "mine-2"}, {"id": "mine-3", "note": "second run"}))
    assert done.exit_code == 2
    assert "t.csv:3: id: all but the id is as in line 2" in done.stderr
    assert "t.csv:4" not in done.stderr


@pytest.mark.parametrize("framework", ["TensorRT-LLM 0.9.0", "vllm 0.12.0"])
@pytest.mark.parametrize(
    ("family", "workload", "metric"),
    [
        ("F5-static-batch", "static batch 2, ISL 100, OSL 2", "first_token_latency"),
        ("F6-saturated", "offline burst 4 requests, ISL 100, OSL 4", "TTFT"),
        ("F7-closed-loop", "closed loop concurrency 2, ISL 100, OSL 4", "TTFT"),
        ("F7-moe-ep", "closed loop concurrency 2, ISL 100, OSL 4", "TTFT"),
    ],
)
def test_two_pools_are_expressed_in_every_family(tmp_path, framework, family, workload, metric):
    change = {"family": family, "workload": workload, "metric": metric, "num_gpus": "3", "framework": framework}
    ways = ("ctx TP2, dec TP1", "ctx TP2 PP1 / dec TP1", "prefill TP2 decode TP1")
    changes = [change | {"id": plan, "parallel": plan} for plan in ways]
    points = json.loads(accuracy(table(tmp_path / "t.csv", *changes), "--json", "--workers", 1).stdout)["points"]
    assert [point["reason"] for point in points] == [""] * 3
    assert len({point["predicted"] for point in points}) == 1


def test_results_of_a_table_have_what_was_measured_and_the_error_and_are_read_again(tmp_path):
    accuracy(table(tmp_path / "t.csv", {}, {"id": "mine-2", "parallel": "x"}), "-o", tmp_path)
    lines = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [line["measured"] for line in lines] == ["20", "20"]
    assert float(lines[0]["error"]) == pytest.approx(abs(float(lines[0]["predicted"]) / 20 - 1), abs=1e-3)
    assert lines[1]["error"] == "1"
    assert [result.given for result in read_results(tmp_path / "results.csv")] == [20.0, 20.0]


def test_the_document_shows_words_of_a_table_as_text(tmp_path):
    accuracy(table(tmp_path / "t.csv", {"model": "<script>alert(1)</script>"}), "-o", tmp_path)
    text = (tmp_path / "accuracy.md").read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_the_profile_that_stands_for_an_engine_is_told_everywhere(tmp_path):
    path = table(tmp_path / "t.csv", {"framework": "TensorRT-LLM 0.12.0"})
    done = accuracy(path, "-o", tmp_path / "out")
    assert "TensorRT-LLM 0.12.0 is simulated as trtllm-0.14 (1 figure)" in done.stdout
    assert "| TensorRT-LLM 0.12.0 | trtllm-0.14 | 1 |" in (tmp_path / "out/accuracy.md").read_text()
    assert "<td>trtllm-0.14</td>" in (tmp_path / "out/accuracy.html").read_text().replace(' class="text"', "")
    (point,) = json.loads(accuracy(path, "--json").stdout)["points"]
    assert point["profile"] == "trtllm-0.14"


def test_json_has_the_measured_figure_as_it_stands_in_the_table(tmp_path):
    path = table(tmp_path / "t.csv", {"value": "20.123456"}, {"id": "mine-2", "parallel": "banana", "value": "3"})
    assert [point["measured"] for point in json.loads(accuracy(path, "--json").stdout)["points"]] == [20.123456, 3.0]


def test_a_document_says_whose_figures_it_has(tmp_path):
    accuracy(table(tmp_path / "t.csv", {}), "-o", tmp_path / "own")
    accuracy("-o", tmp_path / "shipped", "--only", "^F5")
    own, shipped = ((tmp_path / name / "accuracy.md").read_text() for name in ("own", "shipped"))
    assert "are the rows of `t.csv`" in own
    assert "somebody else" not in own
    assert "published by somebody else" in shipped


def test_what_is_no_table_is_not_quoted(tmp_path):
    (tmp_path / "mine").write_text("root:secret:0\nmore\n")
    done = accuracy(tmp_path / "mine")
    assert done.exit_code == 2
    assert "is no table of measured points" in done.stderr
    assert "secret" not in done.output + done.stderr
