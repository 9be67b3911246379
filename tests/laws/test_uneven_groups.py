"""Groups of one operator that cost differently on their links: each takes its own time, in every replay."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from clustersim.scenario.load import load
from clustersim.simulation.audit import check_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.effort import is_whole
from tests.laws.agreement import agree

TEXT: Final = """
name: groups
topology: dgx-h100
model: llama-3.1-8b
plan: {{tp: {tp}, sp: {{degree: 2, scheme: {scheme}, partition: contiguous, decode: dp}}, placement: {placement}}}
serving: {{scheduler: chunked_prefill}}
workload: {{arrivals: {{process: poisson, rate: 50/s}}, prompt_tokens: 2048, output_tokens: 3, requests: 4}}
"""
COLLECTIVES: Final = {"all_gather": "kv_all_gather", "ring": "kv_ring_1", "all_to_all": "qkv_all_to_all"}


def ran(folder: Path, scheme: str, tp: int, placement: list[int]) -> RunResult:
    path = folder / f"{tp}.yaml"
    path.write_text(TEXT.format(scheme=scheme, tp=tp, placement=placement), encoding="utf-8")
    return simulate(load(str(path)))


def durations(result: RunResult, name: str) -> dict[int, set[int]]:
    """Return rank → what the collective of a name takes there in the first whole prompts."""
    spans = result.replayed.timeline.unfold()
    named = spans.name == list(spans.names).index(name)
    first = named & (spans.step == spans.step[named].min())
    took: dict[int, set[int]] = {}
    for rank, ns in zip(spans.rank[first].tolist(), (spans.end_ns - spans.start_ns)[first].tolist(), strict=True):
        took.setdefault(rank, set()).add(ns)
    return took


@pytest.mark.parametrize("scheme", [*COLLECTIVES][:: 1 if is_whole() else 2])
def test_each_group_of_sp_ranks_takes_its_own_time(tmp_path: Path, scheme: str) -> None:
    """TP rank 0 has its SP ranks in one node, TP rank 1 in two: as if each pair were alone with half of the heads."""
    both = ran(tmp_path, scheme, 2, [0, 8, 1, 2])
    took = durations(both, COLLECTIVES[scheme])
    assert took[0] == took[2] != took[1] == took[3]
    near, far = (
        durations(ran(tmp_path, scheme, 2, pair), COLLECTIVES[scheme])[0] for pair in ([0, 3, 1, 4], [8, 9, 2, 3])
    )
    assert (took[0], took[1]) == (near, far)
    assert check_run(both).violations == ()
    agree(both.input)


def test_an_audit_finds_a_group_that_takes_the_time_of_another(tmp_path: Path) -> None:
    """The record says that both groups are of the class of the first one, and so cost the same."""
    result = ran(tmp_path, "all_gather", 2, [0, 8, 1, 2])
    templates = result.replayed.timeline.templates
    uneven = [template for template in templates if len(template.node_class)]
    assert uneven
    for template in uneven:
        object.__setattr__(template, "node_class", np.empty(0, np.int64))
    assert "RUN-2" in {found.rule for found in check_run(result).violations}
