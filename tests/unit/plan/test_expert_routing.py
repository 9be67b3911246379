"""Uneven visits of experts and redundant copies: where experts live, what ranks get, and what steps cost then."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from clustersim.clock import Int64Array
from clustersim.errors import InputError
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.legality.check import check_plan
from clustersim.plan.experts import expert_hosts, rank_loads
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from clustersim.plan.routing import Routing, visits
from clustersim.replay.prepared import Prepared
from clustersim.report.files.summary import summary_of
from clustersim.report.metrics.experts import balance_words
from clustersim.scenario.load import load
from clustersim.simulation.graph_legality import check_steps
from clustersim.simulation.replay_input import replay_input
from tests.audit import simulated
from tests.laws.agreement import agree
from tests.laws.random_scenarios import MIXTRAL, scenario_of

SKEWED = Routing(frequencies=((8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0),))


def spread(degree: int, **more: Any) -> ExpertPlan:
    return ExpertPlan(degree=degree, **more)


@pytest.mark.parametrize(
    ("weights", "top_k", "expected"),
    [
        ((1.0, 1.0, 1.0, 1.0), 2, (0.5, 0.5, 0.5, 0.5)),
        ((3.0, 1.0, 1.0, 1.0), 2, (1.0, 1 / 3, 1 / 3, 1 / 3)),  # a token visits an expert once
        ((4.0, 4.0, 0.0, 1.0), 2, (8 / 9, 8 / 9, 0.0, 2 / 9)),
        ((1.0, 2.0), 2, (1.0, 1.0)),
    ],
)
def test_a_token_visits_its_experts_once_each(weights, top_k, expected) -> None:
    assert visits(weights, top_k) == pytest.approx(expected)


def test_frequencies_without_enough_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="visits 2 experts"):
        visits((1.0, 0.0), 2)


def test_zipf_ranks_each_layer_in_another_order_whatever_the_plan() -> None:
    weights = Routing(zipf=1.0).weights(8, 3)
    assert sorted(weights, reverse=True) == pytest.approx([1 / place for place in range(1, 9)])
    assert len({Routing(zipf=1.0).weights(8, layer).index(1.0) for layer in range(20)}) > 4


def test_rank_is_loaded_by_its_experts() -> None:
    # shares of 16 visits-to-be: two per token; of the four EP ranks the first has 8 + 4 of 19
    often = visits(SKEWED.weights(8, 0), 2)
    loads = rank_loads(8, 2, spread(4, routing=SKEWED), 0)
    assert loads == pytest.approx([(often[2 * r] + often[2 * r + 1]) / 2 * 4 for r in range(4)])
    assert fsum(loads) == pytest.approx(4)
    assert rank_loads(8, 2, spread(4), 0) is rank_loads(8, 2, spread(4, routing=Routing(zipf=0.0)), 0) is None


def test_copies_are_of_the_most_visited_experts_and_level_the_ranks() -> None:
    copied = spread(4, routing=SKEWED, redundant=4)
    hosts = expert_hosts(8, 2, copied, 0)
    assert [len(ranks) for ranks in hosts] == [4, 2, 1, 1, 1, 1, 1, 1]
    assert [sum(rank in ranks for ranks in hosts) for rank in range(4)] == [3, 3, 3, 3]
    assert max(rank_loads(8, 2, copied, 0)) < max(rank_loads(8, 2, spread(4, routing=SKEWED), 0)) / 1.3


def test_every_rank_holds_as_many_and_no_expert_twice() -> None:
    for seed in range(200):
        random = Random(seed)
        ep, each = random.choice((2, 3, 4, 8)), random.choice((1, 2, 4))
        experts = ep * each
        weights = tuple(random.random() ** 3 for _ in range(experts))
        redundant = ep * random.randint(1, max(1, experts - each))
        plan = spread(ep, routing=Routing(frequencies=(weights,)), redundant=redundant)
        hosts = expert_hosts(experts, random.randint(1, experts), plan, 0)
        assert all(len(set(ranks)) == len(ranks) > 0 for ranks in hosts), seed
        held = [sum(rank in ranks for ranks in hosts) for rank in range(ep)]
        assert held == [(experts + redundant) // ep] * ep, seed


@pytest.mark.parametrize("zipf", [0.25, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("ep", [32, 128])
def test_copies_level_deepseek(ep: int, zipf: float) -> None:
    for layer in (0, 7, 57):
        skewed, copied = (spread(ep, routing=Routing(zipf=zipf), redundant=many) for many in (0, ep))
        assert max(rank_loads(256, 8, copied, layer)) < max(rank_loads(256, 8, skewed, layer))


# --- what a step costs ----------------------------------------------------------------------------------------------

BATCHES = {
    "decode": StepBatch(decode_sequences=(8,), decode_keys=(800,)),
    "prefill": StepBatch(chunks=(Chunk(request=0, start=0, count=700),)),
    "mixed": StepBatch(chunks=(Chunk(request=0, start=0, count=90),), decode_sequences=(3,), decode_keys=(90,)),
}


def document(plan: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "skewed",
        "topology": "dgx-h100",
        "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}},
        "plan": plan,
        "serving": {"max_batch_tokens": 64, "engine": "ideal"},
        "workload": {
            "arrivals": {"process": "poisson", "rate": "300/s"},
            "prompt_tokens": {"uniform": {"low": 1, "high": 90}},
            "output_tokens": {"uniform": {"low": 1, "high": 6}},
            "requests": 6,
        },
        "run": {},
    }


def pass_ns(ep: dict[str, Any], kind: str, **plan: Any) -> Int64Array:
    """How long a step takes on two ranks, or replicas, of four that share experts."""
    shape = {"tp": 4, **plan, "ep": {"degree": 4, **ep}}
    scenario = scenario_of(document(shape))
    given = replay_input(scenario, scenario.requests())
    batch = BATCHES[kind]
    if scenario.plan.is_lockstep:
        batch = StepBatch(
            chunks=tuple(replace(chunk, owner=s) for s in range(4) for chunk in batch.chunks),
            decode_sequences=batch.decode_sequences * 4,
            decode_keys=batch.decode_keys * 4,
        )
    program = Prepared(given).pools[0].programs[0, 0][kind]
    times = given.entry.pricer.durations(program, batch, given.entry.pricer.features(batch))
    return program.template.total_times(times[None, :])


@pytest.mark.parametrize("kind", [kind for kind in BATCHES if kind != "decode"])
@pytest.mark.parametrize("scope", ["replica", "global"])
def test_more_on_the_most_visited_rank_never_makes_a_step_faster_that_visits_all_experts(scope: str, kind: str) -> None:
    plan = {"tp": 1, "dp": 4} if scope == "global" else {}
    skews = (0.0, 0.3, 0.6, 1.0, 2.0)
    most = [
        tuple(max(rank_loads(8, 2, spread(4, routing=Routing(zipf=zipf)), layer) or (1.0,)) for layer in range(2))
        for zipf in skews
    ]
    took = [int(pass_ns({"scope": scope, "routing": {"zipf": zipf}}, kind, **plan)[0]) for zipf in skews]
    assert took[0] == int(pass_ns({"scope": scope}, kind, **plan)[0])
    for a, loads in enumerate(most):
        for b, others in enumerate(most):
            if all(mine <= theirs for mine, theirs in zip(loads, others, strict=True)):
                assert took[a] <= took[b], (skews[a], skews[b])
    assert took[-1] > took[0]


def test_ranks_wait_in_the_combine_for_the_one_that_is_visited_most() -> None:
    spans = simulated(
        scenario_of(document({"dp": 4, "ep": {"degree": 4, "scope": "global", "routing": {"zipf": 1.0}}}))
    ).timeline.unfold()
    at = {name: number for number, name in enumerate(spans.names)}
    first = spans.step == spans.step.min()
    up, back = (first & (spans.layer == 0) & (spans.name == at[name]) for name in ("expert_down", "combine"))
    assert len(np.unique((spans.end_ns - spans.start_ns)[up])) > 1
    assert set(spans.start_ns[back].tolist()) == {int(spans.end_ns[up].max())}


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 4, "ep": {"degree": 4, "routing": {"zipf": 1.0}}},
        {"tp": 2, "dp": 2, "ep": {"degree": 4, "scope": "global", "routing": {"zipf": 0.8}, "redundant": 4}},
        {"tp": 2, "pp": 2, "ep": {"degree": 2, "routing": {"zipf": 2.0}, "redundant": 2}},
        {"tp": 2, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"},
         "ep": {"degree": 2, "routing": {"zipf": 1.0}}},
    ],
)  # fmt: skip
def test_both_replays_agree_and_step_graphs_are_legal(plan: dict[str, Any]) -> None:
    scenario = scenario_of(document(plan))
    agree(replay_input(scenario, scenario.requests()))
    assert check_steps(scenario.model, scenario.plan, scenario.precision).violations == ()


# --- memory, rules, proof -------------------------------------------------------------------------------------------


def test_copies_take_memory() -> None:
    model, precision = scenario_of(document({"tp": 1})).model, scenario_of(document({"tp": 1})).precision

    def fits(redundant: int, memory: int) -> bool:
        plan = ParallelPlan(tp=4, ep=spread(4, redundant=redundant))
        verdict = check_plan(
            plan=plan, model=model, num_devices=4, memory_bytes=memory, precision=precision,
        )  # fmt: skip
        return "KV-6" not in {violation.rule for violation in verdict.violations}

    def least(redundant: int) -> int:
        low, high = 0, 2**40
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(redundant, middle) else (middle, high)
        return high

    expert = 3 * 4096 * 14336 * 2
    assert least(4) - least(0) == pytest.approx(2 * expert / 0.9, rel=1e-3)  # one more in each of two layers


@pytest.mark.parametrize(("redundant", "rules"), [(4, []), (8, []), (6, ["EP-1"]), (28, ["EP-1"])])
def test_copies_are_as_many_on_every_rank_and_never_two_on_one(redundant: int, rules: list[str]) -> None:
    scenario = scenario_of(document({"tp": 1}))
    plan = ParallelPlan(tp=4, ep=spread(4, redundant=redundant))
    verdict = check_plan(plan=plan, model=scenario.model, num_devices=4, memory_bytes=2**45)
    assert [violation.rule for violation in verdict.violations] == rules
    for violation in verdict.violations:
        assert violation.where == "plan.ep.redundant"
        assert "use" in violation.fix


# --- files ----------------------------------------------------------------------------------------------------------


def of_file(tmp_path: Path, text: str, **more: Any):
    (tmp_path / "often.csv").write_text(text, encoding="utf-8")
    ep = {"degree": 4, "routing": {"file": str(tmp_path / "often.csv")}, **more}
    return scenario_of(document({"tp": 4, "ep": ep}))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("1,2,3,4,5,6,7,8\n", 1),
        ("1\n2\n3\n4\n5\n6\n7\n8\n", 1),
        ("1,2,3,4,5,6,7,8\n\n8, 7,6,5,4,3,2,1e0\n", 2),
    ],
)
def test_frequencies_come_from_a_file(tmp_path: Path, text: str, rows: int) -> None:
    found = of_file(tmp_path, text).plan.ep.routing
    assert len(found.frequencies) == rows
    assert found.weights(8, 0) == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    assert found.weights(8, 1)[0] == (1.0 if rows == 1 else 8.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3,4,5,x,7,8\n", r"often\.csv:1:11: found text; expected how often"),
        ("1,2,3,4,5,6,7,8\n1,-2,3,4,5,6,7,8\n", r"often\.csv:2:3: found '-2'"),
        ("1,2,3,4,5,6,7,8\n1,2\n", r"often\.csv:2:1: has 2 numbers, where the first line has 8"),
        ("1,2,3\n", r"often\.csv:1:1: has 3 numbers; tiny has 8 experts"),
        ("1,2,3,4,5,6,7,8\n" * 3, r"often\.csv:1:1: has 3 lines; tiny has 2 layers with experts"),
        ("1,0,0,0,0,0,0,0\n", r"often\.csv:1:1: lets tokens visit fewer than the 2"),
        ("\n", r"often\.csv: the file is empty"),
        ("1,2,3,4,5,6,7," + "8" * 5000 + "\n", r"often\.csv:1:15: found text; expected how often"),
        ("1,1e400,3,4,5,6,7,8\n", r"often\.csv:1:3: found '1e400'"),
        ("1,2,3,4,5,6,7,0." + "0" * 200 + "1\n", r"often\.csv:1:15: found"),
    ],
)
def test_mistakes_in_a_file_are_shown_where_they_are(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        of_file(tmp_path, text)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"ep": {"redundant": 2}}, "ep.redundant: goes with a degree above 1"),
        ({"tp": 4, "ep": {"degree": 4, "routing": {"zipf": 1.0, "file": "a.csv"}}}, "zipf and file"),
        ({"tp": 4, "ep": {"degree": 4, "redundant": 4, "placement": "strided"}}, "placed by how often"),
        ({"tp": 4, "ep": {"degree": 4, "routing": "uneven"}}, "'balanced', {zipf: 1.0}"),
        ({"tp": 4, "ep": {"degree": 4, "routing": {"file": "nowhere.csv"}}}, "no frequency file 'nowhere.csv'"),
    ],
)
def test_what_means_nothing_is_refused(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario_of(document(plan))


def test_imbalance_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "skewed.yaml"
    file.write_text((Path(__file__).parents[3] / "scenarios" / "mixtral-ep.yaml").read_text(), encoding="utf-8")
    few = ("workload.requests=2", "expect={}")
    found = [
        summary_of(simulated(load(str(file), (*few, *changes))))["experts"]
        for changes in ((), ("plan.ep.routing.zipf=1",), ("plan.ep.routing.zipf=1", "plan.ep.redundant=4"))
    ]
    even, skewed, copied = (one["imbalance"] for one in found)
    assert even == {"mean": 1.0, "max": 1.0}
    assert skewed["max"] >= skewed["mean"] > copied["mean"] >= 1.0
    assert [balance_words(one)[:24] for one in found] == ["", "most visited rank 1.87 ×", "most visited rank 1.04 ×"]
    assert "with 4 redundant" in balance_words(found[2])
