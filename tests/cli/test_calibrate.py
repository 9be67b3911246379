"""``clustersim calibrate`` and ``cost.table``: a user's own measurements in place of what ships."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from clustersim import catalog
from clustersim.cli import main
from clustersim.cluster.device import device_from
from clustersim.cost import Precision, RooflineCost
from clustersim.cost.grid import with_grids

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


def published(path: Path, **columns: list[object]) -> Path:
    """Write a table of decode attention with the columns that ai-dynamo/aiconfigurator publishes."""
    pq.write_table(pa.table(columns), path)
    return path


def decode_rows(seconds_per_byte: float) -> dict[str, list[object]]:
    """Return rows of a device that does nothing but read keys and values, twice as slowly without groups."""
    shapes = [(batch, step, 32, kv) for batch in (8, 32, 128) for step in (2047, 8191, 32767) for kv in (8, 32)] * 2
    ms = [b * (s + 1) * kv * 2 * 128 * 2 * seconds_per_byte * 1e3 * (2 if kv == h else 1) for b, s, h, kv in shapes]
    columns = dict(zip(("batch_size", "step", "num_heads", "num_key_value_heads"), map(list, zip(*shapes, strict=True)),
                       strict=True))  # fmt: skip
    same = {"head_dim": 128, "kv_cache_dtype": "bfloat16", "kernel_source": "flash", "window_size": 0}
    return columns | {name: [value] * len(shapes) for name, value in same.items()} | {"latency": ms}


def test_calibrate_reads_a_published_table_as_it_is(tmp_path: Path) -> None:
    path = published(tmp_path / "generation_attention_perf.parquet", **decode_rows(1 / (0.8 * 3.35e12)))
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(path), "--json"])
    assert found.exit_code == 0, found.output
    fits = json.loads(found.output)
    assert fits.keys() == {"attention_decode_bf16", "multihead_decode_bf16"}
    assert all(fit["points"] >= 16 and fit["median_error"] < 0.05 for fit in fits.values())


def test_calibrate_prints_kernels_of_an_engine_family_that_a_device_takes(tmp_path: Path) -> None:
    path = published(tmp_path / "generation_attention_perf.parquet", **decode_rows(1 / (0.8 * 3.35e12)))
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(path), "--engine", "trtllm"])
    section = yaml.safe_load(found.output)["kernels"]
    assert section.keys() == {"trtllm"}
    document = {
        "name": "d", "vendor": "v", "source": "an example", "compute": {"bf16": "989 TFLOP/s"},
        "memory": {"capacity": "80 GB", "bandwidth": "3.35 TB/s"}, "kernels": section,
    }  # fmt: skip
    groups = device_from(document).running("trtllm").kernels
    assert groups.keys() == {"attention_decode_bf16", "multihead_decode_bf16"}


def test_calibrate_refuses_an_engine_that_is_misspelt(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text(ideal_gemms(peak=5e14, bandwidth=2e12))
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(tmp_path / "points.csv"), "--engine", "vlm"])
    assert (found.exit_code, "did you mean 'vllm'?" in found.stderr) == (2, True)


def test_where_a_fit_errs_much_its_points_are_printed_and_taken(tmp_path: Path) -> None:
    """Decodes that take longest with 32 sequences, which no constants describe."""
    rows = decode_rows(1 / (0.8 * 3.35e12))
    rows["latency"] = [
        ms * {8: 1.0, 32: 2.2, 128: 1.3}[batch] for ms, batch in zip(rows["latency"], rows["batch_size"], strict=True)
    ]
    path = published(tmp_path / "generation_attention_perf.parquet", **rows)
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(path)])
    assert found.exit_code == 0, found.output
    section = yaml.safe_load(found.output)["kernels"]
    assert "; of the grid 0." in section["attention_decode_bf16"]["source"]
    document = {
        "name": "d", "vendor": "v", "source": "an example", "compute": {"bf16": "989 TFLOP/s"},
        "memory": {"capacity": "80 GB", "bandwidth": "3.35 TB/s"}, "kernels": section,
    }  # fmt: skip
    cost = with_grids(RooflineCost(device_from(document), Precision()))
    shape = {"heads": 32.0, "kv_heads": 8.0, "qk_dim": 128.0, "v_dim": 128.0}
    for batch, step, kv_heads, ms in zip(
        *(rows[key] for key in ("batch_size", "step", "num_key_value_heads", "latency")), strict=True
    ):
        if kv_heads == 8 and batch * step >= 32 * 2047:  # what is smaller could have been read from the cache
            took = float(cost.seconds("attention_decode", shape | {"batch": batch, "keys": batch * (step + 1)}))
            assert abs(took * 1e3 / ms - 1) < 0.1
    told = json.loads(CliRunner().invoke(main, ["calibrate", "dgx-h100", str(path), "--json"]).output)
    assert told["attention_decode_bf16"]["grid"]["median_error"] < 0.05 < told["attention_decode_bf16"]["median_error"]


def test_a_published_table_without_a_column_says_which(tmp_path: Path) -> None:
    rows = decode_rows(1e-12)
    rows["latency_ms"] = rows.pop("latency")
    path = published(tmp_path / "generation_attention_perf.parquet", **rows)
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(path)])
    assert found.exit_code == 2
    assert "has no column 'latency'; rename 'latency_ms' if that is it, not in ms" in found.stderr


def test_points_of_another_device_are_not_fitted(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text("op,device,bytes,seconds\nmemory,a100-sxm-80gb,1e6,1e-6\n")
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(points)])
    assert found.exit_code == 2
    assert "has no point of h100-sxm-80gb; it has some of a100-sxm-80gb" in found.stderr


def test_calibrate_prints_a_section_for_the_device_file(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text(ideal_gemms(peak=5e14, bandwidth=2e12))
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(points)])
    assert found.output.startswith("# h100-sxm-80gb, fitted to points.csv\nkernels:\n  gemm_bf16:\n    compute: ")


def test_a_run_takes_prices_from_the_table_and_says_where_it_does_not_reach(tmp_path: Path) -> None:
    points = tmp_path / "slow.csv"
    points.write_text(HEADER + "".join(f"gemm,{m},4096,4096,bf16,0.0005\n" for m in (1, 8, 64)))
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: s\ntopology: {name: dgx-h100, nodes: 1}\nmodel: llama-3.1-8b\nserving: {engine: ideal}\n"
        "workload: {arrivals: {process: all_at_once}, prompt_tokens: 16, output_tokens: 2, requests: 1}\n"
    )
    run = ["run", str(scenario), "--no-dashboard", "--out", str(tmp_path / "out")]
    plain = json.loads(CliRunner().invoke(main, [*run, "--json"]).output)
    table = json.loads(CliRunner().invoke(main, [*run, "--json", "--set", "cost={table: slow.csv}"]).output)
    assert table["tpot_ms"]["mean"] > 10 * plain["tpot_ms"]["mean"]
    shown = CliRunner().invoke(main, [*run, "--set", "cost={table: slow.csv}"]).output
    assert "lay outside the measured table" in shown


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["gemm,16,4096,4096,bf16,0.0155", "gemm,32,4096,4096,bf16,0.016"],
         "slow.csv:2:24: seconds: lasts 956 times"),
        (["gemm,16,4096,4096,bf16,0.0155"], "expected seconds, are these milliseconds?"),
        (["gemm,16,4096,4096,bf16,15e-6", "gemm,32,4096,4096,bf16,0.016"], "slow.csv:3:24: seconds: lasts 9"),
        (["gemm,16384,8192,8192,bf16,1e-3"], "slow.csv:2:27: seconds: a point reaches 2,199 TFLOP/s, above the peak"),
        (["gemm,16,4096,4096,bf16,15e-6", "gemm,16,4096,4096,bf16,16e-6"],
         "slow.csv:3:24: seconds: found 1.6e-05 s, and 1.5e-05 s for the same shape in line 2"),
        (["gemm,16,4096,4096,,15e-6", "gemm,16,4096,4096,bf16,16e-6"], "for the same shape in line 2"),
        (["gemm,16.5,4096,4096,bf16,15e-6"], "slow.csv:2:6: m: expected a whole number, but found '16.5'"),
    ],
)  # fmt: skip
def test_prices_that_nobody_can_have_measured_are_refused_where_they_stand(tmp_path, lines, said):
    (tmp_path / "slow.csv").write_text(HEADER + "\n".join(lines) + "\n")
    quick = catalog.path_of("scenarios", "quickstart")
    arguments = [
        "run",
        str(quick),
        "--no-dashboard",
        "--out",
        str(tmp_path / "out"),
        "--set",
        f"cost.table={tmp_path}/slow.csv",
    ]
    found = CliRunner().invoke(main, arguments)
    assert (found.exit_code, said in found.stderr) == (2, True), found.stderr


def test_a_published_table_of_another_device_is_refused(tmp_path: Path) -> None:
    rows = decode_rows(1 / (0.8 * 3.35e12))
    for device, code in (("NVIDIA A100-SXM4-80GB", 2), ("NVIDIA GH100 80GB", 2), ("NVIDIA H100 80GB HBM3", 0)):
        path = published(tmp_path / "generation_attention_perf.parquet", **rows, device=[device] * len(rows["latency"]))
        found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(path)])
        assert (found.exit_code, f"has no row of h100-sxm-80gb; it has some of {device}" in found.stderr) == (
            code,
            code == 2,
        )


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1e3, "expected seconds, are these milliseconds?"),
        (1e6, "expected seconds, are these microseconds?"),
        (1e9, "expected seconds, are these nanoseconds?"),
        (0.5, "TFLOP/s, above the peak of 989 of h100-sxm-80gb"),
    ],
)
def test_points_in_another_unit_or_above_the_peak_are_refused(tmp_path: Path, times: float, said: str) -> None:
    header, *lines = ideal_gemms(peak=0.8 * 989e12, bandwidth=0.9 * 3.35e12).splitlines()
    cells = [line.rsplit(",", 1) for line in lines]
    rows = [f"{shape},{min(float(seconds) * times, 8e4):.9g}" for shape, seconds in cells]
    (tmp_path / "points.csv").write_text("\n".join([header, *rows]) + "\n")
    found = CliRunner().invoke(main, ["calibrate", "dgx-h100", str(tmp_path / "points.csv")])
    assert (found.exit_code, said in found.stderr) == (2, True), found.stderr
