"""``clustersim audit`` of a run against a scenario that was changed in one key: a verdict, never a defect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from clustersim.cli import main
from tests.laws.random_scenarios import LLAMA, MIXTRAL

SPLIT = {"degree": 2, "partition": "contiguous", "decode": "idle"}
PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ring": (LLAMA, {"sp": {**SPLIT, "scheme": "ring"}}),
    "gather": (LLAMA, {"sp": {**SPLIT, "scheme": "all_gather"}}),
    "experts": (MIXTRAL, {"tp": 2, "ep": 2}),
    "wide": (MIXTRAL, {"dp": 4, "ep": {"degree": 4, "scope": "global"}}),
}
CHANGES = (
    ("ring", "plan.sp.scheme", "all_gather", 1),
    ("ring", "plan.sp.scheme", "all_to_all", 1),
    ("ring", "plan.sp.partition", "zigzag", 1),
    ("ring", "plan.sp.degree", 4, 2),
    ("gather", "plan.sp.scheme", "ring", 1),
    ("gather", "plan.sp.decode", "dp", 1),
    ("experts", "plan.ep", 4, 1),
    ("experts", "plan.ep", 1, 1),
    ("experts", "plan.ep", {"degree": 2, "exchange": "all_gather"}, 1),
    ("wide", "plan.ep.redundant", 2, 1),
    ("wide", "plan.ep.overlap", "two_batch", 1),
    ("wide", "plan.ep.scope", "replica", 1),
    ("ring", "plan", {"pp": 2}, 2),
    ("gather", "plan", {"tp": 2}, 2),
    ("experts", "plan", {"sp": SPLIT | {"scheme": "ring"}}, 2),
    ("experts", "model.config.num_local_experts", 4, 1),
    ("ring", "model.config.num_hidden_layers", 3, 1),
    ("ring", "model.config.num_key_value_heads", 1, 1),
    ("ring", "topology", {"name": "dgx-a100", "nodes": 1}, 1),
    ("wide", "precision.weights", "fp8", 1),
    ("wide", "serving.engine", "sglang-0.5", 1),
    ("gather", "serving.scheduler", "static", 1),
    ("gather", "serving.kv_blocks", 10**9, 1),
    ("experts", "seed", 7, 1),
    ("experts", "workload.requests", 3, 2),
    ("experts", "faults", [{"at": "1 ms", "device": 0}], 1),
)
"""Plan, key, another value, exit status: 2 where the record has other replicas or ranks than such a plan."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, (config, plan) in PLANS.items():
        scenario = {
            "name": name,
            "topology": {"name": "dgx-h100", "nodes": 1},
            "model": {"name": "tiny", "source": "a test", "config": config | {"num_hidden_layers": 2}},
            "plan": plan,
            "serving": {"kv_block_tokens": 4, "max_batch_tokens": 32},
            "workload": {
                "arrivals": {"process": "poisson", "rate": "500/s"}, "requests": 4,
                "prompt_tokens": {"uniform": {"low": 20, "high": 64}}, "output_tokens": 4,
            },
        }  # fmt: skip
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(scenario), encoding="utf-8")
        done = CliRunner().invoke(main, ["run", str(file), "--quiet", "--no-dashboard", "--out", str(folder / name)])
        assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize(("name", "key", "value", "status"), CHANGES)
def test_run_against_another_scenario_is_judged(runs: Path, name: str, key: str, value: object, status: int) -> None:
    file = runs / name / "scenario.yaml"
    text = file.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    *outer, last = key.split(".")
    at = document
    for part in outer:
        at = at[part]
    at[last] = value
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        result = CliRunner().invoke(main, ["audit", str(runs / name)])
    finally:
        file.write_text(text, encoding="utf-8")
    assert result.exit_code == status, result.output


def test_page_of_a_run_whose_plan_became_illegal_is_refused(runs: Path) -> None:
    scenario = runs / "experts" / "scenario.yaml"
    text = scenario.read_text(encoding="utf-8")
    changed = yaml.safe_load(text)
    changed["plan"]["ep"] = 4  # of two ranks
    scenario.write_text(yaml.safe_dump(changed), encoding="utf-8")
    try:
        result = CliRunner().invoke(main, ["dashboard", str(runs / "experts")])
    finally:
        scenario.write_text(text, encoding="utf-8")
    assert result.exit_code == 2
    assert "is illegal, and no run records one" in result.output


def test_run_to_compare_with_whose_plan_became_illegal_is_refused(runs: Path) -> None:
    other = runs / "wide" / "scenario.yaml"
    text = other.read_text(encoding="utf-8")
    other.write_text(text.replace("degree: 4", "degree: 3"), encoding="utf-8")
    try:
        result = CliRunner().invoke(main, ["audit", str(runs / "experts"), "--against", str(runs / "wide")])
    finally:
        other.write_text(text, encoding="utf-8")
    assert result.exit_code == 2
    assert "is illegal, and no run records one" in result.output
