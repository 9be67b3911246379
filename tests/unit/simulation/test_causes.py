"""What requests waited for and got, on runs whose waits follow from one limit each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.simulation.causes.columns import NAMES, cause_columns, cause_shares
from clustersim.simulation.causes.labels import COLUMNS
from clustersim.simulation.simulate import RunResult, simulate

PLAIN = """
name: two
topology: {name: dgx-h100, nodes: 1}
model: llama-3.1-8b
serving: {engine: vllm-0.19, %s}
workload: {arrivals: %s, prompt_tokens: 512, output_tokens: 16, requests: 2}
"""


def ran(serving: str, arrivals: str = "all_at_once") -> tuple[RunResult, dict[str, Any]]:
    """Run two requests, and return their causes by column."""
    document = parse_yaml(PLAIN % (serving, arrivals), "two.yaml")
    result = simulate(build_scenario(document, allow_code=False))
    return result, {name: values.tolist() for name, values in cause_columns(result.causes, result.requests).items()}


def waits(causes: dict[str, Any]) -> set[str]:
    """Return what the second request waited for before its first token, or between its tokens."""
    return {name for name in COLUMNS if causes[name][1]} - {"compute_ns", "host_ns"}


@pytest.mark.parametrize(
    ("serving", "column"),
    [("max_batch_requests: 1", "batch_wait_ns"), ("kv_blocks: 40", "blocks_wait_ns")],
)
def test_a_second_request_waits_for_the_first_one_where_there_is_room_for_one(serving: str, column: str) -> None:
    result, causes = ran(serving)
    assert causes[column] == [0, result.requests["finished_ns"][0]]
    assert waits(causes) == {column}


def test_a_prompt_that_finds_the_budget_spent_waits_for_the_next_step() -> None:
    result, causes = ran("max_batch_tokens: 512")
    assert causes["budget_wait_ns"] == [0, result.requests["first_token_ns"][0]]


def test_a_request_that_arrives_during_a_step_waits_for_its_end() -> None:
    result, causes = ran("max_batch_tokens: 8192", "{process: constant, rate: 500/s}")
    arrived, first = result.requests["arrived_ns"], result.requests["first_token_ns"]
    assert causes["step_wait_ns"] == [0, first[0] - arrived[1]]


def test_what_a_mixed_step_takes_longer_than_decoding_is_interference() -> None:
    """The first request decodes alone but for one step, in which the prompt of the second one is computed."""
    result, causes = ran("max_batch_tokens: 8192", "{process: constant, rate: 20/s}")
    steps = result.timeline.steps
    lasted = steps["end_ns"] - steps["start_ns"]
    alone = (steps["prefill_tokens"] == 0) & (steps["decode_tokens"] == 1)
    (mixed,) = np.flatnonzero((steps["prefill_tokens"] > 0) & (steps["decode_tokens"] > 0))
    mean = int(lasted[alone].sum()) // int(steps["count"][alone].sum())
    assert causes["interference_ns"] == [lasted[mixed] - mean, 0]


def test_shares_add_up_and_are_of_what_they_are_called() -> None:
    result, causes = ran("max_batch_requests: 1")
    found = cause_shares(result.causes, result.columns)
    for name in ("ttft", "tpot", "e2e"):
        assert sum(found[name]["mean"].values()) == pytest.approx(1)
        assert set(found[name]["mean"]) == set(NAMES.values())
    whole = sum(sum(values) for values in causes.values()) + 2 * int(result.requests["front_end_ns"][0])
    assert found["e2e"]["mean"]["batch_wait"] == causes["batch_wait_ns"][1] / whole
    assert found["e2e"]["slowest_ms"] == (result.requests["finished_ns"][1] + result.requests["front_end_ns"][1]) / 1e6
    assert found["tpot"]["mean"]["batch_wait"] == 0


def test_a_request_that_asks_for_no_token_has_no_share_in_ttft() -> None:
    """It waits for its prompt alone: end-to-end has it."""
    result, _ = ran("max_batch_requests: 1")
    columns = dict(result.columns)
    both = cause_shares(result.causes, columns)
    columns["generated_tokens"] = np.array([16, 0])
    found = cause_shares(result.causes, columns)
    assert found["ttft"]["mean"]["batch_wait"] == 0 < both["ttft"]["mean"]["batch_wait"]
    assert found["e2e"] == both["e2e"]
    columns["generated_tokens"] = np.array([0, 0])
    assert cause_shares(result.causes, columns)["ttft"] is None
