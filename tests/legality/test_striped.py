"""Stripes: token i of a chunk on SP rank i mod sp. Legal at every level, and a stripe that slips is found."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.plan import segments as plan_segments
from clustersim.proof import tokens as proof_tokens
from clustersim.simulation import legality as run_legality
from clustersim.simulation.audit import audit_run
from clustersim.simulation.legality import check_scenario, check_scenario_plan
from clustersim.simulation.proof import prove_scenario
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.test_hand_over_mutations import DOCUMENT as POOLS
from tests.legality.timeline.test_replay_mutations import document


def striped(scheme: str, decode: str, degree: int = 2) -> dict[str, Any]:
    return {"degree": degree, "scheme": scheme, "partition": "striped", "decode": decode}


SCENARIOS = {
    "ring": document(plan={"sp": striped("ring", "dp"), "pp": 2}),
    "all_gather": document(plan={"sp": striped("all_gather", "idle", 4)}, serving={"prefix_caching": True}),
    "all_to_all": document(plan={"sp": striped("all_to_all", "dp", 4), "tp": 2}),
    "pools": POOLS | {"plan": {"prefill": {"sp": striped("ring", "dp"), "tp": 2}, "decode": {"pp": 2}}},
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_stripes_are_legal_and_prove_and_both_replays_agree(name):
    scenario = scenario_of(SCENARIOS[name])
    assert check_scenario(scenario).violations == ()
    folded = simulate(scenario)
    assert audit_run(folded).violations == ()
    assert folded.timeline.digest == simulate(scenario_of(SCENARIOS[name], replay="full")).timeline.digest
    found = prove_scenario(scenario, orders=1)
    assert found.verdict.violations == ()
    assert found.proof is not None
    assert found.proof.max_relative_error < 1e-9


def a_token_late(count: int, sp: int, partition: str) -> Any:
    return [((rank + 1, count, sp),) for rank in range(sp)]


def one_too_many(count: int, sp: int, partition: str) -> Any:
    return [((rank, count, sp - (rank == 0)),) for rank in range(sp)]


@pytest.mark.parametrize("wrong", [a_token_late, one_too_many])
def test_stripes_of_a_simulator_that_lose_or_share_a_token_are_illegal(wrong, monkeypatch):
    monkeypatch.setattr(run_legality, "segments", wrong)
    (found,) = check_scenario_plan(scenario_of(SCENARIOS["ring"])).violations
    assert (found.rule, found.where) == ("SP-1", "plan.sp.partition")


@pytest.mark.parametrize("name", ["ring", "all_gather"])
def test_stripes_that_lose_a_token_do_not_prove(name, monkeypatch):
    monkeypatch.setattr(proof_tokens, "segments", a_token_late)
    assert prove_scenario(scenario_of(SCENARIOS[name]), orders=0).verdict.violations


def test_a_ring_of_stripes_takes_less_time_than_one_of_segments_in_a_row():
    """Of segments in a row the last rank attends to nearly twice the mean in each of its steps."""

    def end_ns(partition: str) -> int:
        sp = striped("ring", "idle", 4) | {"partition": partition}
        long = {"prompt_tokens": {"fixed": 4000}, "output_tokens": {"fixed": 2}, "requests": 1}
        serving = {"max_batch_tokens": 4096, "kv_blocks": 1100}
        return simulate(scenario_of(document(plan={"sp": sp}, workload=long, serving=serving))).timeline.end_ns

    assert end_ns("striped") < end_ns("contiguous")
    assert plan_segments.segments(6, 2, "striped") == [((0, 6, 2),), ((1, 6, 2),)]
