"""Law: the scenario that a run directory holds loads again, and as the same scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.resolve import to_yaml
from tests.effort import examples

BASE = """\
name: base
topology: dgx-h100
model: mixtral-8x7b
workload:
  arrivals: {process: all_at_once}
  prompt_tokens: 100
  output_tokens: 10
  requests: 20
"""
CHOICES = {
    ("workload", "arrivals"): (
        {"process": "all_at_once"},
        {"process": "constant", "rate": "4/s"},
        {"process": "poisson", "rate": "4/s"},
        {"process": "gamma", "rate": "4/s", "cv": 2, "rescale": True},
        {"process": "closed_loop", "concurrency": 3},
    ),
    ("workload", "prompt_tokens"): (
        7,
        {"uniform": {"low": 1, "high": 9}},
        {"lognormal": {"mean": 9, "cv": 0.5}},
        {"empirical": {"values": [1, 2], "weights": [1, 0]}},
    ),
    ("topology",): ("dgx-h100", "tpu-v5p", {"name": "fat-tree", "nodes": 3}, {"name": "dgx-h100", "device": "l40s"}),
    ("model",): ("gpt-oss-20b", {"name": "mixtral-8x7b", "config": {"num_hidden_layers": 4}}),
    ("plan",): (
        {},
        {"tp": 2, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}},
        {"pp": 2, "stages": {"cuts": ["2.ffn"]}, "placement": ["n0.g1", "n0.g0"]},
        {"tp": 2, "ep": {"degree": 2, "placement": [0, 1] * 4}, "placement": [1, 0]},
    ),
    ("serving",): ({}, {"engine": {"name": "ideal", "launch": "1 us"}}, {"kv_blocks": 9}),
    ("run",): ({}, {"horizon": "3 s"}),
    ("expect",): ({}, {"legal": True, "ttft_ms.p99": "< 9"}, {"requests": {"finished": 3}}),
}


@examples(60)
@given(st.fixed_dictionaries({path: st.sampled_from(values) for path, values in CHOICES.items()}))
@pytest.mark.filterwarnings("error")
def test_what_a_run_writes_loads_as_the_same_scenario(chosen: dict[tuple[str, ...], object]) -> None:
    document = parse_yaml(BASE, str(Path("base.yaml").absolute()))
    for path, value in chosen.items():
        holder = document.data
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = value
    if "tpu" in str(chosen["topology",]):
        document.data["plan"].pop("placement", None)
    scenario = build_scenario(document)
    again = build_scenario(parse_yaml(to_yaml(scenario.portable), "runs/base/scenario.yaml"))
    assert again.document == scenario.document
    assert again.digest == scenario.digest
    assert (again.plan, again.serving, again.engine, again.model) == (
        scenario.plan, scenario.serving, scenario.engine, scenario.model,
    )  # fmt: skip
