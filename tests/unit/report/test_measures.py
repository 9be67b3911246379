"""The measures of a whole run: parts that must agree with each other, and what they are without a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenario_text import SMALL

from clustersim.report.files.summary import summary_of
from clustersim.report.metrics.pool_use import pool_uses
from clustersim.scenario.expect import SUMMARY_KEYS
from clustersim.scenario.load import load
from clustersim.timeline.spans import STREAMS
from tests.audit import simulated
from tests.plain_usage import exposed_ns


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
    elsewhere = ("wall_s", "prefix_cache", "utilisation.pools", "experts", "steady")
    keys = [key for key in SUMMARY_KEYS if not key.startswith(elsewhere) and key != "legal"]
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


POOLS = (
    "plan={prefill: {tp: 4, pp: 2, dp: 1}, decode: {tp: 2, dp: 4}}",
    "serving.scheduler=disaggregated",
    "topology={name: dgx-h100, nodes: 2, price: 3 USD/h}",
)


@pytest.mark.parametrize(
    ("changes", "idle"),
    [(("workload.output_tokens=1",), ["decode"])],
)
def test_a_pool_that_takes_no_step_does_nothing(summary, changes: tuple[str, ...], idle: list[str]) -> None:
    found = summary(*POOLS, *changes)
    assert [pool["kv_blocks"] for pool in found["pools"]] == [
        int(blocks) for blocks in (found["kv_blocks"], summary(*POOLS)["pools"][1]["kv_blocks"])
    ]
    pools = found["utilisation"]["pools"]
    assert [name for name, pool in pools.items() if not pool["compute"]] == idle
    for name in idle:
        done = {key: value for key, value in pools[name].items() if key != "devices"}
        assert done == dict.fromkeys(done, 0.0)


def test_two_pools_do_together_what_one_would(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, encoding="utf-8")
    both, (one,) = (
        pool_uses(simulated(load(str(file), changes))) for changes in (POOLS, ("plan={tp: 4, pp: 2}", POOLS[2]))
    )
    assert [use.devices for use in both] == [8, 8]
    assert sum(use.flops for use in both) == one.flops
    assert all(use.flops > 0 for use in both)
    assert sum(use.peak_flops or 0 for use in both) == 2 * (one.peak_flops or 0)


def test_what_ranks_of_two_pools_did_is_what_their_spans_say(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, encoding="utf-8")
    result = simulated(load(str(file), POOLS))
    spans, uses = result.timeline.unfold(), pool_uses(result)
    busy = np.zeros((16, len(STREAMS)), np.int64)
    np.add.at(busy, (spans.rank, spans.stream), spans.end_ns - spans.start_ns)
    assert np.array_equal(np.concatenate([use.usage.busy_ns for use in uses]), busy)
    assert busy[:8, STREAMS.index("kv_out")].sum() == busy[8:, STREAMS.index("kv_in")].sum() > 0
    exposed = np.array([exposed_ns(spans, rank) for rank in range(16)])
    assert np.array_equal(np.concatenate([use.usage.exposed_ns for use in uses]), exposed)


def test_a_summary_tells_the_pools_apart(summary) -> None:
    found = summary(*POOLS)
    used, pools = found["utilisation"], found["utilisation"]["pools"]
    assert [row["pool"] for row in used["stages"]] == ["prefill", "prefill", "decode"]
    assert used["mfu"] == pytest.approx((pools["prefill"]["mfu"] + pools["decode"]["mfu"]) / 2)  # as many devices
    assert used["compute"] == pytest.approx((pools["prefill"]["compute"] + pools["decode"]["compute"]) / 2)
    assert pools["decode"]["mbu"] > pools["decode"]["mfu"]
    assert pools["decode"]["bubble"] == 0 < pools["prefill"]["bubble"]
    assert found["cost"]["usd"] == pytest.approx(3 / 3600 * 16 * found["makespan_s"])
    assert {tier for tier, use in found["links"]["tiers"].items() if use["used"]} > {"scaleup"}  # K/V leaves its node
    for key in (key for key in SUMMARY_KEYS if key.startswith("utilisation.pools")):
        assert _value(found, key) is not None
