"""What whole commands take, start and page and files and all: CPU seconds and memory of processes of their own.

``pytest tests/benchmarks -m benchmark -s`` prints them. ``CLUSTERSIM_BENCHMARK_COMMAND`` says how many requests the
long one has. Nothing here passes or fails by time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.benchmarks.test_million import FLEET, RATE, TEN_THOUSAND, azure, report

pytestmark = pytest.mark.benchmark

MILLION = int(os.environ.get("CLUSTERSIM_BENCHMARK_COMMAND", "1_000_000"))


def spent(folder: Path, *words: str) -> tuple[float, int]:
    """Run a command to its end; return the CPU seconds of its process and children, and the most bytes one held."""
    command = [sys.executable, "-m", "clustersim", *words, "--out", str(folder), "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def test_run_quickstart(benchmark, tmp_path: Path) -> None:
    """CPU seconds of ``clustersim run quickstart``; asked: 1.2."""
    each = [spent(tmp_path / str(number), "run", "quickstart")[0] for number in range(5)]
    benchmark.pedantic(lambda: None, rounds=1)
    report(benchmark, median(each), "CPU s, asked 1.2; of " + ", ".join(f"{one:.2f}" for one in each))


def test_run_of_a_million_requests(benchmark, tmp_path: Path) -> None:
    """CPU seconds of ``clustersim run`` on one node; asked: 15 s and 1 GB."""
    words = ["run", "tp-on-one-node", "--set", azure(MILLION, RATE), "--set", "expect={}"]
    took, held = spent(tmp_path / "run", *words)
    benchmark.pedantic(lambda: None, rounds=1)
    report(benchmark, took, f"CPU s of {MILLION:,} requests, asked 15; {held / 1e9:.2f} GB, asked 1")


def test_run_of_ten_thousand_devices(benchmark, tmp_path: Path) -> None:
    """CPU seconds of ``clustersim run`` of :data:`TEN_THOUSAND`; and bytes per request."""
    name, *overrides = TEN_THOUSAND
    changed = [word for one in (*overrides, "expect={}") for word in ("--set", one)]
    took, held = spent(tmp_path / "run", "run", name, *changed, "--max-time", "40 h", "--max-memory", "20 GiB")
    benchmark.pedantic(lambda: None, rounds=1)
    report(benchmark, took, f"CPU s of {FLEET:,} requests; {held / 1e9:.2f} GB, {held / FLEET:,.0f} bytes a request")
