"""``clustersim calibrate`` and ``cost.table``: a user's own measurements in place of what ships."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from clustersim.cli import main

HEADER = "op,m,n,k,dtype,seconds\n"


def ideal_gemms(peak: float, bandwidth: float) -> str:
    """Return points of a device that is a plain roofline at these rates."""
    rows = []
    for m in (16, 64, 256, 1024, 4096, 16384):
        for n, k in ((4096, 4096), (8192, 8192), (4096, 14336)):
            seconds = max(2 * m * n * k / peak, 2 * (m * k + k * n + m * n) / bandwidth)
            rows.append(f"gemm,{m},{n},{k},bf16,{seconds:.9g}")
    return HEADER + "\n".join(rows) + "\n"


def test_calibrate_finds_the_rates_of_an_ideal_device(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text(ideal_gemms(peak=0.8 * 989e12, bandwidth=0.9 * 3.35e12))
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(points), "--json"])
    assert found.exit_code == 0, found.output
    fit = json.loads(found.output)["gemm_bf16"]
    assert abs(fit["compute"] - 0.8) < 0.05
    assert abs(fit["memory"] - 0.9) < 0.05
    assert fit["median_error"] < 0.05  # the formula rounds the corner of the roofline, this device does not


def test_calibrate_prints_a_section_for_the_device_file(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text(ideal_gemms(peak=5e14, bandwidth=2e12))
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(points)])
    assert found.output.startswith("# h100-sxm-80gb, fitted to points.csv\nkernels:\n  gemm_bf16:\n    compute: ")


def test_a_run_takes_prices_from_the_table_and_says_where_it_does_not_reach(tmp_path: Path) -> None:
    points = tmp_path / "slow.csv"
    points.write_text(HEADER + "".join(f"gemm,{m},4096,4096,bf16,0.001\n" for m in (1, 8, 64)))
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: s\ntopology: {name: dgx-h100, nodes: 1}\nmodel: llama-3.1-8b\nserving: {engine: ideal}\n"
        "workload: {arrivals: {process: all_at_once}, prompt_tokens: 16, output_tokens: 2, requests: 1}\n"
    )
    run = ["run", str(scenario), "--out", str(tmp_path / "out")]
    plain = json.loads(CliRunner().invoke(main, [*run, "--json"]).output)
    table = json.loads(CliRunner().invoke(main, [*run, "--json", "--set", "cost={table: slow.csv}"]).output)
    assert table["tpot_ms"]["mean"] > 10 * plain["tpot_ms"]["mean"]
    shown = CliRunner().invoke(main, [*run, "--set", "cost={table: slow.csv}"]).output
    assert "lay outside the measured table" in shown
