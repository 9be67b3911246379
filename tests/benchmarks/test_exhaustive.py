"""A search that prunes against one that simulates every plan: the best, the bounds, and the front.

``pytest tests/benchmarks -m benchmark -s -k exhaustive`` prints what the guide on many runs keeps. The smallest
question takes minutes, the others an hour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from clustersim.cli import main

pytestmark = pytest.mark.benchmark

QUESTIONS: Final = {
    "8B on 2 H100": ("quickstart", "--set", "model=llama-3.1-8b", "--devices", "2", "--lasting", "5 s"),
    "8B on 4 H100": ("quickstart", "--set", "model=llama-3.1-8b", "--devices", "4", "--exactly", "--lasting", "5 s"),
    "70B on 8 H100": ("quickstart", "--devices", "8", "--exactly"),
    "DeepSeek-V3 on 8 H200": ("deepseek-v3-wide-ep", "--topology", "dgx-h200", "--devices", "8", "--exactly",
                              "--targets", "ttft=2 s, tpot=100 ms"),
}  # fmt: skip
TIE: Final = 0.97


def searched(folder: Path, *args: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what a search prints, and its table of plans."""
    told = CliRunner().invoke(main, ["search", *args, "--workers", "1", "--out", str(folder), "--json"])
    assert told.exit_code == 0, told.stderr
    return json.loads(told.stdout), pq.read_table(folder / "points.parquet").to_pylist()


def best_three(told: Mapping[str, Any]) -> list[float]:
    """Return what the best three plans reach at length."""
    return [one["value"] for one in told["certificate"]["finalists"][:3]]


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_exhaustive_search_finds_no_better_plan_and_none_above_its_bound(tmp_path: Path, question: str) -> None:
    alone, _ = searched(tmp_path / "pruned", *QUESTIONS[question], "--effort", "all", "--front", "1")
    quick, pruned = searched(tmp_path / "pruned", *QUESTIONS[question], "--effort", "all")
    whole, every = searched(tmp_path / "every", *QUESTIONS[question], "--exhaustive", "--front", "0")
    bounds = {one["words"]: one["bound"] for one in (*pruned, *every) if one["bound"] is not None}
    shares = [one["reached"] / bounds[one["words"]] for one in every if one["reached"] and one["words"] in bounds]
    three = [mine / other for mine, other in zip(best_three(quick), best_three(whole), strict=False)]
    before, front = (one["certificate"]["hypervolume"] / whole["certificate"]["hypervolume"] for one in (alone, quick))
    possible = whole["certificate"]["hypervolume"] / whole["certificate"]["front"]["possible"]
    more = quick["certificate"]["runs"] - alone["certificate"]["runs"]
    print(
        f"\n  {question}: {whole['legal']:,} legal plans, {quick['simulated']:,} simulated of them; best "
        f"{quick['best']['plan']} | {whole['best']['plan']}; best three {', '.join(f'{one:.3f}' for one in three)} of "
        f"those of all; highest {max(shares):.3f} of its bound; hypervolume {before:.3f}, with "
        f"the front ({more:,} runs more) {front:.3f}; of what is "
        f"possible {possible:.3f}"
    )
    assert max(shares) <= 1.0
    assert possible <= 1.0
    assert front >= 0.99
    assert quick["best"]["value"] >= TIE * whole["best"]["value"]
