"""The measures of a whole run: parts that must agree with each other, and what they are without a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scenario_text import SMALL

from clustersim.report.summary import summary_of
from clustersim.scenario.expect import SUMMARY_KEYS
from clustersim.scenario.load import load
from tests.audit import simulated


@pytest.fixture
def summary(tmp_path: Path):
    """A function from changes of a small scenario to its summary."""
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, encoding="utf-8")
    return lambda *changes: summary_of(simulated(load(str(file), changes)))


def test_times_energy_and_cost_agree(summary) -> None:
    found = summary("topology={name: dgx-h100, nodes: 1, price: 3 USD/h}")
    used, energy, cost = (found[name] for name in ("utilisation", "energy", "cost"))
    assert used["exposed_communication"] <= used["communication"] * (1 + 1e-12)
    assert 0 < used["mfu"] < used["mbu"] < used["compute"] < 1
    assert [row["stage"] for row in used["stages"]] == [0, 1]
    assert used["compute"] == pytest.approx(sum(used["devices"]) / 8)
    assert used["bubble"] == pytest.approx(sum(row["bubble"] for row in used["stages"]) / 2)
    assert energy["mean_device_w"] == pytest.approx(70 + 630 * used["compute"])
    assert energy["idle_assumed"]
    assert used["generated_tokens_per_s_per_device"] * 8 == used["generated_tokens_per_s"]
    assert found["throughput"]["output_tokens_per_s"] == pytest.approx(used["generated_tokens_per_s"])  # all finished
    assert cost["usd"] == pytest.approx(3 / 3600 * 8 * found["makespan_s"])
    assert cost["usd_per_million_output_tokens"] == pytest.approx(cost["usd"] * 1e6 / 200)


def test_every_expected_key_is_in_a_summary(summary) -> None:
    found = summary("topology={name: dgx-h100, nodes: 1, price: 3 USD/h}", "targets={ttft: 1 s}")
    keys = [key for key in SUMMARY_KEYS if not key.startswith(("wall_s", "prefix_cache")) and key != "legal"]
    assert [key for key in keys if _value(found, key) is None] == []


def _value(summary: Mapping[str, Any], key: str) -> object:
    value: Any = summary
    for part in key.split("."):
        value = value[part]
    return value


def test_tokens_of_unfinished_requests_are_generated_but_not_delivered(summary) -> None:
    found = summary("run.horizon=1.0 s", "workload.output_tokens.fixed=100000")
    assert found["requests"]["finished"] == 0
    assert found["throughput"]["output_tokens_per_s"] is None
    assert found["utilisation"]["generated_tokens_per_s"] > 1000


def test_what_sp_ranks_decoded_is_not_known(summary) -> None:
    plan = "plan={tp: 2, sp: {degree: 2, scheme: ring, partition: zigzag, decode: dp}}"
    found = summary(plan)
    assert found["links"] is None
    assert found["utilisation"]["mbu"] > 0


def test_no_step_has_no_measures(summary) -> None:
    found = summary("run.horizon=1 ns")
    assert {name: found[name] for name in ("utilisation", "links", "energy", "cost", "batch", "kv_occupancy")} == (
        dict.fromkeys(("utilisation", "links", "energy", "cost", "batch", "kv_occupancy"))
    )
